// Command kiln runs and inspects Kiln. `kiln help` lists its commands.
//
// Exit codes: 0 done, 1 the work failed, 2 wrong usage or unreadable input, 3
// not found (a miss), 4 a check found something, 130 interrupted.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"
	"go.uber.org/zap/zapcore"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/env"
)

// Version of the command and of the library it is built with.
const Version = "0.1.0"

// The exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitFinding     = 4
	exitInterrupted = 130
)

// command is one subcommand.
type command struct {
	name, use, about string
	run              func(ctx context.Context, c *call) error
}

// commands in the order of `kiln help`.
var commands = []command{
	{"run", "[flags]", "drive a model's operations with a real trace through every cache", runCommand},
	{"embed", "--model DIR [FILE...]", "embeddings of texts, one a line of the files, or of standard input (-)", embedCommand},
	{"bench", "NAME|all [--gate]", "figures as ratios within one run", benchCommand},
	{"conform", "[flags] PATH...", "run conformance scripts against the real components", conformCommand},
	{"shapes", "simulate|advise [flags]", "eviction policies and bucketing on a recorded trace", shapesCommand},
	{"warm", "--manifest FILE [flags]", "build what a recorded manifest names, into the store", warmCommand},
	{"cache", "VERB --store DIR [flags]", "the persistent store: ls, get, put, verify, prune, explain and more", cacheCommand},
	{"stress", "[flags]", "invariants under concurrency", stressCommand},
	{"devices", "", "list the devices and the backends that are absent", devicesCommand},
	{"env", "", "list every environment variable with its value and source", envCommand},
	{"version", "", "the version, and the commit that the command was built from", versionCommand},
}

func main() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// Main is the command without the process around it; it gives the exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if len(args) > 1 && args[0] == "help" {
		args = []string{args[1], "--help"}
	}
	switch {
	case len(args) == 0 || slices.Contains([]string{"help", "--help", "-help", "-h"}, args[0]):
		out := &output{to: stdout}
		help(out)
		return (&call{command: command{name: "help"}, stderr: stderr}).finish(out.err)
	case slices.Contains([]string{"--version", "-version"}, args[0]):
		args[0] = "version"
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		name := strings.Trim(fmt.Sprintf("%.40q", args[0]), `"`)
		fmt.Fprintf(stderr, "kiln: %s: no such command: want %s; see kiln help\n", name, list(names()))
		return exitUsage
	}
	out := &output{to: stdout}
	c := newCall(commands[i], args[1:], stdin, out, stderr)
	err := commands[i].run(ctx, c)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		fmt.Fprintf(stderr, "kiln: %s: interrupted: run it again\n", c.name)
		return exitInterrupted
	}
	if err == nil {
		err = out.err
	}
	return c.finish(err)
}

// interruptible runs a read or a write that may wait for another process for ever, such
// as one of a pipe, and returns when the context ends. It then goes on alone and its
// result is dropped.
func interruptible[T any](ctx context.Context, run func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := run()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// output keeps the first error of writing, so that none goes unnoticed.
type output struct {
	to  io.Writer
	err error
}

func (o *output) Write(text []byte) (int, error) {
	n, err := o.to.Write(text)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

func names() []string {
	var all []string
	for _, c := range commands {
		all = append(all, c.name)
	}
	return all
}

func help(w io.Writer) {
	fmt.Fprintf(w, "kiln %s: compiled kernels and prepared constants, computed once.\n\n", Version)
	for _, c := range commands {
		fmt.Fprintf(w, "  kiln %-34s %s\n", c.name+" "+c.use, c.about)
	}
	fmt.Fprintf(w, "\nEvery command takes --json, --log-level LEVEL and --help. To begin: kiln run\n")
}

// call is one invocation of a command.
type call struct {
	command
	args           []string // as given
	rest           []string // the arguments that are no flags, after parse
	stdin          io.Reader
	stdout, stderr io.Writer
	flags          *flag.FlagSet
	mistake        error        // of the first flag that was wrong
	settings       env.Settings // the environment, as it was when the command began
	json           bool
	level          string
	code           int // what finish returns where there is no error
}

func newCall(c command, args []string, stdin io.Reader, stdout, stderr io.Writer) *call {
	k := &call{command: c, args: args, stdin: stdin, stdout: stdout, stderr: stderr,
		flags: flag.NewFlagSet(c.name, flag.ContinueOnError)}
	k.common()
	return k
}

// usageError is a mistake of the person who typed the command.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// logger writes to stderr at the level asked for.
func (c *call) logger() *slog.Logger {
	var level zapcore.Level
	_ = level.Set(c.level) // parse has checked it
	config := zap.NewDevelopmentEncoderConfig()
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(config), zapcore.Lock(zapcore.AddSync(c.stderr)), level)
	return slog.New(zapslog.NewHandler(core, zapslog.AddStacktraceAt(slog.LevelError+1))) // a stack tells a user nothing
}

// environment warns of what is wrong with the environment, or gives it as an error
// if KILN_STRICT asks for that.
func (c *call) environment() error {
	lines, strict := env.Wrong(c.settings, env.Names())
	if strict && len(lines) > 0 {
		text := strings.Join(lines, "; ")
		if !strings.HasPrefix(text, env.Strict+": ") {
			text = env.Strict + ": " + text
		}
		return usagef("%s", text)
	}
	for _, line := range lines {
		c.logger().Warn("kiln: environment", "refused", line)
	}
	return nil
}

// say prints one line: an object, or text for people.
func (c *call) say(object any, format string, args ...any) error {
	if c.json {
		return json.NewEncoder(c.stdout).Encode(object)
	}
	_, err := fmt.Fprintf(c.stdout, format+"\n", args...)
	return err
}

// finish reports an error and gives the exit code.
func (c *call) finish(err error) int {
	switch {
	case err == nil:
		return c.code
	case errors.Is(err, flag.ErrHelp):
		c.usage()
		return exitDone
	}
	fmt.Fprintf(c.stderr, "kiln: %s: %s\n", c.name, oneLine(err))
	var usage usageError
	if errors.As(err, &usage) || errors.Is(err, kiln.ErrInvalid) {
		return exitUsage
	}
	return exitFailed
}

// oneLine puts the lines of a joined error on one line. It leaves out that an
// argument is invalid: the exit code says so, and the rest of the text says why.
func oneLine(err error) string {
	text := strings.ReplaceAll(err.Error(), kiln.ErrInvalid.Error()+": ", "")
	return strings.ReplaceAll(text, "\n", "; ")
}
