// The products of package ops for devices that are no processors, with the arguments that
// those of ops.cl have. A group makes TILE rows and columns of out, 16 of k at a time: its
// items copy what they need of both sides into local memory, and each makes 4 columns of 8
// rows. The group goes on with the tiles that are as far behind as there are groups. Each
// element is summed in the order of k (SPEC E8). With dimensions of 0 a kernel touches nothing.
#pragma OPENCL FP_CONTRACT OFF

#define DEEP 16u
#define DOWN 8u
#define HIGH (TILE / DOWN) // items below each other: each has every row that is so many further down
#define WIDE (TILE / 4)    // items beside each other
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
typedef float4 right_side[DEEP][WIDE];

// load copies what a tile needs from first on, up to depth. Beyond the edges are zeros, one of each
// sign: added to a sum, their product of -0 leaves it as it is, one of -0 too.
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
		((local float *)right[d])[c] = column + c < n && first + d < depth ? b[RIGHT(first + d, column + c)] : -0.0f;
	}
}

// add_up makes the sums of an item.
void add_up(global const float *a, global const float *b, local left_side left, local right_side right,
		uint m, uint k, uint n, uint row, uint column, uint depth, float4 sums[DOWN]) {
	uint top = get_local_id(0) / WIDE, beside = get_local_id(0) % WIDE;
	#pragma unroll
	for (uint i = 0; i < DOWN; i++) sums[i] = 0;
	for (uint first = 0; first < depth; first += DEEP) {
		barrier(CLK_LOCAL_MEM_FENCE); // what was copied before has been used
		load(a, b, left, right, m, k, n, row, column, first, depth);
		barrier(CLK_LOCAL_MEM_FENCE);
		for (uint d = 0; d < DEEP; d++) {
			float4 numbers = right[d][beside];
			#pragma unroll
			for (uint i = 0; i < DOWN; i++) sums[i] = fma((float4)left[d][top + HIGH * i], numbers, sums[i]);
		}
	}
}

// put writes the first n of 4 numbers.
void put(float4 v, global float *p, uint n) {
	if (n >= 4) {
		vstore4(v, 0, p);
		return;
	}
	if (n > 0) p[0] = v.x;
	if (n > 1) p[1] = v.y;
	if (n > 2) p[2] = v.z;
}

// EACH_TILE is for the tiles of a group.
#define EACH_TILE \
	for (uint column = get_group_id(1) * TILE; column < n; column += get_num_groups(1) * TILE) \
	for (uint row = get_group_id(0) * TILE; row < m; row += get_num_groups(0) * TILE)

// PUT_SUMS writes the sums of an item that are within out, which begins there, in rows of n:
// what of them is, by its number i.
#define PUT_SUMS(out, of) { \
	uint c = column + get_local_id(0) % WIDE * 4, columns = c < n ? n - c : 0; \
	_Pragma("unroll") \
	for (uint i = 0; i < DOWN; i++) { \
		uint r = row + get_local_id(0) / WIDE + HIGH * i; \
		if (r < m) put(of, (out) + r * n + c, columns); \
	} \
}

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
		float4 sums[DOWN];
		add_up(x, weight, left, right, m, k, n, row, column, k, sums);
		float4 more = 0;
#ifdef BIAS
		uint from = column + get_local_id(0) % WIDE * 4;
		if (from < n) more.x = bias[from];
		if (from + 1 < n) more.y = bias[from + 1];
		if (from + 2 < n) more.z = bias[from + 2];
		if (from + 3 < n) more.w = bias[from + 3];
#endif
		PUT_SUMS(out, sums[i] + more)
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
			float4 sums[DOWN];
			add_up(a + block * m * k, b + block * k * n, left, right, m, k, n, row, column, depth, sums);
			PUT_SUMS(out + block * m * n, sums[i] * scale)
		}
	}
}
#endif
