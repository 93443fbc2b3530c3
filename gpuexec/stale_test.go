package gpuexec

import (
	"context"
	"testing"

	"github.com/kiln-cache/kiln/actors"
)

// stale is the program of another device than the one that a compile was on.
type stale struct{ asked int }

func (p *stale) Bytes() int64                         { return 1 }
func (p *stale) Blob(context.Context) ([]byte, error) { p.asked++; return nil, nil }
func (p *stale) Requires() []string                   { return nil }
func (p *stale) Release()                             {}

// E5: the blob of a kernel is asked of its program while the device of that is kept open, and
// not of the program that a restart gave it meanwhile: nobody keeps that device open here.
func TestBlobOfAnotherGenerationIsNotAsked(t *testing.T) {
	for _, same := range []bool{true, false} {
		e := &Executor{life: context.Background()}
		e.mu.kernels = make(map[*Kernel]struct{})
		s := &shell{Executor: e, desk: new(desk), unclaimed: make(map[string]unclaimed), device: &generation{n: 1}}
		s.ref = actors.Spawn(actors.Config{}, func(message) {})
		p, on := new(stale), s.device
		if !same {
			on = &generation{n: 2}
		}
		k := &Kernel{exec: e, source: Source{Key: "k"}, asked: make(chan struct{})}
		k.cell.Init(func() {})
		k.built.Store(&built{on: on, program: p})
		f := &compiling{source: k.source, desk: s.desk}
		f.Begin(context.Background(), e, "k")
		s.desk.Begin("k", f, 0)
		f.Start()
		s.compiled(compiledMsg{f, k, nil})
		<-k.asked
		e.work.Wait()
		if want := map[bool]int{true: 1}[same]; p.asked != want {
			t.Errorf("on the same device %v: the driver was asked %d times for the blob, want %d", same, p.asked, want)
		}
		if err := s.ref.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
