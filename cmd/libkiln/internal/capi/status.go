// Package capi is the C API without C: a table of handles, the status of each error, and the
// form in two calls. Package libkiln puts C's types around it.
//
// All is safe for concurrent use.
package capi

import (
	"context"
	"errors"
	"runtime/debug"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// Status is a kiln_status of kiln.h.
type Status int32

const failed = Status(19)

// errShort is the error of a buffer that is too short.
var errShort = errors.New("the buffer is too short: the size says what is needed")

// sentinels are the errors that have a status of their own. Where an error is several, the
// first here counts.
var sentinels = []struct {
	err    error
	status Status
}{
	{errShort, 18},
	{fault.ErrInvalid, 1}, {fault.ErrClosed, 2}, {fault.ErrCycle, 3}, {fault.ErrGoexit, 4}, {fault.ErrAbandoned, 5},
	{fault.ErrSize, 6}, {fault.ErrUnsupported, 7}, {fault.ErrRefused, 8}, {fault.ErrTooLarge, 9}, {fault.ErrOverloaded, 10},
	{fault.ErrDeviceLost, 11}, {fault.ErrUnavailable, 12}, {fault.ErrIO, 13}, {fault.ErrNotFound, 14},
	{context.DeadlineExceeded, 16}, {context.Canceled, 17},
}

// StatusOf is the status of an error (SPEC R3).
func StatusOf(err error) Status {
	if err == nil {
		return 0
	}
	if _, panicked := errors.AsType[*fault.PanicError](err); panicked {
		return 15
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.status
		}
	}
	return failed
}

// Call runs one function of the API. A panic of it is an error: none may reach C.
func Call(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &fault.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return fn()
}

// Text is an error in words. That of a panic has its stack, which Error leaves out.
func Text(err error) string {
	if p, panicked := errors.AsType[*fault.PanicError](err); panicked {
		return err.Error() + "\n" + string(p.Stack)
	}
	return err.Error()
}

// Cut is the beginning of a text, in at most so many bytes, as C can have it: no zero byte
// ends it early, and no character is cut in two.
func Cut(text string, most int) string {
	text = strings.ToValidUTF8(text[:min(len(text), most)], "")
	return strings.ReplaceAll(text, "\x00", " ")
}

// Fill is the second half of both calls (SPEC B4): it copies value into buffer, if there is one
// and it is large enough, and size becomes the number of bytes of value.
func Fill[T string | []byte](value T, buffer []byte, size *int) error {
	*size = len(value)
	if buffer == nil {
		return nil
	}
	if len(buffer) < len(value) {
		return errShort
	}
	copy(buffer, value)
	return nil
}
