#include "textflag.h"

// The round constants: FIPS 180-4, section 4.2.2.
DATA constants<>+0x00(SB)/8, $0x71374491428a2f98
DATA constants<>+0x08(SB)/8, $0xe9b5dba5b5c0fbcf
DATA constants<>+0x10(SB)/8, $0x59f111f13956c25b
DATA constants<>+0x18(SB)/8, $0xab1c5ed5923f82a4
DATA constants<>+0x20(SB)/8, $0x12835b01d807aa98
DATA constants<>+0x28(SB)/8, $0x550c7dc3243185be
DATA constants<>+0x30(SB)/8, $0x80deb1fe72be5d74
DATA constants<>+0x38(SB)/8, $0xc19bf1749bdc06a7
DATA constants<>+0x40(SB)/8, $0xefbe4786e49b69c1
DATA constants<>+0x48(SB)/8, $0x240ca1cc0fc19dc6
DATA constants<>+0x50(SB)/8, $0x4a7484aa2de92c6f
DATA constants<>+0x58(SB)/8, $0x76f988da5cb0a9dc
DATA constants<>+0x60(SB)/8, $0xa831c66d983e5152
DATA constants<>+0x68(SB)/8, $0xbf597fc7b00327c8
DATA constants<>+0x70(SB)/8, $0xd5a79147c6e00bf3
DATA constants<>+0x78(SB)/8, $0x1429296706ca6351
DATA constants<>+0x80(SB)/8, $0x2e1b213827b70a85
DATA constants<>+0x88(SB)/8, $0x53380d134d2c6dfc
DATA constants<>+0x90(SB)/8, $0x766a0abb650a7354
DATA constants<>+0x98(SB)/8, $0x92722c8581c2c92e
DATA constants<>+0xa0(SB)/8, $0xa81a664ba2bfe8a1
DATA constants<>+0xa8(SB)/8, $0xc76c51a3c24b8b70
DATA constants<>+0xb0(SB)/8, $0xd6990624d192e819
DATA constants<>+0xb8(SB)/8, $0x106aa070f40e3585
DATA constants<>+0xc0(SB)/8, $0x1e376c0819a4c116
DATA constants<>+0xc8(SB)/8, $0x34b0bcb52748774c
DATA constants<>+0xd0(SB)/8, $0x4ed8aa4a391c0cb3
DATA constants<>+0xd8(SB)/8, $0x682e6ff35b9cca4f
DATA constants<>+0xe0(SB)/8, $0x78a5636f748f82ee
DATA constants<>+0xe8(SB)/8, $0x8cc7020884c87814
DATA constants<>+0xf0(SB)/8, $0xa4506ceb90befffa
DATA constants<>+0xf8(SB)/8, $0xc67178f2bef9a3f7
GLOBL constants<>(SB), RODATA|NOPTR, $256

// Words of the text are big-endian.
DATA swap<>+0(SB)/8, $0x0405060700010203
DATA swap<>+8(SB)/8, $0x0c0d0e0f08090a0b
GLOBL swap<>(SB), RODATA|NOPTR, $16

// FOUR is four rounds of one text. ab and cd hold its state, w four words, at is
// where their constants are in the table, in bytes. SHA256RNDS2 takes words and
// constants from X0 without naming it.
#define FOUR(ab, cd, w, at) \
	MOVOU at(AX), X0 \
	PADDD w, X0 \
	SHA256RNDS2 X0, ab, cd \
	PSHUFD $0x0e, X0, X0 \
	SHA256RNDS2 X0, cd, ab

// EXTEND puts the four words that come sixteen after w0 into w0, from the sixteen
// in w0 to w3. t is overwritten.
#define EXTEND(w0, w1, w2, w3, t) \
	SHA256MSG1 w1, w0 \
	MOVOU w3, t \
	PALIGNR $4, w2, t \
	PADDD t, w0 \
	SHA256MSG2 w3, w0

// The state of the first text is X1 and X2, its words are X3 to X6; the second has
// X7 and X8, X9 to X12. They take turns so that neither waits for itself.
#define BOTH(w, v, at) \
	FOUR(X1, X2, w, at) \
	FOUR(X7, X8, v, at)

#define ROUNDS(w0, w1, w2, w3, v0, v1, v2, v3, at) \
	BOTH(w0, v0, at) \
	EXTEND(w0, w1, w2, w3, X13) \
	EXTEND(v0, v1, v2, v3, X14)

#define SIXTEEN(at) \
	ROUNDS(X3, X4, X5, X6, X9, X10, X11, X12, at+0) \
	ROUNDS(X4, X5, X6, X3, X10, X11, X12, X9, at+16) \
	ROUNDS(X5, X6, X3, X4, X11, X12, X9, X10, at+32) \
	ROUNDS(X6, X3, X4, X5, X12, X9, X10, X11, at+48)

#define LOAD(at, from, w) \
	MOVOU at(from), w \
	PSHUFB X15, w

// func blocks(a, b *state, p, q *byte, n int)
TEXT ·blocks(SB), NOSPLIT, $64-40
	MOVQ a+0(FP), DI
	MOVQ b+8(FP), SI
	MOVQ p+16(FP), BX
	MOVQ q+24(FP), CX
	MOVQ n+32(FP), DX
	LEAQ constants<>(SB), AX
	MOVOU swap<>(SB), X15
	MOVOU 0(DI), X1
	MOVOU 16(DI), X2
	MOVOU 0(SI), X7
	MOVOU 16(SI), X8

block:
	MOVOU X1, 0(SP)
	MOVOU X2, 16(SP)
	MOVOU X7, 32(SP)
	MOVOU X8, 48(SP)
	LOAD(0, BX, X3)
	LOAD(16, BX, X4)
	LOAD(32, BX, X5)
	LOAD(48, BX, X6)
	LOAD(0, CX, X9)
	LOAD(16, CX, X10)
	LOAD(32, CX, X11)
	LOAD(48, CX, X12)
	SIXTEEN(0)
	SIXTEEN(64)
	SIXTEEN(128)
	BOTH(X3, X9, 192)
	BOTH(X4, X10, 208)
	BOTH(X5, X11, 224)
	BOTH(X6, X12, 240)
	MOVOU 0(SP), X3
	MOVOU 16(SP), X4
	MOVOU 32(SP), X9
	MOVOU 48(SP), X10
	PADDD X3, X1
	PADDD X4, X2
	PADDD X9, X7
	PADDD X10, X8
	ADDQ $64, BX
	ADDQ $64, CX
	DECQ DX
	JNZ block
	MOVOU X1, 0(DI)
	MOVOU X2, 16(DI)
	MOVOU X7, 0(SI)
	MOVOU X8, 16(SI)
	RET

// hasSHA asks for bit 29 of EBX of leaf 7. A processor that sets it has SSSE3.
//
// func hasSHA() bool
TEXT ·hasSHA(SB), NOSPLIT, $0-1
	MOVB $0, ret+0(FP)
	MOVL $0, AX
	CPUID
	CMPL AX, $7
	JLT done
	MOVL $7, AX
	MOVL $0, CX
	CPUID
	SHRL $29, BX
	ANDL $1, BX
	MOVB BX, ret+0(FP)

done:
	RET
