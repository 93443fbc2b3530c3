#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
// batch_matmul of a b that is not transposed where n is a multiple of 4, for processors: see
// matmul_wide.glsl. k may be a request's length, so a's rows are no whole texels. A group
// makes 32 x 32 of out; an item has 4 rows of it, 8 apart. Each element is summed in the
// order of k (SPEC E8).
layout(constant_id = 1) const bool masked = false;
layout(std430, binding = 0) readonly buffer A { float a[]; };
layout(binding = 1) uniform textureBuffer b;
layout(std430, binding = 2) readonly buffer Lengths { int lengths[]; };
layout(std430, binding = 3) writeonly buffer Out { vec4 outs[]; };
layout(push_constant) uniform Dims { uint batch, heads, m, k, n; float scale; };

const uint side = 32u, items = 8u;

#define EIGHT(of) of(0) of(1) of(2) of(3) of(4) of(5) of(6) of(7)

#define ZERO(c) vec4 sums0##c = vec4(0.0), sums1##c = vec4(0.0), sums2##c = vec4(0.0), sums3##c = vec4(0.0);

// ADD adds what depth d gives to 4 columns of each row.
#define ADD(c) { \
	vec4 right = texelFetch(b, int(from + min(c, last))); \
	precise vec4 s0 = fma(left.xxxx, right, sums0##c); \
	precise vec4 s1 = fma(left.yyyy, right, sums1##c); \
	precise vec4 s2 = fma(left.zzzz, right, sums2##c); \
	precise vec4 s3 = fma(left.wwww, right, sums3##c); \
	sums0##c = s0; sums1##c = s1; sums2##c = s2; sums3##c = s3; \
}
#define STEP { \
	vec4 left = vec4(a[rows.x + d], a[rows.y + d], a[rows.z + d], a[rows.w + d]); \
	EIGHT(ADD) \
	from += n / 4u; \
}
#define KEEP(c) if (c <= last) { \
	keep(row, at + c, sums0##c); \
	keep(row + items, at + c, sums1##c); \
	keep(row + 2u * items, at + c, sums2##c); \
	keep(row + 3u * items, at + c, sums3##c); \
}

void keep(uint row, uint at, vec4 sum) {
	if (row < m) {
		precise vec4 y = sum * scale;
		outs[at + row * (n / 4u)] = y;
	}
}

void main() {
	uint tilesAcross = (n + side - 1u) / side, tilesDown = (m + side - 1u) / side, t = blockNumber();
	if (t >= batch * heads * tilesDown * tilesAcross) {
		return;
	}
	uint row = t % tilesDown * side + gl_LocalInvocationID.x, column = t / tilesDown % tilesAcross * (side / 4u); // in texels
	uint block = t / tilesDown / tilesAcross, last = min(7u, n / 4u - 1u - column);
	uvec4 rows = (block * m + min(row + items * uvec4(0u, 1u, 2u, 3u), m - 1u)) * k;
	uint depth = masked ? min(uint(lengths[block / heads]), k) : k, d = 0u;
	uint from = block * k * (n / 4u) + column, at = block * m * (n / 4u) + column;
	EIGHT(ZERO)
	for (; d + 2u <= depth; d++) { // few turns: see grid.glsl
		STEP
		d++;
		STEP
	}
	for (; d < depth; d++) {
		STEP
	}
	EIGHT(KEEP)
}
