package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// S2, S8: what is announced and what may wait reaches the simulation. Each number
// of hits is worked out by hand.
func TestSimulate(t *testing.T) {
	kept := file(t, "kept.csv", "len\n10\n20\n30\n10\n40\n10\n50\n10\n")
	turns := file(t, "turns.csv", "len\n1\n2\n1\n2\n1\n2\n")
	for _, c := range []struct {
		trace string
		flags string
		hits  int
	}{
		{kept, "--capacity 2", 1},              // 10 before 50
		{kept, "--capacity 2 --announce 1", 3}, // each 10 but the first
		{turns, "--capacity 1", 0},
		{turns, "--capacity 1 --announce 1", 0}, // the one group has to go
		{turns, "--capacity 1 --waiting 1", 3},  // served as 1 1 2 2 2 1
		{turns, "--capacity 1 --waiting 2", 4},  // served as 1 1 1 2 2 2
	} {
		args := append([]string{"shapes", "simulate", "--key", "exact", "--policy", "fifo", "--json", "--trace", c.trace}, strings.Fields(c.flags)...)
		var got cell
		if err := json.Unmarshal([]byte(done(t, args...)), &got); err != nil {
			t.Fatal(err)
		}
		if got.Hits != c.hits {
			t.Errorf("%s: %d hits, want %d", c.flags, got.Hits, c.hits)
		}
	}
}

// S5: as text, too, advice gives the hit ratio of each policy at each capacity,
// one under the other, and ends with what to use.
func TestAdviseText(t *testing.T) {
	args := []string{"shapes", "advise", "--capacity", "3", "--trace", file(t, "some.csv", "len\n"+strings.Repeat("3\n5\n3\n8\n9\n", 20))}
	var want adviceReport
	if err := json.Unmarshal([]byte(done(t, append(args, "--json")...)), &want); err != nil {
		t.Fatal(err)
	}
	text := done(t, args...)
	_, table, found := strings.Cut(text, "\nhits in % by groups and policy, of the shapes as asked:\n")
	table, use, ended := strings.Cut(table, "\n\n")
	if !found || !ended || use != want.Use+"\n" {
		t.Fatalf("no table, or %q is not at the end:\n%s", want.Use, text)
	}
	lines := strings.Split(table, "\n")
	header := strings.Fields(lines[0])
	if got := strings.Join(header, " "); got != "groups fifo lru sieve duel belady" {
		t.Errorf("header %q", got)
	}
	shown := map[string]string{}
	for _, line := range lines[1:] {
		columns := strings.Fields(line)
		if len(line) != len(lines[0]) || len(columns) != len(header) {
			t.Errorf("%q does not stand below %q", line, lines[0])
			continue
		}
		for i, ratio := range columns[1:] {
			shown[columns[0]+" "+header[i+1]] = ratio
		}
	}
	for _, x := range want.HitRatios {
		cell := fmt.Sprintf("%d %s", x.Groups, x.Policy)
		if got, ratio := shown[cell], fmt.Sprintf("%.2f", 100*x.HitRatio); got != ratio {
			t.Errorf("%s: %q, want %s", cell, got, ratio)
		}
		delete(shown, cell)
	}
	if len(want.HitRatios) != 4*5 || len(shown) != 0 {
		t.Errorf("%d ratios, shown beside them %v", len(want.HitRatios), shown)
	}
}
