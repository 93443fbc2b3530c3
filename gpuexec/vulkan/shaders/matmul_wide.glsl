// out = x weight [+ bias] where k is a multiple of 4, for processors: their drivers make
// items lanes of vectors, and read storage buffers lane by lane, but texel buffers as
// vectors. The weight is in panels of 128 columns, each with its rows one after the other.
// A group makes 8 x 128 of out; an item has 16 columns of it, in 4 texels. Each element is
// summed in the order of k (SPEC E8).
//
// Macros stand for loops that a driver might not unroll: the sums would be in memory.
layout(binding = 0) uniform textureBuffer x;
layout(binding = 1) uniform textureBuffer weight;
#ifdef BIAS
layout(std430, binding = 2) readonly buffer Bias { float bias[]; };
#endif
layout(std430, binding = 3) writeonly buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint m, k, n; };

const uint panel = 128u, items = 8u, down = 8u, texels = 4u, perRow = panel / 4u;

#define FOUR(of) of(0) of(1) of(2) of(3)
#define EIGHT(of) FOUR(of) of(4) of(5) of(6) of(7)

// FETCH reads the item's texels of row e of the weight, from texel on.
#define FETCH(e) vec4 right##e[texels]; \
	right##e[0] = texelFetch(weight, int(texel + perRow * e)); \
	right##e[1] = texelFetch(weight, int(texel + perRow * e + items)); \
	right##e[2] = texelFetch(weight, int(texel + perRow * e + 2u * items)); \
	right##e[3] = texelFetch(weight, int(texel + perRow * e + 3u * items));

// ADD adds left times row e of the weight to row i of the sums.
#define ADD(i, left, e) { \
	precise vec4 s0 = fma(vec4(left), right##e[0], sums##i[0]); \
	precise vec4 s1 = fma(vec4(left), right##e[1], sums##i[1]); \
	precise vec4 s2 = fma(vec4(left), right##e[2], sums##i[2]); \
	precise vec4 s3 = fma(vec4(left), right##e[3], sums##i[3]); \
	sums##i[0] = s0; sums##i[1] = s1; sums##i[2] = s2; sums##i[3] = s3; \
}

// LEFT is 4 elements of row i of x.
#define LEFT(i) texelFetch(x, int((min(row + i, m - 1u) * k + first) / 4u))

// HALF adds 4 products to each sum of row i, ROW 8.
#define HALF(i) { \
	vec4 l = LEFT(i); \
	ADD(i, l.x, 0) ADD(i, l.y, 1) ADD(i, l.z, 2) ADD(i, l.w, 3) \
}
#define ROW(i) { \
	vec4 l = LEFT(i), next = texelFetch(x, int((min(row + i, m - 1u) * k + first) / 4u + 1u)); \
	ADD(i, l.x, 0) ADD(i, l.y, 1) ADD(i, l.z, 2) ADD(i, l.w, 3) \
	ADD(i, next.x, 4) ADD(i, next.y, 5) ADD(i, next.z, 6) ADD(i, next.w, 7) \
}

#define ZERO(i) vec4 sums##i[texels]; sums##i[0] = sums##i[1] = sums##i[2] = sums##i[3] = vec4(0.0);
#define KEEP(i) kept[i][0] = sums##i[0]; kept[i][1] = sums##i[1]; kept[i][2] = sums##i[2]; kept[i][3] = sums##i[3];

void main() {
	uint tilesDown = (m + down - 1u) / down, t = blockNumber(), item = gl_LocalInvocationID.x;
	if (t >= tilesDown * ((n + panel - 1u) / panel)) {
		return;
	}
	uint row = t % tilesDown * down, column = t / tilesDown * panel; // neighbours share a panel
	uint texel = column / 4u * k + item, first = 0u;
	bool single = m - row == 1u;
	uint depth = single ? 0u : k; // of 8 rows
	EIGHT(ZERO)
	for (; first + 8u <= depth; first += 8u) {
		EIGHT(FETCH)
		EIGHT(ROW)
		texel += 8u * perRow;
	}
	if (first < depth) {
		FOUR(FETCH)
		EIGHT(HALF)
	}
	for (; single && first < k; first += 4u) { // a row by itself
		FOUR(FETCH)
		HALF(0)
		texel += 4u * perRow;
	}
	vec4 kept[down][texels];
	EIGHT(KEEP)
	for (uint i = 0u; i < down; i++) {
		for (uint c = 0u; c < texels; c++) {
			for (uint e = 0u; e < 4u; e++) {
				uint at = column + 4u * (c * items + item) + e;
				if (row + i < m && at < n) {
#ifdef BIAS
					outs[(row + i) * n + at] = kept[i][c][e] + bias[at];
#else
					outs[(row + i) * n + at] = kept[i][c][e];
#endif
				}
			}
		}
	}
}
