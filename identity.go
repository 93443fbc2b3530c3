package kiln

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/past"
	"github.com/kiln-cache/kiln/internal/processor"
	"github.com/kiln-cache/kiln/internal/self"
)

// identity is what stored artefacts of a backend must fit where neither the
// request nor the config says it: that of the backend's first device, or of the
// executable where no device's backend has the name.
func identity(backend string) gpuexec.Identity {
	if backend == hidden.Weights {
		return gpuexec.Identity{Library: "kiln", Build: "layout 1"}
	}
	if registered := gpuexec.Find(backend); registered != nil {
		return gpuexec.IdentityOf(context.Background(), registered)
	}
	id, _ := executable()
	return id
}

// executable is the identity of what the program itself compiles: a digest of the running
// executable, or of the library that this code is in, with the features of the processor,
// read once, when the first artefact could be stored. A digest that cannot be had leaves
// Build empty, so that nothing is stored: the error names the files that could not be read,
// and why.
var executable = sync.OnceValues(func() (gpuexec.Identity, error) {
	digest, err := digestOf(self.Open)
	_, isa := processor.Read()
	return gpuexec.Identity{Library: ofExecutable, Compiler: runtime.Version(), Build: digest, ISA: isa}, err
})

const ofExecutable = "executable"

func digestOf(open func() (io.ReadCloser, error)) (string, error) {
	f, err := open()
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// identityOf asks a backend for its identity, on another goroutine: the backend may take
// long, panic, or end the goroutine. After the latter two the identity is the zero one,
// and the next call asks again; once it is known, nobody is asked. Errors are ErrClosed,
// ErrCycle and the context's.
func (r *Runtime) identityOf(ctx context.Context, backend string) (id gpuexec.Identity, err error) {
	if known, ok := r.identities.Load(backend); ok {
		return known.(gpuexec.Identity), nil
	}
	_, err = r.asks.Ride(ctx, flight.Want[string, gpuexec.Identity]{
		Key: backend, Name: backend, Linger: lingering,
		Look: func() (bool, error) {
			if r.mu.over {
				return false, errClosed
			}
			known, ok := r.identities.Load(backend)
			if ok {
				id = known.(gpuexec.Identity)
			}
			return ok, nil
		},
		Make: func(context.Context) (gpuexec.Identity, error) { return r.cfg.Store.Identity(backend), nil },
		Keep: func(made gpuexec.Identity) {
			if made.Library != "" && made.Build != "" {
				r.identities.Store(backend, made)
			}
		},
		Take: func(made gpuexec.Identity) { id = made },
	})
	if _, panicked := errors.AsType[*fault.PanicError](err); panicked || errors.Is(err, fault.ErrGoexit) {
		r.logger.Error("kiln: asking for the identity of a backend", "backend", backend, "error", err)
		return gpuexec.Identity{}, nil
	}
	return id, err
}

// storable finds out that an artefact, which could be stored, will not be: then
// that is logged once for its backend, or for its key where that is too long or was made
// without a Blob, and the request is an error where the store is required (SPEC P17). It
// gives the field that is at fault. Other errors are those of identityOf.
func (r *Runtime) storable(ctx context.Context, q *artefacts.Request, made bool) (reason fault.Reason, field string, err error) {
	if r.persisted.store == nil {
		return "", "", nil
	}
	var why string
	var cause error
	reason = fault.Disabled
	if made {
		field, cause = "blob", errors.New("what its recipe made has no Blob, though there is a Load: set Made.Blob, or leave Load out")
		r.tellOfKey(q, reason, field, cause)
	} else if n := len(cmp.Or(q.StoredKey, q.Key)); n > blobstore.LongestKey {
		reason, field, cause = fault.TooLarge, "key", fmt.Errorf("the key has %d bytes: at most %d are stored", n, blobstore.LongestKey)
		r.tellOfKey(q, reason, field, cause)
	} else if field, why, cause, err = r.lacks(ctx, q); field == "" {
		return "", "", err
	} else if _, logged := r.unstored.LoadOrStore(q.Backend, true); !logged {
		r.logger.Warn("kiln: nothing of this backend is stored: "+why, "backend", q.Backend, "reason", string(fault.Disabled), "field", field, "error", cause)
	}
	if r.cfg.StoreRequired {
		err = &fault.Error{Op: opStore, Key: q.Key, Backend: q.Backend, Reason: reason, Field: field, Err: errors.Join(ErrRefused, cause)}
	}
	return reason, field, err
}

// tellOfKey logs once for the key of q why it is not stored.
func (r *Runtime) tellOfKey(q *artefacts.Request, reason fault.Reason, field string, why error) {
	if r.keysTold.first(q.Key) {
		r.logger.Warn("kiln: not stored: "+why.Error(), "key", fault.Printable(q.Key), "backend", q.Backend, "reason", string(reason), "field", field)
	}
}

// lacks is the field that the backend of q lacks, and why it does.
func (r *Runtime) lacks(ctx context.Context, q *artefacts.Request) (field, why string, cause, err error) {
	if q.Identity == nil {
		id, err := r.identityOf(ctx, q.Backend)
		if err != nil {
			return "", "", nil, err
		}
		q.Identity = &id
	}
	why, cause = "its identity is not known", (blobstore.Config{Only: q.Backend}).Validate()
	switch {
	case cause != nil:
		field, why = "backend", "its name cannot be a folder of the store"
	case q.Identity.Library == "":
		field = "library"
	case q.Identity.Build == "":
		field = "build"
		if q.Identity.Library == ofExecutable {
			why = "its identity is a digest of the running executable, which cannot be read"
			_, cause = executable()
		}
	}
	return field, why, cause, nil
}

// keys are some that were told of. Safe for concurrent use.
type keys struct {
	mu   sync.Mutex
	told past.Keys[bool]
}

// first reports whether a key was not told of, as far as is known: a bounded number of
// keys is.
func (k *keys) first(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := xxhash.Sum64String(key)
	told := k.told.Find(h)
	k.told.Most = 1024
	k.told.Set(h, true)
	return !told
}
