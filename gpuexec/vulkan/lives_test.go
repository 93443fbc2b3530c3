//go:build linux && (amd64 || arm64)

package vulkan

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/generaltest"
	"github.com/kiln-cache/kiln/gpuexec/internal/lives"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/spirv"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/vk"
)

// watched is a backend whose first device tells how many objects it has.
type watched struct {
	*Backend
	first *vk.Device
}

func (w *watched) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := w.Backend.Open(ctx, index)
	if err == nil && w.first == nil {
		w.first = d.(*device).vk
	}
	return d, err
}

func (w *watched) objects() int64 { return w.first.Objects() + w.counts.leaked.Load() }

// E1: launches, pipelines that come and go, and devices that are opened and closed leave no
// object of the driver, and no more memory than its calls alone: -long makes it a long life.
func TestLives(t *testing.T) {
	w := &watched{Backend: driven(t, Config{})}
	lives.Test(t, "TestLives", lives.Subject{
		Backend: w, Objects: w.objects, Driver: func() (lives.Calls, error) { return driverAlone(t, w, 1) },
		Source: func(i int) gpuexec.Source {
			return source(t, gpuexec.Code{Language: SPIRV, Text: axpyModule, Block: gpuexec.Size{1},
				Constants: map[uint32][]byte{1: gpuexec.BytesOf([]uint32{uint32(i + 2)})}}, buffer, buffer, f32, u32)
		},
		Args: func(b *gpuexec.Buffer) []gpuexec.Arg {
			return []gpuexec.Arg{gpuexec.BufferArg(b), gpuexec.BufferArg(b), gpuexec.ValueArg(float32(0)), gpuexec.ValueArg(uint32(1))}
		},
	})
}

// driverAlone makes the calls that an executor makes for so many launches at a time, without one.
func driverAlone(t testing.TB, w *watched, launches int) (c lives.Calls, err error) {
	opened, err := w.Open(t.Context(), 0)
	if err != nil {
		return c, err
	}
	d := opened.(*device)
	words, err := spirv.Words([]byte(axpyModule))
	if err != nil {
		return c, err
	}
	commands, err := d.vk.Commands(d.family)
	if err != nil {
		return c, err
	}
	data, err := d.Alloc(1024)
	if err != nil {
		return c, err
	}
	part := vk.BufferPart{Buffer: data.(*part).of.buffer, Bytes: 1024}
	launch := func(p *pipeline) error {
		if err := commands.Begin(); err != nil {
			return err
		}
		for range launches {
			if err := commands.Launch(p.handle, p.layout, p.bindings, []vk.BufferPart{part, part}, []byte{0, 0, 0, 0, 1, 0, 0, 0}, [3]uint32{1, 1, 1}); err != nil {
				return err
			}
			commands.Barrier()
		}
		if err := commands.Submit(d.queues[0].queue); err != nil {
			return err
		}
		_, err := commands.Wait(time.Minute)
		return err
	}
	build := func(i int) (*pipeline, error) {
		made, err := driver{d}.Build(t.Context(), pipelinefile.Module{Words: words, Entry: "main", LocalSize: [3]uint32{1, 1, 1},
			Constants: []pipelinefile.Constant{{ID: 1, Value: uint64(i + 2)}}}, nil)
		if err != nil {
			return nil, err
		}
		return made.(*pipeline), nil
	}
	kept, err := build(-1)
	if err != nil {
		return c, err
	}
	c.Launch = func() error { return launch(kept) }
	c.Compile = func(i int) error {
		p, err := build(i)
		if err != nil {
			return err
		}
		defer p.Destroy()
		return launch(p)
	}
	c.Open = func() error {
		d, err := d.of.Open(d.family, 1)
		if err != nil {
			return err
		}
		defer d.Close()
		q, err := d.Commands(0)
		if err == nil {
			q.Close()
		}
		return err
	}
	c.Close = func() error {
		kept.Destroy()
		commands.Close()
		data.Release()
		return d.Close()
	}
	return c, nil
}

// An executor adds little to the driver's calls that a launch takes: -held holds it to a gate,
// and -v shows the figures.
func TestLaunchCost(t *testing.T) {
	w := &watched{Backend: driven(t, Config{})}
	raw, err := driverAlone(t, w, generaltest.Sequence)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	e := open(t, w.Backend, 1)
	k, x := compile(t, e, axpy(t, 1)), alloc(t, e, 1024)
	launches := slices.Repeat([]gpuexec.Launch{{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{
		gpuexec.BufferArg(x), gpuexec.BufferArg(x), gpuexec.ValueArg(float32(0)), gpuexec.ValueArg(uint32(1))}}}, generaltest.Sequence)
	generaltest.LaunchCost(t, func() error { return e.Submit(t.Context(), launches...) }, raw.Launch)
}
