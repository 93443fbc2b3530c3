package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/manifest"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// fragile is a backend that kills its process, or, beside a file called hang,
// never comes back, or, beside one called spoil, breaks the store that it names,
// or, beside one called interrupt, ends as if interrupted and fails from then on.
// Only children of the tests have it.
type fragile struct{ *cpu.Backend }

func (fragile) Name() string { return "fragile" }

func (fragile) Source(ops.Op) (gpuexec.Source, error) {
	if _, err := os.Stat("hang"); err == nil {
		select {}
	}
	if dir, err := os.ReadFile("spoil"); err == nil {
		staging := filepath.Join(string(dir), "tmp")
		return gpuexec.Source{}, errors.Join(errors.New("spoilt"), os.RemoveAll(staging), os.WriteFile(staging, nil, 0o600))
	}
	if os.Rename("interrupt", "interrupted") == nil {
		os.Exit(exitInterrupted)
	}
	if _, err := os.Stat("interrupted"); err == nil {
		return gpuexec.Source{}, errors.New("asked again")
	}
	os.Exit(134)
	panic("not reached")
}

// recordedItems are those of a short run.
func recordedItems(t *testing.T) []manifest.Item {
	t.Helper()
	path := filepath.Join(t.TempDir(), "recorded")
	done(t, append(slices.Clone(tiny), "--requests", "6", "--passes", "1", "--record", path)...)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	items, err := manifest.Read(path, f)
	if err != nil || len(items) == 0 {
		t.Fatal(len(items), err)
	}
	return items
}

// bad puts an item between the others: dearest go first.
func bad(items []manifest.Item, backend string, place int) []manifest.Item {
	at := items[place]
	return append(items, manifest.Item{Backend: backend, Op: at.Op, Descriptor: "bad", Cost: at.Cost, Uses: at.Uses})
}

