package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// object runs a command with --json, wants the exit code and one object, and
// gives it.
func object(t *testing.T, code int, args ...string) map[string]any {
	t.Helper()
	got, out, errs := invoke(append(args, "--json")...)
	var o map[string]any
	if err := json.Unmarshal([]byte(out), &o); err != nil || got != code || errs != "" || strings.Count(out, "\n") != 1 {
		t.Fatalf("kiln %s: exit %d, want %d with one object on stdout alone: %q, %q", strings.Join(args, " "), got, code, out, errs)
	}
	return o
}

// same compares an object with its text as Go prints it, fields in their order.
func same(t *testing.T, got map[string]any, want string) {
	t.Helper()
	if text := strings.TrimPrefix(fmt.Sprint(got), "map"); text != want {
		t.Errorf("got %s\nwant %s", text, want)
	}
}

// stocked is a store with one entry a key, whose value is the key twice.
func stocked(t *testing.T, keys ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, key := range keys {
		done(t, "cache", "put", "--dir", dir, "--key-file", file(t, "key", key), "--value-file", file(t, "value", key+key), "--cost", "1.5")
	}
	return dir
}

// kernels are the entries' files of a store.
func kernels(t *testing.T, dir string) (all []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "cpu", "*", "*", "kernel.bin"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// flip changes one byte of a file, counted from its end.
func flip(t *testing.T, path string, fromEnd int) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)-fromEnd] ^= 1
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCachePutAndGet(t *testing.T) {
	dir := stocked(t, "a", "b")
	key := file(t, "key", "a")
	if got := done(t, "cache", "get", "--dir", dir, "--key-file", key); got != "aa" {
		t.Errorf("the value is %q", got)
	}
	out := filepath.Join(t.TempDir(), "out")
	refused(t, []string{"cache", "get", "--dir", dir, "--key-file", key, "--json"}, "--json without --out")
	same(t, object(t, exitDone, "cache", "get", "--dir", dir, "--key-file", key, "--out", out), "[bytes:2 compile_seconds:1.5 hit:true]")
	if text, err := os.ReadFile(out); err != nil || string(text) != "aa" {
		t.Errorf("written: %q, %v", text, err)
	}
	// A miss is exit code 3 with its reason (R1), and writes nothing.
	absent := []string{"cache", "get", "--dir", dir, "--key-file", file(t, "key", "c")}
	same(t, object(t, exitNotFound, append(absent, "--out", out+"2")...), "[field: hit:false reason:absent]")
	if _, err := os.Stat(out + "2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file for a miss: %v", err)
	}
	if code, stdout, errs := invoke(absent...); code != exitNotFound || stdout != "" || errs != "kiln: cache get: a miss: absent\n" {
		t.Errorf("exit %d, %q, %q", code, stdout, errs)
	}
	stats := object(t, exitDone, "cache", "stats", "--dir", dir)
	if stats["entries"] != 2.0 || stats["capacity_bytes"] != float64(1<<30) || stats["by_backend"].(map[string]any)["cpu"] != stats["bytes"] {
		t.Errorf("%v", stats)
	}
	for set, want := range map[string]any{"7": float64(7 << 20), "unlimited": "unlimited"} {
		t.Setenv("KILN_STORE_CAPACITY", set)
		if got := object(t, exitDone, "cache", "stats", "--dir", dir)["capacity_bytes"]; got != want {
			t.Errorf("KILN_STORE_CAPACITY=%s: %v", set, got)
		}
	}
	if err := os.Unsetenv("KILN_STORE_CAPACITY"); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSpace(done(t, "cache", "ls", "--dir", dir, "--json")), "\n")
	for _, row := range rows {
		if got := fields(t, row); !strings.HasPrefix(got, "{entry,backend,bucket,slot,bytes,created,compile_seconds,uses,producer{") {
			t.Errorf("ls: %s", got)
		}
	}
	if len(rows) != 2 {
		t.Errorf("%d rows", len(rows))
	}
	var first struct{ Entry string }
	if err := json.Unmarshal([]byte(rows[0]), &first); err != nil {
		t.Fatal(err)
	}
	if got := object(t, exitDone, "cache", "inspect", first.Entry, "--dir", dir); got["key"] != "a" && got["key"] != "b" || got["compile_seconds"] != 1.5 {
		t.Errorf("inspect: %v", got)
	}
	none := []string{"cache", "inspect", "cpu/1/0", "--dir", dir}
	same(t, object(t, exitNotFound, none...), "[entry:cpu/1/0 reason:absent]")
	if code, out, errs := invoke(none...); code != exitNotFound || out != "" || !strings.Contains(errs, "no such entry: see kiln cache ls") {
		t.Errorf("inspect of nothing: exit %d, %q, %q", code, out, errs)
	}
}

