//go:build linux && (amd64 || arm64)

package cuda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/generaltest"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// A measurement that fails chooses nothing: the kernel computes, and whoever loads the blob
// later measures. Otherwise a moment without memory would choose for all processes of a store.
func TestFailedProductMeasurementChoosesNothing(t *testing.T) {
	op := biased(3, 5, 40)
	noMemory := func(called function) int32 {
		if called == cuMemAllocFromPoolAsync || called == cuMemAlloc {
			return outOfMemory
		}
		return success
	}
	for _, c := range []struct {
		what string
		fail func()
	}{
		{"cuBLAS has no memory", func() {
			theirs().Fault = func(name string) int32 {
				if name == blasNames[blasCreate] {
					return 3
				}
				return success
			}
		}},
		{"the device has no memory", func() { inject.Store(&noMemory) }},
	} {
		b, products := withBLAS(t, quick)
		counts := theirs().Fault
		src := must(b.Source(op))
		e := must(gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 1}))
		c.fail()
		k, err := e.Compile(bg, src)
		inject.Store(nil)
		theirs().Fault = counts
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if got, want := run(t, e, op, k); !equal(got, want) || products.Load() > 0 {
			t.Errorf("%s: %v, want %v; cuBLAS was asked %d times", c.what, got, want, products.Load())
		}
		blob := must(k.Blob(bg))
		k.Release()
		check(e.Close(bg))

		e = generaltest.Open(t, b, 1)
		again := must(e.Load(bg, src, blob))
		defer again.Release()
		before := products.Load()
		if before == 0 {
			t.Errorf("%s: whoever loads the blob measures nothing", c.what)
		}
		if got, want := run(t, e, op, again); !equal(got, want) || products.Load() == before {
			t.Errorf("%s: loaded: %v, want %v; cuBLAS was asked: %t", c.what, got, want, products.Load() > before)
		}
	}
}

// A choice that came from a store is this process's: what is compiled later is not measured.
func TestLoadedProductIsCompiledOnceMore(t *testing.T) {
	op := biased(3, 5, 40)
	for _, cost := range []float32{quick, slow} {
		b, _ := withBLAS(t, cost)
		src := must(b.Source(op))
		e := must(gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 1}))
		k := must(e.Compile(bg, src))
		blob := must(k.Blob(bg))
		k.Release()
		check(e.Close(bg))

		b, products := withBLAS(t, quick+slow-cost) // another process
		e = must(gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 1}))
		must(e.Load(bg, src, blob)).Release()
		check(e.Close(bg))
		e = generaltest.Open(t, b, 1)
		again := compile(t, e, src)
		if n := products.Load(); n > 0 {
			t.Errorf("cost %v: %d products were measured", cost, n)
		}
		if run(t, e, op, again); products.Load() > 0 != (cost == quick) {
			t.Errorf("cost %v: cuBLAS was asked %d times", cost, products.Load())
		}
	}
}

