/*
 * kiln.h: Kiln for programs in C and C++, on Linux.
 *
 * Kiln compiles each kernel of a server once, keeps it in memory, and keeps its cache blob in
 * a store on disk, which any number of processes share. This is all that libkiln.so offers;
 * docs/c.md has a program that uses it, and how it is built.
 *
 * HANDLES. A runtime, a device and a kernel are numbers; 0 is none. A number is never given
 * twice. A handle that was freed answers KILN_CLOSED, one that never was, or is of another
 * kind, KILN_INVALID. Neither is a crash. Closing a runtime frees all handles that came from it.
 *
 * THREADS. Every function may be called by any number of threads at once, also on one handle.
 * kiln_close may be called while others run: those answer KILN_CLOSED.
 *
 * MEMORY. Nothing that is given to a function is used after it has returned, and nothing that
 * it gives has to be freed. A pointer to what a function gives back must not be null; where
 * it may be, the function says so.
 *
 * TWO CALLS. What has no fixed size is given in two calls. With a null buffer, *size becomes
 * the size that is needed. With a buffer, *size says how large it is; then the buffer is
 * filled and *size becomes the number of bytes written. A buffer that is too short answers
 * KILN_SHORT_BUFFER, sets *size to what is needed, and nothing is written to the buffer. What
 * is needed may have grown since the first call: then make the buffer larger and try again.
 *
 * ERRORS. Every function answers a kiln_status. The last parameter may be null; else it is
 * filled at every call, also where there is no error.
 *
 * TIME. timeout_ms is how long the caller waits, in milliseconds; a negative number is for ever.
 * When it is over the answer is KILN_TIMEOUT. A compile then goes on for a minute, so that
 * the next call may find it done. With 0 nobody waits: a device that is open, a kernel that is in
 * memory and a blob that was given before are given, for all else the answer is KILN_TIMEOUT.
 * kiln_settle and kiln_close may answer it then also where nothing is left to be done.
 *
 * ENVIRONMENT. Kiln's settings (docs/settings.md) are read as they were when the library was
 * loaded: a setenv of the program comes too late. All of them are heeded, those too that name
 * a library, a device or an instruction set; but a program with more rights than its user, such as
 * one with the setuid bit, loads no library and opens no store that its environment names. It
 * starts no kiln-child either.
 * Warnings go to standard error.
 *
 * SIGNALS. The library has Go's runtime in it. It installs handlers when it is loaded; faults
 * in code that is not Go's are passed on to the handler that was there before. A handler that
 * the program installs later must have SA_ONSTACK, and should pass on what it does not know.
 * Install it while no function of Kiln runs: a call to an OpenCL driver puts back the handlers
 * that it found. SIGINT, SIGTERM and SIGCHLD are not touched. SIGPIPE does what it did before; a
 * write of the library's own ends no program that has not set SIG_DFL after the loading.
 * A program may ignore SIGCHLD, or wait for all children. But PoCL, an OpenCL driver, starts a
 * linker in this process, and calls abort where it is not told of its end.
 *
 * FORK. Go's runtime does not survive fork: the child has none of the library's threads, and any
 * function of Kiln in it may hang for ever. A child may call exec or _exit, and no function of Kiln.
 * Where a server forks its workers, each worker loads the library itself, with dlopen after the
 * fork; a program that was linked with it has loaded it before main. The parent goes on as before.
 *
 * LOADING. dlopen works with RTLD_LOCAL, and two copies of the library in one process know nothing
 * of each other, but share a store as two processes do. dlclose does nothing: Go's runtime
 * cannot be unloaded.
 *
 * FILES. The program kiln-child must stand in the same folder as libkiln.so. It does, in a
 * process of its own, what a driver's code may crash at: CUDA's compiles. Without it these answer
 * KILN_UNAVAILABLE. It must be of the same build as the library: where an upgrade has replaced
 * both, CUDA's compiles answer KILN_UNAVAILABLE until the program is started anew.
 * It is not started where somebody may write it who may not write libkiln.so, or where it belongs
 * to another user than root, the one that runs, and the owner of libkiln.so. /proc is needed.
 */
#ifndef KILN_H
#define KILN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t kiln_runtime;
typedef uint64_t kiln_device;
typedef uint64_t kiln_kernel;

