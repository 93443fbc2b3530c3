package forward_test

import (
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/measure"
)

// held opens a device in a runtime of its own and gives an executor, and a group
// that has the kernel of a source as "gelu".
func held(b *testing.B, name string) (*gpuexec.Executor, *kiln.Group, gpuexec.Source) {
	b.Helper()
	lib := ops.Find(name)
	if d := lib.Devices(bg)[0]; !d.Available {
		b.Skip(d.Reason)
	}
	rt, err := kiln.Open(kiln.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = rt.Close(bg) })
	e, err := rt.Executor(bg, lib, 0)
	if err != nil {
		b.Fatal(err)
	}
	session, err := rt.Session(kiln.SessionConfig{})
	if err != nil {
		b.Fatal(err)
	}
	group, err := session.Group(bg, []int64{1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(group.Close)
	source, err := lib.Source(ops.New(ops.GELU, 512, 1024))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := group.Kernel(bg, "gelu", e, source); err != nil {
		b.Fatal(err)
	}
	return e, group, source
}

const hits = 20_000

// BenchmarkKernelHit gives what a hit of a kernel takes on each device, in times one of cpu,
// in turns: median, least and most.
func BenchmarkKernelHit(b *testing.B) {
	hit := func(b *testing.B, name string) measure.Side {
		e, group, source := held(b, name)
		return measure.Clocked(func() error {
			for range hits {
				if _, err := group.Kernel(bg, "gelu", e, source); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, name := range ops.Names() {
		if name == cpu.Name {
			continue
		}
		b.Run(name, func(b *testing.B) {
			there, here := hit(b, name), hit(b, cpu.Name)
			var ratios []float64
			var each float64
			for b.Loop() {
				took, err := measure.Turns(bg, 5, 1, there, here)
				if err != nil {
					b.Fatal(err)
				}
				each = took[0].Seconds() / hits
				ratios = append(ratios, took[0].Seconds()/took[1].Seconds())
			}
			b.Logf("%.0f ns a hit, in times cpu's %+v", each*1e9, measure.SpreadOf(ratios))
		})
	}
}

// BenchmarkPause gives the 95th percentile of the times for which garbage collections stop the world, of
// 200, while a device computes a model without a pause: median, least and most of the rounds.
func BenchmarkPause(b *testing.B) {
	list, _ := data.Model("minilm_l6_h384")
	for _, name := range ops.Names() {
		b.Run(name, func(b *testing.B) {
			lib := ops.Find(name)
			if d := lib.Devices(bg)[0]; !d.Available {
				b.Skip(d.Reason)
			}
			r := openOn(b, lib, list)
			model, _ := r.model(kiln.SessionConfig{})
			ids := r.ids(0, 128)
			r.run(model, ids)
			var long []float64
			for b.Loop() {
				p95, err := measure.PauseBeside(200, 95, func() error {
					_, err := model.Run(bg, [][]int32{ids})
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
				long = append(long, float64(p95.Microseconds()))
			}
			b.Logf("in microseconds: %+v", measure.SpreadOf(long))
		})
	}
}
