//go:build linux && (amd64 || arm64)

package vulkan

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/sealed"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/spirv"
)

// program is a kernel with a pipeline for each size of blocks that it was run with.
type program struct {
	d       *device
	key     string
	glsl    bool
	writes  []bool               // by buffer
	request pipelinefile.Request // but for the size of a group
	first   *pipeline            // as compiled

	mu struct {
		sync.Mutex
		leases map[gpuexec.Size]*pipelinefile.Lease
	}
}

// format is that of blobs: the module of a shader in GLSL.
var format = sealed.Format{Backend: Name, Magic: "kilnspv\x01"}

// Compile implements gpuexec.Device.
func (d *device) Compile(ctx context.Context, src gpuexec.Source) (gpuexec.Program, error) {
	code, err := codeOf(src)
	if err != nil {
		return nil, err
	}
	if code.Language == GLSL {
		words, err := d.b.compile(ctx, code)
		if err != nil {
			return nil, err
		}
		return d.program(ctx, src, code, words)
	}
	return d.given(ctx, src, code)
}

// given makes the program of a module that the source has.
func (d *device) given(ctx context.Context, src gpuexec.Source, code gpuexec.Code) (gpuexec.Program, error) {
	words, err := spirv.Words([]byte(code.Text))
	if err != nil {
		return nil, err
	}
	return d.program(ctx, src, code, words)
}

// Load implements gpuexec.Device. The blob of a shader in GLSL is its module. That of a
// module says that it was built before and no more: stores and kiln warm count it.
func (d *device) Load(ctx context.Context, src gpuexec.Source, blob []byte) (gpuexec.Program, error) {
	code, err := codeOf(src)
	if err != nil {
		return nil, err
	}
	module, err := format.Open(src.Key, blob)
	if err != nil {
		return nil, err
	}
	if code.Language != GLSL {
		return d.given(ctx, src, code)
	}
	words, err := spirv.Words(module)
	if err != nil {
		return nil, err
	}
	return d.program(ctx, src, code, words)
}

// codeOf is the code of a source in one of the languages.
func codeOf(src gpuexec.Source) (gpuexec.Code, error) {
	code, ok := src.Spec.(gpuexec.Code)
	switch {
	case !ok:
		return code, failure("compile", fault.ErrUnsupported, "a source of type %T, want a gpuexec.Code in spirv or glsl", src.Spec)
	case code.Language == GLSL:
		return code, checkGLSL(code)
	case code.Language != SPIRV:
		return code, failure("compile", fault.ErrUnsupported, "language %q, want spirv or glsl", code.Language)
	case len(code.Options)+len(code.Defines)+len(code.Includes) > 0:
		return code, fault.Invalidf("vulkan: compile", "options, defines or includes beside a module: they are for %s", GLSL)
	}
	return code, nil
}

// program makes the pipeline of a module and checks that it fits the source.
func (d *device) program(ctx context.Context, src gpuexec.Source, code gpuexec.Code, words []uint32) (gpuexec.Program, error) {
	p := &program{d: d, key: src.Key, glsl: code.Language == GLSL}
	p.mu.leases = make(map[gpuexec.Size]*pipelinefile.Lease)
	for _, q := range src.Params {
		if q.Kind == gpuexec.ParamBuffer {
			p.writes = append(p.writes, !q.ReadOnly)
		}
	}
	var err error
	if p.request, err = d.request(src, code, words); err != nil {
		return nil, err
	}
	if p.first, err = p.pipeline(ctx, code.Block); err != nil {
		return nil, err
	}
	if err := p.first.fits(src.Params); err != nil {
		p.end()
		return nil, err
	}
	d.save(saveEvery)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.programs[p] = struct{}{}
	return p, nil
}

// request is what the cache of pipelines is asked for; words is the module.
func (d *device) request(src gpuexec.Source, code gpuexec.Code, words []uint32) (r pipelinefile.Request, err error) {
	r.Shader, r.Words = src.Key, words
	if code.Entry != "main" {
		r.Entry = code.Entry
	}
	for id, value := range code.Constants {
		c := pipelinefile.Constant{ID: id, Bytes: uint8(len(value))}
		if n := len(value); n != 1 && n != 2 && n != 4 && n != 8 {
			return r, fault.Invalidf("vulkan: compile", "specialisation constant %d has %d bytes, want 1, 2, 4 or 8", id, n)
		}
		c.Value = binary.LittleEndian.Uint64(append(slices.Clone(value), make([]byte, 8)...))
		r.Constants = append(r.Constants, c)
	}
	slices.SortFunc(r.Constants, func(a, b pipelinefile.Constant) int { return cmp.Compare(a.ID, b.ID) })
	return r, nil
}

