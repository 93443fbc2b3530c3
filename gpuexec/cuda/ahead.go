package cuda

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/nvrtc"
)

// Compile compiles a source without a GPU and without a driver, for devices of a compute
// capability: 80 is 8.0. It gives the blob that such a device's executor would give, and the
// identity that a store keeps it under. Calls share the compiler's processes, with executors
// too; the last ones end, with the goroutines that wait for them, half a minute after the
// last call. Errors are those of a device's compile; ErrUnavailable says that NVRTC is
// missing, ErrUnsupported that it does not know the capability nor one before it. Safe for
// concurrent use.
func Compile(ctx context.Context, cfg Config, src gpuexec.Source, capability int) ([]byte, gpuexec.Identity, error) {
	code, err := codeOf(src)
	if err != nil {
		return nil, gpuexec.Identity{}, err
	}
	if _, measured := code.Defines[classMacro]; measured && code.Text == operations {
		return nil, gpuexec.Identity{}, failure("compile", fault.ErrUnsupported, "a product that is measured beside cuBLAS: that takes a device")
	}
	compiler, err := nvrtc.Open(cfg.NVRTC)
	if err != nil {
		return nil, gpuexec.Identity{}, err
	}
	target := targetOf(capability, compiler.Archs)
	if target == "" {
		return nil, gpuexec.Identity{}, failure("compile", fault.ErrUnsupported, "NVRTC %s does not compile for compute capability %d.%d, only for %d", compiler.Version, capability/10, capability%10, compiler.Archs)
	}
	var out nvrtc.Output
	if cfg.InProcess {
		out, err = compiler.Compile(requestOf(code, target))
	} else {
		helpers := nvrtc.Share(compiler.Path)
		defer helpers.LeaveIdle()
		out, err = helpers.Compile(ctx, requestOf(code, target))
	}
	if err != nil {
		return nil, gpuexec.Identity{}, err
	}
	if err := checkParams(out.PTX, code.Entry, src.Params); err != nil {
		return nil, gpuexec.Identity{}, err
	}
	return format.Seal(src.Key, newImage(out.Cubin, out.PTX).content()), identityOf(compiler, capability), nil
}

func codeOf(src gpuexec.Source) (gpuexec.Code, error) {
	code, ok := src.Spec.(gpuexec.Code)
	switch {
	case !ok:
		return code, failure("compile", fault.ErrUnsupported, "a source of type %T, want a gpuexec.Code", src.Spec)
	case code.Language != Language:
		return code, failure("compile", fault.ErrUnsupported, "language %q, want %q", code.Language, Language)
	case len(code.Constants) > 0:
		return code, failure("compile", fault.ErrUnsupported, "%s has no specialisation constants: use Defines", Language)
	}
	return code, nil
}

func requestOf(code gpuexec.Code, target string) nvrtc.Request {
	return nvrtc.Request{Text: code.Text, Target: target, Options: code.Options, Defines: code.Defines, Includes: code.Includes}
}

// targetOf is what to compile for: the device's own code, or for one that the compiler does
// not know yet PTX of the latest before it; empty where the compiler knows later ones only.
func targetOf(capability int, archs []int) string {
	latest := 0
	for _, arch := range archs {
		if arch == capability {
			return fmt.Sprintf("sm_%d", arch)
		}
		if arch < capability {
			latest = max(latest, arch)
		}
	}
	if latest == 0 {
		return ""
	}
	return fmt.Sprintf("compute_%d", latest)
}

// identityOf is that of code for a compute capability.
func identityOf(compiler *nvrtc.Library, capability int) gpuexec.Identity {
	by := "NVRTC " + compiler.Version
	return gpuexec.Identity{Library: by, Build: compiler.Build, Compiler: by + " for " + targetOf(capability, compiler.Archs),
		Device: fmt.Sprintf("compute capability %d.%d", capability/10, capability%10)}
}
