/* What goes wrong in a backend is a status with a text. usage: faults STORE */
#include <unistd.h>

#include "check.h"

static kiln_runtime runtime;
static kiln_device device;

/* named makes a kernel of the tests' backend: its name says what becomes of its compile. */
static kiln_kernel named(kiln_device device, const char *entry)
{
	kiln_source source;
	kiln_kernel made = 0;
	memset(&source, 0, sizeof source);
	source.language = "fake";
	source.text = "text";
	source.text_size = 4;
	source.entry = entry;
	WANT(KILN_OK, kiln_kernel_create(device, &source, &made, &e));
	return made;
}

static kiln_status build(const char *entry)
{
	return kiln_kernel_build(named(device, entry), 20000, NULL, &e);
}

/* waits builds a kernel. */
static void *waits(void *kernel)
{
	kiln_error own;
	return (void *)(size_t)kiln_kernel_build(*(kiln_kernel *)kernel, -1, NULL, &own);
}

int main(int argc, char **argv)
{
	kiln_runtime beside;
	kiln_device elsewhere;
	kiln_kernel kernel, other;
	kiln_origin origin;
	pthread_t thread;
	void *got;
	size_t size;
	int i;

	CHECK(argc == 2);
	WANT(KILN_OK, kiln_open(argv[1], &runtime, &e));
	WANT(KILN_OK, kiln_device_open(runtime, "fake", 0, -1, &device, &e));

	/* A panic, also one with an error that has a status of its own, and in another call. */
	for (i = 0; i < 2; i++) {
		WANT(KILN_PANIC, build("panics"));
		CHECK(strstr(e.text, "a bug of the driver") != NULL);
		CHECK(strstr(e.text, "goroutine ") != NULL && strstr(e.text, "fake.go:") != NULL);
	}
	WANT(KILN_PANIC, build("panics_with_canceled"));
	kernel = named(device, "panics_later");
	WANT(KILN_OK, kiln_kernel_build(kernel, -1, &origin, &e));
	WANT(KILN_PANIC, kiln_kernel_blob(kernel, -1, &size, NULL, &e));
	WANT(KILN_GOEXIT, build("exits"));

	/* Errors: all of the struct is filled, texts are cut between two characters, and a zero
	 * byte does not hide what is behind it. */
	WANT(KILN_FAILED, build("says_much"));
	CHECK(strstr(e.text, "first") != NULL && strstr(e.text, "second") != NULL);
	CHECK(strlen(e.text) > sizeof e.text - 4 && strlen(e.text) < sizeof e.text);
	CHECK(memcmp(e.text + strlen(e.text) - 2, "\303\251", 2) == 0);
	WANT(KILN_REFUSED, build("is_refused"));
	CHECK(strcmp(e.reason, "driver_refused") == 0 && strlen(e.field) == sizeof e.field - 1);
	WANT(KILN_OVERLOADED, build("finds_no_memory"));
	CHECK(e.status == KILN_OVERLOADED && e.reason[0] == 0 && e.field[0] == 0 && e.text[0] != 0);
	WANT(KILN_OK, build("good"));
	CHECK(e.status == KILN_OK && e.reason[0] == 0 && e.field[0] == 0 && e.text[0] == 0);
	CHECK(kiln_kernel_build(named(device, "says_much"), -1, NULL, NULL) == KILN_FAILED);

	/* A compile goes on when its caller has left, and is run once. */
	kernel = named(device, "waits");
	origin = -1;
	WANT(KILN_TIMEOUT, kiln_kernel_build(kernel, 1, &origin, &e));
	CHECK(origin == -1);
	WANT(KILN_TIMEOUT, kiln_kernel_blob(kernel, 1, &size, NULL, &e));

	/* A runtime whose close has timed out is closed, and goes on closing by itself. */
	WANT(KILN_OK, kiln_open("", &beside, &e));
	WANT(KILN_OK, kiln_device_open(beside, "fake", 0, -1, &elsewhere, &e));
	other = named(elsewhere, "stays");
	CHECK(pthread_create(&thread, NULL, waits, &other) == 0);
	WANT(KILN_OK, build("comes_then"));
	WANT(KILN_TIMEOUT, kiln_close(beside, 1, &e));
	CHECK(pthread_join(thread, &got) == 0 && (size_t)got == KILN_CLOSED); /* it does not stay */
	WANT(KILN_CLOSED, kiln_close(beside, -1, &e));
	WANT(KILN_CLOSED, kiln_kernel_build(other, -1, &origin, &e));
	WANT(KILN_OK, build("lets_it_go"));
	WANT(KILN_OK, kiln_kernel_build(kernel, -1, &origin, &e));
	CHECK(origin == KILN_COMPILED || origin == KILN_RESIDENT);

	/* A device that is lost: it is opened again, and other kernels are there still. */
	other = named(device, "good");
	WANT(KILN_OK, kiln_kernel_build(other, -1, &origin, &e));
	CHECK(origin == KILN_RESIDENT);
	WANT(KILN_DEVICE_LOST, build("is_lost"));
	for (i = 0; kiln_kernel_build(named(device, "after_the_loss"), -1, &origin, &e) != KILN_OK; i++) {
		CHECK(e.status == KILN_DEVICE_LOST && i < 1000);
		usleep(1000);
	}
	WANT(KILN_OK, kiln_kernel_blob(other, -1, &size, NULL, &e));

	/* A handle that is freed while another thread waits for its kernel. */
	kernel = named(device, "heeds_its_end");
	CHECK(pthread_create(&thread, NULL, waits, &kernel) == 0);
	WANT(KILN_TIMEOUT, kiln_kernel_build(kernel, 100, &origin, &e)); /* both wait now */
	WANT(KILN_OK, kiln_kernel_destroy(kernel, &e));
	WANT(KILN_CLOSED, kiln_kernel_build(kernel, -1, &origin, &e));

	/* The close calls off what is under way. */
	WANT(KILN_OK, kiln_close(runtime, 20000, &e));
	CHECK(pthread_join(thread, &got) == 0 && (size_t)got == KILN_CLOSED);
	puts("ok");
	return 0;
}
