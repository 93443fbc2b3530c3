package forward

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/limit"
)

var bg = context.Background()

// prepared is a model on a runtime of that config whose weights are prepared and, if they were not
// there, stored.
func prepared(t *testing.T, cfg kiln.Config) (*Model, *kiln.Runtime) {
	t.Helper()
	m, rt := modelWith(t, cfg)
	if err := m.Prepare(bg); err != nil {
		t.Fatal(err)
	}
	m.Keep()(bg)
	return m, rt
}

// kernels gives how many weights of products the model has, those that are mapped, and those
// that are stored.
func kernels(m *Model, dir string) (all, mapped, stored int) {
	maps, _ := os.ReadFile("/proc/self/maps")
	for _, w := range m.list.Weights {
		t := m.tensors.held[w.Name]
		if w.Role == oplist.Kernel && t != nil {
			all++
		}
	}
	for line := range bytes.Lines(maps) {
		if bytes.Contains(line, []byte(dir)) && bytes.Contains(line, []byte("kernel.bin")) {
			mapped++
		}
	}
	return all, mapped, len(weightFiles(dir))
}

// weightFiles are the files of packed weights in a store.
func weightFiles(dir string) (all []string) {
	_ = filepath.WalkDir(filepath.Join(dir, "cpu-weights"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "kernel.bin" {
			all = append(all, path)
		}
		return nil
	})
	return all
}

func outputs(t *testing.T, m *Model) []float32 {
	t.Helper()
	ids := make([]int32, 40)
	for at := range ids {
		ids[at] = int32(at * 11)
	}
	a, err := m.Run(bg, [][]int32{ids[:13], ids})
	if err != nil {
		t.Fatal(err)
	}
	return a.Output
}

