package kiln

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"runtime"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// identity is what stored artefacts of a backend must fit where the config does
// not say it: that of the device, or of the executable where no device's backend
// has the name. A backend that the program made for itself, as cpu.New makes one
// for KILN_CPU_ISA, emits other code than the registered one of its name.
func (r *Runtime) identity(backend string) gpuexec.Identity {
	if opened, ok := r.opened.Load(backend); ok {
		return gpuexec.IdentityOf(context.Background(), opened.(gpuexec.Backend))
	}
	if registered := gpuexec.Find(backend); registered != nil {
		return gpuexec.IdentityOf(context.Background(), registered)
	}
	return executable()
}

// executable is the identity of what the program itself compiles: a digest of the
// running executable, read once, when the first artefact could be stored. A
// digest that cannot be had leaves Build empty, so that nothing is stored.
var executable = sync.OnceValue(func() gpuexec.Identity {
	id := gpuexec.Identity{Library: "executable", Compiler: runtime.Version()}
	digest, err := digestOf(running)
	if err == nil {
		id.Build = digest
	}
	return id
})

// running opens the executable of this process: on Linux the one that runs, even
// where another has taken its place on the disk since.
func running() (io.ReadCloser, error) {
	if f, err := os.Open("/proc/self/exe"); err == nil {
		return f, nil
	}
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return os.Open(path)
}

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

// stored says what becomes of the artefacts of one backend that could be stored.
type stored struct {
	once  sync.Once
	field string // of the identity, which is not known; empty: they are stored
}

// storable finds out, when the first artefact of a backend could be stored, that
// nothing of it will be: then it is logged once, and the requests are errors where
// the store is required (SPEC P17). It gives the field that is missing.
func (r *Runtime) storable(backend string) (field string, err error) {
	if r.persisted.store == nil {
		return "", nil
	}
	at, _ := r.stored.LoadOrStore(backend, new(stored))
	s := at.(*stored)
	s.once.Do(func() {
		switch id := r.cfg.Store.Identity(backend); {
		case id.Library == "":
			s.field = "library"
		case id.Build == "":
			s.field = "build"
		default:
			return
		}
		r.logger.Warn("kiln: nothing of this backend is stored: its identity is not known", "backend", backend, "reason", string(ReasonDisabled), "field", s.field)
	})
	if s.field != "" && r.cfg.StoreRequired {
		err = &fault.Error{Op: "kiln: store", Backend: backend, Reason: ReasonDisabled, Field: s.field, Err: fault.ErrRefused}
	}
	return s.field, err
}
