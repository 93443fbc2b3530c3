//go:build linux && (amd64 || arm64)

package cuda

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// product is the side of a program that may be cuBLAS's.
type product struct {
	class    ops.Op // that is measured; the zero Op: the program is no product, or there is no cuBLAS
	bias     handle // the kernel that adds one
	measured bool   // else nothing was chosen, and this package's kernel computes it
	theirs   bool   // cuBLAS computes it
}

// multiply has cuBLAS compute a product, on the worker's stream. It gives false where this
// package's kernel is to do so: after a fault for as long as the device is open, so that
// results do not go to and fro.
func (q *queue) multiply(p *program, args []gpuexec.DeviceArg) bool {
	if !p.product.theirs || q.d.distrusted.Load() {
		return false
	}
	tensors := slices.IndexFunc(args, func(a gpuexec.DeviceArg) bool { return a.Kind != gpuexec.ParamBuffer })
	at := make([]uintptr, tensors)
	for i := range at {
		at[i] = uintptr(args[i].Memory.(*memory).at) + uintptr(args[i].Offset)
	}
	var d [5]int64
	for i := range p.product.class.Kind.Dims() {
		if d[i] = int64(uint32(args[tensors+i].Value)); d[i] == 0 {
			return false // a run that touches nothing
		}
	}
	err := q.d.within("launch", func() error {
		if err := q.openBLAS(); err != nil {
			return err
		}
		if p.product.class.Kind == ops.BatchMatMul {
			return q.batched(p, at, d, math.Float32frombits(uint32(args[len(args)-1].Value)))
		}
		return q.weighed(p, at, d)
	})
	if err != nil {
		q.d.distrusted.Store(true)
	}
	return err == nil
}

// weighed is a product with a weight in panels: one product for each whole panel, and one
// for what is left, as columns of what comes out.
func (q *queue) weighed(p *program, at []uintptr, d [5]int64) error {
	m, k, n := d[0], d[1], d[2]
	whole, out := n/panel, at[len(at)-1]
	g := gemm{columns: panel, rows: m, depth: k, alpha: 1, right: at[1], left: at[0], out: out,
		ofRight: panel, ofLeft: k, ofOut: n, nextRight: panel * k, nextOut: panel, count: whole}
	if err := q.gemm(g); err != nil {
		return err
	}
	g.columns, g.count = n%panel, 1
	g.right, g.out = g.right+uintptr(4*whole*panel*k), g.out+uintptr(4*whole*panel)
	if err := q.gemm(g); err != nil || !p.product.class.Bias {
		return err
	}
	bias, rows, columns := at[2], uint32(m), uint32(n)
	args := []unsafe.Pointer{unsafe.Pointer(&out), unsafe.Pointer(&bias), unsafe.Pointer(&rows), unsafe.Pointer(&columns)}
	return q.d.failed("launch", cuLaunchKernel, q.d.call(cuLaunchKernel, uintptr(p.product.bias), uintptr(blocks(m, rowBlock/32)), 1, 1, rowBlock, 1, 1,
		0, uintptr(q.stream), uintptr(unsafe.Pointer(&args[0])), 0))
}

// batched is a product of each head of a batch.
func (q *queue) batched(p *program, at []uintptr, d [5]int64, scale float32) error {
	m, k, n := d[2], d[3], d[4]
	g := gemm{columns: n, rows: m, depth: k, alpha: scale, right: at[1], left: at[0], out: at[3],
		ofRight: n, ofLeft: k, ofOut: n, nextRight: k * n, nextLeft: m * k, nextOut: m * n, count: d[0] * d[1]}
	if p.product.class.TransposeB {
		g.turned, g.ofRight = 1, k
	}
	return q.gemm(g)
}

// choices has what was measured in this process, so that a program that is compiled once
// more is computed as it was.
var choices sync.Map // bool by choiceKey

type choiceKey struct {
	ordinal         int32
	version, source string
}

// choose settles whose product a new program's is. Where a measurement fails nothing is
// chosen, and the kernel of this package computes; a device that is lost is said so.
func (d *device) choose(ctx context.Context, p *program) error {
	if p.product.class == (ops.Op{}) {
		return nil
	}
	if d.chosen(p) || d.distrusted.Load() {
		return nil
	}
	select {
	case d.primary.measuring <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-d.primary.lost:
		return failure("compile", fault.ErrDeviceLost, "the context was lost meanwhile")
	}
	defer func() { <-d.primary.measuring }()
	if d.chosen(p) {
		return nil
	}
	best, err := d.measure(ctx, p)
	switch {
	case err == nil:
		d.keep(p, best[1] < best[0])
	case errors.Is(err, fault.ErrDeviceLost):
		return err
	}
	return ctx.Err()
}

