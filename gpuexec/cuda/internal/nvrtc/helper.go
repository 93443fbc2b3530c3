package nvrtc

import (
	"encoding/gob"
	"errors"
	"os"
	"slices"

	"github.com/kiln-cache/kiln/fault"
)

// helperName is what the running executable is started as to be a helper, with the path of
// the compiler. It gets requests from file 3 and gives replies to file 4, each a value of
// encoding/gob: an empty reply when a request has come, and then its own.
const helperName = "kiln: compiles CUDA C"

// A program that has more rights than whoever starts it serves nobody: its arguments are
// a stranger's, and the compiler's path is code to run.
func init() {
	if len(os.Args) == 2 && os.Args[0] == helperName && !raised() {
		serve(os.Args[1])
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
	requests, replies := make(chan Request), gob.NewEncoder(os.NewFile(4, "replies"))
	go func() {
		from := gob.NewDecoder(os.NewFile(3, "requests"))
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
		answer(replyOf(l.Compile(r)))
	}
}
