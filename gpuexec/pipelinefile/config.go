package pipelinefile

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/layout"
	"github.com/kiln-cache/kiln/limit"
)

// DefaultLimit is the largest file in bytes where no limit is given (SPEC V9).
const DefaultLimit = 256 << 20

// DefaultPatience is far above what a save takes.
const DefaultPatience = 3 * time.Second

// UUID is one of the identifiers that Vulkan devices and drivers carry.
type UUID = [16]byte

// Identity is the machine and the build whose files fit. Strings have at most
// 1024 bytes.
type Identity struct {
	Library    string // version of what emits and stores the SPIR-V; empty = unknown
	Vendor     uint32
	Device     uint32
	API        uint32 // as Vulkan packs versions
	Driver     uint32 // version, packed as the vendor likes
	DriverID   uint32
	DriverName string
	DriverInfo string
	DeviceName string
	UUID       UUID // of the pipeline cache
	DeviceUUID UUID
	DriverUUID UUID

	// Unknown names fields that could not be found out, as a file's reasons name
	// them. Files of an identity with such a field fit no other opening of a cache.
	Unknown []string
}

// layout is the identity as a file has it.
func (i Identity) layout() layout.Identity {
	return layout.Identity{Machine: layout.Machine(i)}
}

// Config of a Cache. Driver is required; the rest has usable zeros.
type Config struct {
	Driver   Driver
	FrontEnd FrontEnd // nil = only SPIR-V from files and requests
	Identity Identity

	Limit   limit.Limit // bytes of a file, read or written; not given = DefaultLimit
	NoMerge bool        // Save replaces a file instead of joining it with what is there
	// Patience is how long Save waits where another saver has locked the file and
	// nothing happens to it; then Save takes that saver for stopped and goes on.
	// 0 = DefaultPatience.
	Patience time.Duration
	// Linger is how long a build goes on when nobody waits for it any more, before its
	// context ends. A caller that comes meanwhile joins it.
	Linger time.Duration
	Quirks []Quirk // nil = the table that comes with the package; empty = none

	Logger *slog.Logger            // nil = silent
	Now    func() time.Time        // ages of abandoned temporary files; nil = time.Now
	Hash   func(key string) uint64 // places requests in memory; nil = seeded. It may be as bad as it likes
}

// Validate reports every mistake at once, as fault.ErrInvalid.
func (c Config) Validate() error {
	var errs []error
	if c.Driver == nil {
		errs = append(errs, fault.Invalidf("pipelinefile: config", "no driver: want the one of the device that the pipelines are for"))
	}
	if err := c.Limit.Validate(); err != nil {
		errs = append(errs, &fault.Error{Op: "pipelinefile: limit", Err: err})
	}
	if c.Patience < 0 {
		errs = append(errs, fault.Invalidf("pipelinefile: config", "patience %v: want a duration above 0, or 0 for %v", c.Patience, DefaultPatience))
	}
	if c.Linger < 0 {
		errs = append(errs, fault.Invalidf("pipelinefile: config", "linger %v: want 0 or more", c.Linger))
	}
	id := c.Identity.layout()
	errs = append(errs, id.Validate())
	for _, q := range c.Quirks {
		errs = append(errs, q.Validate())
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	c.Limit = c.Limit.Or(limit.Of(DefaultLimit))
	if c.Patience == 0 {
		c.Patience = DefaultPatience
	}
	if c.Quirks == nil {
		c.Quirks = Quirks()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// token is a lock that can be waited for within a context.
type token chan struct{}

func newToken() token { return make(token, 1) } // capacity 1: the one holder

func (t token) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}

func (t token) giveBack() { <-t }
