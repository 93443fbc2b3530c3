/* What the test programs share: how a call and a fact are checked. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kiln.h"

static kiln_error e;

#define WANT(status, call)                                                                        \
	do {                                                                                      \
		kiln_status got_ = (call);                                                        \
		if (got_ != (status)) {                                                           \
			printf("line %d: %s, want %s: %s\n", __LINE__, kiln_status_name(got_),    \
			       kiln_status_name(status), e.text);                                 \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

#define CHECK(what)                                                                               \
	do {                                                                                      \
		if (!(what)) {                                                                    \
			printf("line %d: not so: %s\n", __LINE__, #what);                         \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)
