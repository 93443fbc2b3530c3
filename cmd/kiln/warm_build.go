package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/manifest"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/tiers"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/drivercache"
	"github.com/kiln-cache/kiln/internal/forward"
)

// open opens the store. If the items are more than it holds, the dearest stay: they
// are built first, and eviction by age would remove them first.
func (w *warmer) open(ctx context.Context, library func(backend string) (ops.Library, int, error)) (*blobstore.Store, error) {
	s, err := blobstore.Open(ctx, blobstore.Config{Dir: w.store, Capacity: w.capacity, DefaultCapacity: !w.chosen,
		Policy: blobstore.Cost, DefaultPolicy: true, Identity: identities(library), Logger: w.logger()})
	if err != nil {
		return nil, usageError{fmt.Errorf("--store: %w", err)}
	}
	return s, nil
}

// builder builds items into a store. It asks the store directly, with no cache of
// artefacts in between: only the store knows whether an item is built.
type builder struct {
	library   func(backend string) (ops.Library, int, error)
	config    gpuexec.Config // of the executors, but for their backend
	store     artefacts.Store
	executors map[string]*gpuexec.Executor // by backend
}

// errUnstored says that an item was built but could not be stored.
var errUnstored = errors.New("built, but not stored")

// build is the child: a result on standard output for every item on standard
// input.
func (w *warmer) build(ctx context.Context) (err error) {
	b := &builder{library: libraries(w.settings, w.device), executors: map[string]*gpuexec.Executor{},
		config: gpuexec.Config{Workers: int(w.settings.Workers.Value), Logger: w.logger()}}
	store, err := w.open(ctx, b.library)
	if err != nil {
		return err
	}
	if w.settings.DriverCaches.Value == "1" {
		drivercache.Keep(w.store, store.Stats().Capacity, env.Process(), w.logger())
	}
	last := context.WithoutCancel(ctx)
	defer func() { err = errors.Join(err, b.close(last), store.Close(last)) }()
	if b.store, err = tiers.Open(store, tiers.Config{Memory: -1}); err != nil {
		return err
	}
	out := json.NewEncoder(w.stdout)
	for d := json.NewDecoder(bufio.NewReader(w.stdin)); ; {
		var i manifest.Item
		if err := d.Decode(&i); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		r := unfinished(i)
		began, evicted := time.Now(), store.Stats().Evictions
		r.Result, err = b.item(ctx, i)
		if ctx.Err() != nil {
			w.code = exitInterrupted // the item is still to be done; the parent says so
			return nil
		}
		r.Seconds, r.Evicted = time.Since(began).Seconds(), store.Stats().Evictions-evicted
		if err != nil {
			if f, ok := err.(*fault.Error); ok && f.Key == i.Op {
				same := *f
				same.Key = "" // the result has it: items that fail alike have one reason
				err = &same
			}
			r.Result, r.Error = warmFailed, err.Error()
		}
		if errors.Is(err, errUnstored) {
			r.Result = warmUnstored
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
}

// item makes one item ready: the device loads it from the store, or it is built and
// stored.
func (b *builder) item(ctx context.Context, i manifest.Item) (string, error) {
	op, err := ops.Parse(i.Op)
	if err != nil {
		return "", err
	}
	lib, index, err := b.library(i.Backend)
	if err != nil {
		return "", err
	}
	if _, err := lib.Source(op); err != nil { // no device is opened for an operation that it does not have
		return "", err
	}
	exec, err := b.executor(ctx, lib, index)
	if err != nil {
		return "", err
	}
	want, err := forward.Request(exec, lib, op, i.Descriptor)
	if err != nil {
		return "", err
	}
	found := b.store.Find(ctx, artefacts.Subject{Backend: want.Backend, Key: want.StoredKey, Identity: want.Identity})
	for found.Reason == "" {
		loaded, err := want.Load(ctx, found.Blob)
		if err == nil {
			loaded.Free()
			found.Claim.Loaded()
			return warmHit, nil
		}
		if ctx.Err() != nil { // the blob is not to blame
			found.Claim.Abandon()
			return "", err
		}
		found = found.Claim.Refused(ctx)
	}
	return warmBuilt, b.compile(ctx, want, found)
}

// compile builds and stores an item that the store does not have.
func (b *builder) compile(ctx context.Context, want artefacts.Request, missing artefacts.Found) error {
	began := time.Now()
	built, err := want.Create(ctx)
	cost := time.Since(began)
	var blob []byte
	if err == nil {
		defer built.Free()
		blob, err = built.Blob(ctx)
	}
	switch {
	case missing.Claim == nil && err == nil:
		return fmt.Errorf("%w: %s", errUnstored, missing.Reason)
	case missing.Claim == nil:
		return err
	case err != nil:
		missing.Claim.Abandon()
		return err
	}
	if err := missing.Claim.Save(ctx, blob, cost, built.Requires); err != nil {
		return fmt.Errorf("%w: %w", errUnstored, err)
	}
	return nil
}

// executor gives the executor of a backend's device, the same each time.
func (b *builder) executor(ctx context.Context, lib ops.Library, index int) (*gpuexec.Executor, error) {
	exec := b.executors[lib.Name()]
	if exec == nil {
		config := b.config
		config.Backend, config.Index = lib, index
		var err error
		if exec, err = gpuexec.Open(ctx, config); err != nil {
			return nil, err
		}
		b.executors[lib.Name()] = exec
	}
	return exec, nil
}

func (b *builder) close(ctx context.Context) (err error) {
	for _, exec := range b.executors {
		err = errors.Join(err, exec.Close(ctx))
	}
	return err
}