// progress lists the files of progress beside a manifest.
func progress(t *testing.T, path string) []string {
	t.Helper()
	kept, err := filepath.Glob(path + "?*")
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

func written(t *testing.T, items []manifest.Item) (path string) {
	t.Helper()
	var b bytes.Buffer
	if err := manifest.Write(&b, items); err != nil {
		t.Fatal(err)
	}
	return file(t, "manifest", b.String())
}

// tally counts the results of lines as kiln warm writes them.
func tally(t *testing.T, lines string) map[string]int {
	t.Helper()
	n := map[string]int{}
	for d := json.NewDecoder(strings.NewReader(lines)); d.More(); {
		var w warmed
		if err := d.Decode(&w); err != nil {
			t.Fatal(err)
		}
		if w.Store != "" {
			t.Errorf("the progress file's field is shown: %+v", w)
		}
		n[w.Result]++
	}
	return n
}

func counts(t *testing.T, what string, got, want map[string]int) {
	t.Helper()
	for _, r := range []string{warmBuilt, warmHit, warmFailed, warmCrashed, warmSkipped} {
		if got[r] != want[r] {
			t.Errorf("%s: %d %s, want %d", what, got[r], r, want[r])
		}
	}
}

// Every item gets its result, whatever another does to the process that builds;
// what was built is there for a run, which compiles nothing.
func TestWarm(t *testing.T) {
	items := recordedItems(t)
	n := len(items)
	path := written(t, bad(bad(items, "fragile", n/2), "absent", n/3))
	dir := filepath.Join(t.TempDir(), "store")
	args := []string{"warm", "--manifest", path, "--store", dir, "--json"}
	for _, want := range []map[string]int{
		{warmBuilt: n, warmCrashed: 1, warmFailed: 1},
		{warmHit: n, warmCrashed: 1, warmFailed: 1},
	} {
		code, out, errs := invoke(args...)
		if code != exitFailed || !strings.Contains(errs, "2 items failed or crashed") {
			t.Errorf("exit %d, %q", code, errs)
		}
		counts(t, "warm", tally(t, out), want)
		if kept := progress(t, path); kept != nil {
			t.Errorf("progress of what is done: %v", kept)
		}
	}
	again := filepath.Join(t.TempDir(), "again")
	p := replayed(t, append(slices.Clone(tiny), "--requests", "6", "--store", dir, "--record", again)...).Passes
	if p[0].Compiles != 0 || p[0].Hits.Disk != int64(n) || p[1].Hits.Disk != 0 {
		t.Errorf("a run on the warm store: %+v", p)
	}
	// What that run recorded is the same, though it built none of it.
	counts(t, "replay", tally(t, done(t, "warm", "--manifest", again, "--store", dir, "--json")), map[string]int{warmHit: n})
	recorded, err := os.ReadFile(again)
	if err != nil {
		t.Fatal(err)
	}
	if r, s := sum(t, string(recorded), "cost"), sum(t, done(t, "cache", "ls", "--dir", dir, "--json"), "compile_seconds"); math.Abs(r-s) > s/1000 {
		t.Errorf("%g s recorded, in the store are %g", r, s) // S9
	}
}

// What the budget does not reach is skipped, and left to the next time. Behind a
// run that was interrupted every item has its line again: what failed is not tried
// again and not forgotten, and what the store has lost meanwhile is built again.
func TestWarmResumes(t *testing.T) {
	items := recordedItems(t)
	n := len(items)
	path := written(t, bad(bad(items, "fragile", n/2), "absent", n/3))
	for _, lost := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "store")
		args := []string{"warm", "--manifest", path, "--store", dir, "--json"}
		_, out, _ := invoke(append(args, "--budget", "0.001")...)
		first := tally(t, out)
		if first[warmSkipped] == 0 || first[warmSkipped]+first[warmBuilt]+first[warmFailed] != n+2 {
			t.Errorf("a budget of 1 ms: %v", first)
		}
		stored := interruptedWarm(t, n/2, args...)
		if lost {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			stored = 0
		}
		code, rest, errs := invoke(args...)
		got := tally(t, rest)
		counts(t, "resumed", got, map[string]int{warmBuilt: n - got[warmHit], warmHit: got[warmHit], warmFailed: 1, warmCrashed: 1})
		if _, again, _ := invoke(args[:len(args)-1]...); !strings.HasSuffix(again, fmt.Sprintf("\n%d items, %d hit, 1 failed, 1 crashed\n", n+2, n)) {
			t.Errorf("as text it ends with %q", again[max(0, len(again)-200):])
		}
		if code != exitFailed || !strings.Contains(errs, "2 items failed or crashed") || got[warmHit] < stored || got[warmHit] > stored && lost {
			t.Errorf("resumed with %d of %d: exit %d, %v, %q", stored, n, code, got, errs)
		}
		if p := replayed(t, append(slices.Clone(tiny), "--requests", "6", "--passes", "1", "--store", dir)...).Passes[0]; p.Compiles != 0 {
			t.Errorf("%d compiles of a run on the warm store", p.Compiles)
		}
		if kept := progress(t, path); kept != nil {
			t.Errorf("progress of what is done: %v", kept)
		}
	}
}

// interruptedWarm interrupts a process that hangs in an item behind so many that
// are stored, and gives their number.
func interruptedWarm(t *testing.T, most int, args ...string) (stored int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), self, args...)
	run.Dir = filepath.Dir(file(t, "hang", ""))
	var errs bytes.Buffer
	run.Stderr = &errs
	lines, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for d := json.NewDecoder(lines); stored < most; {
		var w warmed
		err := d.Decode(&w)
		switch {
		case err == nil && (w.Result == warmBuilt || w.Result == warmHit):
			stored++
		case err == nil && w.Result == warmFailed && failed == 0:
			failed++
		default:
			t.Fatalf("behind %d items: %+v, %v, %s", stored, w, err, errs.String())
		}
	}
	if err := run.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _ = run.Wait(); failed != 1 || run.ProcessState.ExitCode() != exitInterrupted || errs.String() != "kiln: warm: interrupted: run it again\n" {
		t.Errorf("%d failed, exit %d, %q", failed, run.ProcessState.ExitCode(), errs.String())
	}
	return stored
}

