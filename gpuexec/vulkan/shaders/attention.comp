#version 450
#extension GL_GOOGLE_include_directive : require
#include "grid.glsl"
#include "rows.glsl"
#include "math.glsl"
// out = softmax(q kT * scale) v for a token and head, over the keys of the token's
// sequence. A group takes 64 keys at a time, in order: where a greater score comes, what
// was summed before shrinks (online softmax: M. Milakov and N. Gimelshein, 2018). out may
// be q: it is written last.
layout(std430, binding = 0) readonly buffer Q { float q[]; };
layout(std430, binding = 1) readonly buffer K { float k[]; };
layout(std430, binding = 2) readonly buffer V { float v[]; };
layout(std430, binding = 3) readonly buffer Starts { int starts[]; };
layout(std430, binding = 4) buffer Out { float outs[]; };
layout(push_constant) uniform Dims { uint tokens, heads, width, sequences; float scale; };

const uint chunk = 64u, mostColumns = 32u; // of an item
shared float weights[chunk];

// product is q k for rows that begin at these places.
float product(uint a, uint b) {
	precise float sum = 0.0;
	uint d = 0u;
	for (; d + 4u <= width; d += 4u) { // few turns: see grid.glsl
		sum = fma(q[a + d], k[b + d], sum);
		sum = fma(q[a + d + 1u], k[b + d + 1u], sum);
		sum = fma(q[a + d + 2u], k[b + d + 2u], sum);
		sum = fma(q[a + d + 3u], k[b + d + 3u], sum);
	}
	for (; d < width; d++) {
		sum = fma(q[a + d], k[b + d], sum);
	}
	return sum;
}

// mixed adds to a sum the numbers of a column from a place on, by their weights.
float mixed(float before, uint from, uint stride, uint keys) {
	precise float sum = before;
	uint i = 0u;
	for (; i + 8u <= keys; i += 8u) {
		uint at = from + i * stride;
		sum = fma(weights[i], v[at], sum);
		sum = fma(weights[i + 1u], v[at + stride], sum);
		sum = fma(weights[i + 2u], v[at + 2u * stride], sum);
		sum = fma(weights[i + 3u], v[at + 3u * stride], sum);
		sum = fma(weights[i + 4u], v[at + 4u * stride], sum);
		sum = fma(weights[i + 5u], v[at + 5u * stride], sum);
		sum = fma(weights[i + 6u], v[at + 6u * stride], sum);
		sum = fma(weights[i + 7u], v[at + 7u * stride], sum);
	}
	for (; i < keys; i++) {
		sum = fma(weights[i], v[from + i * stride], sum);
	}
	return sum;
}

void main() {
	uint block = blockNumber(), item = gl_LocalInvocationID.x;
	if (block >= tokens * heads) {
		return;
	}
	uint token = block / heads, stride = heads * width, offset = block % heads * width, row = token * stride + offset;
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
	float sums[mostColumns];
	for (uint j = 0u; j < mostColumns; j++) {
		sums[j] = 0.0;
	}
	float top = uintBitsToFloat(0xff800000u);
	precise float whole = 0.0;
	for (uint first = begin; first < end; first += chunk) {
		uint keys = min(end - first, chunk);
		float most = top;
		barrier(); // the weights before have been used
		for (uint i = item; i < keys; i += items) {
			precise float score = product(row, (first + i) * stride + offset) * scale;
			weights[i] = score;
			most = max(most, score);
		}
		most = largest(most);
		precise float part = 0.0;
		for (uint i = item; i < keys; i += items) {
			precise float below = weights[i] - most;
			precise float e = exponential(below);
			weights[i] = e;
			part += e;
		}
		precise float less = top - most;
		precise float shrink = exponential(less);
		whole = fma(whole, shrink, total(part));
		top = most;
		for (uint j = 0u, column = item; column < width; j++, column += items) {
			precise float before = sums[j] * shrink;
			sums[j] = mixed(before, first * stride + offset + column, stride, keys);
		}
	}
	memoryBarrierBuffer();
	barrier(); // all have read q
	for (uint j = 0u, column = item; column < width; j++, column += items) {
		precise float y = sums[j] / whole;
		outs[row + column] = y;
	}
}
