//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
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
func TestModel(t *testing.T) { testModel(t, need(t)) }

// So does one whose products cuBLAS computes.
func TestModelWithCuBLAS(t *testing.T) {
	b, products := withBLAS(t, quick)
	testModel(t, b)
	if products.Load() == 0 {
		t.Error("cuBLAS was not asked")
	}
}

func testModel(t *testing.T, b backend) {
	t.Helper()
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

// A model packs texts of several lengths into one batch, and gives what cpu gives.
func TestPackedModel(t *testing.T) {
	b := need(t)
	rt := must(kiln.Open(kiln.Config{Workers: 2, Lookup: func(string) (string, bool) { return "", false }}))
	defer rt.Close(bg)
	text, _ := data.Model("bert_tiny_l2_h128")
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	lines = lines[:len(lines)-3] // no pooler: a row for each token
	lines[0] = regexp.MustCompile(`, "(params|weight_tensors|weight_bytes|ops_depending_on_shape|distinct_primitives_per_shape)": [0-9]+`).ReplaceAllString(lines[0], "")
	list := must(forward.Parse("list", []byte(strings.Replace(strings.Join(lines, "\n"), `"ops": 44`, `"ops": 41`, 1))))
	set := must(forward.OpenWeights(list, 1))
	defer set.Close()
	ids := [][]int32{list.Tokens(1, 0, 5), list.Tokens(1, 1, 1), list.Tokens(1, 2, 17), list.Tokens(1, 3, 3)}
	var outputs [2][]float32
	for i, lib := range []ops.Library{must(cpu.New("auto")), b} {
		m := forward.New(forward.Config{Session: must(rt.Session(kiln.SessionConfig{})), Executor: must(rt.Executor(bg, lib, 0)), Library: lib,
			Engine: must(rt.Constants().Engine(constants.CPU, 0, "")), Weights: set, Packed: true})
		defer m.Close()
		if !m.Packed() {
			t.Fatalf("%s does not pack", lib.Name())
		}
		a, err := m.Run(bg, ids)
		if err != nil {
			t.Fatal(err)
		}
		outputs[i] = a.Output
	}
	for i, want := range outputs[0] {
		if got := outputs[1][i]; !(math.Abs(float64(got-want)) <= 1e-4*(1+math.Abs(float64(want)))) {
			t.Fatalf("number %d is %v, on cpu %v", i, got, want)
		}
	}
}
