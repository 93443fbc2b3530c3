// The operations of package ops, each for every shape: its dimensions come as numbers,
// in their order, behind its tensors. The host defines the name of the operation that it
// wants, and its flags. With dimensions of 0 a kernel touches nothing.
//
// Every sum has one order, which neither padding nor what stands beside a row changes
// (SPEC E8): the compiler is told not to join multiplications and additions, and they are
// joined by name. All is float32; tensor cores, which have TF32, are not used.
//
// No pointer is declared to be the only one to its memory: some operations run in place.

typedef unsigned int uint;

#define EVERYONE 0xffffffffu
#define WARP 32u

// four is the first n numbers from p on, at most 4, with zeros behind them. Tensors begin
// where four may be loaded at once, as the device's limits say, so rows do where a
// multiple of 4 is their width: that is what whole says.
__device__ __forceinline__ float4 four(const float *p, uint n, bool whole) {
	if (whole && n > 3) return *(const float4 *)p;
	float4 v = make_float4(0, 0, 0, 0);
	if (n > 0) v.x = p[0];
	if (n > 1) v.y = p[1];
	if (n > 2) v.z = p[2];
	if (n > 3) v.w = p[3];
	return v;
}

// put writes the first n of four numbers.
__device__ __forceinline__ void put(float *p, float4 v, uint n, bool whole) {
	if (whole && n > 3) {
		*(float4 *)p = v;
		return;
	}
	if (n > 0) p[0] = v.x;
	if (n > 1) p[1] = v.y;
	if (n > 2) p[2] = v.z;
	if (n > 3) p[3] = v.w;
}

// within is a length, or all that is stored where it is below 0 or above.
__device__ __forceinline__ uint within(int length, uint stored) { return min((uint)length, stored); }

// A warp takes a row, and goes on with the row that is as many behind it as there are warps.
#define EACH_ROW(rows) \
	const uint lane = threadIdx.x % WARP; \
	for (uint row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; row < (rows); row += gridDim.x * (blockDim.x / WARP))

// The numbers of a row that a lane takes: four at a time, so that their order is the same
// whether they can be loaded at once or not.
#define EACH_FOUR(i, width) for (uint i = 4 * lane; i < (width); i += 4 * WARP)

// total is the sum over the lanes of a warp, and most the largest number; each has it.
__device__ __forceinline__ float total(float4 v) {
	float sum = (v.x + v.y) + (v.z + v.w);
	for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(EVERYONE, sum, other);
	return sum;
}

__device__ __forceinline__ float most(float v) {
	for (int other = 16; other > 0; other /= 2) v = fmaxf(v, __shfl_xor_sync(EVERYONE, v, other));
	return v;
}

// copy_row copies a row by a warp.
__device__ __forceinline__ void copy_row(const float *from, float *to, uint lane, uint width, bool whole) {
	EACH_FOUR(i, width) put(to + i, four(from + i, width - i, whole), width - i, whole);
}

#ifdef GATHER
extern "C" __global__ void op_gather(const int *ids, const float *table, float *out, uint rows, uint width, uint entries) {
	const bool whole = width % 4 == 0;
	EACH_ROW(rows) {
		uint id = ids[row];
		if (id < entries) {
			copy_row(table + id * width, out + row * width, lane, width, whole);
			continue;
		}
		EACH_FOUR(i, width) put(out + row * width + i, make_float4(0, 0, 0, 0), width - i, whole);
	}
}
#endif

#ifdef ADD
extern "C" __global__ void op_add(const float *a, const float *b, float *out, uint rows, uint width, uint period) {
	const bool whole = width % 4 == 0;
	EACH_ROW(rows) {
		uint at = row * width, repeated = row % period * width;
		EACH_FOUR(i, width) {
			float4 x = four(a + at + i, width - i, whole), y = four(b + repeated + i, width - i, whole);
			put(out + at + i, make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w), width - i, whole);
		}
	}
}
#endif

#if defined(GELU) || defined(TANH)
// apply gives each number that f makes of one.
template <class F> __device__ __forceinline__ void apply(const float *x, float *out, uint count, F f) {
	for (uint i = 4 * (blockIdx.x * blockDim.x + threadIdx.x); i < count; i += 4 * gridDim.x * blockDim.x) {
		float4 v = four(x + i, count - i, true);
		put(out + i, make_float4(f(v.x), f(v.y), f(v.z), f(v.w)), count - i, true);
	}
}
#endif

