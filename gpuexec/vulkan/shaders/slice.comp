#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
// out[item] = x[item, 0].
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) writeonly buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint batch, rows, width; };

void main() {
	uint i = itemNumber();
	if (i < batch * width) {
		outs[i] = x[i / width * rows * width + i % width];
	}
}
