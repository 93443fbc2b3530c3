// What the threads of a warp and of a block do together, and what NVRTC makes of calls,
// structs, tables and switches.
struct Pair {
	int first;
	double second[2];
};

__constant__ int squares[8] = {0, 1, 4, 9, 16, 25, 36, 49};
__device__ unsigned counter = 5;

__device__ __noinline__ int called(int x, Pair p) {
	int list[4];
	for (int i = 0; i < 4; i++) list[i] = x * i + p.first;
	if (x % 3 == 0) return list[x & 3];
	return list[(x + 1) & 3] + (int)p.second[x & 1];
}

// Each thread goes through a loop as often as its number, with a switch in it.
extern "C" __global__ void paths(int *out, Pair p, int n) {
	int t = blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
	if (t >= n) return;
	for (int i = 0; i < t; i++) {
		switch ((i * 7 + t) % 11) {
		case 0: sum += 3; break;
		case 1: sum ^= i; break;
		case 2: sum *= 3; break;
		case 3: continue;
		case 4: sum += squares[i & 7]; break;
		case 5: sum -= t; break;
		case 6: sum <<= 1; break;
		case 8: sum += called(i, p); break;
		default: sum++;
		}
		if (sum > 100000) break;
	}
	out[t] = sum;
}

extern "C" __global__ void warps(unsigned *out, const unsigned *in) {
	unsigned t = threadIdx.x, lane = t % 32, v = in[t], all = 0xffffffff;
	unsigned *o = out + 12 * t;
	o[0] = __shfl_xor_sync(all, v, 5);
	o[1] = __shfl_up_sync(all, v, 3);
	o[2] = __shfl_down_sync(all, v, 4, 8);
	o[3] = __shfl_sync(all, v, v, 16);
	o[4] = __ballot_sync(all, v & 1);
	o[5] = __any_sync(all, v == 7) | __all_sync(all, v < 1000) << 1;
	o[6] = lane;
	if (v & 1) {
		o[6] = __activemask();
		o[7] = __shfl_sync(o[6], v, __ffs(o[6]) - 1);
	} else if (lane < 16) {
		unsigned some = __ballot_sync(__activemask(), v & 2);
		__syncwarp(__activemask());
		o[7] = some;
	} else {
		o[7] = 1;
	}
	o[8] = atomicAdd(&counter, 1) >= 5;
	o[9] = __popc(__ballot_sync(all, atomicMax(o + 9, 0) == 0));
	for (unsigned i = 0; i < lane % 5; i++) v = v * 3 + i;
	o[10] = v;
	o[11] = __clz(v) + __brev(v) + __funnelshift_l(v, lane, 3);
}

extern "C" __global__ void blocks(float *out, const float *in, unsigned n, float limit) {
	extern __shared__ float part[];
	__shared__ double total;
	unsigned t = threadIdx.x;
	part[t] = t < n ? in[t] : 0;
	for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
		__syncthreads();
		if (t < step) part[t] += part[t + step];
	}
	if (t == 0) total = part[0];
	__syncthreads();
	out[t] = (float)total + __syncthreads_count(t < 10) + 100 * __syncthreads_or(in[t] > limit) + 1000 * __syncthreads_and(t < 64);
}

extern "C" __global__ void numbers(double *out, const double *in, const long long *whole) {
	unsigned t = threadIdx.x;
	double x = in[t];
	long long n = whole[t];
	out[8 * t] = sqrt(fabs(x)) / 3 + floor(x);
	out[8 * t + 1] = (double)(float)x + (double)(int)x;
	out[8 * t + 2] = (double)(n / 7) + (double)(n % 1000);
	out[8 * t + 3] = (double)((unsigned long long)n / 12345) + __popcll(n);
	out[8 * t + 4] = (double)(short)n + (double)(unsigned char)n;
	out[8 * t + 5] = (double)((float)n + rintf((float)x));
	out[8 * t + 6] = fma(x, x, 1.0);
	out[8 * t + 7] = (double)__mul64hi(n, 1ll << 40);
}
