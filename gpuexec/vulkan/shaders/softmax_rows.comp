#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
#include "math.glsl"
// softmax for processors: an item has a row, so that no item waits for another. Element i
// is added to sum i % 4, and these are added up at the end: so padding does not change a
// result (SPEC E8).
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) readonly buffer Lengths { int lengths[]; };
layout(std430, binding = 2) writeonly buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint batch, heads, queries, keys; };

// four are the elements of a row that begins at first, from i on.
vec4 four(uint first, uint i) {
	uint last = first + keys - 1u, at = first + i;
	return vec4(x[at], x[min(at + 1u, last)], x[min(at + 2u, last)], x[min(at + 3u, last)]);
}

void keep(uint first, uint i, vec4 y) {
	for (uint c = 0u; c < 4u; c++) {
		if (i + c < keys) {
			outs[first + i + c] = y[c];
		}
	}
}

// within says which of the four elements from i on are among the first n.
bvec4 within(uint i, uint n) { return lessThan(i + uvec4(0u, 1u, 2u, 3u), uvec4(n)); }

// power is e^(x - most) for the four elements from i on, 0 from n on.
vec4 power(uint first, uint i, uint n, float most) {
	precise vec4 below = four(first, i) - most;
	precise vec4 e = vec4(exponential(below.x), exponential(below.y), exponential(below.z), exponential(below.w));
	return mix(vec4(0.0), e, within(i, n));
}

void main() {
	uint row = itemNumber();
	if (row >= batch * heads * queries) {
		return;
	}
	uint first = row * keys, valid = min(uint(lengths[row / queries / heads]), keys);
	if (queries == keys && row % queries >= valid) {
		valid = 0u;
	}
	const vec4 lowest = vec4(uintBitsToFloat(0xff800000u));
	vec4 largest = lowest;
	for (uint i = 0u; i < valid; i += 4u) {
		largest = max(largest, mix(lowest, four(first, i), within(i, valid)));
	}
	float most = max(max(largest.x, largest.y), max(largest.z, largest.w));
	precise vec4 sums = vec4(0.0);
	for (uint i = 0u; i < valid; i += 4u) {
		sums += power(first, i, valid, most);
	}
	precise float scale = 1.0 / ((sums.x + sums.y) + (sums.z + sums.w));
	for (uint i = 0u; i < keys; i += 4u) {
		precise vec4 y = vec4(0.0);
		if (i < valid) {
			y = power(first, i, valid, most) * scale;
		}
		keep(first, i, y);
	}
}
