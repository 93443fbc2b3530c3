// The operations of package ops, each for every shape: its dimensions come as numbers,
// in their order, behind its tensors. The host defines the name of the operation that
// it wants, and its flags. With dimensions of 0 a kernel touches nothing.
//
// Every sum has one order, which neither padding nor what stands beside a row changes
// (SPEC E8). So multiply-adds are written as such, and the compiler makes none of its own.
#pragma OPENCL FP_CONTRACT OFF

// share is where the part of this group begins, or of one behind it, of what groups share.
uint share(uint all, uint behind) { return (ulong)all * (get_group_id(0) + behind) / get_num_groups(0); }

// A group takes its share of what there is, in order.
#define EACH(i, all) for (uint i = share(all, 0), last = share(all, 1); i < last; i++)

// FEW is for the ends of rows: such a function is compiled once, not wherever it is called.
#define FEW __attribute__((noinline))

FEW float16 get_few(global const float *p, uint n) {
	float part[16] = {0};
	for (uint i = 0; i < n; i++) part[i] = p[i];
	return vload16(0, part);
}

FEW void put_few(float16 v, global float *p, uint n) {
	float part[16];
	vstore16(v, 0, part);
	for (uint i = 0; i < n; i++) p[i] = part[i];
}

// get is the first n numbers from p on, at most 16, with zeros behind them.
float16 get(global const float *p, uint n) { return n < 16 ? get_few(p, n) : vload16(0, p); }

// put writes the first n of 16 numbers.
void put(float16 v, global float *p, uint n) {
	if (n < 16) put_few(v, p, n);
	else vstore16(v, 0, p);
}

// total is the sum of sixteen numbers.
float total(float16 v) {
	float8 a = v.lo + v.hi;
	float4 b = a.lo + a.hi;
	float2 c = b.lo + b.hi;
	return c.x + c.y;
}

// within is a length, or all that is stored where it is below 0 or above.
uint within(int length, uint stored) { return min((uint)length, stored); }

#ifdef GATHER
kernel void op_gather(global const int *ids, global const float *table, global float *out, uint rows, uint width, uint entries) {
	EACH(row, rows) {
		uint id = ids[row];
		for (uint i = 0; i < width; i += 16)
			put(id < entries ? get(table + id * width + i, width - i) : (float16)0, out + row * width + i, width - i);
	}
}
#endif

#ifdef ADD
kernel void op_add(global const float *a, global const float *b, global float *out, uint rows, uint width, uint period) {
	EACH(row, rows) {
		for (uint i = 0; i < width; i += 16)
			put(get(a + row * width + i, width - i) + get(b + row % period * width + i, width - i), out + row * width + i, width - i);
	}
}
#endif

#ifdef GELU
// gelu is x/2 (1 + erf(x/sqrt 2)) with an absolute error below 4e-7, by the polynomial of
// package gpuexec/cpu's kernels: x itself from 6 on, and 0 from -6 down.
float16 gelu(float16 x) {
	float16 a = fabs(x), g = -2.232129758805712e-11f;
	a = a > 6.0f ? 6.0f : a;
	float16 square = (6 - a) * (6 - a), u = a - 2;
	g = fma(g, u, 1.1795887877585898e-10f);
	g = fma(g, u, 3.896251377089044e-10f);
	g = fma(g, u, -3.0288145325130245e-09f);
	g = fma(g, u, -1.3910003149320005e-09f);
	g = fma(g, u, 3.9002706841984036e-08f);
	g = fma(g, u, -4.110482265673454e-08f);
	g = fma(g, u, -2.8665979812103615e-07f);
	g = fma(g, u, 7.411110800603637e-07f);
	g = fma(g, u, 6.991635927988682e-07f);
	g = fma(g, u, -4.850094683206407e-06f);
	g = fma(g, u, 5.554232302529272e-06f);
	return (x < 0 ? 0 : x) - a * (square * square * square) * g;
}

kernel void op_gelu(global const float *x, global float *out, uint rows, uint width) {
	EACH(row, rows) {
		for (uint i = 0; i < width; i += 16) {
			float16 v = get(x + row * width + i, width - i);
			put(gelu(v), out + row * width + i, width - i);
		}
	}
}
#endif

#ifdef TANH
kernel void op_tanh(global const float *x, global float *out, uint rows, uint width) {
	EACH(row, rows) {
		for (uint i = 0; i < width; i += 16) put(tanh(get(x + row * width + i, width - i)), out + row * width + i, width - i);
	}
}
#endif

