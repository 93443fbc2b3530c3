#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
// out = scale a b for each head of each item, b perhaps transposed. With mask, k runs over
// the item's length only. An item makes down x across elements of out; each is summed
// in the order of k (SPEC E8).
layout(constant_id = 1) const bool transposed = false;
layout(constant_id = 2) const bool masked = false;
layout(std430, binding = 0) readonly buffer A { float a[]; };
layout(std430, binding = 1) readonly buffer B { float b[]; };
layout(std430, binding = 2) readonly buffer Lengths { int lengths[]; };
layout(std430, binding = 3) writeonly buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint batch, heads, m, k, n; float scale; };

const uint down = 4u, across = 4u, deep = 4u;
uint rows[down], columns[across]; // where an element of a row of a, or of a column of b, is
float sums[down][across];

// add adds what an element further in k gives.
void add(uint d) {
	float left[down], right[across];
	for (uint i = 0u; i < down; i++) {
		left[i] = a[rows[i] + d];
	}
	for (uint j = 0u; j < across; j++) {
		right[j] = b[columns[j] + d * (transposed ? 1u : n)];
	}
	for (uint i = 0u; i < down; i++) {
		for (uint j = 0u; j < across; j++) {
			precise float sum = fma(left[i], right[j], sums[i][j]);
			sums[i][j] = sum;
		}
	}
}

void main() {
	uint tilesAcross = (n + across - 1u) / across, tilesDown = (m + down - 1u) / down, t = itemNumber();
	if (t >= batch * heads * tilesDown * tilesAcross) {
		return;
	}
	uint column = t % tilesAcross * across, row = t / tilesAcross % tilesDown * down, block = t / tilesAcross / tilesDown;
	// What is beyond an edge is computed again from the last row and column, and not kept.
	for (uint i = 0u; i < down; i++) {
		rows[i] = (block * m + min(row + i, m - 1u)) * k;
		for (uint j = 0u; j < across; j++) {
			sums[i][j] = 0.0;
		}
	}
	for (uint j = 0u; j < across; j++) {
		uint at = min(column + j, n - 1u);
		columns[j] = transposed ? (block * n + at) * k : block * k * n + at;
	}
	uint depth = k, d = 0u;
	if (masked) {
		depth = min(uint(lengths[block / heads]), k);
	}
	for (; d + deep <= depth; d += deep) {
		for (uint e = 0u; e < deep; e++) {
			add(d + e);
		}
	}
	for (; d < depth; d++) {
		add(d);
	}
	for (uint i = 0u; i < down; i++) {
		for (uint j = 0u; j < across; j++) {
			if (row + i < m && column + j < n) {
				precise float y = sums[i][j] * scale;
				outs[(block * m + row + i) * n + column + j] = y;
			}
		}
	}
}