// Whoever waits for another's measurement waits no longer than its context and its device
// last, and does not wait where it was chosen before, nor for another device.
func TestWaitingForAnotherProductsMeasurement(t *testing.T) {
	b, products := withBLAS(t, quick)
	src := must(b.Source(biased(3, 5, 40)))
	blob := productBlob(t, b, biased(3, 5, 40))
	choose := func(ctx context.Context, prepare func(d *device)) error {
		d := must(b.open(bg, 0)).(*device)
		p := must(d.Load(bg, src, blob)).(*program)
		choices.Clear()
		products.Store(0)
		ended := make(chan error, 1)
		d.primary.measuring <- struct{}{}
		defer func(p *primary) { <-p.measuring }(d.primary)
		prepare(d)
		go func() { ended <- d.choose(ctx, p) }()
		select {
		case err := <-ended:
			check(d.Close())
			return err
		case <-time.After(20 * time.Second):
			t.Fatal("it waits for a measurement that does not end")
			return nil
		}
	}
	over, cancel := context.WithCancel(bg)
	cancel()
	if err := choose(over, func(*device) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	if err := choose(bg, func(d *device) { d.primary.lose() }); !errors.Is(err, fault.ErrDeviceLost) {
		t.Errorf("a device that is lost: %v", err)
	}
	if err := choose(bg, func(d *device) { choices.Store(choiceKey{d.ordinal, d.cublas.version, src.Key}, true) }); err != nil {
		t.Errorf("chosen before: %v", err)
	}
	if err := choose(bg, func(d *device) { d.distrusted.Store(true) }); err != nil {
		t.Errorf("cuBLAS has failed before: %v", err)
	}
	if products.Load() > 0 {
		t.Error("products were measured beside a measurement")
	}
	err := choose(bg, func(d *device) {
		other := must(b.open(bg, 1)).(*device)
		p := must(other.Load(bg, src, blob)).(*program)
		choices.Clear()
		check(other.choose(bg, p))
		check(other.Close())
		choices.Store(d.choiceOf(p), true)
	})
	if err != nil || products.Load() == 0 {
		t.Errorf("another device: %v, %d products were measured", err, products.Load())
	}
}

// On one device one measures at a time, and what waited for a measurement of its own product
// measures nothing.
func TestProductsAreMeasuredInTurnAndOnce(t *testing.T) {
	b, products := withBLAS(t, quick)
	op := ops.New(ops.MatMul, 3, 5, panel) // a call of cuBLAS for each product
	blob := productBlob(t, b, op)
	var ds [2]*device
	for i := range ds { // of two executors
		ds[i] = must(b.open(bg, 0)).(*device)
		defer func() { check(ds[i].Close()) }()
	}
	p := must(ds[0].Load(bg, must(b.Source(op)), blob)).(*program)
	choices.Clear()
	products.Store(0)
	var started, measuring, most atomic.Int64
	const workers, classes = 8, 25
	counts := theirs().Fault
	theirs().Fault = func(name string) int32 {
		switch name {
		case blasNames[blasCreate]:
			for started.Load() < workers { // so that some wait
				runtime.Gosched()
			}
			most.Store(max(most.Load(), measuring.Add(1)))
		case blasNames[blasDestroy]:
			measuring.Add(-1)
		}
		return counts(name)
	}
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			started.Add(1)
			for class := range classes {
				mine := *p
				mine.d, mine.key = ds[i%2], fmt.Sprint("class ", class)
				if err := mine.d.choose(bg, &mine); err != nil || !mine.product.theirs {
					t.Errorf("%v, chosen: %t", err, mine.product.theirs)
				}
			}
		})
	}
	all.Wait()
	if most.Load() != 1 {
		t.Errorf("%d measured at a time", most.Load())
	}
	if got, want := products.Load(), int64(classes*(1+turns*launchesEach)); got != want {
		t.Errorf("%d products were measured, want %d", got, want)
	}
}

// The best turn counts, of products that differ in nothing but what was measured too. A tie is
// the kernel's.
func TestBestTurnOfAProductCounts(t *testing.T) {
	b, _ := withBLAS(t, quick)
	op := ops.New(ops.MatMul, 3, 5, panel)
	d := must(b.open(bg, 0)).(*device)
	defer func() { check(d.Close()) }()
	p := must(d.Load(bg, must(b.Source(op)), productBlob(t, b, op))).(*program)
	tie := must(d.measure(bg, p))[0] / launchesEach
	choices.Clear()
	for i, c := range []struct {
		costs  []float32 // of the first product, and in each turn
		theirs bool
	}{
		{[]float32{slow, quick, slow, slow}, true}, {[]float32{slow, slow, slow, quick}, true}, {[]float32{quick, slow, slow, slow}, false},
		{[]float32{slow, slow, tie, slow}, false}, {[]float32{slow, slow, tie - quick, slow}, true},
	} {
		calls := 0
		theirs().Fault = func(name string) int32 {
			if name == blasNames[blasProducts] {
				theirs().Cost = c.costs[(calls+launchesEach-1)/launchesEach]
				calls++
			}
			return success
		}
		mine := *p
		mine.key = fmt.Sprint("product ", i)
		if check(d.choose(bg, &mine)); mine.product.theirs != c.theirs || !mine.product.measured {
			t.Errorf("%v, in a process where others were chosen before: cuBLAS was chosen: %t", c.costs, mine.product.theirs)
		}
	}
}

// A cuBLAS that computes other numbers than the kernel, or none, is not used: not for what was
// chosen before either.
func TestCuBLASThatComputesOtherNumbers(t *testing.T) {
	for what, wrong := range map[string]func(was, number float32) float32{
		"NaN":     func(float32, float32) float32 { return float32(math.NaN()) },
		"nothing": func(was, _ float32) float32 { return was },
		"a digit": func(_, number float32) float32 { return math.Nextafter32(number, 1e9) },
	} {
		for _, op := range []ops.Op{biased(3, 5, 40), batch(true, 0.25, 1, 2, 4, 4, 4)} {
			b, _ := withBLAS(t, quick)
			d := must(b.open(bg, 0)).(*device)
			before := must(d.Load(bg, must(b.Source(op)), productBlob(t, b, op))).(*program)
			later := *before
			later.key, later.product = "another", product{class: before.product.class, bias: before.product.bias}
			theirs().Wrong = wrong
			check(d.choose(bg, &later))
			theirs().Wrong = nil
			if later.product.measured || later.product.theirs {
				t.Errorf("%s, %s: it was chosen, for cuBLAS: %t", what, op, later.product.theirs)
			}
			q := must(d.OpenQueue()).(*queue)
			args, release, err := d.operands(op)
			check(err)
			if !before.product.theirs || q.multiply(before, args) {
				t.Errorf("%s, %s: cuBLAS computes what was chosen before", what, op)
			}
			check(q.Close())
			release()
			check(d.Close())
		}
	}
}