#ifdef SLICE
kernel void op_slice(global const float *x, global float *out, uint batch, uint rows, uint width) {
	EACH(row, batch) {
		for (uint i = 0; i < width; i += 16) put(get(x + row * rows * width + i, width - i), out + row * width + i, width - i);
	}
}
#endif

#ifdef REORDER
kernel void op_reorder(global const float *x, global float *out, uint a, uint b, uint c, uint d) {
	EACH(row, a * b * c) { // of out, which is [a, c, b, d]
		uint from = (row / b / c * b + row % b) * c + row / b % c;
		for (uint i = 0; i < d; i += 16) put(get(x + from * d + i, d - i), out + row * d + i, d - i);
	}
}
#endif

#ifdef LAYERNORM
kernel void op_layernorm(global const float *x, global const float *gamma, global const float *beta, global float *out, uint rows, uint width, float epsilon) {
	EACH(row, rows) {
		global const float *from = x + row * width;
		global float *to = out + row * width;
		uint whole = width - width % 16, i;
		float16 sums = 0;
		for (i = 0; i < width; i += 16) sums += get(from + i, width - i);
		float mean = total(sums) / width, rest = 0;
		sums = 0;
		for (i = 0; i < whole; i += 16) {
			float16 d = vload16(0, from + i) - mean;
			sums = fma(d, d, sums);
		}
		for (; i < width; i++) rest = fma(from[i] - mean, from[i] - mean, rest);
		float scale = 1 / sqrt((total(sums) + rest) / width + epsilon);
		for (i = 0; i < width; i += 16)
			put(fma((get(from + i, width - i) - mean) * scale, get(gamma + i, width - i), get(beta + i, width - i)), to + i, width - i);
	}
}
#endif

#ifdef SOFTMAX
kernel void op_softmax(global const float *x, global const int *lengths, global float *out, uint batch, uint heads, uint queries, uint keys) {
	EACH(row, batch * heads * queries) {
		global const float *from = x + row * keys;
		global float *to = out + row * keys;
		uint length = within(lengths[row / queries / heads], keys), whole = length - length % 16, i;
		float16 tops = from[0], sums = 0;
		for (i = 0; i < whole; i += 16) tops = fmax(tops, vload16(0, from + i));
		float8 top8 = fmax(tops.lo, tops.hi);
		float4 top4 = fmax(top8.lo, top8.hi);
		float top = fmax(fmax(top4.x, top4.y), fmax(top4.z, top4.w)), rest = 0;
		for (; i < length; i++) top = fmax(top, from[i]);
		for (i = 0; i < whole; i += 16) {
			float16 e = exp(vload16(0, from + i) - top);
			sums += e;
			vstore16(e, 0, to + i);
		}
		for (; i < length; i++) {
			to[i] = exp(from[i] - top);
			rest += to[i];
		}
		float sum = total(sums) + rest;
		for (i = 0; i < keys; i += 16) {
			float16 e = i < length ? get(to + i, length - i) / sum : (float16)0;
			put(e, to + i, keys - i);
		}
	}
}
#endif

#if defined(MATMUL) || defined(BATCH_MATMUL) || defined(ATTENTION)
// A tile is 8 rows of 32 columns.
#define ROWS 8

// ADD_TILE adds to the tile at sums the products of depth numbers of each row with as many
// rows of 32 at b.
#define ADD_TILE(sums, row, depth, b) { \
	float16 tile[ROWS][2]; \
	_Pragma("unroll") \
	for (int r = 0; r < ROWS; r++) { \
		tile[r][0] = (sums)[2 * r]; \
		tile[r][1] = (sums)[2 * r + 1]; \
	} \
	for (uint step = 0; step < (depth); step++) { \
		float16 low = (b)[2 * step], high = (b)[2 * step + 1]; \
		_Pragma("unroll") \
		for (int r = 0; r < ROWS; r++) { \
			tile[r][0] = fma((float16)row[r][step], low, tile[r][0]); \
			tile[r][1] = fma((float16)row[r][step], high, tile[r][1]); \
		} \
	} \
	_Pragma("unroll") \
	for (int r = 0; r < ROWS; r++) { \
		(sums)[2 * r] = tile[r][0]; \
		(sums)[2 * r + 1] = tile[r][1]; \
	} \
}

// put_row writes the first n of 32 numbers.
void put_row(float16 left, float16 right, global float *p, uint n) {
	put(left, p, n);
	if (n > 16) put(right, p + 16, n - 16);
}
#endif

#ifdef MATMUL
// FETCH has a processor ask for what it will read soon.
#ifdef __clang__
#define FETCH(p) __builtin_prefetch(p, 0, 2)
#else
#define FETCH(p)
#endif