// P3, P4, R2: an entry of another driver is a miss that names the field, and
// explain says which factor differs.
func TestCacheExplain(t *testing.T) {
	key, value := file(t, "key", "a"), file(t, "value", "v")
	dir := filepath.Join(t.TempDir(), "store")
	identity := func(driver string) string {
		return file(t, "identity.json", `{"library":"kiln","build":"b","compiler":"c","driver":"`+driver+`","device":"d","isa":[]}`)
	}
	done(t, "cache", "put", "--dir", dir, "--key-file", key, "--value-file", value, "--identity", identity("1"))
	asked := []string{"--dir", dir, "--key-file", key, "--identity", identity("2")}
	same(t, object(t, exitNotFound, append([]string{"cache", "get"}, asked...)...), "[field:driver hit:false reason:outdated]")
	x := object(t, exitDone, append([]string{"cache", "explain"}, asked...)...)
	if x["hit"] != false || x["reason"] != "outdated" || fmt.Sprint(x["factors"]) != "[driver]" || !strings.HasPrefix(x["nearest"].(string), "cpu/") {
		t.Errorf("explain: %v", x)
	}
	entry := []string{"--dir", dir, "--key-file", key, "--identity", x["nearest"].(string)}
	if got := done(t, append([]string{"cache", "get"}, entry...)...); got != "v" {
		t.Errorf("as that entry's producer: %q", got)
	}
	if x := object(t, exitDone, append([]string{"cache", "explain"}, entry...)...); x["hit"] != true {
		t.Errorf("as that entry's producer: %v", x)
	}
}

// The identity is that of the instruction set which kiln run would use: a kernel
// packed for another is none of its own (P4).
func TestCacheHeedsTheInstructionSet(t *testing.T) {
	dir := stocked(t, "a")
	get := []string{"cache", "get", "--dir", dir, "--key-file", file(t, "key", "a")}
	if strings.Contains(done(t, "devices"), "wazero, generic") {
		t.Skip("this machine has no other set")
	}
	t.Setenv("KILN_CPU_ISA", "generic")
	if text := done(t, "devices"); !strings.Contains(text, "wazero, generic") {
		t.Errorf("devices: %s", text)
	}
	same(t, object(t, exitNotFound, get...), "[field:driver hit:false reason:outdated]")
	done(t, "cache", "put", "--dir", dir, "--key-file", file(t, "key", "a"), "--value-file", file(t, "value", "g"))
	if got := done(t, get...); got != "g" {
		t.Errorf("generic: %q", got)
	}
	t.Setenv("KILN_CPU_ISA", "auto")
	if got := done(t, get...); got != "aa" {
		t.Errorf("auto: %q", got)
	}
}