// In a process the first choice holds, whatever a blob that is loaded later says: a product
// would have other bits by one kernel than by the other.
func TestFirstChoiceOfAProductHolds(t *testing.T) {
	op := biased(3, 5, 40)
	b, _ := withBLAS(t, quick)
	src := must(b.Source(op))
	d := must(b.open(bg, 0)).(*device)
	defer func() { check(d.Close()) }()
	theirBlob := productBlob(t, b, op)
	p := must(d.Load(bg, src, theirBlob)).(*program)
	p.product.theirs = false
	ourBlob := must(p.Blob(bg))
	for _, blobs := range [][2][]byte{{theirBlob, ourBlob}, {ourBlob, theirBlob}} {
		choices.Clear()
		first := must(d.Load(bg, src, blobs[0])).(*program)
		if then := must(d.Load(bg, src, blobs[1])).(*program); then.product.theirs != first.product.theirs || first.product.theirs != (&blobs[0][0] == &theirBlob[0]) {
			t.Errorf("cuBLAS computes it: %t, and then %t", first.product.theirs, then.product.theirs)
		}
	}
}

// B3: a blob whose choice is none that is known is refused, and measures nothing.
func TestUnknownChoiceOfAProduct(t *testing.T) {
	b, products := withBLAS(t, quick)
	op := biased(3, 5, 40)
	src, blob := must(b.Source(op)), productBlob(t, b, op)
	d := must(b.open(bg, 0)).(*device)
	defer func() { check(d.Close()) }()
	sealed := d.sealedBy(src.Key, classOf(op))
	content := must(format.Open(sealed, blob))
	products.Store(0)
	for _, choice := range []byte{unmeasured + 1, 255} {
		_, err := d.Load(bg, src, format.Seal(sealed, append([]byte{choice}, content[1:]...)))
		if reason, _ := fault.ReasonOf(err); reason != fault.Format || !errors.Is(err, fault.ErrRefused) || products.Load() > 0 {
			t.Errorf("choice %d: %v, %d products were measured", choice, err, products.Load())
		}
	}
	if _, err := d.Load(bg, src, format.Seal(sealed, nil)); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("no choice: %v", err)
	}
}

// A measurement whose context ends chooses nothing, and is said so, whatever fails then. So is
// a device that is lost.
func TestProductMeasurementThatIsGivenUp(t *testing.T) {
	b, products := withBLAS(t, quick)
	op := biased(3, 5, 40)
	for _, code := range []int32{success, 13} {
		d := must(b.open(bg, 0)).(*device)
		p := must(d.Load(bg, must(b.Source(op)), productBlob(t, b, op))).(*program)
		choices.Clear()
		ctx, cancel := context.WithCancel(bg)
		counts := theirs().Fault
		theirs().Fault = func(name string) int32 {
			if counts(name); name != blasNames[blasProducts] {
				return success
			}
			cancel()
			return code
		}
		if err := d.choose(ctx, p); !errors.Is(err, context.Canceled) || products.Load() == 0 {
			t.Errorf("code %d: %v, after %d products", code, err, products.Load())
		}
		cancel()
		theirs().Fault = counts
		if _, known := choices.Load(d.choiceOf(p)); known {
			t.Errorf("code %d: a measurement that was given up has chosen", code)
		}
		lost := func(f function) int32 {
			if f == cuEventElapsedTime {
				return illegalAddress
			}
			return success
		}
		d.distrusted.Store(false)
		inject.Store(&lost)
		err := d.choose(bg, p)
		inject.Store(nil)
		if !errors.Is(err, fault.ErrDeviceLost) {
			t.Errorf("a device that is lost: %v", err)
		}
		check(d.Close())
	}
}

