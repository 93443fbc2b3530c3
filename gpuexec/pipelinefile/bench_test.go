//go:build unix

package pipelinefile_test

import (
	"fmt"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
)

func BenchmarkHit(b *testing.B) {
	v := open(b)
	v.shader("s", "a")
	r := pipelinefile.Request{Shader: "s", Constants: constants(1, 2, 3)}
	v.get(r, "")
	b.ReportAllocs()
	for b.Loop() {
		l, _, err := v.Get(b.Context(), r)
		if err != nil {
			b.Fatal(err)
		}
		l.End()
	}
}

func BenchmarkBuild(b *testing.B) {
	v := open(b)
	v.shader("s", "a")
	v.built("s")
	b.ReportAllocs()
	for i := uint64(1); b.Loop(); i++ {
		v.get(pipelinefile.Request{Shader: "s", Constants: constants(i % (1 << 32))}, "")
	}
}

// BenchmarkLoad reads a file of 500 shaders of 20 kB.
func BenchmarkLoad(b *testing.B) {
	v := open(b)
	for i := range 500 {
		name := fmt.Sprint(i)
		v.shader(name, string(make([]byte, 5000)))
		v.get(pipelinefile.Request{Shader: name}, "")
	}
	file := v.bytes()
	b.SetBytes(int64(len(file)))
	b.ReportAllocs()
	for b.Loop() {
		if l, err := v.LoadBytes(b.Context(), file); err != nil || l.Entries != 500 {
			b.Fatal(l, err)
		}
	}
}
