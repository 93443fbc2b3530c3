#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
#include "rows.glsl"
// out = (x - mean) / sqrt(variance + epsilon) gamma + beta for each row. out may be x.
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) readonly buffer Gamma { float gamma[]; };
layout(std430, binding = 2) readonly buffer Beta { float beta[]; };
layout(std430, binding = 3) buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint rows, width; float epsilon; };

void main() {
	uint row = blockNumber();
	if (row >= rows) {
		return;
	}
	uint first = row * width;
	precise float sum = 0.0;
	for (uint i = gl_LocalInvocationID.x; i < width; i += items) {
		sum += x[first + i];
	}
	precise float mean = total(sum) / float(width);
	precise float squares = 0.0;
	for (uint i = gl_LocalInvocationID.x; i < width; i += items) {
		precise float off = x[first + i] - mean;
		squares += off * off;
	}
	precise float scale = 1.0 / sqrt(total(squares) / float(width) + epsilon);
	for (uint i = gl_LocalInvocationID.x; i < width; i += items) {
		precise float y = (x[first + i] - mean) * scale * gamma[i] + beta[i];
		outs[first + i] = y;
	}
}