// choiceOf is what choices have a program by.
func (d *device) choiceOf(p *program) choiceKey {
	return choiceKey{d.ordinal, d.cublas.version, p.key}
}

// chosen has a program computed as it was before in this process, if it was.
func (d *device) chosen(p *program) bool {
	theirs, known := choices.Load(d.choiceOf(p))
	if known {
		p.product.measured, p.product.theirs = true, theirs.(bool)
	}
	return known
}

// keep has a program computed as it was measured, unless this process has chosen before.
func (d *device) keep(p *program, theirs bool) {
	first, _ := choices.LoadOrStore(d.choiceOf(p), theirs)
	p.product.measured, p.product.theirs = true, first.(bool)
}

// What a blob has of a choice.
const (
	byKernel byte = iota
	byCuBLAS
	unmeasured
)

// choice is that of a program.
func (p *product) choice() byte {
	switch {
	case !p.measured:
		return unmeasured
	case p.theirs:
		return byCuBLAS
	}
	return byKernel
}

// heed has a program that was loaded computed as its blob says. One that was not measured is
// measured now.
func (d *device) heed(ctx context.Context, p *program, choice byte) error {
	switch {
	case choice > unmeasured:
		return refused(fault.Format, "", "choice %d is not known", choice)
	case choice == unmeasured:
		return d.choose(ctx, p)
	case p.product.class != (ops.Op{}):
		d.keep(p, choice == byCuBLAS)
	}
	return nil
}

const (
	mostMeasured = 1 << 26 // numbers of all tensors of a measurement
	launchesEach = 4       // between two events
	turns        = 3       // of both
	mostCompared = 1 << 16 // numbers at either end of what both compute
)

var mostSums int64 = 1 << 35 // numbers that are multiplied in a measurement; tests have fewer

// measured is a class in bounded memory and time: its largest dimension is halved until it
// is small enough.
func measured(class ops.Op) ops.Op {
	for {
		numbers, sums, largest := int64(0), int64(1), 0
		for _, n := range general.Elements(class, panel) {
			numbers += n
		}
		for i := range class.Kind.Dims() {
			sums *= class.Dims[i]
			if class.Dims[i] > class.Dims[largest] {
				largest = i
			}
		}
		if numbers <= mostMeasured && sums <= mostSums {
			return class
		}
		class.Dims[largest] /= 2
	}
}

// measure gives how many milliseconds some launches take on this device, at best, of the
// kernel and of cuBLAS, in turns. Both are to compute the same.
func (d *device) measure(ctx context.Context, p *program) (best [2]float32, err error) {
	op := measured(p.product.class)
	args, release, err := d.operands(op)
	defer release()
	if err != nil {
		return best, err
	}
	opened, err := d.OpenQueue()
	if err != nil {
		return best, err
	}
	q, ours, theirs := opened.(*queue), *p, *p
	defer func() { err = errors.Join(err, q.Close()) }() // before memory goes
	ours.product.theirs, theirs.product.theirs = false, true
	grid, _ := backend{}.Launch(op)
	for i := range grid {
		grid[i] = max(1, grid[i])
	}
	launches := [2]func() error{
		func() error { return q.Launch(ctx, &ours, args, grid, gpuexec.Size{productBlock, 1, 1}) },
		func() error {
			if !q.multiply(&theirs, args) {
				return errBLAS
			}
			return nil
		},
	}
	if err := cmp.Or(q.compare(launches, args), ctx.Err()); err != nil {
		return best, err
	}
	for turn := range turns {
		for i, launch := range launches {
			took, err := q.timed(launch)
			if err := cmp.Or(err, ctx.Err()); err != nil {
				return best, err
			}
			if turn == 0 || took < best[i] {
				best[i] = took
			}
		}
	}
	return best, nil
}

