#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
// out[row] = table[ids[row]]. An id beyond the table takes its last row.
layout(std430, binding = 0) readonly buffer Ids { int ids[]; };
layout(std430, binding = 1) readonly buffer Table { float table[]; };
layout(std430, binding = 2) writeonly buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint rows, width, entries; };

void main() {
	uint i = itemNumber();
	if (i < rows * width) {
		uint id = min(uint(ids[i / width]), entries - 1u);
		outs[i] = table[id * width + i % width];
	}
}
