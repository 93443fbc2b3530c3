#version 450
layout(local_size_x = 1) in;
layout(std430, set = 1, binding = 0) buffer X { float x[]; };
void main() { x[0] = 1; }
