package gpuexec

import (
	"context"
	"testing"
)

// F4: a caller that has left before its answer leaves a kernel that nobody took where it
// is, for the next.
func TestClaimOfOneWhoLeft(t *testing.T) {
	released := 0
	e := new(Executor)
	k := &Kernel{exec: e, source: Source{Key: "k"}}
	k.cell.Init(func() { released++ })
	s := &shell{Executor: e, unclaimed: map[string]unclaimed{"k": {kernel: k}}}
	c := &compiling{source: Source{Key: "k"}} // nobody waits for its reply
	c.Begin(context.Background(), e, "k")
	if !s.claim(c) {
		t.Fatal("the kernel is not found")
	}
	if u, there := s.unclaimed["k"]; !there || u.kernel != k || released != 0 {
		t.Errorf("it waits for the next: %v; it was released %d times", there, released)
	}
}
