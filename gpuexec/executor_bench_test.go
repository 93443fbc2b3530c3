package gpuexec_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// BenchmarkLaunch is the executor's own cost per launch within one submitted
// sequence: what a launch costs beyond the driver's call, which the fake device
// makes as cheap as a call can be. Goal 1 us, gate 3 us.
func BenchmarkLaunch(b *testing.B) {
	ctx := context.Background()
	f := &fakedevice.Backend{}
	e, err := gpuexec.Open(ctx, gpuexec.Config{Backend: f, Workers: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close(ctx)
	params := []gpuexec.Param{{Kind: gpuexec.ParamBuffer, Bytes: 64}, {Kind: gpuexec.ParamBuffer, Bytes: 64}, {Kind: gpuexec.ParamU32}}
	k, err := e.Compile(ctx, source("k", params...))
	if err != nil {
		b.Fatal(err)
	}
	defer k.Release()
	buffer, err := e.Alloc(ctx, 64)
	if err != nil {
		b.Fatal(err)
	}
	defer buffer.Release()
	device, err := f.Open(ctx, 0)
	if err != nil {
		b.Fatal(err)
	}
	queue, err := device.OpenQueue()
	if err != nil {
		b.Fatal(err)
	}
	program, err := device.Compile(ctx, source("k", params...))
	if err != nil {
		b.Fatal(err)
	}
	memory, err := device.Alloc(64)
	if err != nil {
		b.Fatal(err)
	}

	const sequence = 224 // the operations of a BERT-base
	launches := make([]gpuexec.Launch, sequence)
	for i := range launches {
		launches[i] = gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1},
			Args: []gpuexec.Arg{gpuexec.BufferArg(buffer), gpuexec.BufferArg(buffer), gpuexec.ValueArg(uint32(7))}}
	}
	args := []gpuexec.DeviceArg{{Memory: memory, Bytes: 64}, {Memory: memory, Bytes: 64}, {Value: 7}}
	var ours, raw time.Duration
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		if err := e.Submit(ctx, launches...); err != nil {
			b.Fatal(err)
		}
		between := time.Now()
		for range sequence {
			if err := queue.Launch(ctx, program, args, gpuexec.Size{1, 1, 1}, gpuexec.Size{1, 1, 1}); err != nil {
				b.Fatal(err)
			}
		}
		ours += between.Sub(began)
		raw += time.Since(between)
	}
	n := float64(b.N * sequence)
	b.ReportMetric(float64(ours.Nanoseconds())/n, "ns/launch")
	b.ReportMetric(float64((ours-raw).Nanoseconds())/n, "ns/own")
	b.ReportMetric(float64(ours)/float64(raw), "launch/driver")
}

// BenchmarkChain is what a run costs that begins when another has ended, with a launch that
// costs nothing, in chains of several lengths.
func BenchmarkChain(b *testing.B) {
	ctx := context.Background()
	e, err := gpuexec.Open(ctx, gpuexec.Config{Backend: &fakedevice.Backend{}, Workers: 2, Queue: 1 << 15})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close(ctx)
	k, err := e.Compile(ctx, source("k"))
	if err != nil {
		b.Fatal(err)
	}
	defer k.Release()
	launch := gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}
	for _, length := range []int{1e2, 1e3, 1e4} {
		b.Run(strconv.Itoa(length), func(b *testing.B) {
			for b.Loop() {
				run, err := e.Start(ctx, launch)
				for n := 1; n < length && err == nil; n++ {
					run, err = e.StartAfter(ctx, []*gpuexec.Run{run}, launch)
				}
				if err != nil {
					b.Fatal(err)
				}
				if err := run.Wait(ctx); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*length), "ns/run")
		})
	}
}
