/*
 * oneDNN's own primitive-cache hit, measured in C as a framework would pay it.
 *
 * Usage: hit LIBRARY. Writes one line "ready MAJOR.MINOR.PATCH", then answers each
 * line with one line:
 *
 *   problems N CAPACITY           then N lines, each a problem; empties the cache. "N"
 *   pass MODE CAPACITY FROM N     sets the capacity unless it is below 0, and looks up
 *                                 N problems once each, from this one on. "WALL_NS"
 *   slot MODE THREADS WRITERS MS  "LOOKUPS WALL_NS CPU_NS P50_NS P99_NS WRITES"
 *
 * A problem is "KIND FUNCTION ALPHA TENSORS" and for each tensor "RANK SIZE... STRIDE...",
 * all of f32. FUNCTION is that of an eltwise or behind a matmul, else none. MODE is one of
 *
 *   all-in  memory descriptors, attributes, descriptor, primitive, all destroys
 *   kept    descriptor and primitive and their destroys, the rest kept
 *
 * Percentiles are of batches of 64 lookups, divided by 64; they are taken beside
 * writers only, else 0. With WRITERS a further thread creates one primitive that
 * the cache does not hold for every 64 lookups, in a cache that is full. Ends
 * with its input. An error is one line "error: ..." and exit code 1.
 *
 * No header of the library is needed: these are the entry points and constants
 * that its C interface has kept from 3.2 on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { CPU = 1, F32 = 3, SCRATCHPAD_USER = 1, MAX_DIMS = 12 };
enum { TANH = 33, LINEAR = 38, GELU_ERF = 49, ADD = 0x1fff0, ACCURATE = 0x30000 };
enum { INFERENCE = 96, SCALE_AND_SHIFT = 2 | 4 };
enum { BATCH = 64, BATCHES = 64, MOST_THREADS = 64, TIMES = 1 << 14 };

typedef int64_t dims[MAX_DIMS];
typedef void *handle;
typedef struct {
	int major, minor, patch;
} version;

static const version *(*lib_version)(void);
static int (*engine_create)(handle *, int, size_t);
static int (*set_capacity)(int);
static int (*md_create)(handle *, int, const dims, int, const dims);
static int (*md_destroy)(handle);
static int (*attr_create)(handle *);
static int (*attr_destroy)(handle);
static int (*attr_scratchpad)(handle, int);
static int (*attr_post_ops)(handle, handle);
static int (*po_create)(handle *);
static int (*po_destroy)(handle);
static int (*po_eltwise)(handle, int, float, float);
static int (*matmul_pd)(handle *, handle, handle, handle, handle, handle, handle);
static int (*reorder_pd)(handle *, handle, handle, handle, handle, handle);
static int (*binary_pd)(handle *, handle, int, handle, handle, handle, handle);
static int (*eltwise_pd)(handle *, handle, int, int, handle, handle, float, float, handle);
static int (*softmax_pd)(handle *, handle, int, int, handle, handle, int, handle);
static int (*norm_pd)(handle *, handle, int, handle, handle, handle, float, unsigned, handle);
static int (*pd_destroy)(handle);
static int (*prim_create)(handle *, handle);
static int (*prim_destroy)(handle);

static handle engine;

static void fail(const char *format, ...) {
	va_list args;
	va_start(args, format);
	printf("error: ");
	vprintf(format, args);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

#define OK(call)                                                                       \
	do {                                                                           \
		int status_ = (call);                                                  \
		if (status_) fail("%s: status %d", #call, status_);                    \
	} while (0)

static void load(const char *path) {
	/* One thread, as a server with a worker for each core sets it; no banner. */
	setenv("OMP_NUM_THREADS", "1", 1);
	setenv("ONEDNN_VERBOSE", "none", 1);
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib) fail("%s", dlerror());
	const struct {
		void *at;
		const char *name;
	} entries[] = {
		{&lib_version, "dnnl_version"},
		{&engine_create, "dnnl_engine_create"},
		{&set_capacity, "dnnl_set_primitive_cache_capacity"},
		{&md_create, "dnnl_memory_desc_create_with_strides"},
		{&md_destroy, "dnnl_memory_desc_destroy"},
		{&attr_create, "dnnl_primitive_attr_create"},
		{&attr_destroy, "dnnl_primitive_attr_destroy"},
		{&attr_scratchpad, "dnnl_primitive_attr_set_scratchpad_mode"},
		{&attr_post_ops, "dnnl_primitive_attr_set_post_ops"},
		{&po_create, "dnnl_post_ops_create"},
		{&po_destroy, "dnnl_post_ops_destroy"},
		{&po_eltwise, "dnnl_post_ops_append_eltwise"},
		{&matmul_pd, "dnnl_matmul_primitive_desc_create"},
		{&reorder_pd, "dnnl_reorder_primitive_desc_create"},
		{&binary_pd, "dnnl_binary_primitive_desc_create"},
		{&eltwise_pd, "dnnl_eltwise_forward_primitive_desc_create"},
		{&softmax_pd, "dnnl_softmax_forward_primitive_desc_create"},
		{&norm_pd, "dnnl_layer_normalization_forward_primitive_desc_create"},
		{&pd_destroy, "dnnl_primitive_desc_destroy"},
		{&prim_create, "dnnl_primitive_create"},
		{&prim_destroy, "dnnl_primitive_destroy"},
	};
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
		void *found = dlsym(lib, entries[i].name);
		if (!found) fail("%s has no %s; it must be oneDNN 3.2 or later", path, entries[i].name);
		memcpy(entries[i].at, &found, sizeof found);
	}
	/* Several functions kept their names and changed their arguments in 3.0. */
	if (lib_version()->major != 3) fail("%s is oneDNN %d.%d; it must be 3.2 or later", path, lib_version()->major, lib_version()->minor);
}