// P4: verify finds a bad entry and says why, exit code 4; with --repair it is set
// aside, and then there is none. A repair evicts nothing, whatever the default
// capacity.
func TestCacheVerify(t *testing.T) {
	dir := stocked(t, "a", "b")
	large := file(t, "large", strings.Repeat("x", 1<<20))
	object(t, exitDone, "cache", "put", "--dir", dir, "--key-file", file(t, "key", "c"), "--value-file", large)
	t.Setenv("KILN_STORE_CAPACITY", "1")
	same(t, object(t, exitDone, "cache", "verify", "--dir", dir, "--repair"), "[bad:[] looked_at:3 repaired:false]")
	flip(t, kernels(t, dir)[0], 1)
	for _, args := range [][]string{{"cache", "verify", "--dir", dir}, {"cache", "verify", "--dir", dir, "--repair"}} {
		found := object(t, exitFinding, args...)
		bad := found["bad"].([]any)
		if found["repaired"] != (len(args) == 5) || len(bad) != 1 || bad[0].(map[string]any)["reason"] != "checksum" || bad[0].(map[string]any)["created"] != 0.0 {
			t.Errorf("%v: %v", args, found)
		}
	}
	same(t, object(t, exitDone, "cache", "verify", "--dir", dir), "[bad:[] looked_at:2 repaired:false]")
	if s := object(t, exitDone, "cache", "stats", "--dir", dir); s["entries"] != 2.0 || s["quarantined"] != 1.0 {
		t.Errorf("%v", s)
	}
}

// An archive brings over what is sound in it, and nothing else; so does merge.
func TestCacheExportImportMerge(t *testing.T) {
	from := stocked(t, "a", "b", "c")
	archive := filepath.Join(t.TempDir(), "archive")
	same(t, object(t, exitDone, "cache", "export", archive, "--dir", from), "[rejected:map[] taken:3]")
	fresh := func() string { return filepath.Join(t.TempDir(), "store") }
	whole := fresh()
	same(t, object(t, exitDone, "cache", "import", archive, "--dir", whole), "[evicted:0 kept:3 known:0 new:3 rejected:map[] taken:3]")
	if got := done(t, "cache", "get", "--dir", whole, "--key-file", file(t, "key", "b")); got != "bb" {
		t.Errorf("imported: %q", got)
	}
	text, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(text, []byte("cc")) // the value of c
	if at < 0 {
		t.Fatal("no such value in the archive")
	}
	text[at] ^= 1
	damaged, part := file(t, "damaged", string(text)), fresh()
	same(t, object(t, exitFinding, "cache", "import", damaged, "--dir", part), "[evicted:0 kept:2 known:0 new:2 rejected:map[checksum:1] taken:2]")
	same(t, object(t, exitDone, "cache", "verify", "--dir", part), "[bad:[] looked_at:2 repaired:false]")
	// What is no archive is refused.
	for name, text := range map[string]string{"empty": "", "text": "hello", "cut": string(text[:at+1])} {
		none := fresh()
		refused(t, []string{"cache", "import", file(t, name, text), "--dir", none}, "archive", "export it again")
		if _, err := os.Stat(none); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a store was made: %v", name, err)
		}
	}
	refused(t, []string{"cache", "export", filepath.Join(archive, "x"), "--dir", from}, "make it first")
	refused(t, []string{"cache", "export", t.TempDir(), "--dir", from}, "is a folder")

	into, other := stocked(t, "a", "x"), stocked(t, "y")
	flip(t, kernels(t, other)[0], 1)
	same(t, object(t, exitFinding, "cache", "merge", "--dir", into, from, other), "[evicted:0 kept:4 known:1 new:2 rejected:map[checksum:1] taken:3]")
	if s := object(t, exitDone, "cache", "stats", "--dir", into); s["entries"] != 4.0 {
		t.Errorf("merged: %v", s)
	}
}

