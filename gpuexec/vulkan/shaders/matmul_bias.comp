#version 450
#extension GL_GOOGLE_include_directive : require
#define BIAS
#include "grid.glsl"
#include "matmul.glsl"
