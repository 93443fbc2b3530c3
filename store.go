package kiln

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/tiers"
	"github.com/kiln-cache/kiln/internal/drivercache"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/self"
	"github.com/kiln-cache/kiln/internal/zone"
	"github.com/kiln-cache/kiln/limit"
)

// persistence is the store below the artefact cache, with its memory tier; the
// zero value has none.
type persistence struct {
	store *blobstore.Store
	tiers *tiers.Tiers
}

// openStore opens what the settings ask for. A directory that cannot be used is
// logged and gone without, unless the config requires it (SPEC P5).
func openStore(cfg Config, s env.Settings, memory *pressure.Watch, zone *zone.Zone, logger *slog.Logger) (persistence, error) {
	var p persistence
	ctx := context.Background()
	c := cfg.Store
	if c.Bases == nil {
		c.Bases = filepath.SplitList(s.StoreBases.Value)
	}
	c.DefaultCapacity = c.DefaultCapacity || s.StoreCapacity.Source == env.Default
	c.Dir, c.Capacity = s.StoreDir.Value, cfg.StoreBytes.Or(c.Capacity).Or(s.StoreCapacity.Value)
	if c.Dir == "" && cfg.StoreRequired {
		return p, fault.Invalidf("kiln: open", "StoreRequired without a directory: set StoreDir or KILN_STORE_DIR")
	}
	if n, counted := c.Capacity.Value(); counted && n == 0 && cfg.StoreRequired {
		return p, fault.Invalidf("kiln: open", "StoreRequired with a store of 0 bytes, which is off: set StoreBytes or KILN_STORE_CAPACITY")
	}
	if n, counted := c.Capacity.Value(); c.Dir == "" || counted && n == 0 {
		return p, nil
	}
	if c.Logger == nil {
		c.Logger = logger
	}
	if c.Aborts == nil {
		c.Aborts = aborts
	}
	if slices.Contains(c.Off, "cpu") {
		c.Off = append(slices.Clip(c.Off), hidden.Weights) // they are cpu's
	}
	store, err := (*blobstore.Store)(nil), ours(cfg, s)
	if err == nil {
		store, err = blobstore.Open(ctx, hidden.With(c, zone))
	}
	if err == nil {
		p, err = over(store, func() (*tiers.Tiers, error) { return tiers.Open(store, hidden.With(tiers.Config{}, memory)) })
	}
	if err == nil {
		return p, nil
	}
	if cfg.StoreRequired {
		return persistence{}, err
	}
	logger.Error("kiln: going on without a store", "dir", c.Dir, "error", err)
	return persistence{}, nil
}

var raised = self.Raised // tests have others

// ours refuses, in a program that has more rights than its user, folders that the environment
// names: the user writes it, and a stored kernel is code (SPEC P13).
func ours(cfg Config, s env.Settings) error {
	theirs := s.StoreDir.Source == env.Environment || cfg.Store.Bases == nil && s.StoreBases.Value != ""
	if !theirs || !raised() {
		return nil
	}
	return &fault.Error{Op: "kiln: open", Key: s.StoreDir.Value, Err: fmt.Errorf("%w: a program with more rights than its user has no store that the environment names: a stored kernel is code; "+
		"set Config.StoreDir, and unset KILN_STORE_BASES", fault.ErrRefused)}
}

// keepDriverCaches has drivers keep their own caches in the store's directory, if that
// was asked for. One that cannot is warned of: the drivers' caches stay where they are.
func (p persistence) keepDriverCaches(cfg Config, s env.Settings, logger *slog.Logger) {
	if s.DriverCaches.Value != "1" {
		return
	}
	dir, capacity := "", limit.Limit{}
	if p.store != nil && !cfg.Store.ReadOnly {
		dir, capacity = s.StoreDir.Value, p.store.Stats().Capacity
	}
	// Drivers read the process's own environment, whatever Config.Lookup is.
	drivercache.Keep(dir, capacity, env.Process(), logger)
}

// aborts is what the backend of that name says of its driver (SPEC P11).
func aborts(backend string) bool {
	b, says := gpuexec.Find(backend).(interface{ Aborts() bool })
	return says && b.Aborts()
}

// over puts the memory tier over a store. If that cannot be had the store is
// closed.
func over(store *blobstore.Store, open func() (*tiers.Tiers, error)) (persistence, error) {
	t, err := open()
	if err != nil {
		return persistence{}, errors.Join(err, store.Close(context.Background()))
	}
	return persistence{store, t}, nil
}

// below is what the artefact cache asks on a miss.
func (p persistence) below() artefacts.Store {
	if p.tiers == nil {
		return nil
	}
	return p.tiers
}

func (p persistence) close(ctx context.Context) error {
	if p.store == nil {
		return nil
	}
	return errors.Join(p.tiers.Close(ctx), p.store.Close(ctx))
}
