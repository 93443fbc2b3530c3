package advice

import "testing"

// S5: the notes are the last so many, however many that is to be, and make no more blocks
// than they need.
func TestNotesAreTheLast(t *testing.T) {
	var n notes
	var all []note
	put := func(count, most int) {
		t.Helper()
		for range count {
			n.put(note(len(all)), most)
			all = append(all, note(len(all)))
		}
		for i := range n.len() {
			if got, want := n.at(i), all[len(all)-1-i]; got != want {
				t.Fatalf("after %d the note before %d others is %d, want %d", len(all), i, got, want)
			}
		}
		if want := min(len(all), most); n.len() != want || len(n.blocks) > most/blockLen+2 {
			t.Fatalf("after %d: %d notes in %d blocks, want %d", len(all), n.len(), len(n.blocks), want)
		}
	}
	for range 3*blockLen + 7 {
		put(1, 700)
	}
	put(600, 1300)
	for range 3 * blockLen {
		put(1, 1300)
	}
}
