#version 450
// y = a x + y over n elements; groups of the size that constant 0 gives.
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint perItem = 1;
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform Arguments { float a; uint n; };

void main() {
	uint from = gl_GlobalInvocationID.x * perItem;
	for (uint i = from; i < min(from + perItem, n); i++) {
		y[i] += a * x[i];
	}
}
