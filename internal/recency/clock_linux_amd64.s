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

// func coreNow() uint32
//
// RDPID AX is not known to the assembler. It reads what RDTSCP reads into CX.
TEXT ·coreNow(SB), NOSPLIT, $0-4
	BYTE $0xF3; BYTE $0x0F; BYTE $0xC7; BYTE $0xF8
	MOVL AX, ret+0(FP)
	RET

// func hasCoreNow() bool
TEXT ·hasCoreNow(SB), NOSPLIT, $0-1
	MOVB $0, ret+0(FP)
	MOVL $0, AX
	CPUID
	CMPL AX, $7
	JLT  none
	MOVL $7, AX
	MOVL $0, CX
	CPUID
	SHRL $22, CX
	ANDL $1, CX
	MOVB CX, ret+0(FP)
none:
	RET
