package kiln

import (
	"context"
	"errors"
	"log/slog"
	"math"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/tiers"
	"github.com/kiln-cache/kiln/internal/limit"
)

// persistence is the store below the artefact cache, with its memory tier; the
// zero value has none.
type persistence struct {
	store *blobstore.Store
	tiers *tiers.Tiers
}

// openStore opens what the settings ask for. A directory that cannot be used is
// logged and gone without, unless the config requires it (SPEC P5).
func openStore(cfg Config, s env.Settings, logger *slog.Logger) (persistence, error) {
	var p persistence
	ctx := context.Background()
	capacity := mebibytes(s.StoreCapacity.Value)
	if n, counted := capacity.Value(); s.StoreDir.Value == "" || counted && n == 0 {
		return p, nil
	}
	identity := cfg.Identity
	if identity == nil {
		identity = identityOf
	}
	var err error
	p.store, err = blobstore.Open(ctx, blobstore.Config{Dir: s.StoreDir.Value, Capacity: capacity, Identity: identity, Logger: logger})
	if err == nil {
		if p.tiers, err = tiers.Open(p.store, tiers.Config{}); err != nil {
			err = errors.Join(err, p.store.Close(ctx))
		}
	}
	if err == nil {
		return p, nil
	}
	if cfg.StoreRequired {
		return persistence{}, err
	}
	logger.Error("kiln: going on without a store", "dir", s.StoreDir.Value, "error", err)
	return persistence{}, nil
}

// mebibytes turns MiB into bytes.
func mebibytes(mib limit.Limit) limit.Limit {
	n, counted := mib.Value()
	if !counted || n > math.MaxInt64>>20 {
		return limit.Unlimited
	}
	return limit.Of(n << 20)
}

// identityOf is that of a registered backend's first device.
func identityOf(backend string) gpuexec.Identity {
	if b := gpuexec.Find(backend); b != nil {
		if devices := b.Devices(context.Background()); len(devices) > 0 {
			return devices[0].Identity
		}
	}
	return gpuexec.Identity{}
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