#define STEPS 32 // between two places at which weights are asked for

// Tiles go down the rows of a panel, and each asks for its share of the next panel: weights come
// from memory. The last rows of a tile are one and the same where there are fewer.
kernel void op_matmul(global const float *x, global const float16 *weight,
#ifdef BIAS
		global const float *bias,
#endif
		global float *out, uint m, uint k, uint n) {
	uint down = (m + ROWS - 1) / ROWS;
	EACH(place, down * ((n + 31) / 32)) {
		uint first = place % down * ROWS, column = place / down * 32, columns = n - column, rows = min(m - first, (uint)ROWS);
		global const float *row[ROWS];
		float16 sums[ROWS][2], left = 0, right = 0;
		#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			row[r] = x + (first + min((uint)r, rows - 1)) * k;
			sums[r][0] = sums[r][1] = 0;
		}
		uint lines = (2 * STEPS + down - 1) / down;
		global const float16 *b = weight + (size_t)column / 16 * k, *next = b + 2 * k + (size_t)place % down * lines * ((k + STEPS - 1) / STEPS);
		for (uint step = 0; step < k;) {
			for (uint i = 0; i < lines; i++) FETCH(next++);
			for (uint end = min(step + STEPS, k); step < end; step++) {
				float16 low = b[2 * step], high = b[2 * step + 1];
				#pragma unroll
				for (int r = 0; r < ROWS; r++) {
					sums[r][0] = fma((float16)row[r][step], low, sums[r][0]);
					sums[r][1] = fma((float16)row[r][step], high, sums[r][1]);
				}
			}
		}
#ifdef BIAS
		left = get(bias + column, columns);
		if (columns > 16) right = get(bias + column + 16, columns - 16);
#endif
		#pragma unroll
		for (int r = 0; r < ROWS; r++)
			if (r < rows) put_row(sums[r][0] + left, sums[r][1] + right, out + (first + r) * n + column, columns);
	}
}
#endif

// Tiles of one group: 64 rows of 32 columns, 32 numbers deep at a time.
#define DEEP 32
#define DOWN 64

#ifdef BATCH_MATMUL
// A group gives 64 rows of 32 columns. It copies 32 rows of the right-hand side at a
// time, turned where that is transposed.
kernel void op_batch_matmul(global const float *a, global const float *b, global const int *lengths, global float *out,
		uint batch, uint heads, uint m, uint k, uint n, float scale) {
	uint down = (m + DOWN - 1) / DOWN, across = (n + 31) / 32;
	EACH(place, batch * heads * down * across) {
		uint begin = place % down * DOWN, column = place / down % across * 32, block = place / down / across;
		uint columns = min(n - column, 32u), rows = min(m - begin, (uint)DOWN);
		float16 sums[2 * DOWN], part[2 * DEEP];
		for (uint i = 0; i < 2 * DOWN; i++) sums[i] = 0;
		uint depth = k;
#ifdef MASK_K
		depth = within(lengths[block / heads], k);
#endif
		for (uint done = 0; done < depth; done += DEEP) {
			uint deep = min(depth - done, (uint)DEEP);
#ifdef TRANSPOSE_B
			for (uint c = 0; c < 32; c++) {
				global const float *from = b + (block * n + column + min(c, columns - 1)) * k + done;
				for (uint i = 0; i < deep; i++) ((float *)part)[32 * i + c] = from[i];
			}
#else
			for (uint i = 0; i < deep; i++) {
				global const float *from = b + (block * k + done + i) * n + column;
				part[2 * i] = get(from, columns);
				part[2 * i + 1] = 0;
				if (columns > 16) part[2 * i + 1] = get(from + 16, columns - 16);
			}
#endif
			for (uint first = 0; first < rows; first += ROWS) {
				global const float *row[ROWS];
				#pragma unroll
				for (int r = 0; r < ROWS; r++) row[r] = a + (block * m + begin + min(first + r, rows - 1)) * k + done;
				ADD_TILE(sums + 2 * first, row, deep, part)
			}
		}
		for (uint r = 0; r < rows; r++)
			put_row(sums[2 * r] * scale, sums[2 * r + 1] * scale, out + (block * m + begin + r) * n + column, columns);
	}
}
#endif