// A mistake in what is given leaves no store behind.
func TestCacheRefuses(t *testing.T) {
	dir, key, empty, folder := filepath.Join(t.TempDir(), "store"), file(t, "key", "k"), file(t, "empty", ""), t.TempDir()
	twice := file(t, "twice.json", `{"library":"kiln"} {}`)
	for _, c := range []struct {
		args  string
		words []string
	}{
		{"put", []string{"--key-file must be given"}},
		{"put --key-file " + key, []string{"--value-file must be given"}},
		{"put --key-file " + empty + " --value-file " + key, []string{"--key-file", "the key is empty"}},
		{"put --key-file " + folder + " --value-file " + key, []string{"--key-file: ", "is a directory"}},
		{"put --key-file " + key + " --value-file " + folder + "/none", []string{"--value-file: ", "no such file"}},
		{"put --value-file " + key + " --key-file " + file(t, "long", strings.Repeat("k", 1<<20+1)), []string{"--key-file", "want at most 1048576 bytes"}},
		{"put --key-file " + key + " --value-file " + key + " --cost NaN", []string{"--cost", "number of seconds"}},
		{"put --key-file " + key + " --value-file " + key + " --capacity -1", []string{"--capacity", "whole number"}},
		{"put --key-file " + key + " --value-file " + key + " --policy duel", []string{"--policy", "fifo, lru or cost"}},
		{"put --key-file " + key + " --value-file " + key + " --backend gpu", []string{`--backend "gpu": no such backend: want cpu, cuda, go, onednn, opencl or vulkan; or name with --identity`}},
		{"get --key-file " + key + " --backend lease", []string{"--backend: ", "no name that the store itself uses"}},
		{"put --key-file " + key + " --value-file " + key + " --identity " + key, []string{"--identity", "want an object"}},
		{"put --key-file " + key + " --value-file " + key + " --identity " + twice, []string{"--identity", "more after the object"}},
		{"put --key-file " + key + " --value-file " + key + " --identity " + file(t, "no.json", "{}"), []string{"--identity", "want a library and a build"}},
		{"put --key-file " + key + " --value-file " + key + " --identity " + file(t, "null.json", "null"), []string{"--identity", "want a library and a build"}},
		{"put --key-file " + key + " --value-file " + key + " --identity " + file(t, "half.json", `{"library":"kiln"}`), []string{"--identity", "want a library and a build"}},
		{"put --key-file " + key + " --value-file " + key + " --identity cpu/1/0", []string{"--identity cpu/1/0: no such file or entry: see kiln cache ls"}},
		{"put --key-file " + key + " --value-file " + key + " --capacity 0", []string{"--capacity 0", "want a size above 0"}},
		{"prune --to 0 --backend ../x", []string{"backend", "letters, digits"}},
		{"import", []string{"want FILE"}},
		{"import " + empty, []string{"no archive"}},
		{"import " + folder, []string{"no archive"}},
		{"import " + folder + "/none", []string{"no such file"}},
		{"merge", []string{"want DIR"}},
		{"merge " + empty, []string{"want a directory"}},
		{"prune", []string{"--to must be given"}},
		{"prune --to unlimited", []string{`--to "unlimited": want a whole number, or one with its unit such as 512KiB or 5GiB` + "\n"}},
		{"prune --to 8388608TiB", []string{`--to "8388608TiB": want `}},
		{"prune --to 1e3", []string{"--to", "whole number"}},
		{"get --key-file " + key, []string{"--store", "want a directory that is there"}},
		{"ls extra", []string{"unexpected argument"}},
	} {
		refused(t, append([]string{"cache"}, append(strings.Fields(c.args), "--dir", dir)...), c.words...)
	}
	for _, entry := range []string{"cpu/1/0", "a/b/c"} { // no place of an entry at all
		refused(t, []string{"cache", "get", "--key-file", key, "--dir", stocked(t), "--identity", entry}, "--identity "+entry+": no such file or entry: see kiln cache ls")
	}
	for _, flags := range []string{"--capacity 1", "--policy fifo"} {
		refused(t, append([]string{"cache", "verify", "--dir", stocked(t, "k")}, strings.Fields(flags)...), "--capacity and --policy are for --repair")
	}
	for _, verb := range []string{"ls", "stats", "verify", "prune", "export", "import", "merge", "inspect"} {
		refused(t, []string{"cache", verb, "--dir", dir, "--identity", key}, "no such flag: --identity")
	}
	refused(t, []string{"cache", "stats"}, "--store must be given, or KILN_STORE_DIR set")
	refused(t, []string{"cache", "stats", "--dir", key}, "want a directory that is there")
	refused(t, []string{"cache", "prune", "--to", "1", "--dir", key}, "--store: ", "no folder")
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a store was made: %v", err)
	}
}