enum kind { MATMUL, REORDER, BINARY, ELTWISE, SOFTMAX, NORM };
static const char *const kinds[] = {"matmul", "reorder", "binary", "eltwise", "softmax", "layer_normalization"};
enum { KINDS = sizeof kinds / sizeof *kinds, MOST_TENSORS = 4 };

typedef struct {
	enum kind kind;
	int function; /* 0 = none */
	float alpha;
	int tensors;
	struct {
		int rank;
		dims sizes, strides;
	} tensor[MOST_TENSORS];
} problem;

typedef struct {
	handle md[MOST_TENSORS], attr;
} operands;

static operands operands_create(const problem *p) {
	operands o;
	for (int i = 0; i < p->tensors; i++) OK(md_create(&o.md[i], p->tensor[i].rank, p->tensor[i].sizes, F32, p->tensor[i].strides));
	OK(attr_create(&o.attr));
	OK(attr_scratchpad(o.attr, SCRATCHPAD_USER));
	if (p->kind == MATMUL && p->function) {
		handle post_ops;
		OK(po_create(&post_ops));
		OK(po_eltwise(post_ops, p->function, p->alpha, 0));
		OK(attr_post_ops(o.attr, post_ops));
		OK(po_destroy(post_ops));
	}
	return o;
}

static void operands_destroy(const problem *p, const operands *o) {
	OK(attr_destroy(o->attr));
	for (int i = p->tensors; i-- > 0;) OK(md_destroy(o->md[i]));
}

static int describe(handle *pd, const problem *p, const operands *o) {
	const handle *md = o->md;
	switch (p->kind) {
	case MATMUL: /* its bias is the third of four */
		return matmul_pd(pd, engine, md[0], md[1], p->tensors == 4 ? md[2] : NULL, md[p->tensors - 1], o->attr);
	case REORDER: return reorder_pd(pd, md[0], engine, md[1], engine, o->attr);
	case BINARY: return binary_pd(pd, engine, ADD, md[0], md[1], md[2], o->attr);
	case ELTWISE: return eltwise_pd(pd, engine, INFERENCE, p->function, md[0], md[1], p->alpha, 0, o->attr);
	case SOFTMAX: return softmax_pd(pd, engine, INFERENCE, ACCURATE, md[0], md[1], p->tensor[0].rank - 1, o->attr);
	case NORM: return norm_pd(pd, engine, INFERENCE, md[0], md[1], NULL, p->alpha, SCALE_AND_SHIFT, o->attr);
	}
	return 2; /* invalid arguments */
}

static void lookup_kept(const problem *p, const operands *o) {
	handle pd, primitive;
	OK(describe(&pd, p, o));
	OK(prim_create(&primitive, pd));
	OK(prim_destroy(primitive));
	OK(pd_destroy(pd));
}