/* What came of a call. New numbers may be added behind the last. */
typedef int32_t kiln_status;
enum {
	KILN_OK = 0,
	KILN_INVALID = 1,       /* an argument is wrong, or a source does not compile: see the text */
	KILN_CLOSED = 2,        /* the handle was freed, or its runtime closed */
	KILN_CYCLE = 3,         /* it would wait for itself */
	KILN_GOEXIT = 4,        /* a creator in Go ended its goroutine */
	KILN_ABANDONED = 5,     /* its owner gave up; ask again */
	KILN_SIZE = 6,          /* the size is not the one declared */
	KILN_UNSUPPORTED = 7,   /* this device cannot do that */
	KILN_REFUSED = 8,       /* the blob does not fit; see the reason. Build instead */
	KILN_TOO_LARGE = 9,     /* it is above what is taken */
	KILN_OVERLOADED = 10,   /* too much is waiting; try again later */
	KILN_DEVICE_LOST = 11,  /* the device is gone and is opened again; try again later */
	KILN_UNAVAILABLE = 12,  /* something is not installed; the text names it */
	KILN_IO = 13,           /* a file or folder cannot be used */
	KILN_NOT_FOUND = 14,    /* nothing has this name */
	KILN_PANIC = 15,        /* a bug in Kiln or a backend; the text has its stack */
	KILN_TIMEOUT = 16,      /* timeout_ms is over */
	KILN_CANCELED = 17,     /* what it waited for was called off */
	KILN_SHORT_BUFFER = 18, /* *size says what is needed */
	KILN_FAILED = 19        /* any other error, such as one of a driver: see the text */
};

/* What an error is in words. Each text ends with a zero byte and is cut where it is too long. */
typedef struct kiln_error {
	kiln_status status;
	char reason[28]; /* why a blob was refused, such as "outdated" or "checksum"; else empty */
	char field[64];  /* what the reason concerns, such as "driver"; else empty */
	char text[4000]; /* what went wrong, for people; of a panic its stack, too */
} kiln_error;

/* A name with a value: a macro, or the text of an included file. */
typedef struct kiln_pair {
	const char *name;
	const char *value;
} kiln_pair;

/* The source of one kernel. All that can change what is compiled is in it, by value. Fill
 * what is not used with zeros. */
typedef struct kiln_source {
	const char *language; /* "opencl-c", "glsl", "spirv" or "cuda-c" */
	const char *text;     /* the program; need not end with a zero byte */
	size_t text_size;     /* its bytes */
	const char *entry;    /* the name of the kernel in it */
	const char *const *options; /* of the compiler, in their order */
	size_t option_count;
	const kiln_pair *defines; /* macros */
	size_t define_count;
	const kiln_pair *includes; /* texts, by the names that the program includes them by */
	size_t include_count;
	const struct kiln_param *params; /* what a launch gives, in order */
	size_t param_count;
	size_t block[3]; /* items in a block of a launch; zeros: each launch says it */
} kiln_source;

/* One parameter of a kernel. */
typedef struct kiln_param {
	int32_t kind;  /* one of KILN_PARAM_ */
	int32_t align; /* of a buffer's start, in bytes, a power of two; 0 = the device's */
	int64_t bytes; /* of a buffer and of local memory: the least, at most 2^48; of a struct:
	                * exactly, at most 65536; of a number: 0 */
} kiln_param;

/* The kinds of parameters. STRUCT is bytes by value, LOCAL is memory that a block shares; I, U
 * and F are numbers with and without a sign and floating ones, of so many bits. */
enum {
	KILN_PARAM_BUFFER = 1,
	KILN_PARAM_STRUCT = 2,
	KILN_PARAM_LOCAL = 3,
	KILN_PARAM_I8 = 4,
	KILN_PARAM_U8 = 5,
	KILN_PARAM_I16 = 6,
	KILN_PARAM_U16 = 7,
	KILN_PARAM_I32 = 8,
	KILN_PARAM_U32 = 9,
	KILN_PARAM_F32 = 10,
	KILN_PARAM_I64 = 11,
	KILN_PARAM_U64 = 12,
	KILN_PARAM_F64 = 13
};

/* Where a kernel came from. */
typedef int32_t kiln_origin;
enum {
	KILN_COMPILED = 0, /* by this call, or by one that it waited for */
	KILN_RESIDENT = 1, /* it was in memory */
	KILN_STORED = 2,   /* from the store */
	KILN_BLOB = 3      /* from the blob that was given, or by a call that it waited for */
};

/* The kinds of devices that constant tensors are kept for. */
typedef int32_t kiln_kind;
enum { KILN_CPU = 0, KILN_GPU = 1 };

