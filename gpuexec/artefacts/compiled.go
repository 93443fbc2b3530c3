package artefacts

import (
	"context"

	"github.com/kiln-cache/kiln/gpuexec"
)

// OfKernel is the request for the kernel of a source: the executor compiles it, or
// loads it from its blob. The Key is left to the caller, who knows which kernels
// may be shared (SPEC K4).
func OfKernel(executor *gpuexec.Executor, source gpuexec.Source) Request {
	built := func(k *gpuexec.Kernel, err error) (Built, error) {
		if err != nil {
			return Built{}, err
		}
		return Built{Value: k, Bytes: k.Bytes(), Free: k.Release, Blob: k.Blob, Requires: k.Requires()}, nil
	}
	backend, identity := executor.Info().Backend, executor.Identity()
	return Request{
		StoredKey: source.Key,
		Backend:   backend,
		Identity:  &identity,
		Create:    func(ctx context.Context) (Built, error) { return built(executor.Compile(ctx, source)) },
		Load:      func(ctx context.Context, blob []byte) (Built, error) { return built(executor.Load(ctx, source, blob)) },
	}
}
