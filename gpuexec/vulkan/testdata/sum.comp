#version 450
// sums[group] = the sum of the group's 128 elements of x, by a tree in local memory.
layout(local_size_x = 128) in;
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) writeonly buffer Sums { float sums[]; };
shared float part[128];

void main() {
	uint i = gl_LocalInvocationID.x;
	part[i] = x[gl_GlobalInvocationID.x];
	for (uint n = 64; n > 0; n /= 2) {
		barrier();
		if (i < n) {
			part[i] += part[i + n];
		}
	}
	if (i == 0) {
		sums[gl_WorkGroupID.x] = part[0];
	}
}
