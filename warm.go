package kiln

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/jsonlines"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Entry is one artefact of a manifest: what Runtime.Record wrote, and what
// Runtime.Warm asks for.
type Entry struct {
	Backend string // of the recipe or device
	Key     string // of the recipe or kernel source
	Name    string // under which it was asked for first
	Shape   Shape  // of the group in which that was

	Cost time.Duration // what making it took
	Uses int64         // how often a name was absent and came to stand for it
}

// recorder notes what names came to stand for. nil notes nothing.
type recorder struct {
	mu      sync.Mutex
	entries map[artefactID]*Entry
	bytes   int   // of their texts
	lost    int64 // uses of artefacts that were left out
}

type artefactID struct{ backend, key string }

const (
	mostNoted = 16 << 20 // bytes that a recorder holds, nearly
	entrySize = 256      // of an entry without its texts, nearly
	mostText  = 64 << 10 // of one entry: escaped, it fits a line

	mostSeconds = 1 << 32 // 136 years: what an entry's cost is said to be at most
)

// note counts a use of the artefact of q. It takes constant time.
func (r *recorder) note(g *Group, name string, q *artefacts.Request, cost time.Duration) {
	if r == nil {
		return
	}
	id := artefactID{q.Backend, cmp.Or(q.StoredKey, q.Key)}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[id]
	if e == nil {
		size := len(id.backend) + len(id.key) + len(name) + len(g.Shape().Key())
		if size > mostText || r.bytes+size+entrySize > mostNoted {
			r.lost++
			return
		}
		r.bytes += size + entrySize
		e = &Entry{Backend: id.backend, Key: id.key, Name: name, Shape: g.Shape()}
		r.entries[id] = e
	}
	e.Uses++
	e.Cost = max(e.Cost, cost)
}

// line is an Entry as a manifest has it.
type line struct {
	Backend text    `json:"backend"`
	Key     text    `json:"key"`
	Name    text    `json:"name"`
	Shape   string  `json:"shape"`
	Seconds float64 `json:"seconds"` // of making it
	Uses    int64   `json:"uses"`
}

// text is bytes as JSON can have them: like a string of Go, without the quotes.
type text string

func (t text) MarshalText() ([]byte, error) {
	quoted := strconv.Quote(string(t))
	return []byte(quoted[1 : len(quoted)-1]), nil
}

func (t *text) UnmarshalText(b []byte) error {
	s, err := strconv.Unquote(`"` + string(b) + `"`)
	*t = text(s)
	if err != nil {
		return fmt.Errorf("%.40q: want a text as a string of Go has it: %w", b, err)
	}
	return nil
}

// Record writes a manifest of the artefacts that names came to stand for since
// Open, dearest first (compile time times uses). Config.Record must be set; a hit
// costs nothing more then. Record may be called again and again, each time with
// another writer. What 16 MiB of memory cannot hold, at 256 bytes and its texts
// for each artefact (some 60,000), is left out, which is logged with the uses that were not noted.
// What Warm asked for counts once a session asks for it too.
func (r *Runtime) Record(w io.Writer) error {
	switch {
	case r.it().record == nil:
		return fault.Invalidf("kiln: record", "nothing was noted: set Config.Record")
	case w == nil:
		return fault.Invalidf("kiln: record", "the writer is nil: give one")
	}
	r.record.mu.Lock()
	lost := r.record.lost
	lines := make([]line, 0, len(r.record.entries))
	for _, e := range r.record.entries {
		lines = append(lines, line{text(e.Backend), text(e.Key), text(e.Name), e.Shape.String(), min(e.Cost.Seconds(), mostSeconds), e.Uses})
	}
	r.record.mu.Unlock()
	if lost > 0 {
		r.logger.Warn("kiln: record: there were more artefacts than can be noted", "noted", len(lines), "uses_not_noted", lost)
	}
	slices.SortFunc(lines, dearer)
	return jsonlines.Write(w, jsonlines.Entries, lines)
}

// dearer orders by compile time times uses, ties by key.
func dearer(a, b line) int {
	return cmp.Or(cmp.Compare(b.Seconds*float64(b.Uses), a.Seconds*float64(a.Uses)), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Backend, b.Backend))
}