// C9, T10: what the environment says and is not heeded is logged.
func TestRefusedVariablesAreLogged(t *testing.T) {
	dir := stocked(t, "k")
	t.Setenv("KILN_STORE_CAPACITY", "abc")
	for _, args := range [][]string{{"cache", "stats", "--dir", dir}, {"devices"}} {
		code, _, errs := invoke(args...)
		if code != exitDone || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "refused") || !strings.Contains(errs, `KILN_STORE_CAPACITY: \"abc\"`) {
			t.Errorf("kiln %v: exit %d, %q", args, code, errs)
		}
	}
}

func TestCachePrune(t *testing.T) {
	dir := stocked(t, "a", "b")
	if s := object(t, exitDone, "cache", "prune", "--to", "1", "--dir", dir); s["entries"] != 2.0 {
		t.Errorf("to 1 MiB: %v", s)
	}
	// The default capacity is no bound of what stays, another that is given is.
	large := file(t, "large", strings.Repeat("x", 1<<20))
	object(t, exitDone, "cache", "put", "--dir", dir, "--key-file", file(t, "key", "c"), "--value-file", large)
	t.Setenv("KILN_STORE_CAPACITY", "1")
	if s := object(t, exitDone, "cache", "prune", "--to", "2", "--dir", dir); s["entries"] != 3.0 {
		t.Errorf("to 2 MiB: %v", s)
	}
	t.Setenv("KILN_STORE_CAPACITY", "7")
	if s := object(t, exitDone, "cache", "prune", "--to", "2", "--dir", dir, "--capacity", "1"); s["bytes"].(float64) > 1<<20 || s["capacity_bytes"] != float64(1<<20) {
		t.Errorf("to 2 MiB in a directory of 1: %v", s)
	}
	if s := object(t, exitDone, "cache", "prune", "--to", "0", "--dir", dir); s["entries"] != 0.0 || s["bytes"] != 0.0 {
		t.Errorf("to nothing: %v", s)
	}
}

// P7: capacity and policy belong to the directory: a command without --capacity neither
// lowers nor evicts, and one with it changes what the directory has.
func TestCacheKeepsTheCapacity(t *testing.T) {
	dir, key := filepath.Join(t.TempDir(), "store"), file(t, "key", "k")
	large := func(name string) []string {
		return []string{"cache", "put", "--dir", dir, "--key-file", file(t, "key", name), "--value-file", file(t, "large", strings.Repeat("x", 1<<20))}
	}
	done(t, append(large("a"), "--capacity", "3")...)
	done(t, large("b")...)
	t.Setenv("KILN_STORE_CAPACITY", "1")
	done(t, "cache", "put", "--dir", dir, "--key-file", key, "--value-file", key)
	if s := object(t, exitDone, "cache", "stats", "--dir", dir); s["entries"] != 3.0 || s["capacity_bytes"] != float64(3<<20) {
		t.Errorf("after a put without --capacity: %v", s)
	}
	done(t, append(large("c"), "--capacity", "2")...)
	if s := object(t, exitDone, "cache", "stats", "--dir", dir); s["entries"].(float64) > 2 || s["capacity_bytes"] != float64(2<<20) {
		t.Errorf("after a put with --capacity 2: %v", s)
	}
}

