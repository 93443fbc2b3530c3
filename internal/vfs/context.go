package vfs

import "context"

type openerKey struct{}

// With gives a context under which rooms that open files use the file systems of
// open in place of the machine's: for tests, also of programs made of many rooms.
func With(ctx context.Context, open func(root string) FS) context.Context {
	return context.WithValue(ctx, openerKey{}, open)
}

// Opener is what With put into ctx, else Dir.
func Opener(ctx context.Context) func(root string) FS {
	if open, ok := ctx.Value(openerKey{}).(func(root string) FS); ok {
		return open
	}
	return Dir
}