/* A capacity without a bound, in MiB: this number, which is 2^44-1, and all above it. */
#define KILN_UNLIMITED_MIB UINT64_C(17592186044415)

#ifndef KILN_ONLY_TYPES

/* The name of a status, such as "KILN_INVALID"; never null. It is good for ever. */
const char *kiln_status_name(kiln_status status);

/* Opens a runtime: caches in memory, over the store in store_dir. Null or "": the store that
 * KILN_STORE_DIR names, or none. A program may open several; two with one store share it. A
 * store that cannot be used, or cannot be written any more, fails nothing: the cause goes to
 * standard error, and the runtime goes on without it. */
kiln_status kiln_open(const char *store_dir, kiln_runtime *runtime, kiln_error *error);

/* Closes a runtime and frees all handles that came from it. It waits for what is being written
 * to the store. After KILN_TIMEOUT the closing goes on by itself. */
kiln_status kiln_close(kiln_runtime runtime, int64_t timeout_ms, kiln_error *error);

/* Waits until all that was compiled before the call is in the store. */
kiln_status kiln_settle(kiln_runtime runtime, int64_t timeout_ms, kiln_error *error);

/* Opens a device by its backend, "cpu", "opencl", "vulkan", "cuda" or "onednn", and its number
 * from 0. A runtime opens a device once: later calls give another handle of the same one. */
kiln_status kiln_device_open(kiln_runtime runtime, const char *backend, int32_t index,
                             int64_t timeout_ms, kiln_device *device, kiln_error *error);

/* Frees the handle and those of kernels made with it. The device stays open, for others,
 * until its runtime is closed. */
kiln_status kiln_device_close(kiln_device device, kiln_error *error);

/* Takes the source of a kernel for a device. Nothing is compiled yet. */
kiln_status kiln_kernel_create(kiln_device device, const kiln_source *source,
                               kiln_kernel *kernel, kiln_error *error);

/* Frees the handle. The kernel stays in the cache as long as the cache has room. */
kiln_status kiln_kernel_destroy(kiln_kernel kernel, kiln_error *error);

/* Gives the id of the kernel's cache blob, in two calls: hexadecimal digits without a zero byte
 * behind them. It is the same in every process, and another for each source, device, driver
 * and version. The id is empty, without an error, where the device has no blobs of this
 * language, or its build is not known. Nothing is compiled. */
kiln_status kiln_kernel_blob_id(kiln_kernel kernel, size_t *size, char *id, kiln_error *error);

/* Makes the kernel ready: from memory, from the store, or by compiling it. A kernel that many
 * ask for at once is compiled once. The handle keeps it in memory. origin may be null. */
kiln_status kiln_kernel_build(kiln_kernel kernel, int64_t timeout_ms, kiln_origin *origin,
                              kiln_error *error);

/* Gives the kernel's cache blob, in two calls, and makes the kernel ready before that as
 * kiln_kernel_build does. KILN_UNSUPPORTED: the device has no blobs. */
kiln_status kiln_kernel_blob(kiln_kernel kernel, int64_t timeout_ms, size_t *size, void *blob,
                             kiln_error *error);

/* Makes the kernel ready from a blob. One that is in memory wins over the blob. A null or empty
 * blob is KILN_INVALID before anything else is looked at; one that is damaged, or of another
 * device, is KILN_REFUSED with a reason, and nothing is compiled. A blob is machine code: take
 * it from nobody whom you would not let run a program. origin may be null. */
kiln_status kiln_kernel_from_blob(kiln_kernel kernel, const void *blob, size_t size,
                                  int64_t timeout_ms, kiln_origin *origin, kiln_error *error);

/* Sets what constant tensors may take on each device of a kind, in MiB. Any call, also with the
 * same number, drops what is kept for that kind. 0 disables. */
kiln_status kiln_constant_tensor_cache_capacity_set(kiln_runtime runtime, kiln_kind kind,
                                                    uint64_t mib, int64_t timeout_ms,
                                                    kiln_error *error);

/* Gives that number; KILN_UNLIMITED_MIB where there is no bound. */
kiln_status kiln_constant_tensor_cache_capacity_get(kiln_runtime runtime, kiln_kind kind,
                                                    uint64_t *mib, kiln_error *error);

#endif /* KILN_ONLY_TYPES */

#ifdef __cplusplus
}
#endif

#endif /* KILN_H */
