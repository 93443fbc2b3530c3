// The names of statuses are C's own, for ever. A tool that checks the threads of the program
// does not see how Go's wait for each other, and would take a name that Go made for a race.
__attribute__((visibility("hidden"))) const char *const kiln_names[] = {
	"KILN_OK", "KILN_INVALID", "KILN_CLOSED", "KILN_CYCLE", "KILN_GOEXIT",
	"KILN_ABANDONED", "KILN_SIZE", "KILN_UNSUPPORTED", "KILN_REFUSED", "KILN_TOO_LARGE",
	"KILN_OVERLOADED", "KILN_DEVICE_LOST", "KILN_UNAVAILABLE", "KILN_IO", "KILN_NOT_FOUND",
	"KILN_PANIC", "KILN_TIMEOUT", "KILN_CANCELED", "KILN_SHORT_BUFFER", "KILN_FAILED",
};
