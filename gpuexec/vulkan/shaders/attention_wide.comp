#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
#include "math.glsl"
// attention for heads whose width is a multiple of 4, up to 64, for processors: see
// matmul_wide.glsl. An item has a token and a head, so that no item waits for another, and
// takes 8 keys at a time, in order, with the online softmax of attention.comp. out may be q:
// it is written last.
layout(constant_id = 1) const bool broad = false; // heads of more than 32 numbers
layout(binding = 0) uniform textureBuffer q;
layout(binding = 1) uniform textureBuffer k;
layout(binding = 2) uniform textureBuffer v;
layout(std430, binding = 3) readonly buffer Starts { int starts[]; };
layout(std430, binding = 4) writeonly buffer Out { vec4 outs[]; };
layout(push_constant) uniform Dims { uint tokens, heads, width, sequences; float scale; };

#define EIGHT(of) of(0) of(1) of(2) of(3) of(4) of(5) of(6) of(7)
#define MORE(of) of(8) of(9) of(10) of(11) of(12) of(13) of(14) of(15)

// BEGIN is where a key's row begins, in texels; beyond the last it is that one's.
#define BEGIN(j) uint row##j = (min(first + j, end - 1u) * heads + head) * texels; precise float score##j = 0.0;
#define SCORE(j) { \
	vec4 r = texelFetch(k, int(row##j + d)); \
	precise float s = fma(l.x, r.x, score##j); \
	s = fma(l.y, r.y, s); \
	s = fma(l.z, r.z, s); \
	s = fma(l.w, r.w, s); \
	score##j = s; \
}
#define LARGEST(j) score##j = first + j < end ? score##j * scale : lowest; most = max(most, score##j);
#define POWER(j) precise float below##j = score##j - most, e##j = first + j < end ? exponential(below##j) : 0.0;

// MIX adds the rows of v to 4 columns of the sum.
#define ZERO(c) vec4 sums##c = vec4(0.0);
#define MIX(c) { \
	uint at = min(c, texels - 1u); \
	precise vec4 s = sums##c * shrink; \
	s = fma(vec4(e0), texelFetch(v, int(row0 + at)), s); \
	s = fma(vec4(e1), texelFetch(v, int(row1 + at)), s); \
	s = fma(vec4(e2), texelFetch(v, int(row2 + at)), s); \
	s = fma(vec4(e3), texelFetch(v, int(row3 + at)), s); \
	s = fma(vec4(e4), texelFetch(v, int(row4 + at)), s); \
	s = fma(vec4(e5), texelFetch(v, int(row5 + at)), s); \
	s = fma(vec4(e6), texelFetch(v, int(row6 + at)), s); \
	s = fma(vec4(e7), texelFetch(v, int(row7 + at)), s); \
	sums##c = s; \
}
#define KEEP(c) if (c < texels) { precise vec4 y = sums##c / whole; outs[mine + c] = y; }

void main() {
	uint block = blockNumber(), head = block % heads, token = block / heads * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
	if (token >= tokens) {
		return;
	}
	uint texels = width / 4u, mine = (token * heads + head) * texels;
	uint sequence = 0u; // the last that begins at the token or before
	for (uint n = sequences; n > 1u;) {
		uint part = n / 2u;
		if (uint(starts[sequence + part]) <= token) {
			sequence += part;
		}
		n -= part;
	}
	uint begin = uint(starts[sequence]), end = sequence + 1u < sequences ? min(uint(starts[sequence + 1u]), tokens) : tokens;
	if (begin > token || end <= token) { // starts is no such list
		begin = token;
		end = token + 1u;
	}
	const float lowest = uintBitsToFloat(0xff800000u);
	float top = lowest;
	precise float whole = 0.0;
	EIGHT(ZERO)
	MORE(ZERO)
	for (uint first = begin; first < end; first += 8u) {
		EIGHT(BEGIN)
		for (uint d = 0u; d < texels; d++) {
			vec4 l = texelFetch(q, int(mine + d));
			EIGHT(SCORE)
		}
		float most = top;
		EIGHT(LARGEST)
		EIGHT(POWER)
		precise float less = top - most;
		precise float shrink = exponential(less);
		precise float part = ((e0 + e1) + (e2 + e3)) + ((e4 + e5) + (e6 + e7));
		whole = fma(whole, shrink, part);
		top = most;
		EIGHT(MIX)
		if (broad) {
			MORE(MIX)
		}
	}
	EIGHT(KEEP)
	if (broad) {
		MORE(KEEP)
	}
}
