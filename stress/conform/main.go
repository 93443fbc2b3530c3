package conform

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/rooms"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// Exit codes of the command.
const (
	exitDone  = 0
	exitUsage = 2 // wrong usage or unreadable input
	exitFound = 4 // a case failed
)

// processArg is the only argument of a script's process.
const processArg = "@process"

// command is kiln conform. Safe for use by one goroutine.
type command struct {
	self   []string // command line that reaches Run in this binary, without Run's arguments
	engine *engine.Engine
}

// Main runs `kiln conform ARGS` with this build's components; the exit code is
// 0, 2 for wrong usage or unreadable scripts, or 4 if a case failed. When ctx ends,
// the cases under way end as well, and do not count.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintln(stderr, "kiln: conform:", err)
		return exitUsage
	}
	return build(exe, "conform").run(ctx, args, stdout, stderr)
}

// build is the command with this build's components. self is the command line
// that reaches Run again.
func build(self ...string) *command {
	return &command{self: self, engine: &engine.Engine{
		Kinds:      rooms.Kinds(),
		Statements: rooms.Statements(),
		Process:    append(slices.Clone(self), processArg),
		Parked:     actors.Parked,
	}}
}

type flags struct {
	json     bool
	run      *regexp.Regexp
	repeat   int
	parallel int
	paths    []string
}

// job is one run of one case.
type job struct {
	file string
	c    *script.Case
}

// Run runs the command.
func (c *command) run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == processArg {
		return c.engine.Serve(os.Stdin, os.Stdout)
	}
	f, err := parseFlags(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitDone
	}
	if err != nil {
		return refuse(stderr, err)
	}
	var jobs []job
	done := make(chan error, 1)
	go func() { // a pipe may never say anything
		all, err := f.jobs()
		jobs = all
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		return exitDone
	}
	if err != nil {
		return refuse(stderr, err)
	}
	report := &report{f.json, stdout, stderr, map[string]int{}}
	add := func(o engine.Outcome) {
		if ctx.Err() == nil {
			report.add(o)
		}
	}
	if f.parallel > 1 {
		c.parallel(ctx, jobs, f.parallel, add)
	} else {
		for i := 0; i < len(jobs) && ctx.Err() == nil; i++ {
			add(c.engine.Run(jobs[i].file, jobs[i].c))
		}
	}
	return report.end()
}

// refuse says what is wrong with the input, in one line.
func refuse(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "kiln: conform: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	return exitUsage
}

// parseFlags reads the command line. Asked for help it prints it to out and
// returns flag.ErrHelp.
func parseFlags(args []string, out io.Writer) (flags, error) {
	var f flags
	set := flag.NewFlagSet("kiln conform", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Usage = func() {}
	var run, level string
	set.BoolVar(&f.json, "json", false, "write JSON")
	set.StringVar(&run, "run", "", "run the cases whose ID matches `REGEXP`")
	set.IntVar(&f.repeat, "repeat", 1, "run each case `N` times")
	set.IntVar(&f.parallel, "parallel", 1, "run `N` cases at once, each in a process of its own")
	set.StringVar(&level, "log-level", "warn", "the least `LEVEL` that is logged: debug, info, warn or error; a script logs nothing")
	for {
		if err := set.Parse(args); errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(out, "usage: kiln conform [flags] PATH...\nrun conformance scripts, and those of folders, against the real components\n\n")
			set.VisitAll(func(o *flag.Flag) {
				holder, about := flag.UnquoteUsage(o)
				if o.DefValue != "" && o.DefValue != "false" {
					about += " (default " + o.DefValue + ")"
				}
				fmt.Fprintf(out, "  --%-20s %s\n", strings.TrimSpace(o.Name+" "+holder), about)
			})
			return f, err
		} else if err != nil {
			return f, fmt.Errorf("%w: see kiln conform --help", err)
		}
		if set.NArg() == 0 {
			break
		}
		f.paths = append(f.paths, set.Arg(0)) // flags may follow a path
		args = set.Args()[1:]
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, level) {
		return f, fmt.Errorf("--log-level %q: want debug, info, warn or error", level)
	}
	if len(f.paths) == 0 {
		return f, errors.New("name a script or a folder with scripts (*.kiln)")
	}
	if f.repeat < 1 {
		return f, fmt.Errorf("--repeat %d: want a number of at least 1", f.repeat)
	}
	if f.parallel < 1 {
		return f, fmt.Errorf("--parallel %d: want a number of at least 1", f.parallel)
	}
	var err error
	if f.run, err = regexp.Compile(run); err != nil {
		return f, fmt.Errorf("--run: %w", err)
	}
	return f, nil
}

// mostScript is more than any script has, in bytes.
const mostScript = 16 << 20

// read is os.ReadFile for what may be no script, or without an end.
func read(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostScript+1))
	if err == nil && len(text) > mostScript {
		err = fmt.Errorf("%s: more than %d MiB, which is no script", name, mostScript>>20)
	}
	return text, err
}

// jobs reads all scripts before the first case runs.
func (f flags) jobs() ([]job, error) {
	files, err := scripts(f.paths)
	if err != nil {
		return nil, err
	}
	var jobs []job
	var errs []error
	for _, name := range files {
		text, err := read(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		file, err := script.Parse(name, text)
		errs = append(errs, err)
		for i := range file.Cases {
			c := &file.Cases[i]
			if !f.run.MatchString(c.ID) {
				continue
			}
			for range f.repeat {
				jobs = append(jobs, job{name, c})
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(jobs) == 0 {
		return nil, errors.New("no case matches")
	}
	return jobs, nil
}

// scripts finds the files behind the paths, folders at any depth, in order.
func scripts(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		found := len(files)
		err = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && strings.HasSuffix(name, ".kiln") {
				files = append(files, name)
			}
			return err
		})
		if err == nil && len(files) == found {
			err = fmt.Errorf("%s: no script (*.kiln) in it", path)
		}
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// report prints outcomes in the order they are added. Owned by one goroutine.
type report struct {
	json           bool
	stdout, stderr io.Writer
	counts         map[string]int // by result
}

func (r *report) add(o engine.Outcome) {
	r.counts[o.Result]++
	if r.json {
		line, _ := json.Marshal(o) // texts and numbers only: cannot fail
		fmt.Fprintf(r.stdout, "%s\n", line)
		return
	}
	switch o.Result {
	case engine.Fail:
		fmt.Fprint(r.stdout, failure(o))
	case engine.Skip:
		fmt.Fprintf(r.stdout, "SKIP %s:%d %s: %s\n", o.File, o.Line, o.Case, o.Got)
	}
}

// failure is the text of a failed case: its line, then the events that led there.
func failure(o engine.Outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, "FAIL %s:%d %s: got %s, want %s\n", o.File, o.Line, o.Case, o.Got, o.Want)
	for _, e := range o.Events {
		fmt.Fprintf(&b, "    %s\n", e)
	}
	return b.String()
}

// end prints the sum, which --json keeps off stdout.
func (r *report) end() int {
	out := r.stdout
	if r.json {
		out = r.stderr
	}
	fmt.Fprintf(out, "%d passed, %d failed", r.counts[engine.Pass], r.counts[engine.Fail])
	if n := r.counts[engine.Skip]; n > 0 {
		fmt.Fprintf(out, ", %d skipped", n)
	}
	fmt.Fprintln(out)
	if r.counts[engine.Fail] > 0 {
		return exitFound
	}
	return exitDone
}