static problem *problems;
static operands *kept;
static int count, capacity;

static void lookup(int all_in, int at) {
	const problem *p = &problems[at];
	if (!all_in) {
		lookup_kept(p, &kept[at]);
		return;
	}
	operands o = operands_create(p);
	lookup_kept(p, &o);
	operands_destroy(p, &o);
}

static void read_problem(problem *p) {
	static const struct {
		const char *name;
		int number;
	} functions[] = {{"none", 0}, {"gelu_erf", GELU_ERF}, {"tanh", TANH}, {"linear", LINEAR}};
	char kind[32], function[32];
	if (scanf("%31s %31s %f %d", kind, function, &p->alpha, &p->tensors) != 4) fail("no problem");
	int k = 0, f = 0;
	while (k < KINDS && strcmp(kind, kinds[k])) k++;
	while (f < 4 && strcmp(function, functions[f].name)) f++;
	if (k == KINDS || f == 4) fail("no problem %s %s", kind, function);
	if (p->tensors < 2 + (k == MATMUL || k == BINARY) || p->tensors > MOST_TENSORS) fail("%s: %d tensors", kind, p->tensors);
	p->kind = k, p->function = functions[f].number;
	for (int i = 0; i < p->tensors; i++) {
		int *rank = &p->tensor[i].rank;
		if (scanf("%d", rank) != 1 || *rank < 1 || *rank > MAX_DIMS) fail("%s: no rank of tensor %d", kind, i);
		for (int n = 0; n < 2 * *rank; n++) {
			int64_t *to = n < *rank ? &p->tensor[i].sizes[n] : &p->tensor[i].strides[n - *rank];
			if (scanf("%" SCNd64, to) != 1) fail("%s: no sizes of tensor %d", kind, i);
		}
	}
}

static void read_problems(void) {
	for (int i = 0; i < count; i++) operands_destroy(&problems[i], &kept[i]);
	if (scanf("%d %d", &count, &capacity) != 2 || count < 1) fail("no number of problems");
	problems = realloc(problems, count * sizeof *problems);
	kept = realloc(kept, count * sizeof *kept);
	if (!problems || !kept) fail("no memory for %d problems", count);
	for (int i = 0; i < count; i++) {
		read_problem(&problems[i]);
		kept[i] = operands_create(&problems[i]);
	}
	OK(set_capacity(0));
	OK(set_capacity(capacity));
	printf("%d\n", count);
}