#ifdef GELU
extern "C" __global__ void op_gelu(const float *x, float *out, uint rows, uint width) {
	apply(x, out, rows * width, [](float v) {
		v = v < -16.0f ? -16.0f : v; // there it is 0, of minus infinity too
		return 0.5f * v * (1 + erff(v * 0.70710678118654752f));
	});
}
#endif

#ifdef TANH
extern "C" __global__ void op_tanh(const float *x, float *out, uint rows, uint width) {
	apply(x, out, rows * width, [](float v) { return tanhf(v); });
}
#endif

#ifdef SLICE
extern "C" __global__ void op_slice(const float *x, float *out, uint batch, uint rows, uint width) {
	const bool whole = width % 4 == 0;
	EACH_ROW(batch) copy_row(x + row * rows * width, out + row * width, lane, width, whole);
}
#endif

#ifdef REORDER
extern "C" __global__ void op_reorder(const float *x, float *out, uint a, uint b, uint c, uint d) {
	const bool whole = d % 4 == 0;
	EACH_ROW(a * b * c) { // of out, which is [a, c, b, d]
		uint from = (row / b / c * b + row % b) * c + row / b % c;
		copy_row(x + from * d, out + row * d, lane, d, whole);
	}
}
#endif

#ifdef LAYERNORM
extern "C" __global__ void op_layernorm(const float *x, const float *gamma, const float *beta, float *out, uint rows, uint width, float epsilon) {
	const bool whole = width % 4 == 0;
	EACH_ROW(rows) {
		const float *from = x + row * width;
		float *to = out + row * width;
		float4 sums = make_float4(0, 0, 0, 0);
		EACH_FOUR(i, width) {
			float4 v = four(from + i, width - i, whole);
			sums = make_float4(sums.x + v.x, sums.y + v.y, sums.z + v.z, sums.w + v.w);
		}
		float mean = total(sums) / width;
		sums = make_float4(0, 0, 0, 0);
		EACH_FOUR(i, width) {
			float4 v = four(from + i, width - i, whole);
			float dx = v.x - mean, dy = v.y - mean, dz = v.z - mean, dw = v.w - mean;
			sums.x = fmaf(dx, dx, sums.x);
			if (width - i > 1) sums.y = fmaf(dy, dy, sums.y);
			if (width - i > 2) sums.z = fmaf(dz, dz, sums.z);
			if (width - i > 3) sums.w = fmaf(dw, dw, sums.w);
		}
		float scale = 1 / sqrtf(total(sums) / width + epsilon);
		EACH_FOUR(i, width) {
			float4 v = four(from + i, width - i, whole), g = four(gamma + i, width - i, true), b = four(beta + i, width - i, true);
			put(to + i, make_float4(fmaf((v.x - mean) * scale, g.x, b.x), fmaf((v.y - mean) * scale, g.y, b.y),
				fmaf((v.z - mean) * scale, g.z, b.z), fmaf((v.w - mean) * scale, g.w, b.w)), width - i, whole);
		}
	}
}
#endif

#ifdef SOFTMAX
extern "C" __global__ void op_softmax(const float *x, const int *lengths, float *out, uint batch, uint heads, uint queries, uint keys) {
	const bool whole = keys % 4 == 0;
	EACH_ROW(batch * heads * queries) {
		const float *from = x + row * keys;
		float *to = out + row * keys;
		uint length = within(lengths[row / queries / heads], keys);
		float top = __int_as_float(0xff800000); // minus infinity
		EACH_FOUR(i, length) {
			float4 v = four(from + i, length - i, whole);
			top = fmaxf(top, v.x);
			if (length - i > 1) top = fmaxf(top, v.y);
			if (length - i > 2) top = fmaxf(top, v.z);
			if (length - i > 3) top = fmaxf(top, v.w);
		}
		top = most(top);
		float4 sums = make_float4(0, 0, 0, 0);
		EACH_FOUR(i, length) {
			float4 v = four(from + i, length - i, whole);
			v = make_float4(expf(v.x - top), expf(v.y - top), expf(v.z - top), expf(v.w - top));
			sums.x += v.x;
			if (length - i > 1) sums.y += v.y;
			if (length - i > 2) sums.z += v.z;
			if (length - i > 3) sums.w += v.w;
			put(to + i, v, length - i, whole);
		}
		float sum = total(sums);
		EACH_FOUR(i, keys) {
			float4 v = make_float4(0, 0, 0, 0);
			if (i < length) {
				v = four(to + i, length - i, whole);
				v = make_float4(v.x / sum, v.y / sum, v.z / sum, v.w / sum);
			}
			put(to + i, v, keys - i, whole);
		}
	}
}
#endif

