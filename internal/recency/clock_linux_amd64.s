#include "textflag.h"

// func now() (stamp uint64, cpu uint32)
//
// RDTSCP reads the counter when all instructions before it have ended, and Linux's
// number of the core, whose upper bits are the node's.
TEXT ·now(SB), NOSPLIT, $0-12
	RDTSCP
	SHLQ $32, DX
	ORQ  DX, AX
	MOVQ AX, stamp+0(FP)
	MOVL CX, cpu+8(FP)
	RET

// func readsCores() bool
TEXT ·readsCores(SB), NOSPLIT, $0-1
	MOVL $0x80000001, AX
	CPUID
	SHRL $27, DX
	ANDL $1, DX
	MOVB DX, ret+0(FP)
	RET
