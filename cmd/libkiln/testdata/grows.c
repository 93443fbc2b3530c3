/* Takes a blob that is longer each time that its kernel is compiled. With no capacity every
 * handle's kernel is its own. usage: grows */
#include "check.h"

int main(void)
{
	kiln_runtime runtime;
	kiln_device device;
	kiln_kernel first, second;
	kiln_origin origin = -1;
	kiln_source source;
	size_t size, known, n;
	char blob[64];

	memset(&source, 0, sizeof source);
	source.language = "fake";
	source.text = "text";
	source.text_size = 4;
	source.entry = "grows";
	WANT(KILN_OK, kiln_open("", &runtime, &e));
	WANT(KILN_OK, kiln_device_open(runtime, "fake", 0, -1, &device, &e));
	WANT(KILN_OK, kiln_kernel_create(device, &source, &first, &e));
	WANT(KILN_OK, kiln_kernel_create(device, &source, &second, &e));

	/* A handle keeps its kernel. */
	WANT(KILN_OK, kiln_kernel_build(first, -1, &origin, &e));
	CHECK(origin == KILN_COMPILED);
	WANT(KILN_OK, kiln_kernel_build(first, -1, &origin, &e));
	CHECK(origin == KILN_RESIDENT);
	WANT(KILN_OK, kiln_kernel_blob(first, -1, &known, NULL, &e));
	size = sizeof blob;
	WANT(KILN_OK, kiln_kernel_blob(first, -1, &size, blob, &e));
	CHECK(size == known);

	/* Another blob has grown since the size was asked for. */
	WANT(KILN_OK, kiln_kernel_build(second, -1, &origin, &e));
	CHECK(origin == KILN_COMPILED);
	memset(blob, 0x5a, sizeof blob);
	size = known;
	WANT(KILN_SHORT_BUFFER, kiln_kernel_blob(second, -1, &size, blob, &e));
	CHECK(size > known && e.status == KILN_SHORT_BUFFER && e.text[0] != 0);
	for (n = 0; n < sizeof blob; n++)
		CHECK(blob[n] == 0x5a);
	WANT(KILN_OK, kiln_kernel_blob(second, -1, &size, blob, &e));
	CHECK(size == known + 1 && blob[known] == 0 && blob[size] == 0x5a);
	WANT(KILN_OK, kiln_close(runtime, -1, &e));
	puts("ok");
	return 0;
}
