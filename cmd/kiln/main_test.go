package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/drivertest"
)

// TestMain is the command itself where it is started with a command's name: a
// test's child, or a conformance script's.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		if os.Args[1] == "warm" {
			gpuexec.Register(fragile{})
		}
		os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	drivertest.Main(m)
}

// invoke runs the command in this process.
func invoke(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Main(args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// done is invoke for what must go well, and without a word on stderr.
func done(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	code, out, errs := invoke(args...)
	if code != exitDone || errs != "" {
		t.Fatalf("kiln %s: exit %d, stderr %q", strings.Join(args, " "), code, errs)
	}
	return out
}

// file writes a file into a folder of the test's own.
func file(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHelp(t *testing.T) {
	top := done(t, "help")
	for _, args := range [][]string{nil, {"--help"}, {"-h"}} {
		if got := done(t, args...); got != top {
			t.Errorf("kiln %v: %q", args, got)
		}
	}
	for _, c := range commands {
		if !strings.Contains(top, "  kiln "+c.name+" ") || !strings.Contains(top, c.about) {
			t.Errorf("help does not tell of %s:\n%s", c.name, top)
		}
		ways := [][]string{{c.name, "--help"}, {c.name, "-h"}, {"help", c.name}}
		first := done(t, ways[0]...)
		for _, args := range ways {
			got := done(t, args...)
			if got != first || !strings.HasPrefix(got, "usage: kiln "+c.name) || !strings.Contains(got, "\n\n  --") || !strings.Contains(got, "  --json ") || !strings.Contains(got, "  --log-level LEVEL ") {
				t.Errorf("kiln %v:\n%s", args, got)
			}
		}
	}
	for _, verb := range []string{"simulate", "advise"} {
		if got := done(t, "shapes", verb, "--help"); !strings.HasPrefix(got, "usage: kiln shapes "+verb+" --trace FILE") || !strings.Contains(got, "--capacity N") {
			t.Errorf("kiln shapes %s --help:\n%s", verb, got)
		}
	}
	if got := done(t, "shapes", "simulate", "--help"); !strings.HasPrefix(got, "usage: kiln shapes simulate --trace FILE --key KEY[,...] [flags]\n") {
		t.Errorf("both are needed:\n%s", got)
	}
	got := done(t, "run", "--trace", "none.csv", "--help")
	for _, want := range []string{"--sessions N ", "(default 4)", "(default minilm_l6_h384)", "bert_base_uncased", "else geometric:8)", "--constants MiB"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for words, unit := range map[string]string{"shapes advise": "to compile, in seconds (", "stress": "with its unit as in 30s (", "cache prune": "MiB, or a size"} {
		if got := done(t, append(strings.Fields(words), "--help")...); !strings.Contains(got, unit) {
			t.Errorf("kiln %s --help names no unit:\n%s", words, got)
		}
	}
	if got := done(t, "warm", "--help"); !strings.Contains(got, "--budget SECONDS") || strings.Contains(got, "child") {
		t.Errorf("a flag that is not for people in\n%s", got) // a building process has it
	}
	if got := object(t, exitDone, "version"); got["version"] != Version {
		t.Errorf("kiln version --json: %v", got)
	}
	for _, arg := range []string{"version", "--version"} {
		if got := done(t, arg); got != Version+"\n" || !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(Version) {
			t.Errorf("kiln %s: %q", arg, got)
		}
	}
}

// E2: a backend without a driver is listed as absent, with what to install.
func TestAbsentBackends(t *testing.T) {
	text := done(t, "devices")
	for name, library := range map[string]string{"opencl": "ocl-icd-libopencl1", "vulkan": "libvulkan1", "onednn": "libdnnl2", "cuda": "NVIDIA's driver"} {
		if !regexp.MustCompile(`(?m)^` + name + `(:0  .* (?:GiB|units)\)|  \(absent: .*install .*` + library + `.*\))$`).MatchString(text) {
			t.Errorf("no %s in\n%s", name, text)
		}
	}
}

// Every command takes --log-level and --json, before and behind other things,
// and says nothing on stderr at any level where nothing is amiss.
func TestCommonFlags(t *testing.T) {
	script := file(t, "one.kiln", "case A01 rules=G1\nopen p session\np groups -> 0\n")
	trace := file(t, "some.csv", "len\n3\n5\n3\n")
	for _, args := range [][]string{
		{"devices"}, {"env"}, {"conform", script}, {"shapes", "advise", "--trace", trace},
		{"shapes", "simulate", "--trace", trace, "--key", "exact"}, {"stress", "--duration", "20ms"},
	} {
		for _, level := range logLevels {
			code, out, errs := invoke(append(args, "--json", "--log-level", level)...)
			if code != exitDone || !strings.HasPrefix(out, "{") || errs != "" && args[0] != "conform" {
				t.Errorf("kiln %v with %s: exit %d, stdout %.80q, stderr %q", args, level, code, out, errs)
			}
		}
		code, out, errs := invoke(append(args, "--log-level", "loud")...)
		if code != exitUsage || out != "" || !strings.Contains(errs, `--log-level "loud": want debug, info, warn or error`) {
			t.Errorf("kiln %v: exit %d, %q, %q", args, code, out, errs)
		}
	}
}

// The level comes from the environment where no flag gives one.
func TestLogLevelOfTheEnvironment(t *testing.T) {
	t.Setenv("KILN_WORKERS", "none")
	const refusal = "KILN_WORKERS"
	if code, _, errs := invoke("devices"); code != exitDone || !strings.Contains(errs, refusal) {
		t.Errorf("exit %d, %q", code, errs)
	}
	t.Setenv("KILN_LOG_LEVEL", "error")
	if _, _, errs := invoke("devices"); errs != "" {
		t.Errorf("at error: %q", errs)
	}
	if _, _, errs := invoke("devices", "--log-level", "warn"); !strings.Contains(errs, refusal) {
		t.Errorf("the flag does not win: %q", errs)
	}
}

// What kiln env shows as the default is what holds where nothing is set: the level, and
// of the bucket with what kiln run takes instead.
func TestOneDefault(t *testing.T) {
	text := done(t, "env", "--json")
	if level := "(default " + row(t, text, "KILN_LOG_LEVEL").Default + ")"; !strings.Contains(done(t, "devices", "--help"), level) {
		t.Errorf("kiln devices --help has no %s", level)
	}
	if r := row(t, text, "KILN_BUCKET"); !strings.Contains(r.Help, "take "+defaultBucket+" where this is not set") || r.Default != "exact" {
		t.Errorf("%+v", r)
	}
	if said := "(default KILN_BUCKET, else " + defaultBucket + ")"; !strings.Contains(done(t, "run", "--help"), said) {
		t.Errorf("kiln run --help has no %s", said)
	}
}

// row is that of a variable in what kiln env --json prints.
func row(t *testing.T, text, name string) (row env.Row) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(text)); d.More(); {
		if err := d.Decode(&row); err != nil {
			t.Fatal(err)
		}
		if row.Name == name {
			return row
		}
	}
	t.Fatalf("no %s in\n%s", name, text)
	return row
}

// A variable that begins as Kiln's do and is none of them is shown as unknown,
// with what may be meant, and warned of in one line by each command that reads
// the environment. Nothing else changes, and its value is not told.
func TestUnknownVariables(t *testing.T) {
	cached := []string{"cache", "ls", "--dir", stocked(t, "k")}
	manifest := file(t, "manifest", "{\"kiln_manifest\":1}\n")
	t.Setenv("KILN_STORE_CAPACTIY", "secret")
	t.Setenv("KILN_TOKEN", "secret")
	asked := [][]string{
		{"devices"}, cached, append(tiny, "--requests", "2", "--passes", "1"),
		{"warm", "--manifest", manifest, "--store", filepath.Join(t.TempDir(), "store")},
	}
	for _, args := range asked {
		code, out, errs := invoke(args...)
		lines := strings.SplitAfter(errs, "\n")
		if code != exitDone || len(lines) != 3 || strings.Contains(out+errs, "secret") {
			t.Errorf("kiln %v: exit %d, stderr %q", args, code, errs)
			continue
		}
		if !strings.Contains(lines[0], "WARN") || !strings.Contains(lines[0], "KILN_STORE_CAPACTIY") || !strings.Contains(lines[0], "KILN_STORE_CAPACITY?") ||
			!strings.Contains(lines[1], "KILN_TOKEN") || strings.Contains(lines[1], "?") {
			t.Errorf("kiln %v: %q", args, errs)
		}
		if _, _, errs := invoke(append(args, "--log-level", "error")...); errs != "" {
			t.Errorf("kiln %v at error: %q", args, errs)
		}
	}
	text, object := done(t, "env", "--log-level", "error"), done(t, "env", "--json", "--log-level", "error")
	for _, want := range []string{
		`{"name":"KILN_STORE_CAPACTIY","value":"","source":"unknown","default":"","help":"is no variable that Kiln reads: is it meant to be KILN_STORE_CAPACITY?","nearest":"KILN_STORE_CAPACITY"}`,
		`{"name":"KILN_TOKEN","value":"","source":"unknown","default":"","help":"is no variable of Kiln's"}`,
	} {
		if strings.Count(object, want+"\n") != 1 {
			t.Errorf("not once %s in\n%s", want, object)
		}
	}
	if !regexp.MustCompile(`(?m)^KILN_STORE_CAPACTIY +- +unknown +- .*KILN_STORE_CAPACITY`).MatchString(text) || !regexp.MustCompile(`(?m)^KILN_TOKEN +- +unknown `).MatchString(text) {
		t.Errorf("%s", text)
	}
}

// What is refused is said once, in the table, and the exit code tells it. A strict
// environment makes it an error of every other command.
func TestRefusedVariables(t *testing.T) {
	cached := []string{"cache", "ls", "--dir", stocked(t, "k")}
	run := append(tiny, "--requests", "2", "--passes", "1")
	manifest := file(t, "manifest", "{\"kiln_manifest\":1}\n")
	warm := []string{"warm", "--manifest", manifest, "--store", filepath.Join(t.TempDir(), "store")}
	t.Setenv("KILN_WORKERS", "none")
	for _, args := range [][]string{{"env"}, {"env", "--json"}} {
		if code, out, errs := invoke(args...); code != exitFinding || strings.Count(out, "none") != 1 || errs != "" {
			t.Errorf("kiln %v: exit %d, %q, %q", args, code, out, errs)
		}
	}
	t.Setenv("KILN_STRICT", "1")
	simulate, advise := []string{"shapes", "simulate", "--trace", manifest, "--key", "exact"}, []string{"shapes", "advise", "--trace", manifest}
	stress, script := []string{"stress", "--duration", "1ms", "--scenario", "artefacts"}, []string{"conform", file(t, "empty.kiln", "case A01 rules=G1\nopen p session\n")}
	for _, args := range [][]string{{"devices"}, cached, run, warm, simulate, advise, stress, script, {"bench", "none"}, {"version"}} {
		refused(t, args, "KILN_STRICT: KILN_WORKERS")
	}
	t.Setenv("KILN_WORKERS", "auto")
	t.Setenv("KILN_WORKRES", "1")
	refused(t, run, "KILN_STRICT", "KILN_WORKRES", "KILN_WORKERS?")
	if code, _, _ := invoke("env"); code != exitFinding {
		t.Errorf("a stray under a strict environment: exit %d", code)
	}
}

// A misspelt variable is told once by every command but env, which lists it, and is no
// error.
func TestMisspeltVariableIsTold(t *testing.T) {
	t.Setenv("KILN_WORKRES", "1")
	run := append(tiny, "--requests", "2", "--passes", "1")
	script := []string{"conform", file(t, "process.kiln", "case A01 rules=G1\nprocess B\nB: open p session\nB: p groups -> 0\n")}
	for _, args := range [][]string{{"version"}, {"devices"}, run, script, {"stress", "--duration", "1ms", "--scenario", "artefacts"}} {
		if code, _, errs := invoke(args...); code != exitDone || strings.Count(errs, "KILN_WORKERS?") != 1 {
			t.Errorf("kiln %v: exit %d, %q", args, code, errs)
		}
	}
}

// A building process of kiln warm leaves the warning to its parent.
func TestUnknownVariablesOfAChild(t *testing.T) {
	t.Setenv("KILN_STORE_CAPACTIY", "1")
	if code, _, errs := invoke("warm", "--child", "--store", t.TempDir()); code != exitDone || errs != "" {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}

// broken is a pipe that nobody reads.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// The exit codes of the contract that these commands have: 3 is a miss of the
// store, and 130 is tested with a process of its own.
func TestExitCodes(t *testing.T) {
	fails := file(t, "fails.kiln", "case A01 rules=G1\nopen p session\np groups -> 1\n")
	for _, c := range []struct {
		code   int
		args   []string
		stdout io.Writer
	}{
		{exitDone, []string{"devices"}, io.Discard},
		{exitFailed, []string{"devices"}, broken{}},
		{exitFailed, []string{"devices", "--json"}, broken{}},
		{exitFailed, []string{"env"}, broken{}},
		{exitFailed, []string{"stress", "--duration", "10ms"}, broken{}},
		{exitFailed, []string{"cache", "stats", "--dir", stocked(t, "k")}, broken{}},
		{exitFailed, []string{"run", "--model", "bert_tiny_l2_h128", "--requests", "1", "--passes", "1"}, broken{}},
		{exitUsage, []string{"devices", "all"}, io.Discard},
		{exitFinding, []string{"conform", fails}, io.Discard},
	} {
		var errs bytes.Buffer
		if code := Main(c.args, strings.NewReader(""), c.stdout, &errs); code != c.code {
			t.Errorf("kiln %v: exit %d, want %d; stderr %q", c.args, code, c.code, errs.String())
		}
		if want := c.code == exitFailed || c.code == exitUsage; want != (strings.Count(errs.String(), "\n") == 1) {
			t.Errorf("kiln %v: stderr %q", c.args, errs.String())
		}
	}
}

// A subcommand that is misspelt is what the error blames, and not a flag behind it.
func TestMisspeltSubcommand(t *testing.T) {
	refused(t, []string{"cache", "lst", "--store", t.TempDir()}, `"lst": no such subcommand: want put, get, ls`, "see kiln cache --help")
	refused(t, []string{"shapes", "simulte", "--trace", "x"}, `"simulte": no such subcommand: want advise or simulate`)
	refused(t, []string{"cache", "--store", t.TempDir()}, "no such flag: --store")
	refused(t, []string{"cache"}, "want a subcommand, put, get")
}
