package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/report"
	"github.com/kiln-cache/kiln/sessioncache"
)

// of is a trace of one session's lengths, and the flags of a run whose session
// holds two of their shapes and drops the one it met first.
func of(t *testing.T, lens ...string) []string {
	t.Helper()
	return append(slices.Clone(tiny), "--sessions", "1", "--groups", "2", "--policy", "fifo", "--bucket", "exact",
		"--trace", file(t, "lens.csv", "len\n"+strings.Join(lens, "\n")+"\n"))
}

// S5: who runs a session with too few groups is told so, by the session when it
// happens and by the report, which says what to do. The warning is raised once:
// in the second pass the session thrashes still.
func TestThrash(t *testing.T) {
	args := of(t, slices.Repeat([]string{"5", "6", "7"}, 10)...)
	run, warnings := warned(t, args...)
	if cold, warm := run.Passes[0].Thrash, run.Passes[1].Thrash; cold != 1 || warm != 0 {
		t.Errorf("%d and %d warnings counted", cold, warm)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "thrash") || !strings.Contains(warnings[0], "session 0") {
		t.Errorf("stderr %q", warnings)
	}
	code, text, _ := invoke(args...)
	const want = "\nsessions gave 1 thrash warning, more shapes are in use than groups fit: raise --groups or choose a coarser --bucket, "
	if code != exitDone || !strings.Contains(text, want) {
		t.Errorf("exit %d, no %q in\n%s", code, want, text)
	}
	for _, mend := range [][2]string{{"--groups", "3"}, {"--bucket", "multiple:8"}} {
		if text := done(t, append(args[:len(args):len(args)], mend[:]...)...); strings.Contains(text, "thrash") {
			t.Errorf("with %v:\n%s", mend, text)
		}
	}
}

// S2: a session that is told which shape comes next keeps its group.
func TestAnnounce(t *testing.T) {
	args := append(of(t, "10", "20", "30", "10", "40", "10", "50", "10"), "--passes", "1")
	for announce, want := range map[string]int64{"0": 5, "1": 3, "9": 3} {
		if got := replayed(t, append(args[:len(args):len(args)], "--announce", announce)...).Passes[0].GroupsEvicted; got != want {
			t.Errorf("announce %s: %d groups evicted, want %d", announce, got, want)
		}
	}
}

// E8 for what bounds memory: the outputs stay, and each bound is seen to bind.
func TestMemoryBounds(t *testing.T) {
	base := append(slices.Clone(tiny), "--requests", "32")
	free := replayed(t, base...).Passes[1]
	for _, c := range []struct {
		args  string
		binds func(p report.Pass) bool
	}{
		{"--session-bytes 200000", func(p report.Pass) bool { return p.GroupsEvicted > 0 && p.GroupsResident < free.GroupsResident }},
		{"--session-bytes 0", func(p report.Pass) bool { return p.Hits.Group+p.Hits.Session == 0 && p.Hits.Artefact > 0 }},
		{"--pool-bytes 400000", func(p report.Pass) bool { return p.GroupsResident < free.GroupsResident && p.GroupsResident > 0 }},
		{"--pool-bytes 400000 --floor-bytes 100000", func(p report.Pass) bool { return p.GroupsResident < free.GroupsResident && p.GroupsResident > 0 }},
		{"--pool-bytes 400000 --floor-groups 2", func(p report.Pass) bool { return p.GroupsResident < free.GroupsResident && p.GroupsResident > 0 }},
		{"--pool-bytes unlimited --session-bytes unlimited --memory-limit off", func(p report.Pass) bool { return p.GroupsResident == free.GroupsResident && p.GroupsEvicted == 0 }},
		{"--memory-limit 1", func(p report.Pass) bool {
			// What went is made again, and may just be there as the pass ends.
			return p.Compiles > free.Compiles || p.ResidentBytes+p.Constants.Bytes < free.ResidentBytes+free.Constants.Bytes
		}},
		{"--memory-limit auto", func(p report.Pass) bool { return p.Compiles == 0 && p.Constants.Bytes == free.Constants.Bytes }},
	} {
		run, warnings := warned(t, append(base[:len(base):len(base)], strings.Fields(c.args)...)...)
		p := run.Passes[1]
		// A bound that is far too small is told as thrash, also by bytes (S5).
		warnings = slices.DeleteFunc(warnings, func(line string) bool { return p.GroupsEvicted > 0 && strings.Contains(line, "thrash") })
		// The weights alone are above 1 MiB and in use: that limit cannot be met.
		if met := c.args != "--memory-limit 1"; met != (len(warnings) == 0) || !met && !strings.Contains(warnings[0], "memory") {
			t.Errorf("%s: stderr %q", c.args, warnings)
		}
		if p.OutputSHA256 != free.OutputSHA256 {
			t.Errorf("%s: other outputs", c.args)
		}
		if !c.binds(p) {
			t.Errorf("%s: %+v\nwithout: %+v", c.args, p, free)
		}
	}
	// All requests go to one of two sessions: the other's floor is not to be had.
	var lens strings.Builder
	for n := 1; n <= 32; n++ {
		fmt.Fprintf(&lens, "%d,0\n", n)
	}
	one := append(slices.Clone(tiny), "--sessions", "2", "--trace", file(t, "one.csv", "len,session\n"+lens.String()), "--pool-bytes", "400000")
	run, _ := warned(t, one...)
	all := run.Passes[1].GroupsResident
	run, _ = warned(t, append(one, "--floor-bytes", "200000")...)
	if left := run.Passes[1].GroupsResident; left == 0 || left >= all {
		t.Errorf("%d groups beside a floor, %d without", left, all)
	}
	// A flag wins over its variable.
	t.Setenv("KILN_MEMORY_LIMIT", "1")
	if p := replayed(t, append(base, "--memory-limit", "off")...).Passes[1]; p.Compiles != 0 || p.ResidentBytes != free.ResidentBytes {
		t.Errorf("KILN_MEMORY_LIMIT wins over its flag: %+v", p)
	}
}

// What a session is told of its share is what the flags say, a floor up to the
// capacity included; that others leave it alone is the session's own to prove.
func TestFloor(t *testing.T) {
	t.Setenv("KILN_SESSION_GROUPS", "3")
	for args, want := range map[string]sessioncache.Floor{
		"": {}, "--floor-groups 3": {Groups: 3}, "--groups 70 --floor-groups 65 --floor-bytes 7": {Groups: 65, Bytes: 7}, "--groups unlimited --floor-groups 2147483647": {Groups: math.MaxInt32},
	} {
		c := newCall(commands[0], strings.Fields(args), strings.NewReader(""), io.Discard, io.Discard)
		var f runFlags
		f.define(c)
		if err := c.parse(0); err != nil {
			t.Fatal(err)
		}
		cfg, err := f.sessionConfig(c.settings)
		if err != nil || cfg.Floor != want {
			t.Errorf("kiln run %s: %+v, %v; want %+v", args, cfg.Floor, err, want)
		}
	}
	refused(t, []string{"run", "--floor-groups", "4"}, "--floor-groups 4: want at most 3", "--groups")
}
