#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
#include "math.glsl"
// out = tanh(x), or gelu(x). out may be x.
layout(constant_id = 1) const bool tangent = false;
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint rows, width; };

void main() {
	uint i = itemNumber();
	if (i < rows * width) {
		outs[i] = tangent ? hyperbolicTangent(x[i]) : gelu(x[i]);
	}
}
