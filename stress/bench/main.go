package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/measure/incumbent"
	"github.com/kiln-cache/kiln/internal/picture"
)

// The exit codes, those of the kiln command.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		os.Exit(exitDone)
	case ctx.Err() != nil:
		os.Exit(exitInterrupted)
	}
	fmt.Fprintln(os.Stderr, err)
	if errors.Is(err, fault.ErrInvalid) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}

// options are the command line.
type options struct {
	settings
	json     bool
	markdown bool
	plot     string
	library  string
	misses   bool
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	entries := flags.String("entries", "16384,1048576", "resident `numbers` of entries, multiples of 512; a million needs 3 GB")
	goroutines := flags.String("goroutines", "1,2,8", "`numbers` of readers")
	flags.IntVar(&o.rounds, "rounds", 7, "interleaved rounds, whose median is shown")
	flags.DurationVar(&o.slot, "slot", 20*time.Millisecond, "of each contender in a round")
	flags.BoolVar(&o.json, "json", false, "an object a line on stdout; the table goes to stderr")
	flags.BoolVar(&o.markdown, "markdown", false, "the hits as README's table on stdout, without the misses; the whole table goes to stderr")
	flags.StringVar(&o.plot, "plot", "", "draw the hits into this PNG `file`")
	flags.StringVar(&o.library, "onednn", "../../.cache/onednn-3.2/libdnnl.so.3", "the library's `file`; empty leaves oneDNN out")
	flags.BoolVar(&o.misses, "misses", true, "measure misses too")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: bench [flags]\n\nLookups and misses beside other caches and oneDNN's own, in one run. Flags:")
		flags.PrintDefaults()
	}
	const op = "bench: flags"
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, fault.Invalidf(op, "%v", err)
	}
	if flags.NArg() > 0 {
		return o, fault.Invalidf(op, "%q is no flag; see --help", flags.Arg(0))
	}
	if o.settings.entries, err = numbers(*entries, names, 1<<24); err != nil {
		return o, fault.Invalidf(op, "--entries %q: %v", *entries, err)
	}
	if o.settings.goroutines, err = numbers(*goroutines, 1, 64); err != nil {
		return o, fault.Invalidf(op, "--goroutines %q: %v", *goroutines, err)
	}
	if o.rounds < 1 {
		return o, fault.Invalidf(op, "--rounds %d, want 1 or more", o.rounds)
	}
	if o.slot < 5*time.Millisecond || o.slot > time.Minute {
		return o, fault.Invalidf(op, "--slot %s, want 5ms to 1m", o.slot)
	}
	if o.json && o.markdown {
		return o, fault.Invalidf(op, "--json and --markdown both want stdout")
	}
	if o.plot != "" {
		return o, picture.Check(o.plot)
	}
	return o, nil
}

// numbers reads a list as in "1,2,8".
func numbers(text string, least, most int) (out []int, err error) {
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n < least || n > most {
			return nil, fmt.Errorf("want numbers from %d to %d with commas between them", least, most)
		}
		out = append(out, n)
	}
	return out, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	o.progress = progressOn(stderr)
	var n *incumbent.Process
	if o.library != "" {
		n, err = incumbent.Open(ctx, o.library)
		switch {
		case errors.Is(err, incumbent.ErrAbsent):
			fmt.Fprintf(stderr, "skipped: oneDNN: %v\n", err)
		case err != nil:
			return err
		default:
			defer func() { err = errors.Join(err, n.Close()) }()
			if err := n.Fill(incumbent.Matmuls(128), 1024); err != nil {
				return err
			}
		}
	}
	figures, err := measureHits(ctx, o.settings, n)
	if err != nil {
		return err
	}
	if o.misses && !o.markdown {
		made, err := measureMisses(ctx, o.settings)
		if err != nil {
			return err
		}
		figures = append(figures, made...)
	}
	o.progress("")
	m, table := thisMachine(o.settings, n), stdout
	if o.markdown {
		table = stderr
		if err := printMarkdown(stdout, o.settings, figures); err != nil {
			return err
		}
	}
	if o.json {
		table = stderr
		if err := writeJSON(stdout, m, figures); err != nil {
			return err
		}
	}
	if err := printTable(table, m, figures); err != nil {
		return err
	}
	if o.plot != "" {
		return writePlot(o.plot, m, figures)
	}
	return nil
}

// progressOn writes over one line of a terminal; elsewhere it is silent.
func progressOn(to io.Writer) func(format string, args ...any) {
	file, ok := to.(*os.File)
	if !ok {
		return func(string, ...any) {}
	}
	if info, err := file.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return func(string, ...any) {}
	}
	return func(format string, args ...any) {
		fmt.Fprintf(file, "\r\x1b[K"+format, args...)
	}
}
