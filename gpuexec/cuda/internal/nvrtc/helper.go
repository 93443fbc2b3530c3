package nvrtc

import (
	"embed"
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/internal/child"
)

// helperName is that of a helper, whose argument is the path of the compiler. It gives two
// replies to a request: an empty one when it has come, and then its own.
const helperName = "kiln: compiles CUDA C"

//go:embed *.go
var source embed.FS

var build = sync.OnceValue(func() string { return child.Build(source) }) // tests have another one

func init() {
	if path, serves := child.Serves(helperName); serves {
		serve(path)
	}
}

// reply is a helper's, of one request.
type reply struct {
	Output Output
	Failed bool
	Kind   int // of the error: its place in kinds; -1 = errCompiler
	Reason fault.Reason
	Field  string
	Text   string
}

// kinds are the errors that a compile may have.
var kinds = []error{fault.ErrInvalid, fault.ErrUnsupported, fault.ErrTooLarge, fault.ErrUnavailable}

func replyOf(out Output, err error) reply {
	r := reply{Output: out, Failed: err != nil}
	if err != nil {
		r.Kind = slices.IndexFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
		r.Reason, r.Field = fault.ReasonOf(err)
		r.Text = err.Error()
		if failed, ok := errors.AsType[*fault.Error](err); ok {
			r.Text = failed.Err.Error() // the rest is put around it again
		}
	}
	return r
}

// told is an error that was one in a helper.
type told struct {
	kind error
	text string
}

func (t told) Error() string { return t.text }

func (t told) Unwrap() error { return t.kind }

func (r *reply) err() error {
	if !r.Failed {
		return nil
	}
	kind := errCompiler
	if r.Kind >= 0 && r.Kind < len(kinds) {
		kind = kinds[r.Kind]
	}
	return &fault.Error{Op: "cuda: compile", Backend: "cuda", Reason: r.Reason, Field: r.Field, Err: told{kind, r.Text}}
}

// serve is the life of a helper: it ends with whoever started it, be a compile under way.
func serve(path string) {
	bound()
	from, replies := child.Pipes(build())
	requests := make(chan Request)
	go func() {
		for {
			var r Request
			if from.Decode(&r) != nil {
				os.Exit(0)
			}
			requests <- r
		}
	}()
	answer := func(r reply) {
		if replies.Encode(r) != nil {
			os.Exit(0)
		}
	}
	for r := range requests {
		answer(reply{})
		l, err := Open(path)
		if err != nil {
			answer(replyOf(Output{}, err))
			continue
		}
		answer(replyOf(l.checked(r))) // whoever started it has checked the request
	}
}