// P7: the directory keeps the policy of the last command that gave one.
func TestCacheKeepsThePolicy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	put := func(key string, flags ...string) {
		done(t, append([]string{"cache", "put", "--dir", dir, "--key-file", file(t, "key", key), "--value-file", file(t, "value", key)}, flags...)...)
	}
	put("a", "--cost", "5", "--capacity", "16KiB", "--policy", "cost")
	for _, c := range []struct{ key, cost, gone string }{{"b", "1", "none"}, {"c", "9", "b"}, {"d", "7", "a"}} {
		put(c.key, "--cost", c.cost)
		object(t, exitNotFound, "cache", "get", "--dir", dir, "--key-file", file(t, "key", c.gone))
	}
	put("e", "--policy", "fifo")
	object(t, exitNotFound, "cache", "get", "--dir", dir, "--key-file", file(t, "key", "c"))
}

// P14: bases are named by a flag or by the environment.
func TestCacheBases(t *testing.T) {
	base, dir := stocked(t, "a"), stocked(t, "b")
	get := []string{"cache", "get", "--dir", dir, "--key-file", file(t, "key", "a")}
	object(t, exitNotFound, get...)
	if got := done(t, append(get, "--base", dir+string(os.PathListSeparator)+base)...); !strings.HasSuffix(got, "aa") {
		t.Errorf("by a flag: %q", got)
	}
	t.Setenv("KILN_STORE_BASES", base)
	object(t, exitNotFound, append(get, "--base", dir)...) // the flag decides
	if got := done(t, get...); got != "aa" {
		t.Errorf("by the environment: %q", got)
	}
	if x := object(t, exitDone, "cache", "explain", "--dir", dir, "--key-file", get[5]); x["hit"] != true {
		t.Errorf("explain: %v", x)
	}
}

// P8: every subcommand works on a directory that a running process uses, and
// harms neither.
func TestCacheBesideARun(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "store")
	run := exec.CommandContext(t.Context(), self, "run", "--model", "bert_tiny_l2_h128", "--requests", "200", "--passes", "1000", "--store", dir)
	var errs bytes.Buffer
	run.Stderr = &errs
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); len(kernels(t, dir)) < 20; {
		if time.Now().After(deadline) {
			t.Fatalf("no entries in %s: %s", dir, errs.String())
		}
		pause := time.NewTimer(10 * time.Millisecond)
		<-pause.C
	}
	key, value := file(t, "key", "mine"), file(t, "value", "v")
	archive := filepath.Join(t.TempDir(), "archive")
	entry := ""
	for _, args := range [][]string{
		{"put", "--key-file", key, "--value-file", value}, {"get", "--key-file", key, "--out", filepath.Join(t.TempDir(), "out")}, {"explain", "--key-file", key},
		{"stats"}, {"verify"}, {"verify", "--repair"}, {"export", archive}, {"import", archive}, {"merge", stocked(t, "other")}, {"prune", "--to", "1"}, {"prune", "--to", "0"},
	} {
		object(t, exitDone, append([]string{"cache", args[0], "--dir", dir}, args[1:]...)...)
		if entry == "" {
			row, _, _ := strings.Cut(done(t, "cache", "ls", "--dir", dir, "--json"), "\n")
			var first struct{ Entry string }
			if err := json.Unmarshal([]byte(row), &first); err != nil {
				t.Fatal(err)
			}
			entry = first.Entry
			object(t, exitDone, "cache", "inspect", entry, "--dir", dir)
		}
	}
	if err := run.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _ = run.Wait(); run.ProcessState.ExitCode() != exitInterrupted || strings.Count(errs.String(), "\n") != 1 {
		t.Errorf("the run: exit %d, %q", run.ProcessState.ExitCode(), errs.String())
	}
	if found := object(t, exitDone, "cache", "verify", "--dir", dir); len(found["bad"].([]any)) > 0 {
		t.Errorf("beside a run: %v", found)
	}
}
