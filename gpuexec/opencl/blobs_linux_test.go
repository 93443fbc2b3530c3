//go:build linux && (amd64 || arm64)

package opencl

import (
	"bytes"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
)

// B2, E5: a blob is taken once, by many at once and beside launches of sizes that the
// driver compiles for: PoCL overruns its memory where these meet.
func TestBlobsBesideLaunches(t *testing.T) {
	needDevice(t)
	opened, err := open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	for round := range 3 {
		src := sourceOf(t, int(time.Now().UnixNano()%1e9)+round) // no cache of the driver has it
		made, err := opened.Compile(bg, src)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		blobs := make([][]byte, 4)
		for i := range blobs {
			wg.Go(func() {
				blob, err := made.Blob(bg)
				blobs[i] = blob
				if err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if err := launchAlone(opened, made, 1<<i); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, b := range blobs {
			if len(b) == 0 || !bytes.Equal(b, blobs[0]) {
				t.Error("another blob")
			}
		}
		made.Release()
	}
}

// E1: queues that launch two programs in opposite orders go on while both blobs are taken.
func TestBlobsAgainstTwoOrders(t *testing.T) {
	needDevice(t)
	opened, err := open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	m, err := opened.Alloc(1024)
	if err != nil {
		t.Fatal(err)
	}
	var made [2]gpuexec.Program
	var queues [2]gpuexec.Queue
	for i := range made {
		if made[i], err = opened.Compile(bg, sourceOf(t, 10+i)); err != nil {
			t.Fatal(err)
		}
		if queues[i], err = opened.OpenQueue(); err != nil {
			t.Fatal(err)
		}
		defer queues[i].Close()
	}
	launch := func(q, p int) {
		if err := queues[q].Launch(bg, made[p], argsOf(m), gpuexec.Size{1, 1, 1}, gpuexec.Size{4, 1, 1}); err != nil {
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	for i := range made {
		launch(i, i)
		wg.Go(func() {
			if _, err := made[i].Blob(bg); err != nil {
				t.Error(err)
			}
		})
	}
	for _, p := range made { // both blobs wait for the launches
		for taking := &p.(*program).taking; taking.TryRLock(); runtime.Gosched() {
			taking.RUnlock()
		}
	}
	for i := range queues {
		wg.Go(func() {
			launch(i, 1-i)
			if err := queues[i].Finish(bg); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// argsOf are the arguments of a kernel of sourceOf.
func argsOf(m gpuexec.Memory) []gpuexec.DeviceArg {
	whole := gpuexec.DeviceArg{Kind: gpuexec.ParamBuffer, Memory: m, Bytes: 1024}
	return []gpuexec.DeviceArg{whole, whole, {Kind: gpuexec.ParamI32, Bytes: 4}, {Kind: gpuexec.ParamLocal, Bytes: 64}}
}

// launchAlone runs blocks of that many items twice on a queue of its own.
func launchAlone(d gpuexec.Device, p gpuexec.Program, items int) error {
	q, err := d.OpenQueue()
	if err != nil {
		return err
	}
	defer q.Close()
	m, err := d.Alloc(1024)
	if err != nil {
		return err
	}
	defer m.Release()
	for range 2 {
		if err := q.Launch(bg, p, argsOf(m), gpuexec.Size{2, 1, 1}, gpuexec.Size{items, 1, 1}); err != nil {
			return err
		}
	}
	return q.Finish(bg)
}
