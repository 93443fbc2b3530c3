//go:build linux && (amd64 || arm64)

package opencl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/child"
	"github.com/kiln-cache/kiln/internal/guard"
)

// trialName is that of a child which loads one blob. Its argument is the folder of PoCL's
// cache for it: what a blob that is refused leaves there is not for others.
const trialName = "kiln: loads an OpenCL binary"

//go:embed *.go
var source embed.FS

var build = sync.OnceValue(func() string { return child.Build(source) }) // tests have another one

const (
	mostStart = time.Minute // until a child has its device open
	mostTrial = time.Minute // until a driver has loaded a blob and run it once
	mostKnown = 1 << 20     // bytes of a file of known blobs; then it begins anew
)

func init() {
	if cache, serves := child.Serves(trialName); serves {
		serveTrial(cache)
	}
}

// trial is what a child is to load, and on which device.
type trial struct {
	Index    int
	Identity gpuexec.Identity
	Key      string
	Code     gpuexec.Code
	Params   []gpuexec.Param
	Blob     []byte
}

// verdict is a child's reply: that it begins, if it can, and then what came of it.
type verdict struct {
	Begun   bool
	Refused bool   // Error is the driver's, of the blob
	Error   string // empty: there is none
}

// serveTrial is the life of a child. It ends with whoever started it, be its driver at work.
func serveTrial(cache string) {
	requests, replies := child.Pipes(build())
	end := func() {
		_ = os.RemoveAll(cache)
		os.Exit(0)
	}
	var t trial
	if requests.Decode(&t) != nil {
		end()
	}
	go func() {
		_ = requests.Decode(&trial{}) // nothing comes any more
		end()
	}()
	t.run(func(v verdict) {
		if replies.Encode(v) != nil {
			end()
		}
	})
	select {}
}

func (t *trial) run(answer func(verdict)) {
	d, err := open(t.Index)
	if err == nil && !reflect.DeepEqual(d.Info().Identity, t.Identity) {
		err = errors.New("it sees another device")
	}
	if err != nil {
		answer(verdict{Error: err.Error()})
		return
	}
	answer(verdict{Begun: true})
	made, err := d.Load(context.Background(), gpuexec.Source{Key: t.Key, Spec: t.Code, Params: t.Params}, t.Blob)
	if err != nil {
		answer(verdict{Refused: errors.Is(err, fault.ErrRefused), Error: err.Error()})
		return
	}
	if t.Code.Block != (gpuexec.Size{}) { // drivers look at code when it is launched
		_ = made.(*program).warm(context.Background()) // its error says no more than a launch's
	}
	answer(verdict{})
}

// try has a child load a blob that is not known, and makes it known. ErrRefused if the
// driver does not take it, ends the child or does not come to an end; ErrUnavailable if no
// child could try.
func (d *device) try(ctx context.Context, t trial) error {
	if d.known == "" || d.known.has(d.line(t.Blob)) {
		return nil
	}
	cache, err := os.MkdirTemp("", "kiln-*")
	if err != nil {
		return failure("load", fault.ErrUnavailable, "no folder for a child process: %w", err)
	}
	defer os.RemoveAll(cache)
	p, err := child.Start(trialName, build(), cache, func(env []string) []string {
		return append(env, "POCL_CACHE_DIR="+cache, "GOTRACEBACK=none")
	})
	if err != nil {
		return failure("load", fault.ErrUnavailable, "no child process: %w", err)
	}
	if err := d.ask(ctx, t, p); err != nil {
		return err
	}
	_ = d.known.add(d.line(t.Blob)) // else it is tried again
	return nil
}

// ask gives a trial to a child, which it ends.
func (d *device) ask(ctx context.Context, t trial, p *child.Process) error {
	stop := context.AfterFunc(guard.Context(ctx), p.Kill)
	defer stop()
	late := time.AfterFunc(mostStart, p.Kill)
	defer late.Stop()
	var first, last verdict
	err := p.Send(t)
	if err == nil {
		err = p.Replies.Decode(&first)
	}
	began := time.Now()
	if first.Begun {
		late.Reset(d.patience)
		err = p.Replies.Decode(&last)
	}
	took, ended := time.Since(began), p.End()
	refused := func(format string, args ...any) error {
		e := failure("load", fault.ErrRefused, format, args...)
		e.Reason = fault.DriverRefused
		return e
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case first.Begun && err != nil && took >= d.patience:
		return refused("the driver did not come to an end with it within %v, in a child process", d.patience)
	case first.Begun && err != nil:
		return refused("the driver ended the child process that loaded it first: %v", ended)
	case last.Refused:
		return refused("in a child process: %s", last.Error)
	case errors.Is(err, child.ErrAnother):
		return failure("load", fault.ErrUnavailable, "no child process: %w", err)
	case err != nil:
		return failure("load", fault.ErrUnavailable, "the child process that was to load it first does not answer: %v: "+
			"a program that ends, or waits, while its packages are initialised cannot be started for it", ended)
	case first.Error+last.Error != "":
		return failure("load", fault.ErrUnavailable, "in a child process: %s", first.Error+last.Error)
	}
	return nil
}

// line is a blob's in a file of known blobs: a digest over it and what loads it.
func (d *device) line(blob []byte) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q\n", d.info.Identity.Build, d.info.Identity.Device)
	h.Write(blob)
	return fmt.Appendf(nil, "%x\n", h.Sum(nil))
}

// known is the path of a file that has a line for each blob which need not be tried;
// empty: none has to be. Processes may share it. A line that is lost costs a trial.
type known string

func (k known) has(line []byte) bool {
	f, err := os.Open(string(k))
	if err != nil {
		return false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 2*mostKnown))
	return err == nil && bytes.Contains(text, line)
}

// add appends a line, and says why it cannot.
func (k known) add(line []byte) error {
	f, err := os.OpenFile(string(k), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > mostKnown {
		_ = f.Truncate(0)
	}
	_, err = f.Write(line)
	return err
}
