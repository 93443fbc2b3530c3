#version 450
// For the reader of modules: a uniform buffer, a matrix, arrays, constants of 8 bytes.
layout(local_size_x = 4, local_size_y = 2, local_size_z = 8) in;
layout(constant_id = 3) const double wide = 1;
layout(constant_id = 7) const bool yes = true;
struct Pair { float a; uint b; };
layout(std430, binding = 5) buffer A { mat4 a[]; };
layout(std430, binding = 2) buffer B { Pair b[]; };
layout(std140, binding = 3) uniform C { vec4 c; };
layout(push_constant) uniform Arguments { mat4 m; Pair pairs[4]; vec3 v; uint last; float end; };

void main() {
	if (yes) {
		a[0] = m * float(wide);
		b[0].a = c.x + v.y + pairs[last].a + end;
	}
}