#define FEW 16u // so many rows are few

#if defined(MATMUL) || defined(BATCH_MATMUL)
// A product's sums are made of parts of 32 products each, one after the other. Many rows
// and few have the same order, and so the same bits.
#define DEEP 32u

#define SIDE 64u // rows and columns of a tile of many

// A tile of few: a warp for each part of the sum, a lane for each column.
#define ROWS 8u
#define COLUMNS 32u
#define WARPS 8u

// Left is the left-hand side: rows of numbers, of which depth are summed.
struct Left {
	const float *at;
	uint rows, stride, depth;
};

// Panels is the weight of a matmul: panels of 32 columns, one row after the other.
struct Panels {
	const float *at;
	uint columns, k;
	static const bool turned = false;
	__device__ __forceinline__ float4 row(uint r, uint column) const {
		return four(at + (column / COLUMNS * k + r) * COLUMNS + column % COLUMNS, column < columns ? 4 : 0, true);
	}
	__device__ __forceinline__ float one(uint r, uint column) const { return at[(column / COLUMNS * k + r) * COLUMNS + column % COLUMNS]; }
};

// Rows is a right-hand side of rows, Turned one of columns.
struct Rows {
	const float *at;
	uint columns, k;
	static const bool turned = false;
	__device__ __forceinline__ float4 row(uint r, uint column) const {
		return four(at + r * columns + column, column < columns ? columns - column : 0, columns % 4 == 0);
	}
	__device__ __forceinline__ float one(uint r, uint column) const { return at[r * columns + column]; }
};

struct Turned {
	const float *at;
	uint columns, k;
	static const bool turned = true;
	__device__ __forceinline__ float4 row(uint, uint) const { return make_float4(0, 0, 0, 0); }
	__device__ __forceinline__ float one(uint r, uint column) const { return at[column * k + r]; }
};

// A tile in shared memory: 32 numbers of each of 64 rows or columns, which lie beside each other.
typedef float Tile[DEEP][SIDE + 4];

// along loads the fours of a thread for a tile from rows of numbers to be summed, set stores them.
__device__ __forceinline__ void along(float4 v[2], const float *from, uint rows, uint stride, uint first, uint done, uint depth) {
	for (uint j = 0; j < 2; j++) {
		uint row = first + threadIdx.x / 8 + 32 * j, k = done + threadIdx.x % 8 * 4;
		v[j] = four(from + row * stride + k, row < rows && k < depth ? depth - k : 0, stride % 4 == 0);
	}
}

__device__ __forceinline__ void set_along(Tile tile, const float4 v[2]) {
	for (uint j = 0; j < 2; j++) {
		uint row = threadIdx.x / 8 + 32 * j, k = threadIdx.x % 8 * 4;
		tile[k][row] = v[j].x;
		tile[k + 1][row] = v[j].y;
		tile[k + 2][row] = v[j].z;
		tile[k + 3][row] = v[j].w;
	}
}

// across does so from rows that lie in the tile as they lie in memory.
template <class Right> __device__ __forceinline__ void across(float4 v[2], Right b, uint first, uint done, uint depth) {
	for (uint j = 0; j < 2; j++) {
		uint k = done + threadIdx.x / 16 + 16 * j;
		v[j] = k < depth ? b.row(k, first + threadIdx.x % 16 * 4) : make_float4(0, 0, 0, 0);
	}
}

__device__ __forceinline__ void set_across(Tile tile, const float4 v[2]) {
	for (uint j = 0; j < 2; j++) *(float4 *)&tile[threadIdx.x / 16 + 16 * j][threadIdx.x % 16 * 4] = v[j];
}

