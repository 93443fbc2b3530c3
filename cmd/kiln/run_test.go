package main

import (
	"encoding/json"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/report"
	"github.com/kiln-cache/kiln/internal/race"
)

// tiny is a run of the smallest model.
var tiny = []string{"run", "--model", "bert_tiny_l2_h128"}

// replayed is a run's JSON, of one that warns of nothing.
func replayed(t *testing.T, args ...string) *report.Run {
	t.Helper()
	run, warnings := warned(t, args...)
	if len(warnings) > 0 {
		t.Fatalf("kiln %s: stderr %q", strings.Join(args, " "), warnings)
	}
	return run
}

// warned is a run's JSON and the lines on stderr, warnings all of them.
func warned(t *testing.T, args ...string) (*report.Run, []string) {
	t.Helper()
	code, text, errs := invoke(append(args, "--json")...)
	if code != exitDone {
		t.Fatalf("kiln %s: exit %d, stderr %q", strings.Join(args, " "), code, errs)
	}
	warnings := slices.Collect(strings.Lines(errs))
	for _, line := range warnings {
		if !strings.Contains(line, "\tWARN\t") {
			t.Fatalf("kiln %s: stderr %q", strings.Join(args, " "), errs)
		}
	}
	if strings.Count(text, "\n") != 1 {
		t.Fatalf("not one line: %q", text)
	}
	var run report.Run
	if err := json.Unmarshal([]byte(text), &run); err != nil {
		t.Fatal(err)
	}
	if len(run.Passes) == 0 {
		t.Fatalf("no pass in %s", text)
	}
	return &run, warnings
}

// fields lists the names of a JSON object and of those inside it, in their order.
func fields(t *testing.T, text string) string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	var b strings.Builder
	var value func()
	next := func() json.Token {
		token, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	value = func() {
		open, nested := next().(json.Delim)
		if !nested {
			return
		}
		b.WriteString(open.String())
		for first := true; d.More(); first = false {
			if open == '[' {
				value()
				continue
			}
			if !first {
				b.WriteByte(',')
			}
			fmt.Fprint(&b, next())
			value()
		}
		b.WriteString(next().(json.Delim).String())
	}
	value()
	return b.String()
}

// The fields of every command's JSON are those that scripts rely on.
func TestJSONFields(t *testing.T) {
	trace := file(t, "some.csv", "len\n3\n5\n3\n")
	script := file(t, "one.kiln", "case A01 rules=G1\nopen p session\np groups -> 0\n")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"{version,device,model,policy,bucket,groups,sessions,passes[{name,requests,truncated,errors,seconds,latency_ms{p50,p90,p99,max}," +
			"hits{held,group,session,artefact,disk,fleet},joined,compiles,compile_seconds,seconds_saved,groups_evicted,thrash,groups_resident,resident_bytes," +
			"constants{entries,bytes,hits,owners,bypass},padding{useful,padded},peak_rss_bytes,output_sha256,max_abs_error}]}",
			append(tiny, "--requests", "2", "--passes", "1")},
		{"{trace,key,capacity,policy,announce,keep,waiting,requests,hits,hit_ratio,distinct}", []string{"shapes", "simulate", "--trace", trace, "--key", "exact"}},
		{"{backend,index,name,driver,available,reason,memory_bytes,compute_units}", []string{"devices"}},
		{"{name,value,source,default,help,also[]}", []string{"env"}},
		{"{seed,operations,violations[]}", []string{"stress", "--duration", "20ms", "--scenario", "sessions"}},
	} {
		line, _, _ := strings.Cut(done(t, append(c.args, "--json")...), "\n")
		if got := fields(t, line); got != c.want {
			t.Errorf("kiln %v:\n got %s\nwant %s", c.args, got, c.want)
		}
	}
	code, out, errs := invoke("conform", "--json", script)
	if code != exitDone || fields(t, out) == "" || errs != "1 passed, 0 failed\n" {
		t.Errorf("conform: exit %d, %q, %q", code, out, errs)
	}
	if out := done(t, "conform", script); out != "1 passed, 0 failed\n" {
		t.Errorf("conform: %q", out)
	}
}

