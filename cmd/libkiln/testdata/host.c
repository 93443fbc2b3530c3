/* A host that does what its arguments say, in their order: with its signals, and with the library.
 * It ends with 0 if all went as they say. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kiln.h"

static kiln_status (*open_runtime)(const char *, kiln_runtime *, kiln_error *);
static kiln_status (*open_device)(kiln_runtime, const char *, int32_t, int64_t, kiln_device *, kiln_error *);
static kiln_status (*create)(kiln_device, const kiln_source *, kiln_kernel *, kiln_error *);
static kiln_status (*build)(kiln_kernel, int64_t, kiln_origin *, kiln_error *);
static kiln_status (*close_runtime)(kiln_runtime, int64_t, kiln_error *);

static void *library;
static kiln_runtime runtime;
static kiln_device device;
static kiln_error error;

static sigjmp_buf back;
static volatile sig_atomic_t came[65];
static int *volatile nowhere;

static void note(int n)
{
	came[n]++;
}

static void survive(int n)
{
	came[n]++;
	siglongjmp(back, 1);
}

static void fail(const char *what, const char *why)
{
	printf("%s: %s\n", what, why);
	exit(1);
}

static void must(const char *what, kiln_status status)
{
	if (status != KILN_OK)
		fail(what, error.text);
}

static void set(int n, void (*handler)(int), int flags)
{
	struct sigaction a;
	memset(&a, 0, sizeof a);
	a.sa_handler = handler;
	a.sa_flags = flags;
	if (sigaction(n, &a, NULL) != 0)
		fail("sigaction", strerror(errno));
}

static void load(const char *path)
{
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL)
		fail(path, dlerror());
	*(void **)&open_runtime = dlsym(library, "kiln_open");
	*(void **)&open_device = dlsym(library, "kiln_device_open");
	*(void **)&create = dlsym(library, "kiln_kernel_create");
	*(void **)&build = dlsym(library, "kiln_kernel_build");
	*(void **)&close_runtime = dlsym(library, "kiln_close");
}

static void compile(const char *number)
{
	static const char text[] = "kernel void k(global int *x) { x[get_global_id(0)] = N; }";
	static const kiln_param params[] = {{KILN_PARAM_BUFFER, 0, 4}};
	kiln_pair define = {"N", number};
	kiln_source source;
	kiln_kernel kernel;
	kiln_origin origin;
	memset(&source, 0, sizeof source);
	source.language = "opencl-c";
	source.text = text;
	source.text_size = sizeof text - 1;
	source.entry = "k";
	source.defines = &define;
	source.define_count = 1;
	source.params = params;
	source.param_count = 1;
	must("create", create(device, &source, &kernel, &error));
	must("build", build(kernel, -1, &origin, &error));
	puts(origin == KILN_STORED ? "stored" : origin == KILN_COMPILED ? "compiled" : "resident");
}

static void broken(int fd)
{
	int ends[2];
	if (pipe(ends) != 0 || close(ends[0]) != 0 || dup2(ends[1], fd) != fd || close(ends[1]) != 0)
		fail("pipe", strerror(errno));
}

int main(int argc, char **argv)
{
	int i, n, was;
	setvbuf(stdout, NULL, _IONBF, 0);
	for (i = 1; i < argc; i++) {
		char *word = argv[i], *value = strchr(word, '=');
		if (value != NULL)
			*value++ = 0;
		n = value == NULL ? 0 : atoi(value);
		if (strcmp(word, "load") == 0)
			load(value);
		else if (strcmp(word, "unload") == 0)
			dlclose(library);
		else if (strcmp(word, "handle") == 0)
			set(n, n == SIGSEGV ? survive : note, SA_ONSTACK | SA_RESTART);
		else if (strcmp(word, "plain") == 0) /* without SA_ONSTACK, as most programs have it */
			set(n, n == SIGSEGV ? survive : note, 0);
		else if (strcmp(word, "ignore") == 0)
			set(n, SIG_IGN, 0);
		else if (strcmp(word, "default") == 0)
			set(n, SIG_DFL, 0);
		else if (strcmp(word, "open") == 0)
			must("open", open_runtime(value, &runtime, &error));
		else if (strcmp(word, "device") == 0)
			must("device", open_device(runtime, value, 0, -1, &device, &error));
		else if (strcmp(word, "compile") == 0)
			compile(value);
		else if (strcmp(word, "close") == 0)
			must("close", close_runtime(runtime, -1, &error));
		else if (strcmp(word, "raise") == 0) {
			was = came[n];
			raise(n);
			if (came[n] != was + 1)
				fail("raise", "the handler was not called once");
		} else if (strcmp(word, "fault") == 0) {
			was = came[SIGSEGV];
			if (sigsetjmp(back, 1) == 0)
				*nowhere = 1;
			if (came[SIGSEGV] != was + 1)
				fail("fault", "the handler was not called once");
		} else if (strcmp(word, "mute") == 0)
			broken(2);
		else if (strcmp(word, "write") == 0) {
			broken(9);
			if (write(9, "x", 1) >= 0 || errno != EPIPE)
				fail("write", strerror(errno));
		} else
			fail(word, "is no word");
	}
	puts("done");
	return 0;
}