// next loads what a thread has of the next part.
template <class Right> __device__ __forceinline__ void next(float4 x[2], float4 y[2], Left a, Right b, uint row, uint column, uint done) {
	along(x, a.at, a.rows, a.stride, row, done, a.depth);
	if (Right::turned) along(y, b.at, b.columns, b.k, column, done, a.depth);
	else across(y, b, column, done, a.depth);
}

// many adds up a tile of 64 rows and columns; a thread has 4 of each. While it adds, the
// next part is on its way.
template <class Right> __device__ __forceinline__ void many(Left a, Right b, uint row, uint column, Tile left, Tile right, float sums[4][4]) {
	float4 nextA[2], nextB[2];
	for (uint r = 0; r < 4; r++)
		for (uint c = 0; c < 4; c++) sums[r][c] = 0;
	next(nextA, nextB, a, b, row, column, 0);
	for (uint done = 0; done < a.depth; done += DEEP) {
		__syncthreads(); // the part before is added
		set_along(left, nextA);
		if (Right::turned) set_along(right, nextB);
		else set_across(right, nextB);
		__syncthreads();
		if (done + DEEP < a.depth) next(nextA, nextB, a, b, row, column, done + DEEP);
		float part[4][4] = {};
		uint deep = min(DEEP, a.depth - done);
		#pragma unroll 4
		for (uint k = 0; k < deep; k++) {
			float4 x = *(const float4 *)&left[k][threadIdx.x / 16 * 4], y = *(const float4 *)&right[k][threadIdx.x % 16 * 4];
			const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
			for (uint r = 0; r < 4; r++)
				for (uint c = 0; c < 4; c++) part[r][c] = fmaf(xs[r], ys[c], part[r][c]);
		}
		for (uint r = 0; r < 4; r++)
			for (uint c = 0; c < 4; c++) sums[r][c] += part[r][c];
	}
	__syncthreads(); // the tiles are free
}

// few adds up a tile of 8 rows and 32 columns: each warp a part, then each warp a row. What
// it gives is that of the warp's row and the lane's column.
template <class Right> __device__ __forceinline__ float few(Left a, Right b, uint row, uint column, float (*left)[ROWS][DEEP], float (*parts)[ROWS][COLUMNS]) {
	const uint warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, mine = column + lane;
	float sum = 0;
	for (uint done = 0; done < a.depth; done += WARPS * DEEP) {
		uint begin = done + warp * DEEP;
		if (begin < a.depth) {
			uint deep = min(DEEP, a.depth - begin);
			for (uint r = 0; r < ROWS; r++)
				left[warp][r][lane] = lane < deep && row + r < a.rows ? a.at[(row + r) * a.stride + begin + lane] : 0;
			__syncwarp();
			float part[ROWS] = {};
			if (mine < b.columns) {
				#pragma unroll 4
				for (uint k = 0; k < deep; k++) {
					float y = b.one(begin + k, mine);
					for (uint r = 0; r < ROWS; r++) part[r] = fmaf(left[warp][r][k], y, part[r]);
				}
			}
			for (uint r = 0; r < ROWS; r++) parts[warp][r][lane] = part[r];
		}
		__syncthreads();
		for (uint other = 0; other < WARPS && done + other * DEEP < a.depth; other++) sum += parts[other][warp][lane];
		__syncthreads();
	}
	return sum;
}

union Shared {
	struct {
		Tile left, right;
	} many;
	struct {
		float left[WARPS][ROWS][DEEP], parts[WARPS][ROWS][COLUMNS];
	} few;
};

// product gives a whole product by the blocks of the grid's first two dimensions: end makes
// a number of out from a sum and its column.
template <class Right, class End> __device__ __forceinline__ void product(Left a, Right b, float *out, End end) {
	__shared__ __align__(16) Shared shared;
	const uint n = b.columns;
	if (a.rows <= FEW) {
		for (uint column = blockIdx.y * COLUMNS; column < n; column += gridDim.y * COLUMNS)
			for (uint row = blockIdx.x * ROWS; row < a.rows; row += gridDim.x * ROWS) {
				float sum = few(a, b, row, column, shared.few.left, shared.few.parts);
				uint r = row + threadIdx.x / WARP, c = column + threadIdx.x % WARP;
				if (r < a.rows && c < n) out[r * n + c] = end(sum, c);
			}
		return;
	}
	const bool whole = n % 4 == 0;
	for (uint column = blockIdx.y * SIDE; column < n; column += gridDim.y * SIDE)
		for (uint row = blockIdx.x * SIDE; row < a.rows; row += gridDim.x * SIDE) {
			float sums[4][4];
			many(a, b, row, column, shared.many.left, shared.many.right, sums);
			uint c = column + threadIdx.x % 16 * 4, columns = c < n ? n - c : 0;
			for (uint i = 0; i < 4; i++) {
				uint r = row + threadIdx.x / 16 * 4 + i;
				if (r < a.rows && columns > 0)
					put(out + r * n + c, make_float4(end(sums[i][0], c), columns > 1 ? end(sums[i][1], c + 1) : 0,
						columns > 2 ? end(sums[i][2], c + 2) : 0, columns > 3 ? end(sums[i][3], c + 3) : 0), columns, whole);
			}
		}
}
#endif

