package capi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"sync"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/canon"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/frame"
)

const op = "kiln"

type device struct {
	rt    *kiln.Runtime
	exec  *gpuexec.Executor
	index int
}

type kernel struct {
	on     *device
	source gpuexec.Source
	code   gpuexec.Code

	mu struct {
		sync.Mutex
		freed bool
		lease *artefacts.Lease // keeps the kernel in memory; nil = it was not made yet
	}
}

// free ends the lease; one that comes later ends at once.
func (k *kernel) free() {
	k.mu.Lock()
	lease := k.mu.lease
	k.mu.freed, k.mu.lease = true, nil
	k.mu.Unlock()
	if lease != nil {
		lease.End()
	}
}

// keep has the handle keep the first kernel that it is given.
func (k *kernel) keep(lease *artefacts.Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.mu.freed && k.mu.lease == nil {
		k.mu.lease, _ = lease.Ref().Acquire()
	}
}

// kept is a lease of the caller's on the kernel that the handle keeps, where the cache keeps
// none: what has a capacity of 0 finds nothing that was made (SPEC C1). Else nil.
func (k *kernel) kept() *artefacts.Lease {
	entries, bytes := k.on.rt.Artefacts().Capacity()
	if entries.Allows(1) && bytes.Allows(1) {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.lease == nil {
		return nil
	}
	lease, _ := k.mu.lease.Ref().Acquire()
	return lease
}

func freeAll(values []any) {
	for _, value := range values {
		if k, ok := value.(*kernel); ok {
			k.free()
		}
	}
}

// Open opens a runtime.
func Open(dir string) (uint64, error) {
	rt, err := kiln.Open(kiln.Config{StoreDir: dir})
	if err != nil {
		return 0, err
	}
	return put(0, rt)
}

// Close frees a runtime's handles and closes it.
func Close(runtime uint64, ms int64) error {
	rt, children, err := take[kiln.Runtime](runtime)
	if err != nil {
		return err
	}
	freeAll(children)
	ctx, stop := deadline(ms)
	defer stop()
	return rt.Close(ctx)
}

// Settle waits until what was compiled before is stored.
func Settle(runtime uint64, ms int64) error {
	rt, err := find[kiln.Runtime](runtime)
	if err != nil {
		return err
	}
	ctx, stop := deadline(ms)
	defer stop()
	return rt.Artefacts().Settle(ctx)
}

// OpenDevice opens a backend's device.
func OpenDevice(runtime uint64, backend string, index int, ms int64) (uint64, error) {
	rt, err := find[kiln.Runtime](runtime)
	if err != nil {
		return 0, err
	}
	b := gpuexec.Find(backend)
	if lib, err := forward.Library(backend, index, rt.Settings()); err != nil {
		return 0, err
	} else if lib != nil {
		b = lib // as the settings choose it
	}
	if b == nil {
		return 0, fault.Wrap(op, backend, "no backend has this name", fault.ErrNotFound)
	}
	ctx, stop := deadline(ms)
	defer stop()
	exec, err := rt.Executor(ctx, b, index)
	if err != nil {
		return 0, err
	}
	return put(runtime, &device{rt, exec, index})
}

// CloseDevice frees a device's handle and its kernels'.
func CloseDevice(handle uint64) error {
	_, children, err := take[device](handle)
	freeAll(children)
	return err
}

// CreateKernel takes a source for a device.
func CreateKernel(handle uint64, code gpuexec.Code, params []gpuexec.Param) (uint64, error) {
	d, err := find[device](handle)
	if err != nil {
		return 0, err
	}
	source, err := code.Source(params...)
	if err != nil {
		return 0, err
	}
	return put(handle, &kernel{on: d, source: source, code: code})
}

// DestroyKernel frees a kernel's handle.
func DestroyKernel(handle uint64) error {
	k, _, err := take[kernel](handle)
	if err == nil {
		k.free()
	}
	return err
}

// Languages are those of each backend whose kernels have blobs.
var Languages map[string][]string

// BlobID is the id of a kernel's blob; empty where there is none (SPEC B1).
func BlobID(handle uint64) (string, error) {
	k, err := find[kernel](handle)
	if err != nil {
		return "", err
	}
	id := k.on.exec.Identity()
	if !frame.Identity(id).Known() || !k.compiles() {
		return "", nil
	}
	return blobID(k.source.Key, k.on.exec.Info().Backend, id), nil
}

func blobID(key, backend string, id gpuexec.Identity) string {
	sum := sha256.Sum256(frame.Identity(id).Append(canon.AppendString(nil, 1, key), 2, backend))
	return hex.EncodeToString(sum[:])
}

// Origin is a kiln_origin of kiln.h.
type Origin int32

// The origins of a kernel.
const (
	Compiled Origin = iota
	Resident
	Stored
	Given
)

// request asks for the kernel on its device: no two devices share one in memory.
func (k *kernel) request() artefacts.Request {
	q := artefacts.OfKernel(k.on.exec, k.source)
	q.Key = q.Backend + "#" + strconv.Itoa(k.on.index) + "\x00" + k.source.Key
	return q
}

// compiles reports whether the device's backend compiles the kernel's language.
func (k *kernel) compiles() bool {
	return slices.Contains(Languages[k.on.exec.Info().Backend], k.code.Language)
}

// able refuses what no backend of the device compiles.
func (k *kernel) able() error {
	if k.compiles() {
		return nil
	}
	return fault.Wrap(op, k.code.Entry, k.on.exec.Info().Backend+" compiles no "+k.code.Language, fault.ErrUnsupported)
}

// ready makes the kernel ready, by get where the handle does not keep it. The lease is the
// caller's.
func (k *kernel) ready(get func() (*artefacts.Lease, artefacts.Outcome, error)) (*artefacts.Lease, artefacts.Event, error) {
	if err := k.able(); err != nil {
		return nil, "", err
	}
	if lease := k.kept(); lease != nil {
		return lease, artefacts.Hit, nil
	}
	lease, o, err := get()
	if err != nil {
		return nil, "", err
	}
	k.keep(lease)
	return lease, o.Event, nil
}

func (k *kernel) built(ctx context.Context) (*artefacts.Lease, artefacts.Event, error) {
	return k.ready(func() (*artefacts.Lease, artefacts.Outcome, error) { return k.on.rt.Artefacts().Get(ctx, k.request()) })
}

// Build makes a kernel ready.
func Build(handle uint64, ms int64) (Origin, error) {
	k, err := find[kernel](handle)
	if err != nil {
		return 0, err
	}
	ctx, stop := deadline(ms)
	defer stop()
	lease, event, err := k.built(ctx)
	if err != nil {
		return 0, err
	}
	lease.End()
	switch event {
	case artefacts.Hit, artefacts.NestedHit:
		return Resident, nil
	case artefacts.PersistentHit:
		return Stored, nil
	}
	return Compiled, nil
}

// Blob makes a kernel ready and gives its blob.
func Blob(handle uint64, ms int64) ([]byte, error) {
	k, err := find[kernel](handle)
	if err != nil {
		return nil, err
	}
	ctx, stop := deadline(ms)
	defer stop()
	lease, _, err := k.built(ctx)
	if err != nil {
		return nil, err
	}
	defer lease.End()
	return lease.Value().(*gpuexec.Kernel).Blob(ctx)
}

// FromBlob makes a kernel ready from a blob.
func FromBlob(handle uint64, blob []byte, ms int64) (Origin, error) {
	if len(blob) == 0 { // before anything else (SPEC B2)
		return 0, fault.Invalidf(op, "the blob is empty: want what kiln_kernel_blob gave")
	}
	k, err := find[kernel](handle)
	if err != nil {
		return 0, err
	}
	ctx, stop := deadline(ms)
	defer stop()
	lease, event, err := k.ready(func() (*artefacts.Lease, artefacts.Outcome, error) {
		return k.on.rt.Artefacts().FromBlob(ctx, k.request(), blob)
	})
	if err != nil {
		return 0, err
	}
	lease.End()
	if event == artefacts.Hit {
		return Resident, nil
	}
	return Given, nil
}

func kindOf(kind int32) (constants.Kind, error) {
	if kind != 0 && kind != 1 {
		return 0, fault.Invalidf(op, "kind %d, want KILN_CPU or KILN_GPU", kind)
	}
	return []constants.Kind{constants.CPU, constants.GPU}[kind], nil
}

// unlimited is a capacity without a bound, as a number (SPEC T2).
const unlimited = 1<<44 - 1

// SetCapacity sets the capacity of constants in MiB.
func SetCapacity(runtime uint64, kind int32, mib uint64, ms int64) error {
	rt, err := find[kiln.Runtime](runtime)
	if err != nil {
		return err
	}
	k, err := kindOf(kind)
	if err != nil {
		return err
	}
	ctx, stop := deadline(ms)
	defer stop()
	return rt.Constants().SetCapacity(ctx, k, constants.MiB(mib))
}

// Capacity is that number.
func Capacity(runtime uint64, kind int32) (uint64, error) {
	rt, err := find[kiln.Runtime](runtime)
	if err != nil {
		return 0, err
	}
	k, err := kindOf(kind)
	if err != nil {
		return 0, err
	}
	if n, counted := rt.Constants().Capacity(k).Value(); counted {
		return uint64(n), nil
	}
	return unlimited, nil
}