// F8: an executor that is closed while it measures answers at once, and waits for no more than
// what it measures then. Nothing is chosen, and nothing is left.
func TestClosedWhileProductsAreMeasured(t *testing.T) {
	b, _ := withBLAS(t, quick)
	op := biased(3, 5, 40)
	src := must(b.Source(op))
	sealed := must(b.open(bg, 0)).(*device)
	content := must(format.Open(sealed.sealedBy(src.Key, classOf(op)), productBlob(t, b, op)))
	content[0] = unmeasured
	blob := format.Seal(sealed.sealedBy(src.Key, classOf(op)), content)
	check(sealed.Close())
	choices.Clear()
	before, live := native.Load(), fake.Live()
	e := must(gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 1}))
	answered, closed := make(chan error, 1), make(chan error, 1)
	calls := 0
	theirs().Fault = func(name string) int32 {
		if name != blasNames[blasProducts] {
			return success
		}
		if calls++; calls == 1 {
			go func() { closed <- e.Close(bg) }()
			if err := <-answered; !errors.Is(err, fault.ErrClosed) {
				t.Errorf("%v, want ErrClosed", err)
			}
		}
		return success
	}
	_, err := e.Load(bg, src, blob)
	answered <- err
	check(<-closed)
	known := false
	choices.Range(func(any, any) bool { known = true; return false })
	if now := native.Load(); known || calls > 2 || now != before || fake.Live() != live {
		t.Errorf("chosen: %t; %d products; %d objects are left, %d of the driver", known, calls, now-before, fake.Live()-live)
	}
}

// A worker has the workspace that NVIDIA advises, all of which is cuBLAS's. One that is not to
// be had is a fault of cuBLAS, which is not asked again.
func TestWorkspaceOfCuBLAS(t *testing.T) {
	b, products := withBLAS(t, quick)
	op := ops.New(ops.MatMul, 3, 5, panel)
	src, blob := must(b.Source(op)), productBlob(t, b, op)
	for index, want := range map[int]int{0: 4 << 20, 2: 32 << 20} {
		choices.Clear()
		d := must(b.open(bg, index)).(*device)
		p := must(d.Load(bg, src, blob)).(*program)
		q := must(d.OpenQueue()).(*queue)
		args, release, err := d.operands(op)
		check(err)
		noMemory := func(f function) int32 {
			if f == cuMemAllocFromPoolAsync || f == cuMemAlloc {
				return outOfMemory
			}
			return success
		}
		inject.Store(&noMemory)
		asked := q.multiply(p, args)
		inject.Store(nil)
		products.Store(0)
		if asked || q.multiply(p, args) || products.Load() > 0 {
			t.Errorf("device %d: without a workspace cuBLAS was asked: %t, and then %d times", index, asked, products.Load())
		}
		d.distrusted.Store(false)
		nothing := append([]gpuexec.DeviceArg(nil), args...)
		nothing[len(nothing)-2].Value = 0
		if q.multiply(p, nothing) || d.distrusted.Load() {
			t.Errorf("device %d: cuBLAS was asked for sums of nothing", index)
		}
		if !q.multiply(p, args) || theirs().Room != want {
			t.Errorf("device %d: %d bytes of workspace, want %d", index, theirs().Room, want)
		}
		freed := func(f function) int32 { // what was given back is gone at once, as the other stream is free to do it
			if f == cuStreamSynchronize {
				d.quietly(f, uintptr(d.stream))
			}
			return success
		}
		inject.Store(&freed)
		err = q.Close() // while it works
		inject.Store(nil)
		check(err)
		release()
		check(d.Close())
	}
}

// A class that is none of products which cuBLAS is given is refused: sums that lengths bound
// would go on beyond them.
func TestClassOfNoProduct(t *testing.T) {
	b, _ := withBLAS(t, quick)
	d := must(b.open(bg, 0)).(*device)
	defer func() { check(d.Close()) }()
	masked := batch(false, 0, 1, 1, 4, 4, 4)
	masked.MaskK = true
	for _, class := range []string{masked.String(), ops.New(ops.GELU, 4, 4).String(), "", "matmul"} {
		if op, err := d.productOf(gpuexec.Code{Text: operations, Defines: map[string]string{classMacro: class}}); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q: %v, %v", class, op, err)
		}
	}
}

// A choice is one device's in a process, and in a blob that of devices of one name.
func TestChoiceOfAProductIsOfItsDevice(t *testing.T) {
	b, _ := withBLAS(t, quick)
	op := biased(3, 5, 40)
	src, blob := must(b.Source(op)), productBlob(t, b, op)
	first, second := must(b.open(bg, 0)).(*device), must(b.open(bg, 1)).(*device)
	defer func() { check(errors.Join(first.Close(), second.Close())) }()
	p := must(first.Load(bg, src, blob)).(*program)
	if second.chosen(&program{d: second, key: p.key}) {
		t.Error("a choice of one device is another's")
	}
	second.info.Name = "Another"
	if _, err := second.Load(bg, src, blob); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("a choice of a device of another name: %v", err)
	}
}
