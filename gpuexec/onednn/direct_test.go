package onednn

import (
	"bytes"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// direct runs a request by the library's calls alone: no cache, no worker, its first
// implementation.
func (r *rig) direct(s *primitive.Spec, args []Arg) {
	r.Helper()
	ok := func(what string, code int32) {
		if err := r.c.status(what, code); err != nil {
			r.Fatal(err)
		}
	}
	o, err := r.operation(bg, s)
	if err != nil {
		r.Fatal(err)
	}
	defer o.free()
	list, err := r.b.begin(o)
	if err != nil {
		r.Fatal(err)
	}
	defer r.b.end(o, list)
	pd, own, err := r.b.at(o, list)
	if err != nil {
		r.Fatal(err)
	}
	if own {
		defer r.c.PlanFree(pd)
	}
	h, stream := new(handle), new(handle)
	ok("create", r.c.Make(h, pd))
	defer r.c.Free(*h)
	ok("stream", r.c.StreamMake(stream, r.engine, streamInOrder))
	defer r.c.StreamFree(*stream)
	var given []execArg
	for _, a := range args {
		given = append(given, execArg{arg: r.b.argument(a.Slot), memory: a.Memory.h})
	}
	if md := r.c.PlanDesc(pd, queryArg, int32(scratchpad)); md != nil && r.c.DescBytes(md) > 0 {
		room := r.memory(primitive.Tensor{Type: "u8", Dims: []int64{int64(r.c.DescBytes(md))}, Strides: []int64{1}})
		given = append(given, execArg{arg: int32(scratchpad), memory: room.h})
	}
	ok("execute", r.c.Execute(*h, *stream, uintptr(len(given)), &given[0]))
	ok("wait", r.c.StreamWait(*stream))
}

// both runs a request through the engine and directly, from the same contents, and wants
// every bit equal.
func (r *rig) both(s primitive.Spec, args ...Arg) *primitive.Primitive {
	r.Helper()
	p := r.kernel(s)
	save := func() (all [][]byte) {
		for _, a := range args {
			all = append(all, bytes.Clone(a.Memory.Bytes()))
		}
		return all
	}
	before := save()
	r.direct(&s, args)
	direct := save()
	for i, a := range args {
		copy(a.Memory.Bytes(), before[i])
	}
	r.run(p, args...)
	for i, a := range args {
		if !bytes.Equal(a.Memory.Bytes(), direct[i]) {
			r.Errorf("%s %s %s: %v differs from what the library computes directly", s.Kind, s.Op.Direction, s.Op.Algorithm, a.Slot)
		}
	}
	return p
}
