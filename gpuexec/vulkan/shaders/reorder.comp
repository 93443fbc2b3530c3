#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
// out[a, c, b, d] = x[a, b, c, d].
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) writeonly buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint a, b, c, d; };

void main() {
	uint i = itemNumber();
	if (i < a * b * c * d) {
		uint run = i / d, second = run % b, third = run / b % c, first = run / b / c;
		outs[i] = x[((first * b + second) * c + third) * d + i % d];
	}
}
