package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/manifest"
	"github.com/kiln-cache/kiln/internal/size"
	"github.com/kiln-cache/kiln/limit"
)

// The results of an item.
const (
	warmBuilt   = "built"
	warmHit     = "hit"     // the store had it
	warmFailed  = "failed"  // see its error
	warmCrashed = "crashed" // the process died in it
	warmSkipped = "skipped" // the budget was used up

	warmUnstored = "unstored" // a child's word; the parent prints it as failed
)

// warmed is one line of `kiln warm`, and of the progress kept beside a manifest.
type warmed struct {
	Backend    string  `json:"backend"`
	Op         string  `json:"op"`
	Descriptor string  `json:"descriptor"`
	Result     string  `json:"result"`
	Seconds    float64 `json:"seconds"`
	Error      string  `json:"error,omitempty"`
	Evicted    int64   `json:"evicted,omitempty"` // entries that the store has not any more, to make room for this one
	Store      string  `json:"store,omitempty"`   // in the progress: an item that failed in one store may succeed in another
}

// unfinished is the line of an item that has no result yet.
func unfinished(i manifest.Item) warmed {
	return warmed{Backend: i.Backend, Op: i.Op, Descriptor: i.Descriptor}
}

// warmer builds the items of a manifest in a child process. If the child dies in
// one item, another child goes on with the next.
type warmer struct {
	*call
	file, store string
	device      string
	capacity    limit.Limit
	chosen      bool // the command line has the capacity
	child       bool
	progress    *os.File
	failures    int
	unstored    int             // of the failures, those that were built
	evicted     int64           // entries of the store, so far
	results     map[string]int  // printed so far
	said        map[string]bool // errors that were
}

func warmCommand(ctx context.Context, c *call) error {
	w := &warmer{call: c}
	budget := 0.0
	c.file(&w.file, "manifest FILE", "what kiln run --record wrote", "a manifest's file")
	c.text(&w.store, "store DIR", "where the kernels are kept (default KILN_STORE_DIR)", "a directory's name", nil)
	c.device(&w.device, "the device that items of its backend are built for, else a backend's first")
	c.size(&w.capacity, size.MiB, "store-capacity MiB", "for the store from now on: MiB, a size such as 512KiB or 5GiB, or unlimited (default what it has; KILN_STORE_CAPACITY, else 1024, where it has none)")
	c.seconds(&budget, "budget SECONDS", "wall time to spend; 0 is no bound")
	c.toggle(&w.child, "child", "") // the process that builds: items on standard input
	if err := c.parse(0); err != nil {
		return err
	}
	if w.store == "" {
		w.store = w.settings.StoreDir.Value
	}
	if w.store == "" {
		return usagef("--store must be given, or KILN_STORE_DIR set: nothing would be kept")
	}
	var err error
	w.chosen = w.capacity.Given()
	if w.capacity, err = w.room("store-capacity", w.capacity); err != nil {
		return err
	}
	if w.store, err = filepath.Abs(w.store); err != nil {
		return err
	}
	if w.child {
		return w.build(ctx)
	}
	if err := w.environment(); err != nil { // said by the parent alone
		return err
	}
	items, err := interruptible(ctx, w.items)
	if err != nil {
		return usageError{err}
	}
	if err := w.usable(ctx, items); err != nil {
		return err
	}
	if items, err = w.left(items); err != nil {
		return err
	}
	if budget > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(budget*float64(time.Second)))
		defer cancel()
	}
	err = w.drive(ctx, items)
	if c.json { // a reader can count
		return err
	}
	return errors.Join(w.sum(), err)
}

// sum says how many items ended in which way.
func (w *warmer) sum() error {
	text, items := "", 0
	for _, result := range []string{warmBuilt, warmHit, warmFailed, warmCrashed, warmSkipped} {
		if n := w.results[result]; n > 0 {
			text += fmt.Sprintf(", %d %s", n, result)
			items += n
		}
	}
	if w.evicted > 0 {
		text += fmt.Sprintf("; the store evicted %s to make room: raise --store-capacity to keep all", counted(w.evicted, "entry", "entries"))
	}
	_, err := fmt.Fprintf(w.stdout, "%d items%s\n", items, text)
	return err
}

