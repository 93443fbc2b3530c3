package dnnl2

import (
	"errors"
	"math"
	"testing"

	"github.com/kiln-cache/kiln/fault"
)

// The peer computes what a plain loop computes; where it is absent the error
// says what to install (E2).
func TestMatmul(t *testing.T) {
	l, err := Open(false)
	if errors.Is(err, fault.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	const m, k, n = 5, 33, 70
	w := make([]float32, k*n)
	for i := range w {
		w[i] = float32(i%13) - 6
	}
	p, err := l.Matmul(m, k, n, w)
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.Src() {
		p.Src()[i] = float32(i%7) - 3
	}
	if err := p.Run(); err != nil {
		t.Fatal(err)
	}
	for i, got := range p.Dst() {
		var want float64
		for j := range k {
			want += float64(p.Src()[i/n*k+j]) * float64(w[j*n+i%n])
		}
		if math.Abs(float64(got)-want) > 1e-4 {
			t.Fatalf("%s %s: number %d is %v, want %v", l.Version(), p.Implementation(), i, got, want)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if _, err := l.Matmul(m, k, n, w[1:]); err == nil {
		t.Error("weights of the wrong size were taken")
	}
	if _, err := Open(true); err == nil {
		t.Error("the instruction set was chosen twice")
	}
	t.Log(l.Version(), p.Implementation())
}