// eventually waits at most three seconds.
func eventually(is func() bool) bool {
	for range 3000 {
		if is() {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return is()
}

// T3, P6, E8: weights are packed by the first process and stored; it and later ones map them, and
// compute the same bits. Nothing stays mapped when the runtime is closed.
func TestWeightsAreMappedFromTheStore(t *testing.T) {
	alone, _ := prepared(t, kiln.Config{})
	defer alone.Close()
	want := outputs(t, alone)
	cfg := kiln.Config{StoreDir: t.TempDir()}
	first, rt := prepared(t, cfg)
	size := rt.Constants().Stats().Bytes
	all, mapped, stored := kernels(first, cfg.StoreDir)
	if all == 0 || mapped != all || stored != all {
		t.Errorf("the first has %d weights of products, %d mapped, %d stored", all, mapped, stored)
	}
	for range 2 {
		if got := outputs(t, first); !slices.Equal(got, want) {
			t.Error("the first computes other bits")
		}
	}
	if owners := first.Constants().Owners; owners != int64(len(first.list.Weights)) || size != rt.Constants().Stats().Bytes {
		t.Errorf("%d weights were prepared of %d; constants take %d bytes, %d before", owners, len(first.list.Weights), rt.Constants().Stats().Bytes, size)
	}
	second, _ := prepared(t, cfg)
	if _, mapped, stored := kernels(second, cfg.StoreDir); mapped != 2*all || stored != all {
		t.Errorf("the second has %d of %d mapped, %d stored", mapped, all, stored)
	}
	if got := outputs(t, second); !slices.Equal(got, want) {
		t.Error("the second computes other bits")
	}
	first.Close()
	if err := rt.Constants().SetCapacity(bg, constants.CPU, limit.Unlimited); err != nil { // which flushes the first's
		t.Fatal(err)
	}
	if !eventually(func() bool { _, mapped, _ = kernels(second, cfg.StoreDir); return mapped == all }) {
		t.Errorf("%d are mapped, though the first's %d were flushed", mapped, all)
	}
	second.Close()
	if err := errors.Join(first.exec.Close(bg), second.exec.Close(bg)); err != nil {
		t.Error(err)
	}
	if _, mapped, _ := kernels(second, cfg.StoreDir); mapped != 0 {
		t.Errorf("%d are mapped still", mapped)
	}
}

// P4, P5: a weight whose file was cut while it is mapped is packed; the request has its answer.
func TestMappedWeightIsCut(t *testing.T) {
	cfg := kiln.Config{StoreDir: t.TempDir()}
	first, _ := prepared(t, cfg)
	defer first.Close()
	want := outputs(t, first)
	second, _ := prepared(t, cfg)
	defer second.Close()
	all, mapped, _ := kernels(second, cfg.StoreDir)
	if mapped != 2*all {
		t.Fatalf("%d of %d are mapped, twice", mapped, all)
	}
	for _, file := range weightFiles(cfg.StoreDir) {
		if err := os.Truncate(file, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []*Model{first, second, first, second} {
		if got := outputs(t, m); !slices.Equal(got, want) {
			t.Error("other bits")
		}
	}
	if !eventually(func() bool {
		_, mapped, _ = kernels(second, cfg.StoreDir)
		return mapped == 0
	}) {
		t.Errorf("%d files that were cut are mapped still", mapped)
	}
}

// T7: what was mapped, and no buffer could be made of, is unmapped.
func TestNothingStaysMapped(t *testing.T) {
	cfg := kiln.Config{StoreDir: t.TempDir()}
	first, rt := prepared(t, cfg)
	first.Close()
	if err := rt.Close(bg); err != nil {
		t.Fatal(err)
	}
	m, rt := modelWith(t, cfg)
	defer m.Close()
	plan, err := newPlan(m, 1, 1, false, plan{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.exec.Close(bg); err != nil {
		t.Fatal(err)
	}
	defer m.tensors.shelf.begin()()
	for _, s := range plan.steps {
		for _, w := range s.bound.Weights {
			if _, err := m.tensors.get(bg, s.op, w, constants.Options{}); !errors.Is(err, fault.ErrClosed) {
				t.Errorf("%s: %v, though the executor is closed", w.Name, err)
			}
		}
	}
	_, mapped, stored := kernels(m, cfg.StoreDir)
	if found := rt.Store().Stats().Hits; mapped != 0 || found != int64(stored) {
		t.Errorf("%d of %d were found, %d are mapped still", found, stored, mapped)
	}
}

// P1, P4, P5: entries that are damaged, a store that can be read only, and one that takes or maps nothing,
// cost the packing and no more.
func TestWeightsWithoutTheStore(t *testing.T) {
	alone, _ := prepared(t, kiln.Config{})
	defer alone.Close()
	want := outputs(t, alone)
	dir := t.TempDir()
	first, rt := prepared(t, kiln.Config{StoreDir: dir})
	first.Close()
	if err := rt.Close(bg); err != nil {
		t.Fatal(err)
	}
	all := weightFiles(dir)
	for i, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text[len(text)*i/len(all)] ^= 1
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		cfg  kiln.Config
		keep bool
	}{
		{"read only", kiln.Config{StoreDir: dir, Store: blobstore.Config{ReadOnly: true}}, false}, // before it is healed
		{"healed", kiln.Config{StoreDir: dir}, true},
		{"unlimited", kiln.Config{StoreDir: t.TempDir(), StoreBytes: limit.Unlimited}, true},
		{"small", kiln.Config{StoreDir: t.TempDir(), StoreBytes: limit.Of(1 << 20)}, false}, // the weights have 1.6 MB
		{"not half", kiln.Config{StoreDir: t.TempDir(), StoreBytes: limit.Of(2 << 20)}, false},
		{"shared", kiln.Config{StoreDir: t.TempDir(), Store: blobstore.Config{Shared: true}}, false},
		{"off", kiln.Config{StoreDir: t.TempDir(), Store: blobstore.Config{Off: []string{"cpu-weights"}}}, false},
		{"off for cpu", kiln.Config{StoreDir: t.TempDir(), Store: blobstore.Config{Off: []string{"cpu"}}}, false},
		{"unknown", kiln.Config{StoreDir: t.TempDir(), Store: blobstore.Config{
			Identity: func(string) gpuexec.Identity { return gpuexec.Identity{} }}}, false},
	} {
		m, rt := prepared(t, c.cfg)
		if got := outputs(t, m); !slices.Equal(got, want) {
			t.Errorf("%s: other bits", c.name)
		}
		count, mapped, stored := kernels(m, c.cfg.StoreDir)
		if n := map[bool]int{true: count}[c.keep]; mapped != n || !c.cfg.Store.ReadOnly && stored != n {
			t.Errorf("%s: %d mapped, %d stored, want %d", c.name, mapped, stored, n)
		}
		m.Close()
		if err := rt.Close(bg); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// T3: a weight that the constant cache lets go is packed when a request wants it again: to
// verify its file takes longer.
func TestFlushedWeightIsPacked(t *testing.T) {
	cfg := kiln.Config{StoreDir: t.TempDir()}
	first, _ := prepared(t, cfg)
	first.Close()
	m, rt := prepared(t, cfg)
	defer m.Close()
	want := outputs(t, m)
	if err := m.tensors.discard(bg); err != nil {
		t.Fatal(err)
	}
	hits := rt.Store().Stats().Hits
	if got := outputs(t, m); !slices.Equal(got, want) {
		t.Error("other bits")
	}
	if n := rt.Store().Stats().Hits - hits; n != 0 {
		t.Errorf("%d entries are read for a request", n)
	}
}

// Keep ends with its context, and may run when the model is closed.
func TestKeepEnds(t *testing.T) {
	dir := t.TempDir()
	m, _ := modelWith(t, kiln.Config{StoreDir: dir})
	if err := m.Prepare(bg); err != nil {
		t.Fatal(err)
	}
	keep := m.Keep()
	m.Keep()(bg) // of which there are none any more
	ended, end := context.WithCancel(bg)
	end()
	keep(ended)
	if _, _, stored := kernels(m, dir); stored != 0 {
		t.Errorf("%d are stored", stored)
	}
	m.Close()
	again, rt := modelWith(t, kiln.Config{StoreDir: dir})
	if err := again.Prepare(bg); err != nil {
		t.Fatal(err)
	}
	all, _, _ := kernels(again, dir)
	keep = again.Keep()
	var weight *gpuexec.Buffer
	for _, w := range again.list.Weights {
		if w.Role == oplist.Kernel {
			weight = again.tensors.held[w.Name].buffer()
		}
	}
	again.Close()
	keep(bg)
	if err := rt.Constants().SetCapacity(bg, constants.CPU, limit.Unlimited); err != nil { // which flushes them
		t.Fatal(err)
	}
	if !eventually(func() bool { return released(again, weight) }) { // behind the flush
		t.Error("a weight that was stored is held still")
	}
	if _, _, stored := kernels(again, dir); stored != all {
		t.Errorf("%d of %d are stored", stored, all)
	}
}

// P5: a weight that was packed and flushed may be a mapped one when it is to be stored, since
// another process has stored it. If its file is cut, it is not stored.
func TestKeepOfWhatIsMapped(t *testing.T) {
	dir := t.TempDir()
	m, rt := modelWith(t, kiln.Config{StoreDir: dir})
	defer m.Close()
	if err := m.Prepare(bg); err != nil {
		t.Fatal(err)
	}
	other, _ := prepared(t, kiln.Config{StoreDir: dir})
	defer other.Close()
	want := outputs(t, other)
	if err := rt.Constants().SetCapacity(bg, constants.CPU, limit.Unlimited); err != nil { // which flushes them
		t.Fatal(err)
	}
	if err := m.Prepare(bg); err != nil {
		t.Fatal(err)
	}
	if all, mapped, _ := kernels(m, dir); mapped != 2*all {
		t.Fatalf("%d of %d are mapped, twice", mapped, all)
	}
	for _, file := range weightFiles(dir) {
		if err := os.Truncate(file, 0); err != nil {
			t.Fatal(err)
		}
	}
	m.Keep()(bg)
	if got := outputs(t, m); !slices.Equal(got, want) {
		t.Error("other bits")
	}
}

// P5: a store that takes nothing any more is asked once.
func TestKeepGivesUp(t *testing.T) {
	dir := t.TempDir()
	m, rt := modelWith(t, kiln.Config{StoreDir: dir})
	defer m.Close()
	if err := m.Prepare(bg); err != nil {
		t.Fatal(err)
	}
	full := limit.Of(4 << 10)
	other, err := blobstore.Open(bg, blobstore.Config{Dir: dir, Capacity: full})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(bg)
	m.Keep()(bg)
	if n := rt.Store().Stats().Reasons[fault.TooLarge]; n != 1 {
		t.Errorf("it was asked %d times", n)
	}
}