#ifdef ATTENTION
#define MOST_SUMS 8192
// A group takes some tokens of a head, 64 if it has the memory, and goes on with those as
// far behind as there are groups. The tokens of each sequence meet 32 of its keys at a
// time, in order: where a greater score comes, what was summed before shrinks (online
// softmax: M. Milakov and N. Gimelshein, 2018). out may be q: it is written last.
kernel void op_attention(global const float *q, global const float *k, global const float *v, global const int *starts, global float *out,
		uint tokens, uint heads, uint width, uint sequences, float scale) {
	uint stride = heads * width, blocks = (width + 31) / 32, most = min((uint)DOWN, MOST_SUMS / 32 / max(blocks, 1u)) / ROWS * ROWS;
	uint down = most > 0 ? (tokens + most - 1) / most : 0;
	EACH(place, heads * down)
	for (uint head = place / down, block = place % down * most, first = block, rows; first < min(block + most, tokens); first += rows) {
		uint sequence = 0; // the last that begins at first or before
		for (uint n = sequences; n > 1;) {
			uint half_of_n = n / 2;
			if ((uint)starts[sequence + half_of_n] <= first) sequence += half_of_n;
			n -= half_of_n;
		}
		uint begin = starts[sequence], end = sequence + 1 < sequences ? min((uint)starts[sequence + 1], tokens) : tokens;
		if (begin > first || end <= first) { // starts is no such list
			begin = first;
			end = first + 1;
		}
		rows = min(end, block + most) - first;
		global const float *from = q + first * stride + head * width;
		global float *to = out + first * stride + head * width;
		float16 sums[MOST_SUMS / 16]; // of each 32 columns, those of each row of the tiles
		uint tiled = (rows + ROWS - 1) / ROWS * ROWS;
		for (uint i = 0; i < 2 * blocks * tiled; i++) sums[i] = 0;
		float tops[DOWN], totals[DOWN], shrink[DOWN];
		for (uint r = 0; r < rows; r++) {
			tops[r] = -INFINITY;
			totals[r] = 0;
		}
		for (uint key = begin; key < end; key += 32) {
			uint keys = min(end - key, 32u);
			float16 scores[2 * DOWN], part[2 * DEEP];
			for (uint i = 0; i < 2 * DOWN; i++) scores[i] = 0;
			for (uint done = 0; done < width; done += DEEP) {
				uint deep = min(width - done, (uint)DEEP);
				for (uint c = 0; c < 32; c++) {
					global const float *column = k + (key + min(c, keys - 1)) * stride + head * width + done;
					for (uint i = 0; i < deep; i++) ((float *)part)[32 * i + c] = column[i];
				}
				for (uint down = 0; down < rows; down += ROWS) {
					global const float *row[ROWS];
					#pragma unroll
					for (int r = 0; r < ROWS; r++) row[r] = from + min(down + r, rows - 1) * stride + done;
					ADD_TILE(scores + 2 * down, row, deep, part)
				}
			}
			float *weights = (float *)scores;
			for (uint r = 0; r < rows; r++) {
				float top = tops[r];
				for (uint c = 0; c < keys; c++) top = fmax(top, weights[32 * r + c] *= scale);
				for (uint c = keys; c < 32; c++) weights[32 * r + c] = -INFINITY;
				scores[2 * r] = exp(scores[2 * r] - top);
				scores[2 * r + 1] = exp(scores[2 * r + 1] - top);
				shrink[r] = exp(tops[r] - top);
				totals[r] = fma(totals[r], shrink[r], total(scores[2 * r] + scores[2 * r + 1]));
				tops[r] = top;
			}
			for (uint column = 0; column < width; column += 32) {
				uint columns = min(width - column, 32u);
				for (uint i = 0; i < keys; i++) {
					global const float *row = v + (key + i) * stride + head * width + column;
					part[2 * i] = get(row, columns);
					part[2 * i + 1] = 0;
					if (columns > 16) part[2 * i + 1] = get(row + 16, columns - 16);
				}
				float16 *block_sums = sums + column / 16 * tiled;
				for (uint r = 0; r < rows; r++) {
					block_sums[2 * r] *= shrink[r];
					block_sums[2 * r + 1] *= shrink[r];
				}
				for (uint down = 0; down < rows; down += ROWS) {
					float *row[ROWS];
					#pragma unroll
					for (uint r = 0; r < ROWS; r++) row[r] = weights + 32 * min(down + r, rows - 1);
					ADD_TILE(block_sums + 2 * down, row, keys, part)
				}
			}
		}
		for (uint r = 0; r < rows; r++)
			for (uint column = 0; column < width; column += 32) {
				float16 *both = sums + column / 16 * tiled + 2 * r;
				put_row(both[0] / totals[r], both[1] / totals[r], to + r * stride + column, min(width - column, 32u));
			}
	}
}
#endif
