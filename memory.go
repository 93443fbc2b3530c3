package kiln

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/cgroup"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/sessioncache"
)

// MemoryStats is what the memory limit counted.
type MemoryStats struct {
	Limit   int64 // bytes; 0 = none
	Bytes   int64 // held at this moment
	Shrinks int64 // rounds in which something had to go
	Freed   int64 // bytes that had to go, as their caches counted them
}

// Stats is a snapshot of what the rooms share.
type Stats struct {
	SessionBytes  int64       // bytes that all sessions hold; 0 where Config.SessionBytes is no number
	PendingStores int64       // artefacts that were made and are not stored yet; see artefacts.Cache.Settle
	Memory        MemoryStats // zero where it is off
}

// Stats waits for nothing. The rooms have statistics of their own.
func (r *Runtime) Stats() Stats {
	r = r.it()
	s := Stats{Memory: MemoryStats(r.memory.Stats())}
	if r.pool != nil {
		s.SessionBytes, _ = r.pool.Use()
	}
	if r.artefacts != nil {
		s.PendingStores = r.artefacts.Stats().Saves
	}
	return s
}

// bound makes what bounds the rooms together, where there is such a bound.
func (r *Runtime) bound() error {
	if text := r.cfg.MemoryLimit; text != "" {
		given, _ := env.ParseMemoryLimit(text) // validate has refused what is none
		r.settings.MemoryLimit = r.settings.MemoryLimit.Override(given)
	}
	if bytes := r.memoryLimit(); bytes > 0 {
		r.memory = pressure.New(pressure.Config{Limit: bytes, Go: actors.Go, Logger: r.logger})
	}
	if _, counted := r.cfg.SessionBytes.Value(); !counted {
		return nil
	}
	var err error
	r.pool, err = sessioncache.NewPool(r.cfg.SessionBytes)
	return err
}

// memoryLimit is the limit in bytes, 0 for none.
func (r *Runtime) memoryLimit() int64 {
	m := r.settings.MemoryLimit.Value
	if !m.Auto {
		return m.Bytes
	}
	granted, known := cgroup.Memory(os.DirFS("/"))
	if !known {
		r.logger.Warn("kiln: no memory limit: this system does not say what the process may have; set KILN_MEMORY_LIMIT to a size")
		return 0
	}
	return granted / 10 * 8 // the rest is the program's own
}

// tenant opens a session within the runtime's bounds.
func (r *Runtime) tenant(cfg sessioncache.Config) (*Session, error) {
	if cfg.Pool == nil {
		cfg.Pool = r.pool
	}
	cfg = hidden.With(cfg, r.memory, r.crew.lend, &r.crew.zone)
	cfg.Logger = guard.Logger(cmp.Or(cfg.Logger, r.logger), r.crew.zone.Lend(actors.Go))
	floor := cfg.Floor.Bytes
	if floor > 0 && cfg.Name == "" {
		return nil, fault.Invalidf("kiln: session", "a floor of %d bytes without a name: give the session one, so that its artefacts count to it", floor)
	}
	if cfg.Floor != (Floor{}) && cfg.Pool == nil && r.memory == nil && !r.cfg.ArtefactBytes.Given() {
		r.logger.Warn("kiln: the floor of a session keeps nobody from anything: there is no bound that sessions share; set SessionBytes, ArtefactBytes or MemoryLimit", "session", cfg.Name)
	}
	s := &Session{runtime: r, name: cfg.Name, leave: func() {}, record: r.record}
	s.life, s.end = context.WithCancel(context.Background())
	if floor > 0 { // before the pool's, for which others may have to give
		if err := r.artefacts.AddFloor(cfg.Name, floor); err != nil {
			return nil, failedOn("kiln: session", cfg.Name, floorsOf("ArtefactBytes", cfg.Name, err))
		}
		s.owner = cfg.Name
		s.leave = sync.OnceFunc(func() { _ = r.artefacts.AddFloor(cfg.Name, -floor) }) // closed: there is no floor any more
	}
	var err error
	if s.room, err = sessioncache.Open(cfg); err != nil {
		s.leave()
		if cfg.Pool == r.pool {
			err = floorsOf("SessionBytes", cfg.Name, err)
		}
		return nil, failedOn("kiln: session", cfg.Name, err)
	}
	return s, nil
}

// floorsOf adds to the error of a floor that is too large the field of Config that bounds it.
func floorsOf(field, session string, err error) error {
	if errors.Is(err, fault.ErrTooLarge) {
		err = fmt.Errorf("%s: %w", "Config."+field, bare(err, session, session))
	}
	return err
}
