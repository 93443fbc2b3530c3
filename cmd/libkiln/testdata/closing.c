/* Closes a runtime, a device and kernels while 16 threads call every function on them.
 * usage: closing BACKEND LANGUAGE ROUNDS */
#include <sched.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 16, CLOSERS = 3 };
enum { RUNTIME, DEVICE, KERNEL };

static kiln_runtime runtime;
static kiln_device device;
static kiln_kernel kernel;
static void *blob;
static size_t blob_size;
static const char *language;
static int calls, ended; /* by __atomic functions */
static int round_;       /* frees a runtime, a device or a kernel */

/* must checks that a call, while its handle may be freed, ends right or says that it was. It
 * gives whether it was. */
static int must(int line, kiln_status got, const kiln_error *own)
{
	if (got == own->status && (got == KILN_OK || got == KILN_CLOSED) && (got == KILN_OK) == (own->text[0] == 0))
		return got == KILN_CLOSED;
	printf("line %d: %s, and the error has %s: %s\n", line, kiln_status_name(got), kiln_status_name(own->status), own->text);
	exit(1);
}

#define MUST(call) must(__LINE__, call, &own)

static const char text[] = "kernel void fill(global int *out) { out[get_global_id(0)] = VALUE; }";

static kiln_status create(kiln_kernel *made, const char *entry, const char *value, kiln_error *own)
{
	const kiln_param param = {KILN_PARAM_BUFFER, 0, 4};
	kiln_pair define;
	kiln_source source;
	memset(&source, 0, sizeof source);
	define.name = "VALUE";
	define.value = value;
	source.language = language;
	source.text = text;
	source.text_size = strlen(text);
	source.entry = entry;
	source.defines = &define;
	source.define_count = 1;
	source.params = &param;
	source.param_count = 1;
	return kiln_kernel_create(device, &source, made, own);
}

/* every calls each function again and again until its handle is freed, and then 40 times more. */
static void *every(void *number)
{
	int at = (int)(size_t)number, turn, after = 0, calls_ended, freed_kind, was;
	kiln_error own;
	for (turn = at; after < 40; turn++) {
		char value[32], id[64];
		kiln_device other_device;
		kiln_kernel other = 0;
		kiln_origin origin;
		uint64_t mib;
		size_t size = sizeof id;
		calls_ended = __atomic_load_n(&ended, __ATOMIC_SEQ_CST); /* before the call */
		switch (turn % 9) {
		case 0:
			freed_kind = RUNTIME;
			was = MUST(kiln_settle(runtime, -1, &own));
			break;
		case 1:
			freed_kind = RUNTIME;
			was = MUST(kiln_device_open(runtime, "cpu", 0, -1, &other_device, &own));
			if (!was)
				MUST(kiln_device_close(other_device, &own));
			break;
		case 2:
			freed_kind = DEVICE;
			sprintf(value, "%d", 1000 * round_ + at);
			was = MUST(create(&other, "fill", value, &own));
			if (!was && blob != NULL && at == 0) /* one that no other thread has */
				MUST(kiln_kernel_build(other, -1, &origin, &own));
			if (!was)
				MUST(kiln_kernel_destroy(other, &own));
			if (!was && strcmp(language, "fake") == 0 && !MUST(create(&other, "heeds_its_end", "", &own)) &&
			    kiln_kernel_build(other, 2, &origin, &own) != KILN_TIMEOUT) /* it is still being made then */
				MUST(own.status);
			break;
		case 3:
			freed_kind = KERNEL;
			was = MUST(kiln_kernel_blob_id(kernel, &size, id, &own));
			break;
		case 4:
			freed_kind = KERNEL;
			was = blob == NULL ? calls_ended : MUST(kiln_kernel_build(kernel, -1, &origin, &own));
			break;
		case 5:
			freed_kind = KERNEL;
			was = blob == NULL ? calls_ended : MUST(kiln_kernel_blob(kernel, -1, &size, NULL, &own));
			break;
		case 6:
			freed_kind = KERNEL;
			was = blob == NULL ? calls_ended : MUST(kiln_kernel_from_blob(kernel, blob, blob_size, -1, NULL, &own));
			break;
		case 7:
			freed_kind = RUNTIME;
			was = MUST(kiln_constant_tensor_cache_capacity_set(runtime, KILN_CPU, 7, -1, &own));
			break;
		default:
			freed_kind = RUNTIME;
			was = MUST(kiln_constant_tensor_cache_capacity_get(runtime, KILN_CPU, &mib, &own));
		}
		if (calls_ended && was != (freed_kind >= round_ % 3)) {
			printf("function %d in round %d: it %s\n", turn % 9, round_, was ? "finds its handle freed" : "ends well on what was freed");
			exit(1);
		}
		after += calls_ended;
		__atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
		usleep(100); /* so that those that compile come on */
	}
	return NULL;
}

/* closer frees what this round frees, as others do at the same moment. */
static void *closer(void *count)
{
	kiln_error own;
	int was;
	if (round_ % 3 == RUNTIME)
		was = MUST(kiln_close(runtime, -1, &own));
	else if (round_ % 3 == DEVICE)
		was = MUST(kiln_device_close(device, &own));
	else
		was = MUST(kiln_kernel_destroy(kernel, &own));
	if (!was)
		__atomic_add_fetch((int *)count, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS], closers[CLOSERS];
	int rounds, i, closes;
	CHECK(argc == 4);
	language = argv[2];
	rounds = atoi(argv[3]);
	for (round_ = 0; round_ < rounds; round_++) {
		calls = ended = closes = 0;
		WANT(KILN_OK, kiln_open(NULL, &runtime, &e));
		WANT(KILN_OK, kiln_device_open(runtime, argv[1], 0, -1, &device, &e));
		WANT(KILN_OK, create(&kernel, "fill", "7", &e));
		if (strcmp(argv[1], "cpu") != 0 && blob == NULL) {
			WANT(KILN_OK, kiln_kernel_blob(kernel, -1, &blob_size, NULL, &e));
			CHECK((blob = malloc(blob_size)) != NULL);
			WANT(KILN_OK, kiln_kernel_blob(kernel, -1, &blob_size, blob, &e));
		}
		for (i = 0; i < THREADS; i++)
			CHECK(pthread_create(&threads[i], NULL, every, (void *)(size_t)i) == 0);
		while (__atomic_load_n(&calls, __ATOMIC_SEQ_CST) < 40 * THREADS)
			sched_yield();
		for (i = 0; i < CLOSERS; i++)
			CHECK(pthread_create(&closers[i], NULL, closer, &closes) == 0);
		for (i = 0; i < CLOSERS; i++)
			CHECK(pthread_join(closers[i], NULL) == 0);
		CHECK(closes == 1);
		__atomic_store_n(&ended, 1, __ATOMIC_SEQ_CST);
		for (i = 0; i < THREADS; i++)
			CHECK(pthread_join(threads[i], NULL) == 0);
		if (round_ % 3 != RUNTIME)
			WANT(KILN_OK, kiln_close(runtime, -1, &e));
	}
	free(blob);
	puts("ok");
	return 0;
}
