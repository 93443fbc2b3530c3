package sessioncache

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/shapegroups"
)

// core drives the pure core by scripts: no actor, no flight, no goroutine. A line
// is an event and, behind "->", what follows from it: the effects in their order,
// then the groups, names and bytes that are registered. Handles, calls and sets are
// named where they begin.
type core struct {
	*state
	groups map[string]*group
	calls  map[string]*call
	sets   map[string]*writing
	pool   *purse
	done   []string // what the event itself says
}

// purse is a budget: so many bytes are free, and others give when they are asked.
type purse struct {
	core   *core
	free   int64
	others int64 // what other sessions could give
}

func (p *purse) Fits(bytes int64) bool { return bytes <= p.free }
func (p *purse) Reserve(bytes int64) bool {
	if bytes > p.free {
		return false
	}
	p.free -= bytes
	return true
}
func (p *purse) Release(bytes int64)    { p.free += bytes }
func (p *purse) Most() int64            { return 1 << 40 }
func (p *purse) Could(bytes int64) bool { return bytes <= p.free+p.core.published.bytes.Load() }
func (p *purse) claim(held any, bytes int64) bool {
	if bytes > p.free+p.others {
		return false
	}
	p.core.done = append(p.core.done, fmt.Sprintf("claim %d", bytes))
	return true
}

// line is one event: its verb, its words and its options.
type line struct {
	verb    string
	words   []string
	options map[string]string
}

func parse(text string) line {
	l := line{options: make(map[string]string)}
	for i, word := range strings.Fields(text) {
		name, value, isOption := strings.Cut(word, "=")
		switch {
		case i == 0:
			l.verb = word
		case isOption:
			l.options[name] = value
		default:
			l.words = append(l.words, word)
		}
	}
	return l
}

func (l line) number(option string) int64 {
	n, _ := strconv.ParseInt(l.options[option], 10, 64)
	return n
}

func (l line) set() Options {
	return Options{Owner: l.options["owner"], Lane: Lane(l.number("lane")), Key: l.options["key"]}
}

// value is what a creator made or somebody set.
func (c *core) value(l line) Value {
	return Value{Bytes: l.number("bytes"), Cost: time.Duration(l.number("cost")), Key: l.options["made"], Free: func() {}}
}

func (c *core) open(l line) error {
	cfg := Config{Policy: cmp.Or(l.options["policy"], "fifo"), Floor: Floor{Bytes: l.number("floor")}}
	for option, to := range map[string]*Limit{"groups": &cfg.Groups, "bytes": &cfg.Bytes} {
		if text, ok := l.options[option]; ok {
			n, err := limit.Parse(text)
			if err != nil {
				return err
			}
			*to = n
		}
	}
	cfg, err := cfg.Validate()
	if err != nil {
		return err
	}
	if c.state, err = newState(cfg, newPublished(cfg, nil)); err != nil {
		return err
	}
	c.groups, c.calls, c.sets = make(map[string]*group), make(map[string]*call), make(map[string]*writing)
	if _, ok := l.options["pool"]; ok {
		c.pool = &purse{core: c, free: l.number("pool"), others: l.number("others")}
		c.share = &share{member: c.pool}
	}
	return nil
}

func (c *core) use(text string) *asked {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	shape, err := shapegroups.N(n)
	if err != nil {
		panic(err)
	}
	asked, err := c.published.note(shape)
	if err != nil {
		panic(err)
	}
	return &asked[byAcquire]
}

