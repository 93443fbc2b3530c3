package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// selfArg tells the test binary to be kiln conform.
const selfArg = "@conform"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == selfArg {
		os.Exit(invocation().run(context.Background(), os.Args[2:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

func invocation() *command {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return build(exe, selfArg)
}

// The shipped scripts and our own, every rule in them; what waits is listed.
func TestShippedScripts(t *testing.T) {
	list, err := os.Open("testdata/expected_failures.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	expected, err := readWaiting(list)
	if err != nil {
		t.Fatal(err)
	}
	files, err := scripts([]string{"testdata/scripts", "testdata/own"})
	if err != nil {
		t.Fatal(err)
	}
	e := invocation().engine
	known := map[string]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := script.Parse(name, text)
		if err != nil {
			t.Fatal(err)
		}
		for i := range f.Cases {
			c := &f.Cases[i]
			if known[c.ID] {
				t.Errorf("%s: there are two cases %s", name, c.ID)
			}
			known[c.ID] = true
			t.Run(filepath.Base(filepath.Dir(name))+"/"+filepath.Base(name)+"/"+c.ID, func(t *testing.T) {
				switch o := expected.judge(e.Run(name, c)); o.Result {
				case engine.Fail:
					t.Error(failure(o))
				case engine.Skip:
					t.Skip(o.Got)
				}
			})
		}
	}
	for id := range expected {
		if !known[id] {
			t.Errorf("%s is listed as waiting and is no case", id)
		}
	}
}

// invocation line in, exit code and output out.
func runs(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = invocation().run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const mixed = "case A rules=K1\nkey a kind=x\ncase B rules=K1,K2\nkey a kind=x\nkey b kind=y\nsame a b -> yes\ncase C rules=K1 needs=moon\nnonsense"

// After an interrupt nothing begins any more, and nothing is left behind.
func TestInterrupted(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	path := write(t, "mixed.kiln", mixed)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, args := range [][]string{{path}, {"--parallel", "2", path}} {
		var out bytes.Buffer
		if invocation().run(ctx, args, &out, &out); strings.TrimPrefix(out.String(), "0 passed, 0 failed\n") != "" {
			t.Errorf("%v: %s", args, out.String())
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left %v: %v", left, err)
	}
}

func TestRunReports(t *testing.T) {
	path := write(t, "mixed.kiln", mixed)
	for _, args := range [][]string{{path}, {"--parallel", "2", path}} {
		code, out, _ := runs(t, args...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if code != 4 || lines[len(lines)-1] != "1 passed, 1 failed, 1 skipped" {
			t.Errorf("%v: %d\n%s", args, code, out)
		}
		if lines[0] != "FAIL "+path+":6 B: got no, want yes" || !strings.Contains(lines[1], "key a kind=x => ok") {
			t.Errorf("%v:\n%s", args, out)
		}
		if !strings.Contains(out, "C: needs moon") {
			t.Errorf("%v: the skipped case is not named:\n%s", args, out)
		}
	}
	if code, out, _ := runs(t, path, "--run", "^A$", "--repeat=3"); code != 0 || out != "3 passed, 0 failed\n" {
		t.Errorf("%d %s", code, out)
	}
	if code, out, _ := runs(t, filepath.Dir(path), "--run", "^A$"); code != 0 || out != "1 passed, 0 failed\n" {
		t.Errorf("%d %s", code, out)
	}
}

func TestJSON(t *testing.T) {
	path := write(t, "mixed.kiln", mixed)
	code, out, errs := runs(t, "--json", path)
	if code != 4 || errs != "1 passed, 1 failed, 1 skipped\n" {
		t.Errorf("%d %s", code, errs)
	}
	var results []string
	for line := range strings.Lines(out) {
		var o map[string]any
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{"file", "case", "rules", "result", "line", "got", "want", "seconds"} {
			if _, ok := o[field]; !ok {
				t.Errorf("no %s in %s", field, line)
			}
		}
		results = append(results, o["result"].(string))
	}
	if !slices.Equal(results, []string{"pass", "fail", "skip"}) {
		t.Errorf("%v", results)
	}
}

func TestWrongUsage(t *testing.T) {
	bad := write(t, "bad.kiln", "key a kind=x")
	good := write(t, "good.kiln", "case A rules=K1\nkey a kind=x")
	for _, args := range [][]string{{}, {"no-such-file"}, {t.TempDir()}, {bad}, {"--fast", good}, {"--repeat", "0", good}, {"--run", "(", good}, {"--run", "nothing", good}} {
		if code, out, errs := runs(t, args...); code != 2 || out != "" || errs == "" {
			t.Errorf("%v: %d %q %q", args, code, out, errs)
		}
	}
	huge := write(t, "huge.kiln", strings.Repeat("#", mostScript+1))
	if code, out, errs := runs(t, huge); code != 2 || out != "" || !strings.Contains(errs, "16 MiB") {
		t.Errorf("a file without an end: %d %q %.200q", code, out, errs)
	}
	if code, out, errs := runs(t, "--help"); code != 0 || !strings.Contains(out, "usage:") || errs != "" {
		t.Errorf("%d %s%s", code, out, errs)
	}
}

func TestExpected(t *testing.T) {
	e, err := readWaiting(strings.NewReader("# head\n\nA the moon # why\nB it\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ id, result, want string }{
		{"A", engine.Fail, engine.Skip}, {"A", engine.Pass, engine.Fail}, {"X", engine.Fail, engine.Fail}, {"X", engine.Pass, engine.Pass}, {"B", engine.Skip, engine.Skip},
	} {
		if o := e.judge(engine.Outcome{Case: tt.id, Result: tt.result}); o.Result != tt.want {
			t.Errorf("%s %s is judged %s, want %s", tt.id, tt.result, o.Result, tt.want)
		}
	}
	for _, bad := range []string{"A", "A x\nA y"} {
		if _, err := readWaiting(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is let through", bad)
		}
	}
}

// Texts of any form keep their differences (K4).
func TestKeyTexts(t *testing.T) {
	path := write(t, "keys.kiln", `case A rules=K4
key a kind=x impl=1 threads=1 skip=[1,2] hints=[a] attr.deterministic=1 attr.post_ops=relu shape=[[1,n],[3]]
for impl=01,impl=fast,threads=many,skip=[2],skip=[],hints=[],attr.deterministic=yes,attr.deterministic=0,attr.post_ops=relu:,attr.post_ops="",shape=[[1,m],[3]],shape=[[1,n]]: key b like=a {i} ; same a b -> no
key b like=a skip=[2,1,2]
same a b -> yes
case B rules=K6
key a desc=d -> error invalid
key a kind=x shape=[[1,2]] strides=[[1]]
key a kind=x like=none -> error invalid
same a none -> error invalid
`)
	if code, out, errs := runs(t, path); code != 0 {
		t.Errorf("%d %s%s", code, out, errs)
	}
}
