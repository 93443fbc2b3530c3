package vfs

import "context"

// Machine gives the function that opens a folder of this machine's file system.
// The error is fault.ErrUnsupported on a system that has no FS, as Windows.
func Machine() (func(root string) FS, error) { return machine() }

type at struct{}

// With gives a context that makes a room open its folders with open instead of
// Machine's function. Tests inject faults and lost power this way.
func With(ctx context.Context, open func(root string) FS) context.Context {
	return context.WithValue(ctx, at{}, open)
}

// From gives the function of With, or else Machine's.
func From(ctx context.Context) (func(root string) FS, error) {
	if open, ok := ctx.Value(at{}).(func(root string) FS); ok {
		return open, nil
	}
	return Machine()
}
