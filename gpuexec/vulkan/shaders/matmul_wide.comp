#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
#include "matmul_wide.glsl"
