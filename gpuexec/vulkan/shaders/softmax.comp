#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
#include "rows.glsl"
#include "math.glsl"
// out = e^(x - largest) / sum over the first keys of each row, as many as the item has,
// and 0 over the others. out may be x. With as many queries as keys, rows from the length
// on are padding, too.
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) readonly buffer Lengths { int lengths[]; };
layout(std430, binding = 2) buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint batch, heads, queries, keys; };

void main() {
	uint row = blockNumber();
	if (row >= batch * heads * queries) {
		return;
	}
	uint first = row * keys;
	uint valid = min(uint(lengths[row / queries / heads]), keys);
	if (queries == keys && row % queries >= valid) {
		valid = 0u;
	}
	float most = uintBitsToFloat(0xff800000u);
	for (uint i = gl_LocalInvocationID.x; i < valid; i += items) {
		most = max(most, x[first + i]);
	}
	most = largest(most);
	precise float sum = 0.0;
	for (uint i = gl_LocalInvocationID.x; i < valid; i += items) {
		precise float below = x[first + i] - most;
		precise float e = exponential(below);
		outs[first + i] = e;
		sum += e;
	}
	precise float scale = 1.0 / total(sum);
	for (uint i = gl_LocalInvocationID.x; i < keys; i += items) {
		precise float y = 0.0;
		if (i < valid) {
			y = outs[first + i] * scale;
		}
		outs[first + i] = y;
	}
}
