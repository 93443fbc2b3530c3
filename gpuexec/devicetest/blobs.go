package devicetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// blobOf gives a program's blob, or skips where the backend has none.
func blobOf(t *testing.T, e *gpuexec.Executor, src gpuexec.Source) []byte {
	t.Helper()
	k := build(t, e, src)
	defer k.Release()
	blob, err := k.Blob(background)
	if errors.Is(err, fault.ErrUnsupported) {
		t.Skip("the backend has no blobs")
	}
	if err != nil || len(blob) == 0 {
		t.Fatalf("blob of %s: %d bytes, %v", src.Key, len(blob), err)
	}
	return blob
}

// blobs: B2: a program goes through its blob into another device and gives the
// same blob there. K7: what it says it needs its device has; it may say nothing.
func blobs(t *testing.T, backend gpuexec.Backend, sources []gpuexec.Source) {
	first, second := openDevice(t, backend, 1), openDevice(t, backend, 1)
	for _, src := range sources {
		blob := blobOf(t, first, src)
		k, err := second.Load(background, src, blob)
		if err != nil {
			t.Fatalf("load %s: %v", src.Key, err)
		}
		again, err := k.Blob(background)
		if err != nil || !bytes.Equal(again, blob) {
			t.Errorf("%s: %v, or another blob came back", src.Key, err)
		}
		for _, need := range k.Requires() {
			if has := second.Info().Identity.ISA; !slices.Contains(has, need) {
				t.Errorf("%s needs %s, which its device does not have: %v", src.Key, need, has)
			}
		}
		l, held := launchOf(t, second, k)
		if err := second.Submit(background, l); err != nil {
			t.Errorf("%s, loaded: %v", src.Key, err)
		}
		releaseAll(held)
		k.Release()
	}
	if n := second.Stats().Compiles; n != 0 {
		t.Errorf("%d compiles where only blobs were loaded", n)
	}
}

// damagedBlobs: B3: what is damaged or foreign is refused with a typed error, and
// the device goes on.
func damagedBlobs(t *testing.T, backend gpuexec.Backend, sources []gpuexec.Source) {
	e := openDevice(t, backend, 1)
	src := sources[0]
	blob := blobOf(t, e, src)
	refused := func(what string, bad []byte) {
		t.Helper()
		k, err := e.Load(background, src, bad)
		if err == nil {
			k.Release()
		}
		if len(bad) == 0 && !errors.Is(err, fault.ErrInvalid) || len(bad) > 0 && !errors.Is(err, fault.ErrRefused) {
			t.Errorf("%s: %v, want ErrRefused", what, err)
		}
	}
	refused("an empty blob", nil)
	refused("another program's blob", blobOf(t, e, sources[1]))
	refused("text", []byte("not a blob"))
	step := max(1, len(blob)/40)
	for n := step; n < len(blob); n += step {
		refused(fmt.Sprintf("cut to %d of %d bytes", n, len(blob)), blob[:n])
		bad := bytes.Clone(blob)
		bad[n] ^= 0x10
		refused(fmt.Sprintf("byte %d of %d flipped", n, len(blob)), bad)
	}
	refused("a longer blob", append(bytes.Clone(blob), 0))
	k, err := e.Load(background, src, blob)
	if err != nil {
		t.Fatalf("the sound blob, after all that: %v", err)
	}
	k.Release()
}

// refusedSources: what is no program is refused with a typed error.
func refusedSources(t *testing.T, backend gpuexec.Backend, _ []gpuexec.Source) {
	e := openDevice(t, backend, 1)
	type nonsense struct{} // no backend can know it
	k, err := e.Compile(background, gpuexec.Source{Key: "nonsense", Spec: nonsense{}})
	if err == nil {
		k.Release()
	}
	if !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("a spec of a type that the backend does not know: %v, want ErrInvalid or ErrUnsupported", err)
	}
}
