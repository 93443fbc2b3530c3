#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
// batch_matmul of a transposed b where k is a multiple of 4, for processors: see
// matmul_wide.glsl. A group makes 8 x 32 of out; an item has 4 columns of it. Each element
// is summed in the order of k (SPEC E8).
layout(constant_id = 1) const bool masked = false;
layout(binding = 0) uniform textureBuffer a;
layout(binding = 1) uniform textureBuffer b;
layout(std430, binding = 2) readonly buffer Lengths { int lengths[]; };
layout(std430, binding = 3) writeonly buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint batch, heads, m, k, n; float scale; };

const uint down = 8u, across = 32u;

#define EIGHT(of) of(0) of(1) of(2) of(3) of(4) of(5) of(6) of(7)

#define ZERO(i) vec4 sums##i = vec4(0.0); uint row##i = (block * m + min(row + i, m - 1u)) * k / 4u;

// ADD adds left times what the item's columns have there to row i of the sums.
#define ADD(i, left, right) { precise vec4 sum = fma(vec4(left), right, sums##i); sums##i = sum; }

// ROW adds 4 products to each sum of row i, SOME the first of them.
#define ROW(i) { \
	vec4 l = texelFetch(a, int(row##i + d)); \
	ADD(i, l.x, right[0]) ADD(i, l.y, right[1]) ADD(i, l.z, right[2]) ADD(i, l.w, right[3]) \
}
#define SOME(i) { \
	vec4 l = texelFetch(a, int(row##i + d)); \
	ADD(i, l.x, right[0]) \
	if (depth % 4u > 1u) { \
		ADD(i, l.y, right[1]) \
	} \
	if (depth % 4u > 2u) { \
		ADD(i, l.z, right[2]) \
	} \
}
#define KEEP(i) if (row + i < m) { \
	precise vec4 y = sums##i * scale; \
	uint to = (block * m + row + i) * n + at; \
	for (uint c = 0u; c < 4u; c++) { \
		if (at + c < n) { \
			outs[to + c] = y[c]; \
		} \
	} \
}

// fetch reads 4 rows of b, as it were, in 4 columns of which these are the places.
mat4 fetch(uvec4 at) {
	return transpose(mat4(texelFetch(b, int(at.x)), texelFetch(b, int(at.y)), texelFetch(b, int(at.z)), texelFetch(b, int(at.w))));
}

void main() {
	uint tilesAcross = (n + across - 1u) / across, tilesDown = (m + down - 1u) / down, t = blockNumber();
	if (t >= batch * heads * tilesDown * tilesAcross) {
		return;
	}
	uint row = t % tilesDown * down, block = t / tilesDown / tilesAcross; // neighbours share columns of b
	uint at = t / tilesDown % tilesAcross * across + 4u * gl_LocalInvocationID.x;
	uvec4 columns = (block * n + min(at + uvec4(0u, 1u, 2u, 3u), n - 1u)) * k / 4u;
	uint depth = masked ? min(uint(lengths[block / heads]), k) : k, d = 0u;
	EIGHT(ZERO)
	for (; d < depth / 4u; d++) {
		mat4 right = fetch(columns + d);
		EIGHT(ROW)
	}
	if (masked && depth % 4u > 0u) {
		mat4 right = fetch(columns + d);
		EIGHT(SOME)
	}
	EIGHT(KEEP)
}
