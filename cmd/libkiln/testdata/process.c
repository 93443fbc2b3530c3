/* Loads the library, forks beside calls that run, and unloads it, which does nothing.
 * usage: process LIBRARY */
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static kiln_status (*open_)(const char *, kiln_runtime *, kiln_error *);
static kiln_status (*settle)(kiln_runtime, int64_t, kiln_error *);
static kiln_status (*close_)(kiln_runtime, int64_t, kiln_error *);
static const char *(*name)(kiln_status);
static kiln_runtime runtime;
static int ended; /* by __atomic functions */

/* find sets a pointer to a function, which ISO C has no cast for. */
static void find(void *library, const char *function, void *pointer)
{
	*(void **)pointer = dlsym(library, function);
	CHECK(*(void **)pointer != NULL);
}

static void *busy(void *none)
{
	(void)none;
	while (!__atomic_load_n(&ended, __ATOMIC_SEQ_CST))
		CHECK(settle(runtime, -1, NULL) == KILN_OK);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[4];
	const char *kept;
	void *library;
	int i, status;

	if (argc == 3) /* this is a child that has called exec */
		return 7;
	CHECK(argc == 2 && (library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)) != NULL);
	find(library, "kiln_open", &open_);
	find(library, "kiln_settle", &settle);
	find(library, "kiln_close", &close_);
	find(library, "kiln_status_name", &name);
	CHECK(open_("", &runtime, &e) == KILN_OK);
	kept = name(KILN_CLOSED);
	for (i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, busy, NULL) == 0);
	for (i = 0; i < 40; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			if (i % 2)
				execl("/proc/self/exe", argv[0], argv[1], "again", (char *)NULL);
			_exit(7);
		}
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	}
	__atomic_store_n(&ended, 1, __ATOMIC_SEQ_CST);
	for (i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(dlclose(library) == 0);
	CHECK(settle(runtime, -1, &e) == KILN_OK);
	CHECK(close_(runtime, -1, &e) == KILN_OK);
	CHECK(dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) == library);
	CHECK(open_("", &runtime, &e) == KILN_OK && close_(runtime, -1, &e) == KILN_OK);
	CHECK(kept == name(KILN_CLOSED) && strcmp(kept, "KILN_CLOSED") == 0);
	puts("ok");
	return 0;
}
