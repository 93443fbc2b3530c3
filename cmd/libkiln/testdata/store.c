/* Opens a runtime over a store, prints what came of that, and, where it is open, makes 20
 * kernels with it. usage: store STORE */
#include "check.h"

int main(int argc, char **argv)
{
	kiln_runtime runtime = 77;
	kiln_device device;
	kiln_kernel kernel;
	kiln_source source;
	kiln_status status;
	size_t size;
	int i;
	CHECK(argc == 2);
	status = kiln_open(argv[1], &runtime, &e);
	printf("%s %s\n", kiln_status_name(status), e.text);
	CHECK(status == e.status);
	if (status != KILN_OK) {
		WANT(KILN_INVALID, kiln_close(runtime, -1, &e)); /* it is no handle */
		return 0;
	}
	WANT(KILN_OK, kiln_device_open(runtime, "fake", 0, -1, &device, &e));
	memset(&source, 0, sizeof source);
	source.language = "fake";
	source.text_size = 4;
	source.entry = "good";
	for (i = 0; i < 20; i++) {
		char text[5];
		sprintf(text, "%04d", i);
		source.text = text;
		WANT(KILN_OK, kiln_kernel_create(device, &source, &kernel, &e));
		WANT(KILN_OK, kiln_kernel_build(kernel, -1, NULL, &e));
		WANT(KILN_OK, kiln_kernel_blob(kernel, -1, &size, NULL, &e));
		CHECK(size > 0);
	}
	WANT(KILN_OK, kiln_settle(runtime, -1, &e));
	WANT(KILN_OK, kiln_close(runtime, -1, &e));
	return 0;
}