/* A transposing reorder: the cheapest primitive that the cache keeps. */
static void create_new(void) {
	static int64_t rows = 1; /* used by one thread at a time */
	handle from, to, pd, primitive;
	int64_t r = rows++;
	OK(md_create(&from, 2, (dims){r, 3}, F32, (dims){3, 1}));
	OK(md_create(&to, 2, (dims){r, 3}, F32, (dims){1, r}));
	OK(reorder_pd(&pd, from, engine, to, engine, NULL));
	OK(prim_create(&primitive, pd));
	OK(prim_destroy(primitive));
	OK(pd_destroy(pd));
	OK(md_destroy(to));
	OK(md_destroy(from));
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t cpu_time(void) {
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000LL + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000LL;
}

static atomic_int over;
static pthread_barrier_t ready, release;
static sem_t due; /* batches of writes that the readers have earned */
static int all_in, writers;

typedef struct {
	int start;
	int64_t lookups;
	int64_t batches;
	int32_t times[TIMES]; /* of the latest batches, beside writers */
} reader;

static void *read_loop(void *arg) {
	reader *r = arg;
	int problem = r->start;
	r->lookups = r->batches = 0;
	pthread_barrier_wait(&ready);
	pthread_barrier_wait(&release);
	do {
		int64_t began = writers ? now() : 0;
		for (int i = 0; i < BATCH; i++) {
			lookup(all_in, problem);
			problem = (problem + 1) % count;
		}
		r->lookups += BATCH;
		if (!writers) continue; /* to the condition */
		r->times[r->batches++ % TIMES] = (int32_t)(now() - began);
		if (r->batches % BATCHES == 0) sem_post(&due);
	} while (!atomic_load_explicit(&over, memory_order_relaxed));
	return NULL;
}

static void *write_loop(void *arg) {
	int64_t *writes = arg;
	for (;;) {
		sem_wait(&due);
		for (int i = 0; i < BATCHES; i++) {
			if (atomic_load(&over)) return NULL;
			create_new();
			++*writes;
		}
	}
}

static int ascending(const void *a, const void *b) {
	int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
	return (x > y) - (x < y);
}

static void start(pthread_t *thread, void *(*body)(void *), void *arg) {
	if (pthread_create(thread, NULL, body, arg)) fail("no further thread");
}

static void measure(int threads, int milliseconds) {
	static reader readers[MOST_THREADS];
	static int32_t times[MOST_THREADS * TIMES];
	pthread_t ids[MOST_THREADS], writer;
	int64_t writes = 0, lookups = 0;
	size_t n = 0;
	atomic_store(&over, 0);
	sem_init(&due, 0, 0);
	pthread_barrier_init(&ready, NULL, threads + 1);
	pthread_barrier_init(&release, NULL, threads + 1);
	for (int i = 0; i < threads; i++) {
		readers[i].start = (int)((int64_t)i * count / threads);
		start(&ids[i], read_loop, &readers[i]);
	}
	if (writers) start(&writer, write_loop, &writes);
	pthread_barrier_wait(&ready);
	int64_t began = now(), cpu = cpu_time(); /* before any of them begins: late is better than flattering */
	pthread_barrier_wait(&release);
	struct timespec length = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
	nanosleep(&length, NULL);
	atomic_store(&over, 1);
	for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
	int64_t wall = now() - began;
	cpu = cpu_time() - cpu;
	if (writers) {
		sem_post(&due);
		pthread_join(writer, NULL);
	}
	for (int i = 0; i < threads; i++) {
		size_t have = readers[i].batches < TIMES ? readers[i].batches : TIMES;
		memcpy(times + n, readers[i].times, have * sizeof *times);
		n += have;
		lookups += readers[i].lookups;
	}
	qsort(times, n, sizeof *times, ascending);
	double p50 = n ? times[n / 2] / (double)BATCH : 0, p99 = n ? times[n * 99 / 100] / (double)BATCH : 0;
	printf("%lld %lld %lld %g %g %lld\n", (long long)lookups, (long long)wall, (long long)cpu, p50, p99, (long long)writes);
	fflush(stdout);
	pthread_barrier_destroy(&ready);
	pthread_barrier_destroy(&release);
	sem_destroy(&due);
}

static void pass(int size, int from, int n) {
	int64_t began = now();
	if (size >= 0) OK(set_capacity(size));
	for (int i = 0; i < n; i++) lookup(all_in, (from + i) % count);
	printf("%lld\n", (long long)(now() - began));
}

static void read_mode(void) {
	char mode[16];
	if (scanf("%15s", mode) != 1 || count == 0) fail("no mode, or no problems");
	all_in = strcmp(mode, "all-in") == 0;
	if (!all_in && strcmp(mode, "kept") != 0) fail("no mode %s", mode);
}

int main(int argc, char **argv) {
	if (argc != 2) fail("want the library's path");
	load(argv[1]);
	OK(engine_create(&engine, CPU, 0));
	const version *v = lib_version();
	printf("ready %d.%d.%d\n", v->major, v->minor, v->patch);
	fflush(stdout);
	char command[16];
	int threads, milliseconds, size, from, n, full = 0;
	while (scanf("%15s", command) == 1) {
		if (strcmp(command, "problems") == 0) {
			read_problems();
		} else if (strcmp(command, "pass") == 0) {
			read_mode();
			if (scanf("%d %d %d", &size, &from, &n) != 3 || from < 0) fail("no pass");
			pass(size, from, n);
		} else if (strcmp(command, "slot") == 0) {
			read_mode();
			if (scanf("%d %d %d", &threads, &writers, &milliseconds) != 3) fail("no slot");
			if (threads < 1 || threads > MOST_THREADS) fail("%d threads, want 1 to %d", threads, MOST_THREADS);
			for (; writers && full < capacity - count; full++) create_new();
			measure(threads, milliseconds);
		} else {
			fail("no command %s", command);
		}
		fflush(stdout);
	}
	return 0;
}