#ifdef MATMUL
extern "C" __global__ void __launch_bounds__(256) op_matmul(const float *x, const float *weight,
#ifdef BIAS
	const float *bias,
#endif
	float *out, uint m, uint k, uint n) {
	Left a = {x, m, k, k};
	Panels b = {weight, n, k};
	product(a, b, out, [=](float sum, uint column) {
#ifdef BIAS
		return sum + bias[column];
#else
		return sum;
#endif
	});
}
#endif

#ifdef CUBLAS
// add_bias is for products of cuBLAS.
extern "C" __global__ void add_bias(float *out, const float *bias, uint rows, uint width) {
	const bool whole = width % 4 == 0;
	EACH_ROW(rows) {
		float *at = out + row * width;
		EACH_FOUR(i, width) {
			float4 x = four(at + i, width - i, whole), y = four(bias + i, width - i, true);
			put(at + i, make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w), width - i, whole);
		}
	}
}
#endif

#ifdef BATCH_MATMUL
extern "C" __global__ void __launch_bounds__(256) op_batch_matmul(const float *a, const float *b, const int *lengths, float *out,
	uint batch, uint heads, uint m, uint k, uint n, float scale) {
	for (uint block = blockIdx.z; block < batch * heads; block += gridDim.z) {
		uint depth = k;
#ifdef MASK_K
		depth = within(lengths[block / heads], k);
#endif
		Left left = {a + block * m * k, m, k, depth};
#ifdef TRANSPOSE_B
		Turned right = {b + block * k * n, n, k};
#else
		Rows right = {b + block * k * n, n, k};
#endif
		product(left, right, out + block * m * n, [=](float sum, uint) { return sum * scale; });
	}
}
#endif

#ifdef ATTENTION
#define QUERIES 8u // so many warps has a block
#define KEYS 32u   // a lane each
#define PART 64u   // numbers of a head that are in shared memory at a time
#define MOST 256u  // numbers of a head

// Strip is a part of some rows; its last numbers are padding, which spreads lanes over banks.
typedef float Strip[KEYS][PART + 4];

__device__ __forceinline__ void load(Strip strip, const float *from, uint rows, uint stride, uint width, bool whole) {
	for (uint j = 0; j < 2; j++) {
		uint row = threadIdx.x / 16 + 16 * j, i = threadIdx.x % 16 * 4;
		*(float4 *)&strip[row][i] = four(from + row * stride + i, row < rows && i < width ? width - i : 0, whole);
	}
}

struct Meeting {
	Strip queries, others;
	float weights[KEYS][KEYS]; // of each query
};

