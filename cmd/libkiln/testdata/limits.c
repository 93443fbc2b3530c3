/* Arguments at and beyond what a function takes. usage: limits BACKEND */
#include "check.h"

static kiln_runtime runtime;
static kiln_device device;
static kiln_kernel kernel;
static const char text[] = "kernel void fill(global int *out) { out[get_global_id(0)] = 7; }";

static kiln_source plain(void)
{
	kiln_source source;
	memset(&source, 0, sizeof source);
	source.language = "opencl-c";
	source.text = text;
	source.text_size = strlen(text);
	source.entry = "fill";
	return source;
}

/* created is what comes of a source. */
static kiln_status created(const kiln_source *source)
{
	kiln_kernel made = 77;
	kiln_status status = kiln_kernel_create(device, source, &made, &e);
	CHECK(status == e.status && (status == KILN_OK) == (made != 0 && made != 77));
	return status;
}

static kiln_status with_param(int32_t kind, int32_t align, int64_t bytes)
{
	kiln_source source = plain();
	kiln_param param;
	param.kind = kind;
	param.align = align;
	param.bytes = bytes;
	source.params = &param;
	source.param_count = 1;
	return created(&source);
}

int main(int argc, char **argv)
{
	static const size_t absurd[] = {SIZE_MAX, SIZE_MAX - 7, SIZE_MAX / 2, SIZE_MAX / 2 + 1, (size_t)-1000, SIZE_MAX / 8, SIZE_MAX / 16 + 1, (size_t)1 << 40, 65537};
	static const kiln_pair twice[] = {{"A", "1"}, {"A", "2"}}, no_name[] = {{NULL, "1"}}, no_value[] = {{"A", NULL}};
	static const char *const no_option[] = {"-cl-mad-enable", NULL};
	static const char with_zero[] = "kernel void fill(global int *out)\0{ out[get_global_id(0)] = 7; }";
	kiln_source source;
	kiln_device again;
	uint64_t mib;
	size_t i, size;
	int64_t n;
	char byte = 0;

	CHECK(argc == 2);
	WANT(KILN_OK, kiln_open("", &runtime, &e));
	WANT(KILN_OK, kiln_device_open(runtime, argv[1], 0, -1, &device, &e));

	/* Handles of another kind, and none. */
	WANT(KILN_INVALID, kiln_settle(device, -1, &e));
	WANT(KILN_INVALID, kiln_device_close(runtime, &e));
	WANT(KILN_INVALID, kiln_device_open(device, "cpu", 0, -1, &again, &e));
	WANT(KILN_INVALID, kiln_kernel_build(device, -1, NULL, &e));
	WANT(KILN_INVALID, kiln_kernel_destroy(UINT64_MAX, &e));
	WANT(KILN_INVALID, kiln_kernel_from_blob(0, &byte, 1, -1, NULL, &e));
	CHECK(strcmp(kiln_status_name(KILN_OK), "KILN_OK") == 0 && strcmp(kiln_status_name(KILN_FAILED), "KILN_FAILED") == 0);
	CHECK(kiln_status_name(-1) != NULL && kiln_status_name(INT32_MAX) != NULL && kiln_status_name(INT32_MIN) != NULL);

	/* Null where a text or a result must be. */
	WANT(KILN_INVALID, kiln_device_open(runtime, NULL, 0, -1, &again, &e));
	WANT(KILN_INVALID, kiln_device_open(runtime, argv[1], 0, -1, NULL, &e));
	WANT(KILN_NOT_FOUND, kiln_device_open(runtime, "", 0, -1, &again, &e));
	CHECK(kiln_device_open(runtime, argv[1], -1, -1, &again, &e) != KILN_OK && e.text[0] != 0);
	CHECK(kiln_device_open(runtime, argv[1], INT32_MAX, -1, &again, &e) != KILN_OK && e.text[0] != 0);
	if (kiln_device_open(runtime, "cuda", 0, -1, &again, &e) != KILN_OK)
		CHECK(e.status == KILN_UNAVAILABLE && strstr(e.text, "install") != NULL);
	WANT(KILN_OK, kiln_settle(runtime, INT64_MAX, &e));
	WANT(KILN_INVALID, kiln_kernel_create(device, NULL, &kernel, &e));
	source = plain();
	WANT(KILN_INVALID, kiln_kernel_create(device, &source, NULL, &e));
	WANT(KILN_INVALID, kiln_constant_tensor_cache_capacity_get(runtime, KILN_CPU, NULL, &e));
	WANT(KILN_INVALID, kiln_constant_tensor_cache_capacity_get(runtime, -1, &mib, &e));
	WANT(KILN_INVALID, kiln_constant_tensor_cache_capacity_set(runtime, INT32_MAX, 1, -1, &e));

	/* Counts and lengths. */
	for (i = 0; i < sizeof absurd / sizeof *absurd; i++) {
		source = plain();
		source.options = no_option;
		source.option_count = absurd[i];
		WANT(KILN_INVALID, created(&source));
		source = plain();
		source.defines = twice;
		source.define_count = absurd[i];
		WANT(KILN_INVALID, created(&source));
		source = plain();
		source.includes = twice;
		source.include_count = absurd[i];
		WANT(KILN_INVALID, created(&source));
		source = plain();
		source.params = (const kiln_param *)twice;
		source.param_count = absurd[i];
		WANT(KILN_INVALID, created(&source));
		source = plain();
		source.text = NULL;
		source.text_size = absurd[i];
		WANT(KILN_INVALID, created(&source));
		WANT(KILN_INVALID, kiln_kernel_from_blob(0, NULL, absurd[i], -1, NULL, &e));
		if (absurd[i] == 65537)
			continue;
		source.text = text;
		WANT(absurd[i] > SIZE_MAX / 2 ? KILN_INVALID : KILN_TOO_LARGE, created(&source));
		WANT(absurd[i] > SIZE_MAX / 2 ? KILN_INVALID : KILN_TOO_LARGE, kiln_kernel_from_blob(0, &byte, absurd[i], -1, NULL, &e));
		source = plain();
		source.block[i % 3] = absurd[i];
		WANT(KILN_INVALID, created(&source));
	}
	for (i = 1; i < 3; i++) {
		source = plain();
		source.option_count = i;
		WANT(KILN_INVALID, created(&source)); /* a count with a null list */
		source.options = no_option;
		WANT(i == 1 ? KILN_OK : KILN_INVALID, created(&source));
		source = plain();
		source.defines = twice;
		source.define_count = i;
		WANT(i == 1 ? KILN_OK : KILN_INVALID, created(&source));
		source = plain();
		source.includes = i == 1 ? no_name : no_value;
		source.include_count = 1;
		WANT(KILN_INVALID, created(&source));
	}
	source = plain();
	source.text_size = 0;
	WANT(KILN_INVALID, created(&source));
	source = plain();
	source.entry = "";
	WANT(KILN_INVALID, created(&source));
	source = plain();
	source.block[1] = 2; /* and none in the first dimension */
	WANT(KILN_INVALID, created(&source));

	/* Parameters. */
	WANT(KILN_INVALID, with_param(0, 0, 0));
	WANT(KILN_INVALID, with_param(-1, 0, 0));
	WANT(KILN_INVALID, with_param(KILN_PARAM_F64 + 1, 0, 0));
	WANT(KILN_INVALID, with_param(256 + KILN_PARAM_BUFFER, 0, 0));
	WANT(KILN_INVALID, with_param(KILN_PARAM_BUFFER, -4, 4));
	WANT(KILN_INVALID, with_param(KILN_PARAM_BUFFER, 3, 4));
	WANT(KILN_INVALID, with_param(KILN_PARAM_BUFFER, INT32_MAX, 4));
	WANT(KILN_INVALID, with_param(KILN_PARAM_BUFFER, INT32_MIN, 4));
	WANT(KILN_OK, with_param(KILN_PARAM_BUFFER, 1 << 30, 4));
	WANT(KILN_INVALID, with_param(KILN_PARAM_I32, 4, 0));
	WANT(KILN_INVALID, with_param(KILN_PARAM_I32, 0, 4));
	WANT(KILN_INVALID, with_param(KILN_PARAM_BUFFER, 0, -1));
	WANT(KILN_INVALID, with_param(KILN_PARAM_STRUCT, 0, 0));
	WANT(KILN_OK, with_param(KILN_PARAM_STRUCT, 0, 1));
	for (n = INT64_MAX; n >= (int64_t)1 << 50; n /= 8) {
		WANT(KILN_INVALID, with_param(KILN_PARAM_BUFFER, 0, n));
		WANT(KILN_INVALID, with_param(KILN_PARAM_LOCAL, 0, n));
	}
	for (; n >= (int64_t)1 << 20; n /= 8)
		WANT(KILN_INVALID, with_param(KILN_PARAM_STRUCT, 0, n));

	/* A zero byte in a text is a part of it. */
	source = plain();
	WANT(KILN_OK, kiln_kernel_create(device, &source, &kernel, &e));
	WANT(KILN_INVALID, kiln_kernel_blob(kernel, -1, NULL, &byte, &e));
	if (strcmp(argv[1], "opencl") == 0) {
		kiln_param params[2] = {{KILN_PARAM_BUFFER, 0, 4}, {KILN_PARAM_STRUCT, 0, 0}};
		char one[64], other[64];
		kiln_kernel second;
		size = sizeof one;
		WANT(KILN_OK, kiln_kernel_blob_id(kernel, &size, one, &e));
		CHECK(size == sizeof one);
		source.text = with_zero;
		source.text_size = sizeof with_zero - 1;
		WANT(KILN_OK, kiln_kernel_create(device, &source, &second, &e));
		WANT(KILN_OK, kiln_kernel_blob_id(second, &size, other, &e));
		CHECK(memcmp(one, other, sizeof one) != 0);
		CHECK(kiln_kernel_build(second, -1, NULL, &e) != KILN_PANIC);

		/* What is run before its blob is taken gets parameters as large as they are declared. */
		source = plain();
		source.text = "typedef struct { char of[65536]; } large; kernel void fill(global int *out, large l) { out[0] = l.of[9]; }";
		source.text_size = strlen(source.text);
		source.params = params;
		source.param_count = 2;
		source.block[0] = 1;
		params[1].bytes = 65536;
		WANT(KILN_OK, kiln_kernel_create(device, &source, &second, &e));
		WANT(KILN_OK, kiln_kernel_blob(second, -1, &size, NULL, &e));

		/* More local memory than the device has: a driver would end the program. */
		source.text = "kernel void fill(global int *out, local int *all) { all[0] = 7; out[0] = all[0]; }";
		source.text_size = strlen(source.text);
		params[1].kind = KILN_PARAM_LOCAL;
		params[1].bytes = (int64_t)1 << 40;
		WANT(KILN_OK, kiln_kernel_create(device, &source, &second, &e));
		WANT(KILN_INVALID, kiln_kernel_blob(second, -1, &size, NULL, &e));
	}
	WANT(KILN_OK, kiln_close(runtime, INT64_MIN, &e));
	WANT(KILN_CLOSED, kiln_close(runtime, INT64_MAX, &e));
	puts("ok");
	return 0;
}
