//go:build !linux || !(amd64 || arm64)

package dnnl2

import "errors"

var errPlatform = errors.New("the library is opened on 64-bit Linux only")

// Library is the opened library; here there never is one.
type Library struct{}

// Open answers ErrUnavailable.
func Open(avx2 bool) (*Library, error) { return nil, unavailable(errPlatform) }

// Version is empty.
func (l *Library) Version() string { return "" }

// Matmul answers ErrUnavailable.
func (l *Library) Matmul(m, k, n int, w []float32) (*Product, error) {
	return nil, unavailable(errPlatform)
}

// Product is a product prepared for one shape.
type Product struct{}

// Src is nil.
func (p *Product) Src() []float32 { return nil }

// Dst is nil.
func (p *Product) Dst() []float32 { return nil }

// Implementation is empty.
func (p *Product) Implementation() string { return "" }

// Run answers ErrUnavailable.
func (p *Product) Run() error { return unavailable(errPlatform) }

// Close does nothing.
func (p *Product) Close() error { return nil }