// compare has both compute once, which loads them, and holds what comes out of cuBLAS against
// what comes out of the kernel. Operands are small whole numbers, so that sums are exact in
// whatever order. After other numbers cuBLAS is distrusted.
func (q *queue) compare(launches [2]func() error, args []gpuexec.DeviceArg) error {
	var out gpuexec.DeviceArg
	for i, a := range args {
		if a.Memory == nil {
			break
		}
		rnd, numbers := rand.New(rand.NewPCG(1, uint64(i))), make([]float32, min(a.Bytes/4, 65521)) // a prime, so that no row is as the next
		for j := range numbers {
			numbers[j] = float32(rnd.IntN(5) - 2)
		}
		for at := int64(0); at < a.Bytes; at += int64(4 * len(numbers)) {
			if err := q.Write(a.Memory, at, gpuexec.BytesOf(numbers[:min(int64(len(numbers)), (a.Bytes-at)/4)])); err != nil {
				return err
			}
		}
		out = a
	}
	var results [2][]float32
	for _, i := range []int{1, 0} { // what cuBLAS has not written is not yet the kernel's
		if err := launches[i](); err != nil {
			return err
		}
		results[i] = make([]float32, 2*min(out.Bytes/4, mostCompared))
		half := len(results[i]) / 2
		err := cmp.Or(q.Read(out.Memory, 0, gpuexec.BytesOf(results[i][:half])), q.Read(out.Memory, out.Bytes-int64(4*half), gpuexec.BytesOf(results[i][half:])))
		if err != nil {
			return err
		}
	}
	if !slices.Equal(results[0], results[1]) {
		q.d.distrusted.Store(true)
		return errBLAS
	}
	return nil
}

// operands are arguments for a launch of an operation, and what gives them back.
func (d *device) operands(op ops.Op) (args []gpuexec.DeviceArg, release func(), err error) {
	release = func() {
		for _, a := range args {
			if a.Memory != nil {
				a.Memory.Release()
			}
		}
	}
	for _, n := range general.Elements(op, panel) {
		m, err := d.Alloc(4 * n)
		if err != nil {
			return args, release, err
		}
		args = append(args, gpuexec.DeviceArg{Kind: gpuexec.ParamBuffer, Memory: m, Bytes: 4 * n})
	}
	for i := range op.Kind.Dims() {
		args = append(args, gpuexec.DeviceArg{Kind: gpuexec.ParamU32, Bytes: 4, Value: uint64(op.Dims[i])})
	}
	if op.Kind == ops.BatchMatMul {
		args = append(args, gpuexec.DeviceArg{Kind: gpuexec.ParamF32, Bytes: 4, Value: uint64(math.Float32bits(1))})
	}
	return args, release, nil
}

// timed is how many milliseconds some launches take on the device.
func (q *queue) timed(launch func() error) (float32, error) {
	d, took := q.d, new(float32)
	err := d.within("measure", func() (err error) {
		var events [2]handle
		defer func() {
			for _, e := range events {
				d.release(cuEventDestroy, e)
			}
		}()
		for i := range events {
			if events[i], err = d.make("measure", cuEventCreate, 0); err != nil {
				return err
			}
		}
		record := func(e handle) error {
			return d.failed("measure", cuEventRecord, d.call(cuEventRecord, uintptr(e), uintptr(q.stream)))
		}
		if err := record(events[0]); err != nil {
			return err
		}
		for range launchesEach {
			if err := launch(); err != nil {
				return err
			}
		}
		if err := record(events[1]); err != nil {
			return err
		}
		if err := d.failed("measure", cuEventSynchronize, d.call(cuEventSynchronize, uintptr(events[1]))); err != nil {
			return err
		}
		return d.failed("measure", cuEventElapsedTime, d.call(cuEventElapsedTime, uintptr(unsafe.Pointer(took)), uintptr(events[0]), uintptr(events[1])))
	})
	return *took, err
}

// sealedBy is what a blob is sealed for: a choice holds for one cuBLAS on one kind of device.
func (d *device) sealedBy(key string, class ops.Op) string {
	if class == (ops.Op{}) {
		return key
	}
	return key + ", cuBLAS " + d.cublas.version + " on " + d.info.Name
}

// productOf is the class that the program of a source is measured for, if it is.
func (d *device) productOf(code gpuexec.Code) (ops.Op, error) {
	text, chosen := code.Defines[classMacro]
	if !chosen || code.Text != operations {
		return ops.Op{}, nil
	}
	op, err := ops.Parse(text)
	if err != nil || !slices.Contains([]ops.Kind{ops.MatMul, ops.BatchMatMul}, op.Kind) || op.MaskK {
		return ops.Op{}, failure("compile", fault.ErrInvalid, "%s %q is no class of products", classMacro, text)
	}
	if d.cublas == nil {
		return ops.Op{}, failure("compile", fault.ErrUnavailable, "the source is of a backend with cuBLAS, the device is open without")
	}
	return op, nil
}
