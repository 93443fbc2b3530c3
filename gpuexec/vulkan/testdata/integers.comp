#version 450
layout(local_size_x = 1) in;
layout(binding = 0) uniform itextureBuffer x;
layout(std430, binding = 1) buffer Y { ivec4 y; };
void main() { y = texelFetch(x, 0); }
