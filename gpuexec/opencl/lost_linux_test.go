//go:build linux && (amd64 || arm64)

package opencl

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward"
)

// E1: a model whose request met the loss of the device gives the same bits once it is
// back; so does a new model.
func TestModelAfterDeviceLoss(t *testing.T) {
	needDevice(t)
	rt, err := kiln.Open(kiln.Config{Workers: 2, Lookup: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close(bg)
	text, _ := data.Model("bert_tiny_l2_h128")
	list, parsed := forward.Parse("list", text)
	exec, opened := rt.Executor(bg, backend{}, 0)
	engine, made := rt.Constants().Engine(constants.CPU, 0, "")
	if err := errors.Join(parsed, opened, made); err != nil {
		t.Fatal(err)
	}
	set, err := forward.OpenWeights(list, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	model := func() *forward.Model {
		s, err := rt.Session(kiln.SessionConfig{})
		if err != nil {
			t.Fatal(err)
		}
		m := forward.New(forward.Config{Session: s, Executor: exec, Library: backend{}, Engine: engine, Weights: set})
		t.Cleanup(m.Close)
		return m
	}
	m, ids := model(), [][]int32{list.Tokens(1, 0, 17)}
	want, err := m.Run(bg, ids)
	if err != nil {
		t.Fatal(err)
	}
	var once atomic.Bool
	hook := func(f function) int32 {
		if f == clEnqueueNDRangeKernel && once.CompareAndSwap(false, true) {
			return notAvailable
		}
		return success
	}
	inject.Store(&hook)
	_, err = m.Run(bg, ids)
	inject.Store(nil)
	if !errors.Is(err, fault.ErrDeviceLost) {
		t.Fatalf("%v, want ErrDeviceLost", err)
	}
	if err := exec.Ready(bg); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*forward.Model{model(), m} {
		if got, err := m.Run(bg, ids); err != nil || !slices.Equal(got.Output, want.Output) {
			t.Errorf("after the device came back: %v, or other bits", err)
		}
	}
}
