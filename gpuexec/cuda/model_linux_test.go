//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward"
)

// E1: a whole model gives what it gives on cpu; one whose request met the loss of the
// device gives the same bits once it is back.
func TestModel(t *testing.T) {
	b := need(t)
	rt := must(kiln.Open(kiln.Config{Workers: 2, Lookup: func(string) (string, bool) { return "", false }}))
	defer rt.Close(bg)
	text, _ := data.Model("bert_tiny_l2_h128")
	list := must(forward.Parse("list", text))
	set := must(forward.OpenWeights(list, 1))
	defer set.Close()
	model := func(lib ops.Library) *forward.Model {
		m := forward.New(forward.Config{Session: must(rt.Session(kiln.SessionConfig{})), Executor: must(rt.Executor(bg, lib, 0)), Library: lib,
			Engine: must(rt.Constants().Engine(constants.CPU, 0, "")), Weights: set})
		t.Cleanup(m.Close)
		return m
	}
	m, ids := model(b), [][]int32{list.Tokens(1, 0, 5)}
	got, err := m.Run(bg, ids)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range must(model(must(cpu.New("auto"))).Run(bg, ids)).Output {
		if d := math.Abs(float64(got.Output[i] - want)); !(d <= 1e-4*(1+math.Abs(float64(want)))) {
			t.Fatalf("number %d is %v, on cpu %v", i, got.Output[i], want)
		}
	}
	var once atomic.Bool
	hook := func(f function) int32 {
		if f == cuLaunchKernel && once.CompareAndSwap(false, true) {
			return illegalAddress
		}
		return success
	}
	inject.Store(&hook)
	_, err = m.Run(bg, ids)
	inject.Store(nil)
	if !errors.Is(err, fault.ErrDeviceLost) {
		t.Fatalf("%v, want ErrDeviceLost", err)
	}
	check(must(rt.Executor(bg, b, 0)).Ready(bg))
	if again, err := m.Run(bg, ids); err != nil || !slices.Equal(again.Output, got.Output) {
		t.Errorf("after the device came back: %v, or other bits", err)
	}
}