// items reads the manifest, dearest first.
func (w *warmer) items() ([]manifest.Item, error) {
	if w.file == "" {
		return nil, errors.New("--manifest must be given: see kiln warm --help")
	}
	f, err := os.Open(w.file)
	if err != nil {
		return nil, fmt.Errorf("--manifest: %w", err)
	}
	defer f.Close()
	items, err := manifest.Read(w.file, f)
	if err != nil {
		return nil, fmt.Errorf("--manifest: %w", err)
	}
	manifest.Sort(items)
	return items, nil
}

// usable opens the store and closes it again, before anything is begun. A device that is
// chosen must be there, and have something to be built for.
func (w *warmer) usable(ctx context.Context, items []manifest.Item) error {
	library := libraries(w.settings, w.device)
	if backend := backendOf(w.device); w.device != "" {
		if _, _, err := library(backend); err != nil {
			return usageError{err}
		}
		if len(items) > 0 && !slices.ContainsFunc(items, func(i manifest.Item) bool { return i.Backend == backend }) {
			return usagef("--device %s: the manifest has no item of %s: its first is of %s", w.device, backend, items[0].Backend)
		}
	}
	store, err := w.open(ctx, library)
	if err != nil {
		return err
	}
	return store.Close(context.WithoutCancel(ctx))
}

// progressFile is beside the manifest, one for each store and device that is chosen.
func (w *warmer) progressFile() string {
	store := sha256.Sum256([]byte(w.store + strings.TrimSuffix("\x00"+w.device, "\x00")))
	return fmt.Sprintf("%s.progress-%x", w.file, store[:8])
}