// A whole run in both forms: what is said in JSON holds together, and the text
// and the picture are there.
func TestRun(t *testing.T) {
	const requests, names, weights, sessions = 60, 44, 39, 4
	plot := filepath.Join(t.TempDir(), "run.PNG")
	run := replayed(t, append(tiny, "--requests", fmt.Sprint(requests), "--plot", plot)...)
	if run.Version != Version || run.Device != "cpu" || run.Model != "bert_tiny_l2_h128" || run.Policy != "duel" || run.Bucket != "geometric:8" || run.Sessions != sessions {
		t.Errorf("%+v", run)
	}
	for i, p := range run.Passes {
		if p.Name != []string{"cold", "warm"}[i] || p.Requests != requests || p.Errors != 0 || p.Truncated != 0 {
			t.Errorf("pass %d: %+v", i, p)
		}
		// Every name of every request was answered, once.
		if got := p.Hits.Total() + p.Joined + p.Compiles; got != requests*names {
			t.Errorf("%s: %d lookups, want %d", p.Name, got, requests*names)
		}
		l := p.Latency
		if !(0 < l.P50 && l.P50 <= l.P90 && l.P90 <= l.P99 && l.P99 <= l.Max && l.Max <= 1000*p.Seconds) {
			t.Errorf("%s: latency %+v in %v s", p.Name, l, p.Seconds)
		}
		if p.Padding.Useful <= 0 || p.Padding.Padded < p.Padding.Useful || p.Padding != run.Passes[0].Padding {
			t.Errorf("%s: padding %+v", p.Name, p.Padding)
		}
		if p.GroupsResident < 1 || p.GroupsEvicted != 0 || p.ResidentBytes <= 0 || p.PeakRSSBytes <= 0 || p.SecondsSaved <= 0 {
			t.Errorf("%s: %+v", p.Name, p)
		}
		if !(p.MaxAbsError > 0 && p.MaxAbsError < 1e-4) { // 0 would mean that nothing was compared
			t.Errorf("%s: error %v", p.Name, p.MaxAbsError)
		}
	}
	cold, warm := run.Passes[0], run.Passes[1]
	if cold.Compiles < 1 || cold.CompileSeconds <= 0 || warm.Compiles != 0 || warm.CompileSeconds != 0 || warm.Joined != 0 || warm.Hits.Artefact != 0 {
		t.Errorf("compiles:\n%+v\n%+v", cold, warm)
	}
	if cold.OutputSHA256 != warm.OutputSHA256 || len(cold.OutputSHA256) != 64 {
		t.Errorf("outputs %s and %s", cold.OutputSHA256, warm.OutputSHA256)
	}
	// Weights are prepared once a process: the first session owns, the others find.
	want := report.Constants{Entries: weights, Bytes: cold.Constants.Bytes, Owners: weights, Hits: (sessions - 1) * weights}
	if cold.Constants != want || want.Bytes <= 0 {
		t.Errorf("constants %+v, want %+v", cold.Constants, want)
	}
	want.Owners, want.Hits = 0, 0
	if warm.Constants != want {
		t.Errorf("warm constants %+v, want %+v", warm.Constants, want)
	}
	f, err := os.Open(plot)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := png.DecodeConfig(f); err != nil {
		t.Error(err)
	}
	text := done(t, append(tiny, "--requests", "5")...)
	for _, want := range []string{"bert_tiny_l2_h128 on cpu · 4 sessions · 64 shape groups each · policy duel · bucket geometric:8", "cold", "warm", "artefacts compiled", "the same bits in all passes"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// E8, G10, T9: an output's bits depend on its request alone. No policy,
// capacity, bucket, number of sessions or workers, or instruction set of these,
// may change them, and what was compiled once is not compiled again.
func TestOutputsDependOnRequestsAlone(t *testing.T) {
	base := append(tiny, "--requests", "32")
	want := replayed(t, base...).Passes[0].OutputSHA256
	same := func(what string, recompiles bool, args ...string) *report.Run {
		run, warnings := warned(t, append(base[:len(base):len(base)], args...)...)
		thrash := 0
		for i, p := range run.Passes {
			thrash += int(p.Thrash)
			if p.OutputSHA256 != want {
				t.Errorf("%s, pass %s: other outputs", what, p.Name)
			}
			if i > 0 && p.Compiles != 0 && !recompiles {
				t.Errorf("%s, pass %s: %d compiles", what, p.Name, p.Compiles)
			}
		}
		over := 0
		if what == "ONEDNN_PRIMITIVE_CACHE_CAPACITY=20" { // C13: the groups hold over 300 artefacts
			over = 1
		}
		told := strings.Count(strings.Join(warnings, ""), "artefacts: overleased")
		if told != over || len(warnings) != thrash+over { // S5: each is told, and of nothing else
			t.Errorf("%s: want %d thrash warnings and %d of leases, on stderr %q", what, thrash, over, warnings)
		}
		return run
	}
	for _, args := range []string{
		"--policy fifo --groups 2", "--policy lru --groups 3", "--policy sieve --groups 1", "--groups 2 --announce 8", "--groups unlimited", "--groups 0",
		"--bucket exact", "--bucket geometric:8", "--bucket geometric:1", "--bucket multiple:64", "--bucket pow2",
		"--sessions 1", "--sessions 3", "--sessions 32", "--passes 3", "--constants unlimited",
	} {
		run := same(args, false, strings.Fields(args)...)
		evicts := strings.Contains(args, "--groups 1") || strings.Contains(args, "--groups 2") || strings.Contains(args, "--groups 3")
		if last := run.Passes[len(run.Passes)-1]; evicts != (last.GroupsEvicted > 0) {
			t.Errorf("%s: %d groups evicted", args, last.GroupsEvicted)
		}
	}
	// T2, T3: with 0 MiB each model handle prepares its own, once; with 1 MiB some fit.
	if c := same("--constants 0", false, "--constants", "0").Passes; c[0].Constants != (report.Constants{Bypass: 4 * 39}) || c[1].Constants != (report.Constants{}) {
		t.Errorf("without constants: %+v, then %+v", c[0].Constants, c[1].Constants)
	}
	if c := same("--constants 1", false, "--constants", "1").Passes[0].Constants; c.Bypass == 0 || c.Owners == 0 || c.Bytes > 1<<20 || c.Bypass+c.Owners+c.Hits != 4*39 {
		t.Errorf("with 1 MiB: %+v", c)
	}
	for _, set := range [][2]string{
		{"KILN_CPU_ISA", "generic"}, {"KILN_WORKERS", "1"}, {"KILN_WORKERS", "5"}, {"KILN_BUCKET", "multiple:7"}, {"KILN_SESSION_GROUPS", "2"}, {"KILN_SESSION_POLICY", "lru"},
		{"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "0"}, {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "20"}, {"ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY", "cpu:1:COST"},
	} {
		t.Run(set[0]+"="+set[1], func(t *testing.T) {
			t.Setenv(set[0], set[1])
			passes := "2"
			if set[1] == "generic" { // slow, and nothing new in a second pass
				passes = "1"
			}
			run := same(set[0]+"="+set[1], strings.HasPrefix(set[0], "ONEDNN_PRIMITIVE"), "--passes", passes)
			if set[0] == "KILN_BUCKET" && run.Bucket != set[1] || set[0] == "KILN_SESSION_POLICY" && run.Policy != set[1] {
				t.Errorf("the variable was not heeded: %+v", run)
			}
		})
	}
	// Other inputs give other outputs, so the equality above says something.
	if got := replayed(t, append(base, "--seed", "2", "--passes", "1")...).Passes[0].OutputSHA256; got == want {
		t.Error("another seed gives the same outputs")
	}
}

// A flag wins over its variable.
func TestFlagsWinOverTheEnvironment(t *testing.T) {
	t.Setenv("KILN_BUCKET", "pow2")
	t.Setenv("KILN_SESSION_POLICY", "lru")
	t.Setenv("KILN_SESSION_GROUPS", "3")
	args := append(tiny, "--requests", "2", "--passes", "1")
	run := done(t, args...)
	if !strings.Contains(run, "3 shape groups each · policy lru · bucket pow2") {
		t.Errorf("%.200s", run)
	}
	run = done(t, append(args, "--groups", "unlimited", "--policy", "fifo", "--bucket", "exact")...)
	if !strings.Contains(run, "unlimited shape groups each · policy fifo · bucket exact") {
		t.Errorf("%.200s", run)
	}
}

// Requests longer than the model's limit are cut to it, and counted.
func TestTruncated(t *testing.T) {
	args := func(lens ...string) []string {
		return append(slices.Clone(tiny), "--passes", "1", "--trace", file(t, "long.csv", "len\n"+strings.Join(lens, "\n")+"\n"))
	}
	cut := replayed(t, args("2147483647", "7")...).Passes[0]
	whole := replayed(t, args("512", "7")...).Passes[0]
	if cut.Truncated != 1 || whole.Truncated != 0 || cut.Requests != 2 || cut.Errors != 0 {
		t.Errorf("%+v, %+v", cut, whole)
	}
	if cut.OutputSHA256 != whole.OutputSHA256 {
		t.Error("a request that was cut is not that of the limit's length")
	}
}

// G11: the 224 names of BERT-base at one shape cost 15 artefacts.
func TestNamesShareArtefacts(t *testing.T) {
	if testing.Short() || race.Enabled { // the float64 reference would take minutes
		t.Skip("minutes of reference; the encoder's own test counts as well")
	}
	trace := file(t, "one.csv", "len\n128\n")
	p := replayed(t, "run", "--model", "bert_base_uncased", "--trace", trace, "--passes", "1", "--sessions", "2").Passes[0]
	if p.Compiles != 15 || p.Hits.Total()+p.Joined != 224-15 {
		t.Errorf("%d compiles and %d other answers, want 15 and 209", p.Compiles, p.Hits.Total()+p.Joined)
	}
	if c := p.Constants; c.Owners != 199 || c.Hits != 0 || c.Bypass != 0 || c.Entries != 199 {
		t.Errorf("constants %+v, want 199 prepared by the one session that had work", c)
	}
}
