//go:build unix

package tiers_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/tiers"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
)

// P6: what a driver took out of the disk once comes out of memory the next time.
func TestMemory(t *testing.T) {
	b := open(t, t.TempDir()+"/d", 1, 1<<20)
	b.get("a", maker{value: "va"})
	b.get("b", maker{value: "vb"})
	b.settle()
	b.get("a", maker{})
	hits := b.store.Stats().Hits
	sub := artefacts.Subject{Backend: "test", Key: "a"}
	for end := time.Now().Add(20 * time.Second); ; { // the tier takes it in its own time
		found := b.tiers.Find(background, sub)
		found.Claim.Loaded()
		want(t, "found", string(found.Blob), "va")
		if b.store.Stats().Hits == hits {
			break
		}
		if hits = b.store.Stats().Hits; time.Now().After(end) {
			t.Fatal("never from memory")
		}
	}
	b.set("open", syscall.EIO, 0)
	found := b.tiers.Find(background, sub)
	want(t, "without a disk", string(found.Blob), "va")
	b.set("open", nil, 0)
	want(t, "refused", found.Claim.Refused(background).Reason, fault.DriverRefused)
	found.Claim.Abandon()
	found = b.tiers.Find(background, sub)
	want(t, "refused: nowhere any more", found.Reason, fault.Absent)
	found.Claim.Abandon()
}

// The blobs in memory count to the limit of the process, go when it is passed,
// and are found again on the disk.
func TestMemoryLimit(t *testing.T) {
	b := open(t, t.TempDir()+"/d", 8, -1)
	watch := pressure.New(pressure.Config{Limit: 4000, Go: actors.Go})
	kept, err := tiers.Open(b.store, hidden.With(tiers.Config{Memory: 1 << 20}, watch))
	if err != nil {
		t.Fatal(err)
	}
	room := watch.Rooms()[0]
	const each = 700 + 9 + 256 // of a blob, its name, and what is around them
	reach := func(blobs, shrinks int64) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			got := watch.Stats()
			if got.Bytes == blobs*each && got.Shrinks == shrinks {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%+v, want %d bytes and %d shrinks", got, blobs*each, shrinks)
			}
		}
	}
	for i := range 5 {
		key := fmt.Sprint("key", i)
		if err := b.store.Put(background, "test", key, make([]byte, 700), 0); err != nil {
			t.Fatal(err)
		}
		found := kept.Find(background, artefacts.Subject{Backend: "test", Key: key})
		found.Claim.Loaded()
		if i == 3 { // twice the same replaces
			reach(4, 0)
			kept.Find(background, artefacts.Subject{Backend: "test", Key: key}).Claim.Loaded()
			reach(4, 0)
		}
	}
	reach(0, 1)
	found := kept.Find(background, artefacts.Subject{Backend: "test", Key: "key1"})
	want(t, "on the disk", len(found.Blob), 700)
	found.Claim.Loaded()
	reach(1, 1)
	if err := errors.Join(watch.Close(background), kept.Close(background)); err != nil {
		t.Error(err)
	}
	want(t, "closed", watch.Stats().Bytes, 0)
	want(t, "rooms", len(watch.Rooms()), 0)
	want(t, "offer", len(room.Offer(background)), 0)
	want(t, "shrink", room.Shrink(background, 1, pressure.Spare).Bytes, 0)
}

// P6, P12: two devices of one backend find each its own blob, in memory, too, and
// an identity that is not known finds none.
func TestDevicesOfOneBackend(t *testing.T) {
	b := open(t, t.TempDir()+"/d", 1, 1<<20)
	subject := func(device, build string) artefacts.Subject {
		return artefacts.Subject{Backend: "test", Key: "k", Identity: &gpuexec.Identity{Library: "1", Build: build, Device: device}}
	}
	for _, device := range []string{"a", "b"} {
		found := b.tiers.Find(background, subject(device, "b"))
		if err := found.Claim.Save(background, []byte("of "+device), 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	blob, _, err := b.store.For(*subject("b", "b").Identity).Get(background, "test", "k")
	want(t, "stored for b", string(blob.Payload), "of b")
	want(t, "error", err, nil)
	for end := time.Now().Add(20 * time.Second); ; { // the tier takes them in its own time
		disk := b.store.Stats().Hits
		for _, device := range []string{"a", "b"} {
			found := b.tiers.Find(background, subject(device, "b"))
			want(t, device, string(found.Blob), "of "+device)
			found.Claim.Loaded()
		}
		if b.store.Stats().Hits == disk { // both from memory
			break
		}
		if time.Now().After(end) {
			t.Fatal("never from memory")
		}
	}
	want(t, "not known", b.tiers.Find(background, subject("a", "")).Reason, fault.Disabled)
}
