/* Handles, errors and threads leave nothing behind, and a call looks at no other handle.
 * usage: memory */
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { MANY = 100000 };

static kiln_runtime runtime;
static kiln_device device;
static kiln_source source;
static kiln_kernel open_handles[MANY];

static long kib(void)
{
	long pages = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f != NULL && fscanf(f, "%ld %ld", &pages, &resident) == 2);
	fclose(f);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* handles opens and frees so many kernels and devices. */
static void handles(int n)
{
	kiln_kernel kernel;
	kiln_device again;
	size_t size;
	for (; n > 0; n -= 2) {
		WANT(KILN_OK, kiln_kernel_create(device, &source, &kernel, &e));
		WANT(KILN_OK, kiln_kernel_blob_id(kernel, &size, NULL, &e));
		WANT(KILN_OK, kiln_kernel_destroy(kernel, &e));
		WANT(KILN_OK, kiln_device_open(runtime, "fake", 0, -1, &again, &e));
		WANT(KILN_OK, kiln_device_close(again, &e));
	}
}

/* errors makes so many errors, each with a text. */
static void errors(int n)
{
	char name[32];
	kiln_device none;
	for (; n > 0; n -= 2) {
		sprintf(name, "no backend %d", n);
		WANT(KILN_NOT_FOUND, kiln_device_open(runtime, name, 0, -1, &none, &e));
		CHECK(strstr(e.text, name) != NULL);
		WANT(KILN_CLOSED, kiln_kernel_destroy(open_handles[0], &e));
	}
}

static void *one(void *none)
{
	kiln_error own;
	(void)none;
	CHECK(kiln_kernel_build(open_handles[1], -1, NULL, &own) == KILN_OK);
	return NULL;
}

/* threads has a twentieth of n threads, with small stacks, make one call each and end. */
static void threads(int n)
{
	pthread_attr_t small;
	pthread_t thread;
	CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 65536) == 0);
	for (; n > 0; n -= 20)
		CHECK(pthread_create(&thread, &small, one, NULL) == 0 && pthread_join(thread, NULL) == 0);
	pthread_attr_destroy(&small);
}

/* flat checks that MANY calls leave less than 4 MiB behind, 42 bytes for each. */
static void flat(const char *what, void (*call)(int))
{
	long before;
	call(MANY / 4);
	before = kib();
	call(MANY);
	if (kib() - before > 4096) {
		printf("%s: %ld KiB more after %d\n", what, kib() - before, MANY);
		exit(1);
	}
}

/* cost is what 200 calls of each function take at best. */
static double cost(void)
{
	double best = 1e9;
	int round, i;
	for (round = 0; round < 7; round++) {
		double began = now();
		handles(400);
		errors(400);
		for (i = 0; i < 200; i++)
			WANT(KILN_OK, kiln_kernel_build(open_handles[1], -1, NULL, &e));
		if (now() - began < best)
			best = now() - began;
	}
	return best;
}

int main(void)
{
	double few, many; /* a scan of all handles at each call would be a thousand times as much */
	int i;
	WANT(KILN_OK, kiln_open("", &runtime, &e));
	WANT(KILN_OK, kiln_device_open(runtime, "fake", 0, -1, &device, &e));
	source.language = "fake";
	source.text = "text";
	source.text_size = 4;
	source.entry = "good";
	for (i = 0; i < 100; i++)
		WANT(KILN_OK, kiln_kernel_create(device, &source, &open_handles[i], &e));
	WANT(KILN_OK, kiln_kernel_destroy(open_handles[0], &e));
	flat("handles", handles);
	flat("errors", errors);
	flat("threads", threads);
	few = cost();
	for (; i < MANY; i++)
		WANT(KILN_OK, kiln_kernel_create(device, &source, &open_handles[i], &e));
	many = cost();
	if (many > 50 * few) {
		printf("with %d handles calls take %.1f ms, with 100 %.1f ms\n", MANY, many * 1e3, few * 1e3);
		exit(1);
	}
	WANT(KILN_OK, kiln_close(runtime, -1, &e));
	WANT(KILN_CLOSED, kiln_kernel_destroy(open_handles[MANY - 1], &e));
	puts("ok");
	return 0;
}