// attend has some queries, at most EACH of a warp, meet 32 keys at a time, in order: where a
// greater score comes, what was summed before shrinks (online softmax: M. Milakov and
// N. Gimelshein, 2018). to may be q: it is written last.
template <uint EACH> __device__ __forceinline__ void attend(const float *q, const float *k, const float *v, float *to, Meeting &shared,
	uint rows, uint keys, uint stride, uint width, float scale) {
	const uint warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
	const bool whole = width % 4 == 0;
	float sums[EACH][MOST / WARP] = {}, tops[EACH], totals[EACH] = {};
	#pragma unroll
	for (uint j = 0; j < EACH; j++) tops[j] = __int_as_float(0xff800000); // minus infinity
	for (uint key = 0; key < keys; key += KEYS) {
		const uint left = min(keys - key, KEYS);
		float scores[EACH] = {}, shrink[EACH];
		for (uint done = 0; done < width; done += PART) {
			__syncthreads(); // what lies there has been used
			if (width > PART || key == 0) load(shared.queries, q + done, rows, stride, width - done, whole);
			load(shared.others, k + key * stride + done, left, stride, width - done, whole);
			__syncthreads();
			const uint deep = min(width - done, PART);
			#pragma unroll 2
			for (uint i = 0; i < deep; i += 4) {
				float4 y = *(const float4 *)&shared.others[lane][i];
				#pragma unroll
				for (uint j = 0; j < EACH; j++) {
					float4 x = *(const float4 *)&shared.queries[QUERIES * j + warp][i];
					scores[j] = fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, scores[j]))));
				}
			}
		}
		#pragma unroll
		for (uint j = 0; j < EACH; j++) {
			float score = lane < left ? scores[j] * scale : __int_as_float(0xff800000);
			float top = fmaxf(tops[j], most(score)), weight = expf(score - top);
			shared.weights[QUERIES * j + warp][lane] = weight;
			shrink[j] = expf(tops[j] - top);
			totals[j] = fmaf(totals[j], shrink[j], total(make_float4(weight, 0, 0, 0)));
			tops[j] = top;
		}
		#pragma unroll
		for (uint part = 0; part < MOST / PART; part++) {
			if (part * PART >= width) break;
			__syncthreads();
			load(shared.others, v + key * stride + part * PART, left, stride, width - part * PART, whole);
			__syncthreads();
			#pragma unroll
			for (uint j = 0; j < EACH; j++)
				for (uint half = 2 * part; half < 2 * part + 2; half++) sums[j][half] *= shrink[j];
			for (uint i = 0; i < left; i += 4) {
				float4 w[EACH];
				#pragma unroll
				for (uint j = 0; j < EACH; j++) w[j] = *(const float4 *)&shared.weights[QUERIES * j + warp][i];
				#pragma unroll
				for (uint half = 0; half < 2; half++) {
					const float *y = &shared.others[i][half * WARP + lane];
					#pragma unroll
					for (uint j = 0; j < EACH; j++) {
						float *sum = &sums[j][2 * part + half];
						*sum = fmaf(w[j].w, y[3 * (PART + 4)], fmaf(w[j].z, y[2 * (PART + 4)], fmaf(w[j].y, y[PART + 4], fmaf(w[j].x, y[0], *sum))));
					}
				}
			}
		}
	}
	#pragma unroll
	for (uint j = 0; j < EACH; j++) {
		uint row = QUERIES * j + warp;
		#pragma unroll
		for (uint i = 0; i < MOST / WARP; i++)
			if (row < rows && i * WARP + lane < width) to[row * stride + i * WARP + lane] = sums[j][i] / totals[j];
	}
}

// A block takes 32 tokens of a head, or 8 where there are few, and goes on with those that
// are as far behind as there are blocks. Those of each sequence are together.
extern "C" __global__ void __launch_bounds__(256) op_attention(const float *q, const float *k, const float *v, const int *starts, float *out,
	uint tokens, uint heads, uint width, uint sequences, float scale) {
	__shared__ __align__(16) Meeting shared;
	const uint stride = heads * width, tall = tokens <= FEW ? QUERIES : 4 * QUERIES;
	for (uint head = blockIdx.y; head < heads; head += gridDim.y)
		for (uint block = blockIdx.x * tall; block < tokens; block += gridDim.x * tall)
			for (uint first = block, rows; first < min(block + tall, tokens); first += rows) {
				uint sequence = 0; // the last that begins at first or before
				for (uint n = sequences; n > 1;) {
					uint part = n / 2;
					if ((uint)starts[sequence + part] <= first) sequence += part;
					n -= part;
				}
				uint begin = starts[sequence], end = sequence + 1 < sequences ? min((uint)starts[sequence + 1], tokens) : tokens;
				if (begin > first || end <= first) { // starts is no such list
					begin = first;
					end = first + 1;
				}
				rows = min(end, block + tall) - first;
				uint from = first * stride + head * width, keys = begin * stride + head * width;
				if (rows <= QUERIES) attend<1>(q + from, k + keys, v + keys, out + from, shared, rows, end - begin, stride, width, scale);
				else attend<4>(q + from, k + keys, v + keys, out + from, shared, rows, end - begin, stride, width, scale);
			}
}
#endif
