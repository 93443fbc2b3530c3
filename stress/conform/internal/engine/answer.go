package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// sentinels maps errors to words. Where several fit the first one speaks.
var sentinels = []struct {
	err  error
	word string
}{
	{fault.ErrCycle, "cycle"}, {fault.ErrClosed, "closed"}, {context.Canceled, "canceled"}, {context.DeadlineExceeded, "canceled"},
	{nil, "panic"}, {fault.ErrGoexit, "goexit"}, {nil, "failed"},
	{fault.ErrInvalid, "invalid"}, {fault.ErrAbandoned, "abandoned"}, {fault.ErrSize, "size"}, {fault.ErrUnsupported, "unsupported"},
	{fault.ErrRefused, "refused"}, {fault.ErrTooLarge, "too_large"}, {fault.ErrOverloaded, "overloaded"}, {fault.ErrDeviceLost, "device_lost"},
	{fault.ErrUnavailable, "unavailable"}, {fault.ErrNotFound, "not_found"}, {fault.ErrIO, "io"},
}

// Answer is `error WORD` for an error, with the text that user code gave and
// the reason and field of a refusal. An error that fits no word of the
// language is `error unknown`.
func Answer(err error) script.Result {
	var panicked *fault.PanicError
	var failed *outside.CreatorError
	for _, s := range sentinels {
		switch {
		case s.word == "panic":
			if errors.As(err, &panicked) {
				stack := "no"
				if len(panicked.Stack) > 0 {
					stack = "yes"
				}
				return script.Say("error", "panic").With("text", fmt.Sprint(panicked.Value)).With("stack", stack)
			}
		case s.word == "failed":
			if errors.As(err, &failed) {
				return script.Say("error", "failed").With("text", failed.Text)
			}
		case errors.Is(err, s.err):
			reason, field := fault.ReasonOf(err)
			return Because(script.Say("error", s.word), reason, field)
		}
	}
	return script.Say("error", "unknown").With("text", err.Error())
}

// Because is r with a reason and a field, where there are any.
func Because(r script.Result, reason fault.Reason, field string) script.Result {
	if reason != "" {
		r = r.With("reason", string(reason))
	}
	if field != "" {
		r = r.With("field", field)
	}
	return r
}

// bypassReasons is the closed set of SPEC T3.
var bypassReasons = map[string]bool{"disabled": true, "full": true, "zero_size": true, "device_refused": true}

// closedReason tells whether a result's reason, if any, is in its closed set.
func closedReason(r script.Result) bool {
	reason, ok := r.Field("reason")
	if !ok {
		return true
	}
	if len(r.Words) > 0 && r.Words[0] == "bypass" {
		return bypassReasons[reason]
	}
	return slices.Contains(fault.Reasons(), fault.Reason(reason))
}
