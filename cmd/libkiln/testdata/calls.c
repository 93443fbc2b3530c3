/* Calls every function of kiln.h on one device. Prints where its kernel came from.
 * usage: calls STORE BACKEND LANGUAGE */
#include "check.h"

static const char opencl[] = "kernel void fill(global int *out) { out[get_global_id(0)] = VALUE; }";
static const char glsl[] = "#version 450\n"
	"layout(local_size_x = 1) in;\n"
	"layout(binding = 0) buffer Out { int at[]; } to;\n"
	"void main() { to.at[gl_GlobalInvocationID.x] = VALUE; }\n";
static kiln_runtime runtime;
static kiln_kernel kernel;

static void *many(void *none)
{
	size_t size = 0;
	kiln_error own;
	int i;
	(void)none;
	for (i = 0; i < 50; i++)
		if (kiln_kernel_blob(kernel, -1, &size, NULL, &own) != KILN_OK || size == 0)
			return &kernel;
	return NULL;
}

int main(int argc, char **argv)
{
	const kiln_pair defines[] = {{"VALUE", "7"}};
	const kiln_param params[] = {{KILN_PARAM_BUFFER, 0, 4}};
	const char *text = opencl;
	kiln_runtime beside;
	kiln_source source;
	kiln_device device;
	kiln_kernel second;
	kiln_origin origin = -1, again = -1;
	size_t size = 0, id_size = 0, n, i;
	uint64_t mib = 0;
	char *id, *blob, *buffer;
	pthread_t threads[16];

	CHECK(argc == 4);
	WANT(KILN_INVALID, kiln_open(argv[1], NULL, &e));
	WANT(KILN_INVALID, kiln_close(0, -1, &e));
	WANT(KILN_INVALID, kiln_close(1u << 30, -1, NULL));
	WANT(KILN_OK, kiln_open(argv[1], &runtime, &e));
	WANT(KILN_NOT_FOUND, kiln_device_open(runtime, "abacus", 0, -1, &device, &e));
	WANT(KILN_OK, kiln_device_open(runtime, argv[2], 0, -1, &device, &e));
	WANT(KILN_INVALID, kiln_close(device, -1, &e));

	WANT(KILN_OK, kiln_constant_tensor_cache_capacity_get(runtime, KILN_CPU, &mib, &e));
	CHECK(mib == KILN_UNLIMITED_MIB);
	WANT(KILN_OK, kiln_constant_tensor_cache_capacity_set(runtime, KILN_GPU, 5, -1, &e));
	WANT(KILN_OK, kiln_constant_tensor_cache_capacity_get(runtime, KILN_GPU, &mib, &e));
	CHECK(mib == 5);
	WANT(KILN_OK, kiln_constant_tensor_cache_capacity_set(runtime, KILN_GPU, 0, -1, &e));
	WANT(KILN_OK, kiln_constant_tensor_cache_capacity_get(runtime, KILN_GPU, &mib, &e));
	CHECK(mib == 0);
	WANT(KILN_OK, kiln_constant_tensor_cache_capacity_set(runtime, KILN_GPU, UINT64_MAX, -1, &e));
	WANT(KILN_OK, kiln_constant_tensor_cache_capacity_get(runtime, KILN_GPU, &mib, &e));
	CHECK(mib == KILN_UNLIMITED_MIB);
	WANT(KILN_INVALID, kiln_constant_tensor_cache_capacity_get(runtime, 2, &mib, &e));

	memset(&source, 0, sizeof source);
	WANT(KILN_INVALID, kiln_kernel_create(device, &source, &kernel, &e));
	source.language = argv[3];
	source.entry = "fill";
	if (strcmp(argv[3], "glsl") == 0) {
		text = glsl;
		source.entry = "main";
	}
	source.text = text;
	source.text_size = SIZE_MAX;
	WANT(KILN_INVALID, kiln_kernel_create(device, &source, &kernel, &e));
	source.text_size = strlen(text);
	source.defines = defines;
	source.define_count = 1;
	source.params = params;
	source.param_count = 1;
	WANT(KILN_OK, kiln_kernel_create(device, &source, &kernel, &e));
	WANT(KILN_INVALID, kiln_kernel_from_blob(0, NULL, 0, -1, NULL, &e));
	WANT(KILN_INVALID, kiln_kernel_blob_id(kernel, NULL, NULL, &e));
	WANT(KILN_OK, kiln_kernel_blob_id(kernel, &id_size, NULL, &e));
	if (id_size == 0) { /* no blobs of this language */
		WANT(KILN_UNSUPPORTED, kiln_kernel_blob(kernel, -1, &size, NULL, &e));
		WANT(KILN_OK, kiln_close(runtime, -1, &e));
		puts("unsupported");
		return 0;
	}
	CHECK(id_size == 64 && (id = malloc(id_size)) != NULL);
	WANT(KILN_OK, kiln_kernel_blob_id(kernel, &id_size, id, &e));

	WANT(KILN_OK, kiln_kernel_build(kernel, -1, &origin, &e));
	WANT(KILN_OK, kiln_kernel_build(kernel, -1, &again, &e));
	CHECK(again == KILN_RESIDENT);
	WANT(KILN_OK, kiln_kernel_blob(kernel, -1, &size, NULL, &e));
	CHECK(size > 0 && (blob = malloc(size)) != NULL);
	WANT(KILN_OK, kiln_kernel_blob(kernel, -1, &size, blob, &e));
	for (n = 0; n <= size + 1; n += n < 70 || n + 70 > size ? 1 : 97) {
		size_t told = n;
		CHECK((buffer = malloc(n + 16)) != NULL);
		memset(buffer, 0x5a, n + 16);
		WANT(n < size ? KILN_SHORT_BUFFER : KILN_OK, kiln_kernel_blob(kernel, -1, &told, buffer, &e));
		CHECK(told == size);
		for (i = n < size ? 0 : size; i < n + 16; i++)
			CHECK(buffer[i] == 0x5a);
		CHECK(n < size || memcmp(buffer, blob, size) == 0);
		free(buffer);
	}
	for (n = 0; n < 16; n++)
		CHECK(pthread_create(&threads[n], NULL, many, NULL) == 0);
	for (n = 0; n < 16; n++) {
		void *wrong;
		CHECK(pthread_join(threads[n], &wrong) == 0 && wrong == NULL);
	}
	WANT(KILN_OK, kiln_kernel_from_blob(kernel, "no blob", 7, -1, &again, &e)); /* the one in memory wins */
	CHECK(again == KILN_RESIDENT);
	WANT(KILN_OK, kiln_settle(runtime, -1, &e));

	/* A second runtime beside the first shares its store, and takes nothing along. */
	WANT(KILN_OK, kiln_open(argv[1], &beside, &e));
	WANT(KILN_OK, kiln_device_open(beside, argv[2], 0, -1, &device, &e));
	WANT(KILN_OK, kiln_kernel_create(device, &source, &second, &e));
	WANT(KILN_OK, kiln_kernel_build(second, -1, &again, &e));
	CHECK(again == KILN_STORED);
	WANT(KILN_OK, kiln_close(beside, -1, &e));
	WANT(KILN_CLOSED, kiln_kernel_build(second, -1, &again, &e));
	WANT(KILN_OK, kiln_kernel_build(kernel, -1, &again, &e));
	WANT(KILN_OK, kiln_kernel_destroy(kernel, &e));
	WANT(KILN_CLOSED, kiln_kernel_destroy(kernel, &e));
	WANT(KILN_OK, kiln_close(runtime, -1, &e));
	WANT(KILN_CLOSED, kiln_close(runtime, -1, &e));
	WANT(KILN_CLOSED, kiln_device_close(device, &e));

	/* Another runtime, without a store: from the blob, and refused where that is damaged. */
	WANT(KILN_OK, kiln_open(NULL, &runtime, &e));
	WANT(KILN_OK, kiln_device_open(runtime, argv[2], 0, -1, &device, &e));
	WANT(KILN_OK, kiln_kernel_create(device, &source, &second, &e));
	blob[size / 2] ^= 1;
	WANT(KILN_REFUSED, kiln_kernel_from_blob(second, blob, size, -1, NULL, &e));
	CHECK(e.reason[0] != 0);
	blob[size / 2] ^= 1;
	WANT(KILN_OK, kiln_kernel_from_blob(second, blob, size, -1, &again, &e));
	CHECK(again == KILN_BLOB);
	source.text = text == glsl ? "#version 450\nvoid main() { nowhere(); }\n" :
				     "kernel void fill(global int *out) { *out = nowhere; }";
	source.text_size = strlen(source.text);
	WANT(KILN_OK, kiln_kernel_create(device, &source, &second, &e));
	WANT(KILN_INVALID, kiln_kernel_build(second, -1, NULL, &e));
	CHECK(strstr(e.text, "nowhere") != NULL); /* as the compiler says it */
	WANT(KILN_OK, kiln_close(runtime, -1, &e));

	/* A store that cannot be is done without. */
	WANT(KILN_OK, kiln_open("/dev/null/store", &runtime, &e));
	WANT(KILN_OK, kiln_close(runtime, -1, &e));
	printf("%s %.64s\n", origin == KILN_STORED ? "stored" : origin == KILN_COMPILED ? "compiled" : "?", id);
	free(id);
	free(blob);
	return 0;
}