// Runs on one manifest for different stores leave each other's progress alone;
// those for one store may end in any order.
func TestWarmKeepsProgressOfEachStore(t *testing.T) {
	path := written(t, []manifest.Item{{Backend: "cpu", Op: "gelu rows=1 width=1"}, {Backend: "absent", Op: "x"}})
	warm := func(store string) *warmer {
		w := &warmer{call: newCall(command{name: "warm"}, nil, strings.NewReader(""), io.Discard, io.Discard), file: path, store: store}
		items, err := w.items()
		if err != nil {
			t.Fatal(err)
		}
		if items, err = w.left(items); err != nil || len(items) != 2 {
			t.Errorf("left to do: %v, %v", items, err)
		}
		return w
	}
	one, other := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "other")
	first, second := warm(one), warm(one)
	third := warm(other)
	if len(progress(t, path)) != 2 {
		t.Errorf("progress of two stores: %v", progress(t, path))
	}
	for _, w := range []*warmer{first, second} {
		if err := w.drive(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if kept := progress(t, path); len(kept) != 1 || kept[0] != third.progress.Name() {
			t.Errorf("kept: %v", kept)
		}
	}
	if err := third.drive(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// A building process that is interrupted, and not its parent, has not crashed: the
// item that it was in is tried again.
func TestWarmGoesOnBehindAnInterruptedChild(t *testing.T) {
	items := recordedItems(t)[:2]
	path := written(t, bad(items, "fragile", 0))
	t.Chdir(filepath.Dir(file(t, "interrupt", "")))
	code, out, errs := invoke("warm", "--manifest", path, "--store", filepath.Join(t.TempDir(), "store"), "--json")
	counts(t, "warm", tally(t, out), map[string]int{warmBuilt: 2, warmFailed: 1})
	if code != exitFailed || !strings.Contains(out, "asked again") {
		t.Errorf("exit %d, %s, %s", code, out, errs)
	}
}

// P7: what is dear stays in a store that is too small for the manifest, though it
// was there first.
func TestWarmKeepsTheDearest(t *testing.T) {
	dir, key := t.TempDir(), file(t, "key", "dear")
	done(t, "cache", "put", "--dir", dir, "--key-file", key, "--value-file", file(t, "value", strings.Repeat("v", 1<<20-24<<10)), "--cost", "1e9")
	items := recordedItems(t)
	out := done(t, "warm", "--manifest", written(t, items), "--store", dir, "--store-capacity", "1", "--json")
	counts(t, "warm", tally(t, out), map[string]int{warmBuilt: len(items)})
	left := len(kernels(t, dir))
	if left > len(items) {
		t.Fatalf("%d entries: nothing had to go", left)
	}
	gone := 0
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var r warmed
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		gone += int(r.Evicted)
	}
	if want := 1 + len(items) - left; gone != want {
		t.Errorf("%d evicted, want %d", gone, want)
	}
	if out, want := done(t, "warm", "--manifest", written(t, items), "--store", dir), "; the store evicted "; !strings.Contains(out, want) {
		t.Errorf("want %q in:\n%s", want, out)
	}
	if code, _, errs := invoke("cache", "get", "--dir", dir, "--key-file", key, "--out", filepath.Join(t.TempDir(), "out")); code != exitDone {
		t.Errorf("the dearest: exit %d, %s", code, errs)
	}
}

// late is a context whose time is up as soon as it has been asked.
type late struct {
	context.Context
	asked bool
}

func (l *late) Err() error {
	if !l.asked {
		l.asked = true
		return nil
	}
	return l.Context.Err()
}

// A budget that is used up just before a child starts skips, too.
func TestWarmSkipsBeforeAChildStarts(t *testing.T) {
	kept, err := os.Create(filepath.Join(t.TempDir(), "progress"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	var out, errs bytes.Buffer
	w := &warmer{call: newCall(command{name: "warm"}, nil, strings.NewReader(""), &out, &errs), store: t.TempDir(), progress: kept}
	w.json = true
	if err := w.drive(&late{Context: ctx}, []manifest.Item{{Backend: "cpu", Op: "x"}}); err != nil {
		t.Error(err)
	}
	counts(t, "no time", tally(t, out.String()), map[string]int{warmSkipped: 1})
}

// What a store does not take is failed, with the store's reason, and left to the
// next time; what it took is not built again, and what failed is not tried again,
// though the progress began with a line that was cut.
func TestWarmSaysWhatIsNotStored(t *testing.T) {
	items := recordedItems(t)
	n := len(items)
	path := written(t, bad(items, "fragile", n/2))
	cut := `{"backend":"cpu","op":"mat`
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile((&warmer{file: path, store: dir}).progressFile(), []byte(cut), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(file(t, "spoil", dir)))
	args := []string{"warm", "--manifest", path, "--store", dir, "--json"}
	code, out, errs := invoke(args...)
	got := tally(t, out)
	unstored := got[warmFailed] - 1 // but for the item that spoils it
	if code != exitFailed || unstored < 1 || got[warmBuilt] < 1 || got[warmBuilt]+unstored != n || len(kernels(t, dir)) != got[warmBuilt] {
		t.Errorf("exit %d, %v of %d items and one, %d stored: %s", code, got, n, len(kernels(t, dir)), errs)
	}
	if strings.Count(out, "not stored: ") != unstored || strings.Count(out, "degraded: ") != unstored || !strings.Contains(errs, "built and not stored") {
		t.Errorf("%d are not stored: %s%s", unstored, out, errs)
	}
	if err := os.Remove(filepath.Join(dir, "tmp")); err != nil {
		t.Fatal(err)
	}
	code, out, errs = invoke(args...) // the item that spoils it would do it again
	if code != exitFailed || !strings.Contains(errs, "1 items failed") {
		t.Errorf("the rest: exit %d, %s", code, errs)
	}
	counts(t, "the rest", tally(t, out), map[string]int{warmBuilt: unstored, warmHit: n - unstored, warmFailed: 1})
	if stored := len(kernels(t, dir)); stored != n {
		t.Errorf("%d of %d are stored", stored, n)
	}
	if kept := progress(t, path); kept != nil {
		t.Errorf("progress of what is done: %v", kept)
	}
}

// A store that cannot be used is said once, before anything is begun.
// Progress that cannot be kept beside the manifest costs the resuming, not the run.
func TestWarmWithoutProgress(t *testing.T) {
	path, dir := written(t, recordedItems(t)[:1]), filepath.Join(t.TempDir(), "store")
	taken := (&warmer{file: path, store: dir}).progressFile()
	if err := os.Mkdir(taken, 0o700); err != nil {
		t.Fatal(err)
	}
	code, out, errs := invoke("warm", "--manifest", path, "--store", dir, "--json")
	if code != exitDone || !strings.Contains(errs, "cannot be kept") {
		t.Errorf("exit %d, %s", code, errs)
	}
	counts(t, "built", tally(t, out), map[string]int{warmBuilt: 1})
}

func TestWarmRefuses(t *testing.T) {
	path := written(t, []manifest.Item{{Backend: "cpu", Op: "gelu rows=1 width=1", Cost: 1, Uses: 1}})
	store := filepath.Join(t.TempDir(), "store")
	refused(t, []string{"warm", "--manifest", path, "--store", path}, "--store: ", "no folder")
	refused(t, []string{"warm", "--manifest", path}, "--store must be given")
	refused(t, []string{"warm", "--store", store}, "--manifest must be given")
	for name, c := range map[string]struct{ text, word string }{
		"empty":   {"", "empty"},
		"binary":  {"\x00\xff", "what kiln run --record writes"},
		"version": {`{"kiln_manifest":2}` + "\n", "of kind 2, what Runtime.Record of package kiln writes"},
		"field":   {`{"kiln_manifest":1}` + "\n" + `{"bakend":"cpu"}` + "\n", ":2"},
		"cost":    {`{"kiln_manifest":1}` + "\n" + `{"backend":"cpu","op":"x","cost":-1}` + "\n", ":2"},
	} {
		bad := file(t, name, c.text)
		refused(t, []string{"warm", "--manifest", bad, "--store", store}, "--manifest: ", bad, c.word)
	}
	refused(t, []string{"warm", "--manifest", store, "--store", store}, "no such file")
	refused(t, []string{"warm", "--manifest", t.TempDir(), "--store", store}, "is a directory")
	refused(t, []string{"warm", "--manifest", path, "--store", store, "--store-capacity", "0"}, "--store-capacity 0", "nothing would be stored")
	refused(t, []string{"warm", "--manifest", path, "--store", store, "--device", "onednn"}, "--device onednn", "no item of onednn", "of cpu")
	t.Run("environment", func(t *testing.T) {
		t.Setenv("KILN_STORE_CAPACITY", "0")
		refused(t, []string{"warm", "--manifest", path, "--store", store}, "KILN_STORE_CAPACITY 0", "nothing would be stored")
	})
	for _, budget := range []string{"", "-1", "NaN", "Inf", "1s"} {
		refused(t, []string{"warm", "--manifest", path, "--store", store, "--budget", budget}, "--budget", "number of seconds")
	}
	if kept := progress(t, path); kept != nil {
		t.Errorf("left behind: %v", kept)
	}
	if _, err := os.Stat(store); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a store was made: %v", err)
	}
}