// bytesOf is how many bytes of push constants a parameter takes.
func bytesOf(p gpuexec.Param) int64 {
	switch p.Kind {
	case gpuexec.ParamStruct:
		return p.Bytes
	case gpuexec.ParamI8, gpuexec.ParamU8:
		return 1
	case gpuexec.ParamI16, gpuexec.ParamU16:
		return 2
	case gpuexec.ParamI64, gpuexec.ParamU64, gpuexec.ParamF64:
		return 8
	}
	return 4
}

// fits refuses parameters that are not the module's.
func (p *pipeline) fits(params []gpuexec.Param) error {
	buffers, push := 0, int64(0)
	for i, q := range params {
		switch q.Kind {
		case gpuexec.ParamBuffer:
			if q.ReadOnly && buffers < len(p.bindings) && !p.module.Bindings[buffers].ReadOnly {
				return fault.Invalidf("vulkan: compile", "parameter %d is ReadOnly, the module can write binding %d: declare it readonly there", i, p.bindings[buffers].Number)
			}
			buffers++
			continue
		case gpuexec.ParamLocal:
			return failure("compile", fault.ErrUnsupported, "parameter %d is local memory: declare it in the module, its size a specialisation constant", i)
		}
		bytes := bytesOf(q)
		align := pushAlign(q.Kind, bytes)
		push = (push+align-1)/align*align + bytes
	}
	if have := len(p.bindings); buffers != have {
		return fault.Invalidf("vulkan: compile", "%d buffer parameters, the module has %d buffers", buffers, have)
	}
	if have := int64(p.module.PushBytes); push != have {
		return fault.Invalidf("vulkan: compile", "numbers and structs of %d bytes, the module has push constants of %d", push, have)
	}
	return nil
}

// pipeline is the one for a size of blocks; zero leaves it to the module.
func (p *program) pipeline(ctx context.Context, size gpuexec.Size) (*pipeline, error) {
	p.mu.Lock()
	l := p.mu.leases[size]
	p.mu.Unlock()
	if l == nil {
		r := p.request
		for i, n := range size {
			r.LocalSize[i] = uint32(n)
		}
		var err error
		if l, _, err = p.d.pipelines.Get(ctx, r); err != nil {
			return nil, err
		}
		p.d.saveSoon()
		p.mu.Lock()
		if other := p.mu.leases[size]; other != nil {
			l.End()
			l = other
		} else {
			p.mu.leases[size] = l
		}
		p.mu.Unlock()
	}
	return l.Pipeline().(*pipeline), nil
}

// sized is the pipeline for a launch's blocks.
func (p *program) sized(ctx context.Context, block gpuexec.Size) (*pipeline, error) {
	if block == p.first.size {
		return p.first, nil
	}
	return p.pipeline(ctx, block)
}

// Block is the size of the blocks of a launch that gives none: the executor asks.
func (p *program) Block() gpuexec.Size { return p.first.size }

// Bytes implements gpuexec.Program.
func (p *program) Bytes() int64 { return p.first.bytes }

// Blob implements gpuexec.Program.
func (p *program) Blob(context.Context) ([]byte, error) {
	if !p.glsl {
		return format.Seal(p.key, []byte(SPIRV)), nil
	}
	module := make([]byte, 0, 4*len(p.request.Words))
	for _, w := range p.request.Words {
		module = binary.LittleEndian.AppendUint32(module, w)
	}
	return format.Seal(p.key, module), nil
}

// Requires implements gpuexec.Program: the driver does not say.
func (p *program) Requires() []string { return nil }

// Release implements gpuexec.Program.
func (p *program) Release() {
	p.d.mu.Lock()
	delete(p.d.mu.programs, p)
	p.d.mu.Unlock()
	p.end()
}

// end gives the pipelines back, for good where nobody else uses them.
func (p *program) end() {
	for _, l := range p.mu.leases {
		l.Evict()
	}
}