// left gives the items that are still to be built. It leaves out those that failed
// in an earlier, interrupted run, as the progress file says, and prints them again.
// All others are asked for anew: the store may have lost some of them since.
func (w *warmer) left(items []manifest.Item) (left []manifest.Item, err error) {
	failed, err := w.resume()
	if err != nil {
		w.progress = nil
		fmt.Fprintf(w.stderr, "kiln: warm: its progress cannot be kept beside the manifest: a run that is interrupted begins anew: %v\n", err)
	}
	for _, i := range items {
		r := unfinished(i)
		r.Store = w.store
		was, known := failed[r]
		if !known {
			left = append(left, i)
			continue
		}
		w.failures++
		if err := w.print(was); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// resume opens the progress file and gives its lines by their items. It removes a
// last line that was cut, which would spoil the next one.
func (w *warmer) resume() (map[warmed]warmed, error) {
	var err error
	if w.progress, err = os.OpenFile(w.progressFile(), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(w.progress)
	if err != nil {
		return nil, err
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	if err := w.progress.Truncate(int64(whole)); err != nil {
		return nil, err
	}
	lines := make(map[warmed]warmed)
	for line := range bytes.Lines(text[:whole]) {
		var was warmed
		if json.Unmarshal(line, &was) == nil {
			item := was
			item.Result, item.Seconds, item.Error, item.Evicted = "", 0, "", 0
			was.Store = ""
			lines[item] = was
		}
	}
	return lines, nil
}

// endProgress closes the progress file, and removes one that is of no use any more.
func (w *warmer) endProgress(done bool) error {
	if w.progress == nil {
		return nil
	}
	info, err := w.progress.Stat()
	if err == nil && (done || info.Size() == 0) {
		if err = os.Remove(w.progress.Name()); errors.Is(err, fs.ErrNotExist) { // another warmed the same store
			err = nil
		}
	}
	return errors.Join(err, w.progress.Close())
}

// drive runs children until every item has a result.
func (w *warmer) drive(ctx context.Context, items []manifest.Item) error {
	for len(items) > 0 && ctx.Err() == nil {
		n, err := w.session(ctx, items)
		if errors.Is(err, context.DeadlineExceeded) { // before the child was there
			break
		}
		if err != nil {
			return err
		}
		items = items[n:]
	}
	interrupted := errors.Is(ctx.Err(), context.Canceled)
	err := w.endProgress(!interrupted && len(items)+w.unstored == 0)
	if interrupted {
		return ctx.Err()
	}
	for _, i := range items {
		r := unfinished(i)
		r.Result = warmSkipped
		err = errors.Join(err, w.print(r))
	}
	if err != nil {
		return err
	}
	switch {
	case w.unstored > 0:
		return fmt.Errorf("%d items failed or crashed: see above; %d of them were built and not stored: run it again once they can be", w.failures, w.unstored)
	case w.failures > 0:
		return fmt.Errorf("%d items failed or crashed: see above", w.failures)
	}
	return nil
}

// grace is how long a child that was interrupted may take to end its item.
const grace = 2 * time.Second

// start runs a child and feeds it the items; out is its standard output.
func (w *warmer) start(ctx context.Context, items []manifest.Item) (child *exec.Cmd, out io.Reader, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	child = exec.CommandContext(ctx, self, "warm", "--child", "--store", w.store, "--log-level", w.level)
	if w.chosen {
		child.Args = append(child.Args, "--store-capacity", size.Format(w.capacity, size.MiB))
	}
	if w.device != "" {
		child.Args = append(child.Args, "--device", w.device)
	}
	child.Stderr = w.stderr
	child.Cancel = func() error { return child.Process.Signal(os.Interrupt) } // it clears up after itself
	child.WaitDelay = grace
	in, err := child.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	if out, err = child.StdoutPipe(); err != nil {
		return nil, nil, err
	}
	if err := child.Start(); err != nil {
		return nil, nil, err
	}
	go func() { // ends when the child has read all or died
		defer in.Close()
		e := json.NewEncoder(in)
		for _, i := range items {
			if e.Encode(i) != nil {
				return
			}
		}
	}()
	return child, out, nil
}

// session runs one child and returns the number of items that have a result.
func (w *warmer) session(ctx context.Context, items []manifest.Item) (int, error) {
	child, out, err := w.start(ctx, items)
	if err != nil {
		return 0, err
	}
	n := 0
	for d := json.NewDecoder(out); n < len(items); n++ {
		var r warmed
		if d.Decode(&r) != nil {
			break
		}
		if err := w.result(r); err != nil {
			return n, errors.Join(err, child.Process.Kill(), child.Wait())
		}
	}
	died := child.Wait()
	if n == len(items) || ctx.Err() != nil {
		return n, nil
	}
	if n == 0 && died == nil {
		return 0, errors.New("the building process ended without a result")
	}
	var exit *exec.ExitError
	if errors.As(died, &exit) {
		switch exit.ExitCode() {
		case exitUsage:
			return 0, usagef("--store %s: it was usable before: see above", w.store)
		case exitInterrupted: // no item's fault: the interrupt reaches this process too
			return n, nil
		}
	}
	r := unfinished(items[n])
	r.Result, r.Error = warmCrashed, fmt.Sprint(died)
	return n + 1, w.result(r)
}

// result prints the result of an item. It keeps a failure in the progress file, so
// that a run which resumes this one does not try the item again; an item that was
// built and not stored is tried again.
func (w *warmer) result(r warmed) error {
	switch r.Result {
	case warmUnstored:
		r.Result = warmFailed
		w.failures++
		w.unstored++
	case warmFailed, warmCrashed:
		w.failures++
		if w.progress == nil {
			break
		}
		kept := r
		kept.Store = w.store
		if err := json.NewEncoder(w.progress).Encode(kept); err != nil {
			return err
		}
	}
	return w.print(r)
}

func (w *warmer) print(r warmed) error {
	if w.results == nil {
		w.results, w.said = make(map[string]int), make(map[string]bool)
	}
	w.results[r.Result]++
	w.evicted += r.Evicted
	why := r.Error
	if w.said[why] {
		why = "as said above"
	}
	w.said[r.Error] = r.Error != ""
	return w.say(r, "%-8s %8.3f s  %s %s %s", r.Result, r.Seconds, r.Backend, r.Op, why)
}
