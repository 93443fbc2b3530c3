package versus

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/onednn"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// peer is oneDNN with a cache of its primitives.
type peer struct {
	lib    *onednn.Library
	cache  *artefacts.Cache
	engine *primitive.Engine
}

// width is what the library of this process is held to, which it asks for once.
var width struct {
	sync.Mutex
	chosen, avx2 bool
}

// openPeer opens the library of that path, or the one that is installed. With avx2 it uses
// no wider instructions than AVX2, which can be chosen at the first call only.
func openPeer(path string, avx2 bool) (_ *peer, err error) {
	width.Lock()
	defer width.Unlock()
	if width.chosen && width.avx2 != avx2 {
		return nil, fault.Invalidf("versus: open", "the widest instructions were chosen already: use another process")
	}
	if avx2 {
		if err := os.Setenv("ONEDNN_MAX_CPU_ISA", "AVX2"); err != nil {
			return nil, err
		}
	}
	p := &peer{}
	if p.lib, err = onednn.Open(onednn.Config{Path: path}); err != nil {
		return nil, err
	}
	width.chosen, width.avx2 = true, avx2
	if p.cache, err = artefacts.Open(artefacts.Config{}); err == nil {
		p.engine, err = primitive.Open(primitive.Config{Cache: p.cache, Library: p.lib, Backend: onednn.Name, Identity: p.lib.About().Identity})
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *peer) close() error {
	var err error
	if p.cache != nil {
		err = p.cache.Close(context.Background())
	}
	return errors.Join(err, p.lib.Close())
}

// product is a prepared M x K by K x N, with its weight in the layout that the library chose.
type product struct {
	lib         *onednn.Library
	lease       primitive.Lease
	src, w, dst *onednn.Memory
	args        []onednn.Arg
}

func (p *peer) product(ctx context.Context, m, k, n int64, a, w []float32) (_ *product, err error) {
	src, dst := onednn.Dense("f32", m, k), onednn.Dense("f32", m, n)
	lease, _, err := p.engine.Primitive(ctx, &primitive.Spec{Kind: "matmul", Op: primitive.Operation{
		Tensors: []primitive.Tensor{src, {Type: "f32", Dims: []int64{k, n}}, {}, dst}}}, "")
	if err != nil {
		return nil, err
	}
	x := &product{lib: p.lib, lease: lease}
	defer func() {
		if err != nil {
			x.release()
		}
	}()
	weight, err := p.lib.Constant(p.engine, gpuexec.BytesOf(w), onednn.Dense("f32", k, n), lease.Primitive().Descriptor().Tensors()[1])
	if err != nil {
		return nil, err
	}
	if x.w, err = weight.Make(ctx); err != nil {
		return nil, err
	}
	if x.src, err = p.lib.NewMemory(src); err != nil {
		return nil, err
	}
	if x.dst, err = p.lib.NewMemory(dst); err != nil {
		return nil, err
	}
	copy(onednn.Of[float32](x.src), a)
	x.args = []onednn.Arg{{Slot: onednn.Src, Memory: x.src}, {Slot: onednn.Weights, Memory: x.w}, {Slot: onednn.Dst, Memory: x.dst}}
	return x, nil
}

func (x *product) run(ctx context.Context) error {
	return x.lib.Execute(ctx, x.lease.Primitive(), x.args...)
}

func (x *product) release() {
	for _, m := range []*onednn.Memory{x.src, x.w, x.dst} {
		if m != nil {
			m.Release()
		}
	}
	x.lease.End()
}
