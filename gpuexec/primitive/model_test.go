package primitive_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/limit"
)

// model is a naive cache of primitives and descriptors: a list of entries, the
// most recent last, and implementations found by counting (D1, D2, D3, C2, C3).
type model struct {
	capacity int
	entries  []string // "primitive KEY" or "desc KEY"
	builds   int
}

func (m *model) use(entry string) bool {
	i := slices.Index(m.entries, entry)
	if i < 0 {
		return false
	}
	m.entries = append(slices.Delete(m.entries, i, i+1), entry)
	return true
}

// room is what a flight takes, whether it succeeds or not (F9).
func (m *model) room() {
	if m.capacity > 0 && len(m.entries) == m.capacity {
		m.entries = m.entries[1:]
	}
}

func (m *model) add(entry string) {
	if m.capacity > 0 {
		m.entries = append(m.entries, entry)
	}
}

// position is the place of implementation id; -1 = past the end.
func position(o op, id int, skip []int) int {
	if id > 0 && (o.kind == "sum" || o.kind == "concat" || o.kind == "reorder") {
		return -1
	}
	for p := range max(o.impls, 1) {
		if o.valid != nil && !slices.Contains(o.valid, p) || slices.Contains(skip, p) {
			continue
		}
		if id == 0 {
			return p
		}
		id--
	}
	return -1
}

func (m *model) desc(key string, at int, internalEnd bool) string {
	switch {
	case internalEnd:
		return "end"
	case m.use("primitive " + key):
		return fmt.Sprintf("%d by=hit shared=yes", at)
	case m.use("desc " + key):
		return fmt.Sprintf("%d by=hit shared=no", at)
	}
	m.room()
	if at < 0 {
		return "end"
	}
	m.builds++
	m.add("desc " + key)
	return fmt.Sprintf("%d by=miss shared=no", at)
}

func (m *model) primitive(key string, at int, internalEnd bool) string {
	switch {
	case internalEnd:
		return "end"
	case m.use("primitive " + key):
		return fmt.Sprintf("%d by=hit", at)
	}
	if m.use("desc " + key) { // the two are one entry now (D3)
		m.entries[len(m.entries)-1] = "primitive " + key
		return fmt.Sprintf("%d by=miss", at)
	}
	m.room()
	if at < 0 {
		return "end"
	}
	m.builds++
	m.add("primitive " + key)
	return fmt.Sprintf("%d by=miss", at)
}

func TestModel(t *testing.T) { // D1, D2, D3, D4, C2, C3, F9
	rapid.Check(t, func(rt *rapid.T) {
		ops := map[string]op{}
		for _, name := range []string{"a", "b", "c"} {
			o := op{
				kind:  rapid.SampledFrom([]string{"matmul", "convolution", "sum"}).Draw(rt, "kind"),
				impls: rapid.IntRange(1, 4).Draw(rt, "impls"),
			}
			if rapid.Bool().Draw(rt, "some") {
				o.valid = append([]int{}, rapid.SliceOfDistinct(rapid.IntRange(0, 3), rapid.ID).Draw(rt, "valid")...)
			}
			ops[name] = o
		}
		m := &model{capacity: rapid.IntRange(0, 5).Draw(rt, "capacity")}
		r := open(t, limit.Of(int64(m.capacity)), ops)
		defer r.close()
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "name")
			id := rapid.IntRange(0, 2).Draw(rt, "id")
			options := fmt.Sprint(" id=", id)
			skip := rapid.SampledFrom([][]int{nil, {0}, {1}, {0, 2}}).Draw(rt, "skip")
			for i, p := range skip {
				options += []string{" skip=", ","}[min(i, 1)] + fmt.Sprint(p)
			}
			o, key := ops[name], name+options
			at := position(o, id, skip)
			internalEnd := id > 0 && o.kind == "sum"
			verb, want := "desc ", ""
			if rapid.Bool().Draw(rt, "primitive") {
				verb, want = "primitive ", m.primitive(key, at, internalEnd)
			} else {
				want = m.desc(key, at, internalEnd)
			}
			if got := r.say(verb + key); !agrees(got, want) {
				rt.Fatalf("%s: got %s, want %s", verb+key, got, want)
			}
			if got := r.lib.describes.Load(); got != int64(m.builds) {
				rt.Fatalf("%s: %d builds, want %d", verb+key, got, m.builds)
			}
			if got := r.cache.Len(); got != len(m.entries) {
				rt.Fatalf("%s: %d entries, want %v", verb+key, got, m.entries)
			}
		}
	})
}