// play runs one event.
func (c *core) play(l line) (err error) {
	word := func(i int) string { return l.words[i] }
	switch l.verb {
	case "open":
		return c.open(l)
	case "acquire": // HANDLE SHAPE
		var g *group
		if g, err = c.acquire(c.use(word(1))); err == nil {
			g.grace.enter()
			c.groups[word(0)] = g
		}
	case "release": // HANDLE
		g := c.groups[word(0)]
		for phase := range g.grace.handles {
			if g.grace.handles[phase].Load() > 0 {
				g.grace.leave(uint32(phase))
				break
			}
		}
		c.vacated(g)
	case "ask": // CALL HANDLE NAME
		g := c.groups[word(1)]
		a := &call{group: g, name: word(2), hash: g.names.Hash(word(2)), options: l.set(), of: word(0)}
		c.calls[word(0)] = a
		c.ask(a)
	case "left": // CALL
		c.left(c.calls[word(0)], time.Time{})
	case "taken": // CALL: its caller has the value and lets the flight's pin go
		c.drop(c.calls[word(0)].node)
	case "created": // CALL
		if text, failed := l.options["error"]; failed {
			err = errors.New(text)
		}
		c.created(c.calls[word(0)], c.value(l), err)
		err = nil
	case "set": // SET SHAPE NAME, or SET in HANDLE NAME
		m := &writing{name: word(2), options: l.set(), value: c.value(l), of: word(0)}
		if word(1) == "in" {
			m.group, m.name = c.groups[word(2)], word(3)
		} else {
			m.use = c.use(word(1))
		}
		m.hash = c.published.placed(m.name)
		c.sets[word(0)] = m
		return c.write(m)
	case "made": // SET or CALL, bytes=
		c.share.made(l.number("bytes"))
		c.pool.free -= l.number("bytes")
		if m := c.sets[word(0)]; m != nil {
			return c.write(m)
		}
		c.created(c.calls[word(0)], Value{Bytes: l.number("value"), Free: func() {}}, nil)
	case "take": // HANDLE NAME
		var n *node
		if n, err = c.take(c.groups[word(0)], word(1), c.published.placed(word(1)), Lane(l.number("lane"))); err == nil {
			c.done = append(c.done, "taken "+n.Key)
			c.drop(n)
		}
	case "hold":
		c.hold(word(0))
	case "reset": // [OWNER]
		left, err := c.reset(strings.Join(l.words, " "), c.published.all())
		for left != nil && !c.clear(left) {
			c.touched.Turn()
		}
		return err
	case "resize":
		capacities := [2]Limit{}
		for i, option := range []string{"groups", "bytes"} {
			if text, ok := l.options[option]; ok {
				if capacities[i], err = limit.Parse(text); err != nil {
					return err
				}
			}
		}
		turns := 0
		err := c.resize(capacities[0], capacities[1])
		for err == nil && !c.surplus(&turns) {
			c.touched.Turn()
		}
		return err
	case "give": // BYTES
		freed, _ := c.give(new(int), l.number("bytes"), c.floor, policy.Busy, ForPool)
		c.done = append(c.done, fmt.Sprintf("gave %d", freed.Bytes))
	case "close":
		c.close()
		c.clear(&clearing{all: c.published.all()})
	default:
		panic("no event " + l.verb)
	}
	return err
}

func (c *core) write(m *writing) error {
	out, err := c.set(m)
	for out == again {
		c.touched.Turn()
		out, err = c.set(m)
	}
	if out == waits {
		c.done = append(c.done, "wait")
	}
	return err
}

// short is a short form of an error.
func short(err error) string {
	for _, known := range []error{fault.ErrClosed, fault.ErrTooLarge, fault.ErrNotFound, fault.ErrInvalid} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return err.Error()
}

// did is what an event said and its effects, which are then forgotten.
func (c *core) did(err error) string {
	words := c.done
	if err != nil {
		words = append(words, "error "+short(err))
	}
	if n := c.effects.memory; n != 0 {
		words = append(words, fmt.Sprintf("memory %+d", n))
	}
	for _, t := range c.effects.trash {
		switch {
		case t.group != nil:
			words = append(words, "free group "+t.group.shape.String())
		case t.node != nil:
			words = append(words, "free "+t.node.Key)
		default:
			words = append(words, "free value")
		}
	}
	for _, a := range c.effects.start {
		words = append(words, fmt.Sprint("start ", a.of))
	}
	for _, a := range c.effects.answer {
		word := fmt.Sprint("answer ", a.of)
		switch {
		case a.err != nil:
			word += " error " + short(a.err)
		case a.other != nil && a.late:
			word += fmt.Sprint(" join ", a.other.of, " late")
		case a.other != nil:
			word += fmt.Sprint(" join ", a.other.of)
		case a.hit:
			word += " hit"
		case a.node.Value.loose:
			word += " loose"
		}
		words = append(words, word)
	}
	for _, a := range c.effects.cancel {
		words = append(words, fmt.Sprint("cancel ", a.of))
	}
	if c.share != nil {
		c.share.spare()
	}
	c.done, c.effects = nil, effects{}
	if len(words) == 0 {
		words = []string{"nothing"}
	}
	p := c.published
	return fmt.Sprintf("%s; %d groups %d names %d bytes", strings.Join(words, ", "), p.groups.Load(), p.objects.Load(), p.bytes.Load())
}

// TestTransitions plays the scripts in testdata: event in, effects out.
func TestTransitions(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var c core
			for i, text := range strings.Split(string(text), "\n") {
				text, _, _ = strings.Cut(text, "#")
				event, want, checked := strings.Cut(text, "->")
				if strings.TrimSpace(event) == "" {
					continue
				}
				got := c.did(c.play(parse(event)))
				if want = strings.TrimSpace(want); checked && got != want {
					t.Errorf("line %d: %s:\n got %s\nwant %s", i+1, strings.TrimSpace(event), got, want)
				}
			}
			if n := c.published.running.Load(); n != 0 {
				t.Errorf("%d creators are said to run in the end", n)
			}
		})
	}
}
