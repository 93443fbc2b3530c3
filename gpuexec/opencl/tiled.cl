// The products of package ops for devices that are no processors, with the arguments that
// those of ops.cl have. A group makes TILE rows and columns of out, 16 of k at a time: its
// items copy what they need of both sides into local memory, and each makes 8 x 4 of out. It
// goes on with the tiles that are as far behind as there are groups. Each element is summed
// in the order of k (SPEC E8). With dimensions of 0 a kernel touches nothing.
#pragma OPENCL FP_CONTRACT OFF

#define DEEP 16u
#define DOWN 8u
#define ACROSS 4u
#define HIGH (TILE / DOWN) // items below each other, each with every so many-th row
#define WIDE (TILE / ACROSS)
#define ITEMS (HIGH * WIDE)

// Where the right-hand side has the number in row d and column c.
#ifdef MATMUL
#define RIGHT(d, c) (((c) / 32 * k + (d)) * 32 + (c) % 32)
#elif defined(TRANSPOSE_B)
#define RIGHT(d, c) ((c) * k + (d))
#else
#define RIGHT(d, c) ((d) * n + (c))
#endif

// A column more keeps items that write below each other out of one bank of the memory.
typedef float left_side[DEEP][TILE + 1];
typedef float right_side[DEEP][TILE];

// load copies what a tile needs from first on, up to depth. Beyond the edges are zeros.
void load(global const float *a, global const float *b, local left_side left, local right_side right,
		uint m, uint k, uint n, uint row, uint column, uint first, uint depth) {
	for (uint i = get_local_id(0); i < TILE * DEEP; i += ITEMS) {
		uint beside = i % DEEP, down = i / DEEP;
		left[beside][down] = row + down < m && first + beside < depth ? a[(row + down) * k + first + beside] : 0;
#ifdef TRANSPOSE_B
		uint d = beside, c = down;
#else
		uint d = i / TILE, c = i % TILE;
#endif
		right[d][c] = column + c < n && first + d < depth ? b[RIGHT(first + d, column + c)] : 0;
	}
}

// add_up makes the sums of an item.
void add_up(global const float *a, global const float *b, local left_side left, local right_side right,
		uint m, uint k, uint n, uint row, uint column, uint depth, float sums[DOWN][ACROSS]) {
	uint top = get_local_id(0) / WIDE, beside = get_local_id(0) % WIDE;
	#pragma unroll
	for (uint i = 0; i < DOWN; i++) {
		#pragma unroll
		for (uint j = 0; j < ACROSS; j++) sums[i][j] = 0;
	}
	for (uint first = 0; first < depth; first += DEEP) {
		barrier(CLK_LOCAL_MEM_FENCE); // what was copied before has been used
		load(a, b, left, right, m, k, n, row, column, first, depth);
		barrier(CLK_LOCAL_MEM_FENCE);
		for (uint d = 0; d < DEEP; d++) {
			#pragma unroll
			for (uint i = 0; i < DOWN; i++) {
				#pragma unroll
				for (uint j = 0; j < ACROSS; j++) sums[i][j] = fma(left[d][top + HIGH * i], right[d][beside + WIDE * j], sums[i][j]);
			}
		}
	}
}

// EACH_TILE is for the tiles of a group.
#define EACH_TILE \
	for (uint column = get_group_id(1) * TILE; column < n; column += get_num_groups(1) * TILE) \
	for (uint row = get_group_id(0) * TILE; row < m; row += get_num_groups(0) * TILE)

// EACH_SUM is for those of an item's sums that are within out.
#define EACH_SUM \
	_Pragma("unroll") \
	for (uint i = 0; i < DOWN; i++) \
	_Pragma("unroll") \
	for (uint j = 0, r = row + get_local_id(0) / WIDE + HIGH * i, c = column + get_local_id(0) % WIDE; j < ACROSS; j++, c += WIDE) \
	if (r < m && c < n)

#ifdef MATMUL
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void op_matmul(global const float *x, global const float *weight,
#ifdef BIAS
		global const float *bias,
#endif
		global float *out, uint m, uint k, uint n) {
	local left_side left;
	local right_side right;
	EACH_TILE {
		float sums[DOWN][ACROSS];
		add_up(x, weight, left, right, m, k, n, row, column, k, sums);
#ifdef BIAS
		EACH_SUM out[r * n + c] = sums[i][j] + bias[c];
#else
		EACH_SUM out[r * n + c] = sums[i][j];
#endif
	}
}
#endif

#ifdef BATCH_MATMUL
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void op_batch_matmul(global const float *a, global const float *b, global const int *lengths, global float *out,
		uint batch, uint heads, uint m, uint k, uint n, float scale) {
	local left_side left;
	local right_side right;
	for (uint block = get_group_id(2); block < batch * heads; block += get_num_groups(2)) {
		uint depth = k;
#ifdef MASK_K
		depth = min((uint)lengths[block / heads], k); // all of it where the length is below 0
#endif
		EACH_TILE {
			float sums[DOWN][ACROSS];
			add_up(a + block * m * k, b + block * k * n, left, right, m, k, n, row, column, depth, sums);
			EACH_SUM out[(block * m + r) * n + c] = sums[i][j] * scale;
		}
	}
}
#endif
