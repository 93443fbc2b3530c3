package recency

import "testing"

// A note that is still being written holds up nobody, over segments, and comes
// out once, as do those handed over before it.
func TestUnfinishedNote(t *testing.T) {
	l := NewLog[int](func() {})
	first := l.tail.Load()
	slot := first.next.Add(1) - 1
	const notes = 3 * segment
	var out []int
	drain := func() { l.Drain(func(v *int) { out = append(out, *v) }) }
	for i := range notes {
		l.Note(&i)
		if i%100 == 0 {
			drain()
		}
	}
	drain()
	if len(out) != notes {
		t.Fatalf("%d notes came out of %d that had ended", len(out), notes)
	}
	for i, v := range out {
		if v != i {
			t.Fatalf("note %d came out as %d", v, i)
		}
	}
	late := -1
	first.slot(slot).Store(&late)
	for range 2 {
		drain()
	}
	if len(out) != notes+1 || out[notes] != late {
		t.Fatalf("%d notes came out, want one more, the late one: %v", len(out), out[notes:])
	}
}

// What begins when a note has ended comes out after it, though the note had not
// ended when Drain came by.
func TestNoteThatEndsDuringDrain(t *testing.T) {
	l := NewLog[int](func() {})
	first := l.tail.Load()
	slot := first.next.Add(1) - 1
	for i := range segment - 1 {
		l.Note(&i)
	}
	late, after := -1, -2
	var out []int
	drain := func() {
		l.Drain(func(v *int) {
			if len(out) == 0 {
				first.slot(slot).Store(&late)
				l.Note(&after)
			}
			out = append(out, *v)
		})
	}
	drain()
	drain()
	if n := len(out); n != segment+1 || out[n-2] != late || out[n-1] != after {
		t.Fatalf("%d notes came out, the last as %v", n, out[max(0, n-2):])
	}
}

// F6: a writer that tells of its full part late, when the consumer is past it, drops
// nobody's notes.
func TestFullPartToldLate(t *testing.T) {
	l := NewLog[int](func() {})
	first := l.tail.Load()
	out := 0
	drain := func() { l.Drain(func(*int) { out++ }) }
	const notes = 3 * segment
	for i := range notes {
		l.Note(&i)
	}
	drain()
	l.filled(first)
	for i := range notes {
		l.Note(&i)
	}
	drain()
	if out != 2*notes {
		t.Errorf("%d notes came out of %d", out, 2*notes)
	}
}
