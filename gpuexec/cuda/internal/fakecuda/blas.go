//go:build linux && (amd64 || arm64)

package fakecuda

import (
	"encoding/binary"
	"math"
)

// The codes of cuBLAS.
const (
	blasInvalid      = 7
	blasFailed       = 13
	blasNotSupported = 15
)

// blas is a handle of cuBLAS.
type blas struct {
	of       *primary
	stream   *stream
	at, room uintptr // the workspace, and its bytes
	pedantic bool
}

// BLAS is a cuBLAS made of Go that computes on a driver.
type BLAS struct {
	Cost  float32                 // of a call of its products, in milliseconds
	Fault func(name string) int32 // what a call gives instead of doing anything, if that is not 0
	Room  int                     // bytes of the last workspace that it was given

	// Wrong gives what a product has in a number's place, where another one was; nil: the number.
	Wrong func(was, number float32) float32

	d       *Driver
	symbols map[string]any
}

// NewBLAS makes a cuBLAS.
func NewBLAS(d *Driver) *BLAS {
	b := &BLAS{d: d, Fault: func(string) int32 { return success }}
	b.symbols = map[string]any{
		"cublasGetProperty":         b.property,
		"cublasCreate_v2":           b.create,
		"cublasDestroy_v2":          b.destroy,
		"cublasSetStream_v2":        b.setStream,
		"cublasSetWorkspace_v2":     b.setWorkspace,
		"cublasSetMathMode":         b.setMathMode,
		"cublasSgemmStridedBatched": b.products,
	}
	return b
}

// Symbol gives the address of a function.
func (b *BLAS) Symbol(name string) (uintptr, error) { return symbol(&b.d.mu, b.symbols, name) }

func (b *BLAS) property(what int32, into *int32) int32 {
	if what < 0 || what > 2 {
		return blasInvalid
	}
	*into = 13 + what
	return b.Fault("cublasGetProperty")
}

func (b *BLAS) create(into *uintptr) int32 {
	if code := b.Fault("cublasCreate_v2"); code != success {
		return code
	}
	if b.d.make(into, func(p *primary) any { return &blas{of: p} }) != success {
		return 1
	}
	return success
}

// destroy takes a handle of any context: it has memory of the host.
func (b *BLAS) destroy(handle uintptr) int32 {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	if _, known := b.d.mu.objects[handle].(*blas); !known {
		panic("a handle of cuBLAS is destroyed that is none")
	}
	delete(b.d.mu.objects, handle)
	return b.Fault("cublasDestroy_v2")
}

// handle gives one of the calling thread's context.
func (b *BLAS) handle(name string, handle uintptr) (*blas, int32) {
	if code := b.Fault(name); code != success {
		return nil, code
	}
	h, p, code := object[*blas](b.d, handle)
	switch {
	case code != success:
		return nil, blasFailed
	case h.of != p:
		return nil, blasInvalid
	}
	return h, success
}

// setStream takes the workspace away, as cuBLAS does.
func (b *BLAS) setStream(handle, on uintptr) int32 {
	h, code := b.handle("cublasSetStream_v2", handle)
	if code != success {
		return code
	}
	s, _, code := object[*stream](b.d, on)
	if code != success {
		return blasInvalid
	}
	h.stream, h.room = s, 0
	return success
}

func (b *BLAS) setWorkspace(handle, at, bytes uintptr) int32 {
	h, code := b.handle("cublasSetWorkspace_v2", handle)
	if code != success {
		return code
	}
	if _, err := b.d.memoryOf(h.of).Bytes(uint64(at), int(bytes)); err != nil || at%256 != 0 {
		return blasInvalid
	}
	h.at, h.room = at, bytes
	b.d.mu.Lock()
	b.Room = int(bytes)
	b.d.mu.Unlock()
	return success
}

func (b *BLAS) setMathMode(handle uintptr, mode int32) int32 {
	h, code := b.handle("cublasSetMathMode", handle)
	if code == success {
		h.pedantic = mode == 2
	}
	return code
}

// products is cublasSgemmStridedBatched: matrices of columns, out = alpha a b + beta out.
func (b *BLAS) products(handle uintptr, turnA, turnB, m, n, k int32, alpha *float32, a uintptr, lda int32, nextA int64,
	right uintptr, ldb int32, nextB int64, beta *float32, c uintptr, ldc int32, nextC int64, count int32) int32 {
	h, code := b.handle("cublasSgemmStridedBatched", handle)
	switch {
	case code != success:
		return code
	case h.stream == nil || h.room == 0 || !h.pedantic || *beta != 0 || turnB != 0:
		return blasNotSupported // it could, but nobody here is to ask for it
	case m < 0 || n < 0 || k < 0 || count < 0 || turnA == 0 && lda < max(1, m) || turnA == 1 && lda < max(1, k) || turnA > 1 || ldb < max(1, k) || ldc < max(1, m):
		return blasInvalid
	}
	scale, cost, wrong := *alpha, b.Cost, b.Wrong
	h.stream.add(func() int32 {
		memory := b.d.memoryOf(h.of)
		h.stream.clock += cost
		if _, err := memory.Bytes(uint64(h.at), int(h.room)); err != nil {
			return illegalAddress
		}
		one := func(at uintptr, i int64) []byte {
			b, err := memory.Bytes(uint64(at)+uint64(4*i), 4)
			if err != nil {
				code = illegalAddress
				return make([]byte, 4)
			}
			return b
		}
		number := func(at uintptr, i int64) float64 {
			return float64(math.Float32frombits(binary.LittleEndian.Uint32(one(at, i))))
		}
		for item := range int64(count) {
			for column := range int64(n) {
				for row := range int64(m) {
					sum := float64(0)
					for i := range int64(k) {
						x := row + i*int64(lda)
						if turnA == 1 {
							x = i + row*int64(lda)
						}
						sum += number(a, item*nextA+x) * number(right, item*nextB+i+column*int64(ldb))
					}
					to := one(c, item*nextC+row+column*int64(ldc))
					result := float32(float64(scale) * sum)
					if wrong != nil {
						result = wrong(math.Float32frombits(binary.LittleEndian.Uint32(to)), result)
					}
					binary.LittleEndian.PutUint32(to, math.Float32bits(result))
				}
			}
		}
		return code
	})
	return success
}
