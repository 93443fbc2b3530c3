#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
// out = a + b, with b repeated. out may be a.
layout(std430, binding = 0) readonly buffer A { float a[]; };
layout(std430, binding = 1) readonly buffer B { float b[]; };
layout(std430, binding = 2) buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint rows, width, period; };

void main() {
	uint i = itemNumber();
	if (i < rows * width) {
		outs[i] = a[i] + b[i % (period * width)];
	}
}