// entries reads a manifest, dearest first.
func entries(manifest io.Reader) ([]Entry, error) {
	lines, err := jsonlines.Read("manifest", manifest, jsonlines.Entries, func(l line) error {
		if _, err := shapegroups.Parse(l.Shape); err != nil {
			return fmt.Errorf("shape: %w", err)
		}
		switch {
		case l.Key == "":
			return errors.New("key is empty: want that of an artefact")
		case l.Uses < 0:
			return fmt.Errorf("uses is %d: want 0 or more", l.Uses)
		case !(l.Seconds >= 0 && l.Seconds <= mostSeconds):
			return fmt.Errorf("seconds is %v: want from 0 to %d", l.Seconds, int64(mostSeconds))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(lines, dearer)
	all := make([]Entry, len(lines))
	for i, l := range lines {
		shape, _ := shapegroups.Parse(l.Shape) // it was checked
		all[i] = Entry{string(l.Backend), string(l.Key), string(l.Name), shape, time.Duration(l.Seconds * 1e9), l.Uses}
	}
	return all, nil
}

// Warmed is how many entries of a manifest ended in which way.
type Warmed struct {
	Found   int // they were there
	Loaded  int // made from a stored blob, or of kernels that were there
	Made    int // by their recipes
	Failed  int // an error or a panic, of the recipe or of the function
	Skipped int // beyond the capacity, or the function asked for nothing, or Warm ended before it was asked
}

// Warm asks for what a manifest of Record names, dearest first, before the first
// request or beside the requests: for each entry it calls ask, which calls Get or
// Group.Kernel with the group and context that it is given, or returns if the
// program has no such thing any more. As many calls run at a time as a device has
// workers (KILN_WORKERS). The artefacts are then in memory and in the store; no
// session of the program is touched, and its first Get of a name finds its artefact
// there. Entries beyond the capacity of the artefact cache are skipped, since they
// would take the place of dearer ones.
//
// An entry that fails is counted and logged, and the others go on. An error is that
// of the manifest (ErrInvalid, with its line), of the context, or ErrClosed; the
// counts are those until then. Warm returns when ctx ends, also where a function that it
// called goes on: Runtime.Close waits for that.
func (r *Runtime) Warm(ctx context.Context, manifest io.Reader, ask func(context.Context, *Group, Entry) error) (Warmed, error) {
	if r.none() {
		return Warmed{}, errNoRuntime
	}
	if manifest == nil || ask == nil {
		return Warmed{}, fault.Invalidf("kiln: warm", "no manifest, or no function that asks: give both")
	}
	all, err := entries(manifest)
	if err != nil {
		return Warmed{}, err
	}
	r.mu.Lock()
	over := r.mu.over
	if !over {
		r.crew.join() // so that nothing is asked once Close has returned
	}
	r.mu.Unlock()
	if over {
		return Warmed{Skipped: len(all)}, errClosed
	}
	defer r.crew.back()
	var sum Warmed
	r.crew.zone.Run(func() { sum, err = r.warm(ctx, all, ask) })
	return sum, err
}

// warm asks for the entries of a manifest, in a session of its own.
func (r *Runtime) warm(ctx context.Context, all []Entry, ask func(context.Context, *Group, Entry) error) (Warmed, error) {
	cfg := r.room(SessionConfig{Name: "warm", Groups: LimitOf(0)}) // it keeps nothing
	cfg.Bucket = Bucketing{}                                       // the shapes were bucketed when they were noted
	s, err := r.session(cfg)
	if err != nil {
		return Warmed{Skipped: len(all)}, err
	}
	s.record = nil
	w := warming{session: s, ask: ask}
	room := len(all)
	if n, counted := first(r.artefacts.Capacity()).Value(); counted {
		room = int(min(n, int64(room)))
	}
	err = w.run(ctx, all[:room])
	err = errors.Join(err, s.Close(ctx)) // what goes on heeds no context: the runtime waits for it
	w.mu.Lock()
	sum := w.sum
	w.mu.Unlock()
	sum.Skipped = len(all) - sum.Found - sum.Loaded - sum.Made - sum.Failed
	r.logger.Info("kiln: warmed", "found", sum.Found, "loaded", sum.Loaded, "made", sum.Made, "failed", sum.Failed, "skipped", sum.Skipped)
	return sum, err
}

func first[A, B any](a A, _ B) A { return a }

// warming is one Warm.
type warming struct {
	session *Session
	ask     func(context.Context, *Group, Entry) error
	mu      sync.Mutex
	sum     Warmed
}

// run asks for the entries in order, several at a time, and waits for all it began, or
// for ctx.
func (w *warming) run(ctx context.Context, all []Entry) error {
	workers := int(w.session.runtime.settings.Workers.Value)
	slots := make(chan struct{}, cmp.Or(workers, runtime.GOMAXPROCS(0)))
	slot := func() error {
		select {
		case slots <- struct{}{}:
			return nil
		case <-ctx.Done():
			return guard.Ended(ctx)
		}
	}
	var err error
	for i := 0; i < len(all) && err == nil; i++ {
		if err = slot(); err != nil {
			break
		}
		var g *Group
		if g, err = w.session.Group(ctx, all[i].Shape.Dims()...); err != nil {
			<-slots
			break
		}
		w.session.runtime.crew.lend(func() {
			defer func() { <-slots }()
			w.one(ctx, g, all[i])
		})
	}
	for range cap(slots) {
		if ended := slot(); ended != nil {
			return cmp.Or(err, ended)
		}
	}
	return err
}

// one asks for an entry and counts how it ended: the worst that its look-ups say.
func (w *warming) one(ctx context.Context, g *Group, e Entry) {
	defer g.Close()
	var mu sync.Mutex // ask may use goroutines
	ways := [...]*int{&w.sum.Found, &w.sum.Loaded, &w.sum.Made, &w.sum.Failed}
	rank := -1
	others := g.listen
	g.listen = func(told Event) {
		mu.Lock()
		rank = max(rank, told.rank())
		mu.Unlock()
		if others != nil {
			others(told)
		}
	}
	guard.Guard(func() error { return w.ask(ctx, g, e) }, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil && ctx.Err() != nil: // it was not asked to the end
			return
		case err != nil:
			rank = len(ways) - 1
			w.session.runtime.logger.Warn("kiln: warm", "key", fault.Printable(string(e.Key)), "backend", e.Backend, "error", err)
		}
		if rank >= 0 {
			w.mu.Lock()
			*ways[rank]++
			w.mu.Unlock()
		}
	})
}

// rank is 0 for what was there, 1 for what was loaded, 2 for what was made and 3
// for a failure.
func (e Event) rank() int {
	switch {
	case e.Kind == Failed:
		return 3
	case e.Artefact == Miss:
		return 2
	case e.Artefact == PersistentHit || e.Artefact == KernelHit:
		return 1
	}
	return 0
}
