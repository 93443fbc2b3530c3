#version 450
// y = the texel of each item, x as vectors of 4 numbers.
layout(local_size_x = 4) in;
layout(binding = 0) uniform textureBuffer x;
layout(std430, binding = 1) buffer Y { vec4 y[]; };
void main() { y[gl_GlobalInvocationID.x] = texelFetch(x, int(gl_GlobalInvocationID.x)); }
