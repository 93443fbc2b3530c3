package encoder

import (
	"context"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/shapegroups"
)

// perShape is the processor with a program for each shape, as oneDNN has: a Backend itself, which
// models do not ask for others.
type perShape struct{ *cpu.Backend }

func (perShape) Name() string { return "pershape" }

func init() {
	lib, err := cpu.New("auto")
	if err != nil {
		panic(err)
	}
	gpuexec.Register(perShape{lib})
}

// S2: the shape of the batch that comes next is announced. Of two groups, that of 4 tokens
// is the older one; yet a batch of 32 takes the other's place while 4 tokens wait.
func TestNextBatchIsAnnounced(t *testing.T) {
	t.Setenv("KILN_SESSION_GROUPS", "2")
	t.Setenv("KILN_SESSION_POLICY", "fifo")
	ctx := context.Background()
	e := openTiny(t, Config{Workers: 2, Device: "pershape"}, kiln.Config{})
	other := e.mu.idle[0] // one worker is away, so that batches are in order
	e.mu.idle = e.mu.idle[1:]
	defer func() {
		e.mu.Lock()
		e.mu.idle = append(e.mu.idle, other)
		e.mu.Unlock()
	}()
	encode := func(tokens ...int) {
		t.Helper()
		var texts [][]int32
		for _, n := range tokens {
			texts = append(texts, make([]int32, n))
		}
		if _, err := e.EncodeTokens(ctx, texts); err != nil {
			t.Fatal(err)
		}
	}
	encode(4)
	encode(6)
	encode(20, 12, 4) // batches of 32 and 4
	s := e.session.Cache().Stats()
	if s.Groups != 2 || s.Evicted != 1 {
		t.Errorf("%d groups, %d evicted: want 4 and 32 tokens, and 6 evicted", s.Groups, s.Evicted)
	}
	encode(6)
	if again := e.session.Cache().Stats(); again.Evicted != 2 {
		t.Errorf("%d evicted, want that 6 was one of them", again.Evicted)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.mu.announced.IsZero() {
		t.Errorf("%v is announced though nobody waits", e.mu.announced)
	}
}

// S2: the shape that is announced is that of a worker's share of what waits, not of all of it.
func TestShareIsAnnounced(t *testing.T) {
	e := openTiny(t, Config{Workers: 2, Device: "pershape"}, kiln.Config{})
	texts := make([][]int32, 20)
	for i := range texts {
		texts[i] = make([]int32, 20)
	}
	c := newCall("texts", texts, nil, e.pool)
	e.mu.Lock()
	m := e.awake()
	e.mu.queue.push(c)
	first := e.take() // of 200 tokens; 200 wait
	announced := e.mu.announced
	e.mu.Unlock()
	if want, err := shapegroups.Of([]int64{100}); err != nil || announced != want {
		t.Errorf("%v is announced, want %v, %v", announced, want, err)
	}
	e.work(m, first)
	if <-c.done; c.err != nil {
		t.Error(c.err)
	}
}
