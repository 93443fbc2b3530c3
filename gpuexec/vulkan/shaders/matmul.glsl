// out = x weight [+ bias]. The weight is in panels of 128 columns, each with its rows one
// after the other. A group makes 64 x 64 of out in steps of 16 of k, with what it needs of
// both sides in shared memory: 8 KiB, and 128 items, which every device has, of 8 x 4 each.
// Each element is summed in the order of k (SPEC E8).
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) readonly buffer Weight { float weight[]; };
#ifdef BIAS
layout(std430, binding = 2) readonly buffer Bias { float bias[]; };
#endif
layout(std430, binding = 3) writeonly buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint m, k, n; };

const uint panel = 128u, items = 128u, side = 64u, deep = 16u, down = 8u, across = 4u;
shared float left[deep][side], right[deep][side];

// load fetches what the group needs from depth first on. Beyond the edges are zeros.
void load(uint row, uint column, uint first) {
	for (uint e = 0u; e < side * deep / items; e++) {
		uint i = gl_LocalInvocationID.x + e * items;
		uint d = i % deep, r = i / deep, c = i % side, below = i / side;
		left[d][r] = first + d < k && row + r < m ? x[(row + r) * k + first + d] : 0.0;
		right[below][c] = first + below < k ? weight[((column + c) / panel * k + first + below) * panel + (column + c) % panel] : 0.0;
	}
}

float sums[down][across];

// add adds what row d of both sides gives.
void add(uint d, uint top, uint beside) {
	for (uint i = 0u; i < down; i++) {
		for (uint j = 0u; j < across; j++) {
			precise float sum = fma(left[d][top + 8u * i], right[d][beside + 16u * j], sums[i][j]);
			sums[i][j] = sum;
		}
	}
}

void tile(uint row, uint column) {
	uint top = gl_LocalInvocationID.x / 16u, beside = gl_LocalInvocationID.x % 16u;
	for (uint i = 0u; i < down; i++) {
		for (uint j = 0u; j < across; j++) {
			sums[i][j] = 0.0;
		}
	}
	for (uint first = 0u; first < k; first += deep) {
		barrier(); // what was loaded before has been used
		load(row, column, first);
		barrier();
		for (uint d = 0u; d < deep; d += 4u) { // few turns: see grid.glsl
			add(d, top, beside);
			add(d + 1u, top, beside);
			add(d + 2u, top, beside);
			add(d + 3u, top, beside);
		}
	}
	for (uint i = 0u; i < down; i++) {
		for (uint j = 0u; j < across; j++) {
			uint r = row + top + 8u * i, c = column + beside + 16u * j;
			if (r < m && c < n) {
#ifdef BIAS
				outs[r * n + c] = sums[i][j] + bias[c];
#else
				outs[r * n + c] = sums[i][j];
#endif
			}
		}
	}
}

void main() {
	uint tilesAcross = (n + side - 1u) / side, t = blockNumber();
	if (t < (m + side - 1u) / side * tilesAcross) {
		tile(t / tilesAcross * side, t % tilesAcross * side);
	}
}
