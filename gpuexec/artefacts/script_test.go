package artefacts

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/limit"
)

// TestScripts plays testdata/*.txt on the core alone. A line is
//
//	VERB WORD… OPTION=… -> ANSWER[, gone KEY…]; ENTRIES BYTES: KEY…   # comment
//
// that is, an event and what came of it: the answer, what lost its residency, and
// what has a place, the oldest first and what flies with a ~. open begins anew.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		p := &player{flights: map[string]*making{}}
		for i, line := range strings.Split(string(text), "\n") {
			line, _, _ = strings.Cut(line, "#")
			event, want, ok := strings.Cut(line, "->")
			if !ok {
				if strings.TrimSpace(line) != "" {
					t.Fatalf("%s:%d: no answer", name, i+1)
				}
				continue
			}
			if got := p.play(strings.Fields(event)); got != strings.TrimSpace(want) {
				t.Fatalf("%s:%d: %s\ngot  %s\nwant %s", name, i+1, strings.TrimSpace(event), got, strings.TrimSpace(want))
			}
		}
	}
}

// player drives a core by the words of a script.
type player struct {
	core
	flights map[string]*making // the last of each key; a lone one under KEY!
}

func (p *player) play(words []string) string {
	options := map[string]string{}
	args := []string{"", "", ""}
	n := 0
	for _, w := range words {
		if key, value, ok := strings.Cut(w, "="); ok {
			options[key] = value
		} else if n < len(args) {
			args[n] = w
			n++
		}
	}
	number := func(name string) int64 {
		n, err := strconv.ParseInt(options[name], 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	given := func(name string) (l limit.Limit) {
		if _, ok := options[name]; ok {
			l = limit.Of(number(name))
		}
		return l
	}
	out := p.do(args[0], args[1], args[2], options, number, given)
	for i, n := range p.dropped {
		if i == 0 {
			out += ", gone"
		}
		out += " " + n.Key
		p.gone(n) // nobody leases it
	}
	p.dropped, p.lost = nil, nil
	out += fmt.Sprintf("; %d %d:", p.size(), p.gauges.bytes.Load())
	var all []*node
	for n := range p.each {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b *node) int { return cmp.Compare(a.Value.used, b.Value.used) })
	for _, n := range all {
		out += " " + n.Key
		if n.Value.flight != nil {
			out += "~"
		}
	}
	return out
}

func (p *player) do(verb, key, word string, options map[string]string, number func(string) int64, given func(string) limit.Limit) string {
	m, owner := p.flights[key], options["owner"]
	switch verb {
	case "open":
		p.core = newCore(number("entries"), number("bytes"))
	case "ask":
		kinds := map[string]kind{"": normal, "lone": lone, "peek": peek, "kernel": kernel}
		r := Request{Key: key, Owner: owner, Part: options["part"], Whole: options["whole"]}
		return p.asked(p.ask(&making{linger: time.Duration(number("linger")) * time.Second, call: &call{Request: r, kind: kinds[word], placed: r.placedBy(p.table)}}), key, kinds[word])
	case "hit": // by a reader, and told by the log of uses
		n := p.table.Lookup(key, 0)
		if credit(&n.Value.users, owner) {
			p.credited(n, owner)
		}
		p.use(n)
	case "left":
		alone, linger := p.left(m, time.Time{})
		switch {
		case alone && linger > 0:
			return "linger"
		case alone:
			return "cancel"
		}
	case "expire": // long after its linger time
		if p.expired(m, time.Time{}.Add(time.Hour)) {
			return "cancel"
		}
	case "land":
		m.n.Value.bytes, m.n.Value.cost = number("bytes"), time.Duration(number("cost"))*time.Second
		m.n.Value.cell.Init(nil)
		if !p.land(m) {
			return "not kept"
		}
		return "kept"
	case "fail":
		p.fail(m)
	case "lease":
		p.table.Lookup(key, 0).Value.cell.Pin()
	case "cap":
		return said(p.resize(given("entries"), given("bytes")))
	case "floor":
		return said(p.addFloor(owner, number("bytes")))
	case "release":
		p.release(owner)
	case "give":
		tier := map[string]pressure.Tier{"spare": pressure.Spare, "floors": pressure.Floors}[key]
		return fmt.Sprint(p.give(number("bytes"), tier))
	case "idle":
		p.idleKernel(p.kernels.resident[key])
	case "close":
		return fmt.Sprint(p.close(), " end")
	default:
		return "no such verb"
	}
	return "ok"
}

func (p *player) asked(a answer, key string, what kind) string {
	switch a.role {
	case started:
		if what == lone {
			key += "!"
		}
		p.flights[key] = a.aboard
		return "fly"
	case joined:
		if a.late {
			return "join late"
		}
		return "join"
	case missing:
		return string(a.reason)
	}
	return "found"
}

func said(err error) string {
	if err != nil {
		return "refused"
	}
	return "ok"
}
