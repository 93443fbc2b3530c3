package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/processor"
	"github.com/kiln-cache/kiln/internal/size"
	"github.com/kiln-cache/kiln/limit"
)

// cacheVerb is one subcommand of `kiln cache`. It needs least arguments beside its
// flags, and takes at most most.
type cacheVerb struct {
	name, use, about string
	least, most      int
	writes           bool
	run              func(c *cacheCall, ctx context.Context) error
}

var cacheVerbs = []cacheVerb{
	{"put", "--key-file F --value-file F", "store a blob", 0, 0, true, (*cacheCall).put},
	{"get", "--key-file F [--out F]", "read a blob; exit code 3 on a miss", 0, 0, false, (*cacheCall).get},
	{"ls", "", "list the entries", 0, 0, false, (*cacheCall).list},
	{"inspect", "ENTRY [--key-out F]", "describe an entry, named backend/bucket/slot", 1, 1, false, (*cacheCall).inspect},
	{"stats", "", "count what the directory holds", 0, 0, false, (*cacheCall).stats},
	{"verify", "[--repair]", "look at every byte; exit code 4 when an entry is bad", 0, 0, false, (*cacheCall).verify},
	{"prune", "--to SIZE", "evict until no more than that is in use", 0, 0, true, (*cacheCall).prune},
	{"explain", "--key-file F", "the factors in which the nearest entry differs", 0, 0, false, (*cacheCall).explain},
	{"export", "FILE", "write every sound entry into one archive, FILE or - for standard output", 1, 1, false, (*cacheCall).export},
	{"import", "FILE", "take the entries of an archive, each verified: FILE or - for standard input", 1, 1, true, (*cacheCall).take},
	{"merge", "DIR...", "take the entries of other directories", 1, 1 << 10, true, (*cacheCall).merge},
}

// cacheCall is one `kiln cache` with its store open.
type cacheCall struct {
	*call
	store   *blobstore.Store
	key     string
	payload []byte
	backend string
	only    *value // the flag that gave the backend, if any did
	ordered *value // the one that gave the policy, where there is one

	dir, bases, keyFile, keyOut, valueFile, out, identity, policy, trust string
	cost                                                                 float64
	capacity, to                                                         limit.Limit
	repair                                                               bool
}

func cacheCommand(ctx context.Context, c *call) error {
	if len(c.args) > 0 {
		for _, v := range cacheVerbs {
			if v.name == c.args[0] {
				c.name, c.use, c.about, c.args = "cache "+v.name, "--store DIR "+v.use, v.about, c.args[1:]
				return (&cacheCall{call: c}).do(ctx, v)
			}
		}
	}
	var verbs []string
	for _, v := range cacheVerbs {
		verbs = append(verbs, v.name)
		c.about += fmt.Sprintf("\n  kiln cache %-36s %s", strings.TrimSpace(v.name+" "+v.use), v.about)
	}
	return c.noVerb(verbs)
}

// noVerb is the end of a command with subcommands that was given none of them.
func (c *call) noVerb(verbs []string) error {
	if len(c.args) > 0 && !strings.HasPrefix(c.args[0], "-") {
		return usagef("%.40q: no such subcommand: want %s; see kiln %s --help", c.args[0], list(verbs), c.name)
	}
	if err := c.parse(0); err != nil {
		return err
	}
	return usagef("want a subcommand, %s, then its flags: see kiln %s --help", list(verbs), c.name)
}

func (c *cacheCall) do(ctx context.Context, v cacheVerb) (err error) {
	c.text(&c.dir, "store DIR", "the store's directory (default KILN_STORE_DIR)", "a directory's name", nil)
	c.text(&c.dir, "dir DIR", "the same as --store", "a directory's name", nil)
	about := "the folder of a device's entries (default all)"
	if v.name == "put" || v.name == "get" {
		c.backend, about = cpu.Name, "the folder of a device's entries"
	}
	c.only = c.text(&c.backend, "backend NAME", about, "a backend's name", nil)
	c.backend = cpu.Name // what all but put and get do without
	c.verbFlags(v)
	if err := c.begin(v.most); err != nil {
		return err
	}
	if err := (blobstore.Config{Only: c.backend}).Validate(); err != nil {
		return usageError{fmt.Errorf("--backend: %w", err)}
	}
	if c.dir == "" {
		c.dir = c.settings.StoreDir.Value
	}
	switch {
	case c.dir == "":
		return usagef("--store must be given, or KILN_STORE_DIR set: see kiln %s --help", c.name)
	case len(c.rest) < v.least:
		return usagef("want %s: see kiln %s --help", v.use, c.name)
	case v.name == "verify" && !c.repair && (c.capacity.Given() || c.ordered.given):
		return usagef("--capacity and --policy are for --repair: without it nothing is written")
	}
	if info, err := os.Stat(c.dir); !v.writes && (err != nil || !info.IsDir()) {
		return usagef("--store %.200q: want a directory that is there", c.dir)
	}
	if err := c.inputs(ctx, v); err != nil {
		return err
	}
	if v.writes && v.name != "prune" {
		if err := c.foreign(ctx); err != nil {
			return err
		}
	}
	if c.store, err = c.open(ctx, v); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.store.Close(context.WithoutCancel(ctx))) }()
	if none, err := c.noneOf(ctx, v); err != nil || none && v.name == "export" {
		return err
	}
	return v.run(c, ctx)
}

// noneOf says so where --backend names one of which the directory has no entry: it may
// be misspelt. Then an archive that is there stays as it is.
func (c *cacheCall) noneOf(ctx context.Context, v cacheVerb) (none bool, err error) {
	if !c.only.given || c.json && v.name != "export" || !slices.Contains([]string{"ls", "stats", "verify", "prune", "export"}, v.name) {
		return false, nil
	}
	if u, err := c.store.Usage(ctx); err != nil || u.Entries > 0 {
		return false, err
	}
	if v.name == "export" {
		c.code = exitNotFound
	}
	_, err = fmt.Fprintf(c.stderr, "kiln: %s: no entries of backend %s; this store has: %s\n", c.name, c.backend, cmp.Or(strings.Join(c.backends(ctx), ", "), "none"))
	return true, err
}

// backends lists those of which the directory has entries, as far as it can be read.
func (c *cacheCall) backends(ctx context.Context) []string {
	s, err := blobstore.Open(ctx, blobstore.Config{Dir: c.dir, ReadOnly: true})
	if err != nil {
		return nil
	}
	u, err := s.Usage(ctx)
	if err = errors.Join(err, s.Close(ctx)); err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(u.ByBackend))
}

// verbFlags are the flags that only some subcommands have.
func (c *cacheCall) verbFlags(v cacheVerb) {
	switch v.name {
	case "put", "get", "explain":
		c.text(&c.keyFile, "key-file F", "file that holds the key's bytes, or - for standard input", "a file", nil)
		c.file(&c.identity, "identity FILE|ENTRY", "the producer that asks or writes: a JSON file, a Go program (for --backend go), or the one of an entry (default this binary)", "a file or an entry")
	case "inspect":
		c.text(&c.keyOut, "key-out F", "file to write the key's bytes to, for --key-file; - writes them alone, to standard output", "a file", nil)
	case "verify":
		c.toggle(&c.repair, "repair", "set bad entries aside")
	case "prune":
		c.bounded(&c.to, size.MiB, "to SIZE", "what may stay in use: MiB, or a size such as 512KiB or 5GiB")
	case "import", "merge":
		c.file(&c.trust, "trust FILE", "take only what a key of this trust list has signed (default all that is sound)", "a file")
	}
	if v.name == "get" || v.name == "explain" {
		c.directories(&c.bases, "base DIR", "read-only directories that are asked after the store's, a list as PATH is one (default KILN_STORE_BASES)")
	}
	switch v.name {
	case "put":
		c.text(&c.valueFile, "value-file F", "file that holds the blob's bytes, or - for standard input", "a file", nil)
		c.seconds(&c.cost, "cost SECONDS", "what compiling it took")
	case "get":
		c.text(&c.out, "out F", "file to write the blob to, or - (default standard output)", "a file", nil)
	}
	if v.writes || v.name == "verify" {
		c.size(&c.capacity, size.MiB, "capacity MiB", "of the directory from now on: MiB, a size such as 512KiB or 5GiB, or unlimited (default what it has; KILN_STORE_CAPACITY, else 1024, where it has none)")
		c.ordered = c.oneOf(&c.policy, "policy P", "which entries go from now on when it is full: fifo, lru or cost (default what it has, else fifo)",
			string(blobstore.FIFO), string(blobstore.LRU), string(blobstore.Cost))
	}
}

// open opens the store: for reading only, unless the subcommand writes.
func (c *cacheCall) open(ctx context.Context, v cacheVerb) (*blobstore.Store, error) {
	identity, err := c.producer(ctx, c.backend)
	if err != nil {
		return nil, err
	}
	of := func(backend string) gpuexec.Identity {
		if backend != c.backend { // explain looks into all: of a backend that is absent it has none
			other, _ := c.producer(ctx, backend)
			return other
		}
		return identity
	}
	cfg := blobstore.Config{Dir: c.dir, DefaultCapacity: !c.capacity.Given(), Logger: c.logger(), Factors: primitive.Factors,
		Trust: c.trust, ReadOnly: !v.writes && !c.repair, Identity: of}
	if c.flags.Lookup("base") != nil {
		cfg.Bases = filepath.SplitList(cmp.Or(c.bases, c.settings.StoreBases.Value))
	}
	if c.only.given {
		cfg.Only = c.backend
	}
	if c.ordered != nil && c.ordered.given {
		cfg.Policy = blobstore.Policy(c.policy)
	}
	switch v.name {
	case "ls", "inspect", "stats", "verify", "prune", "export":
		cfg.Existing = true
	}
	switch {
	case cfg.ReadOnly:
	case (v.name == "prune" || c.repair) && !c.capacity.Given(): // the default must not evict
		cfg.Capacity = limit.Unlimited
	default:
		room, err := c.room("capacity", c.capacity)
		if err != nil {
			return nil, err
		}
		cfg.Capacity = room
	}
	if v.name == "put" { // one that fails changes nothing
		if err := c.fits(cfg.Capacity, identity); err != nil {
			return nil, err
		}
		cfg = hidden.With(cfg, c.capacity.Given() || c.ordered.given)
	}
	s, err := blobstore.Open(ctx, cfg)
	switch {
	case errors.Is(err, fault.ErrInvalid):
		return nil, err
	case err != nil:
		flag := "store"
		if f := new(fault.Error); errors.As(err, &f) && f.Key == c.trust {
			flag = "trust"
		}
		return nil, usageError{fmt.Errorf("--%s: %w", flag, err)}
	}
	return s, nil
}

// foreign refuses a folder that is no store and has files of somebody else. A store that
// another process makes has lease/ first.
func (c *cacheCall) foreign(ctx context.Context) error {
	list, err := os.ReadDir(c.dir)
	if err != nil || !slices.ContainsFunc(list, func(e fs.DirEntry) bool { return e.Name() != "lease" && e.Name() != "lost+found" }) {
		return nil // what is wrong with the folder the store says
	}
	s, err := blobstore.Open(ctx, blobstore.Config{Dir: c.dir, ReadOnly: true, Existing: true})
	if errors.Is(err, fault.ErrNotFound) {
		return usagef("--store %.200q: this is no store, and has other files, %.200q for one: want a store, an empty folder, or a new one", c.dir, list[0].Name())
	}
	if err != nil {
		return nil
	}
	return s.Close(ctx)
}

// room is the capacity of a store that is written, in bytes: that of the flag, else of
// the environment, since a directory has no capacity of its own.
func (c *call) room(flag string, given limit.Limit) (limit.Limit, error) {
	return roomOf(c.settings, flag, given)
}

func roomOf(settings env.Settings, flag string, given limit.Limit) (limit.Limit, error) {
	room := given.Or(settings.StoreCapacity.Value)
	if n, counted := room.Value(); !counted || n > 0 {
		return room, nil
	}
	from := "--" + flag
	if !given.Given() {
		from = settings.StoreCapacity.Name
	}
	return room, usagef("%s 0: nothing would be stored: want a size above 0, or %s", from, limit.Word)
}

// identityFile is the JSON that --identity reads.
type identityFile struct {
	Library  string   `json:"library"`
	Build    string   `json:"build"`
	Compiler string   `json:"compiler"`
	Driver   string   `json:"driver"`
	Device   string   `json:"device"`
	ISA      []string `json:"isa"`
}

// producer is the identity that asks or writes entries of a backend: that of this
// binary, of a file, or of an entry.
func (c *cacheCall) producer(ctx context.Context, backend string) (gpuexec.Identity, error) {
	own, absent := identityOf(libraries(c.settings, ""), backend)
	if c.identity == "" {
		if backend == kiln.DefaultBackend {
			self, err := os.Executable()
			if err != nil {
				return own, err
			}
			text, err := os.ReadFile(self)
			if err != nil {
				return own, err
			}
			return executable(text)
		}
		if absent != nil && c.flags.Lookup("key-file") != nil {
			if gpuexec.Find(backend) == nil {
				absent = fmt.Errorf("no such backend: want %s", list(backendNames()))
			}
			return own, usagef("--backend %.40q: %w; or name with --identity the producer that asks or writes", backend, absent)
		}
		return own, nil
	}
	if backend == kiln.DefaultBackend {
		_, own.ISA = processor.Read()
	}
	id, err := c.named(ctx, own)
	if err != nil || id.Library != "" && id.Build != "" {
		return id, err
	}
	return own, usagef("--identity %.200s: want a library and a build: nothing is stored or found without both", c.identity)
}

// backendNames lists those of which this binary knows an identity.
func backendNames() []string {
	names := []string{kiln.DefaultBackend}
	for _, b := range gpuexec.Backends() {
		names = append(names, b.Name())
	}
	slices.Sort(names)
	return names
}

// named is the identity that a file or an entry names.
func (c *cacheCall) named(ctx context.Context, own gpuexec.Identity) (gpuexec.Identity, error) {
	text, err := interruptible(ctx, func() ([]byte, error) { return os.ReadFile(c.identity) })
	if errors.Is(err, fs.ErrNotExist) && strings.Count(c.identity, "/") == 2 {
		return c.producerOf(ctx, own)
	}
	if id, notGo := executable(text); err == nil && notGo == nil {
		return id, nil
	}
	if err != nil {
		return own, usagef("--identity: %w", err)
	}
	var f identityFile
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	err = strict.Decode(&f)
	if err == nil && strict.InputOffset() < int64(len(bytes.TrimRight(text, " \t\r\n"))) {
		err = errors.New("there is more after the object")
	}
	if err != nil {
		return own, usagef("--identity %s: want an object with library, build, compiler, driver, device and isa: %w", c.identity, err)
	}
	return gpuexec.Identity(f), nil
}

// executable is the identity of what a Go program compiles for itself, as package
// kiln has it (kiln.DefaultBackend).
func executable(text []byte) (gpuexec.Identity, error) {
	info, err := buildinfo.Read(bytes.NewReader(text))
	if err != nil {
		return gpuexec.Identity{}, err
	}
	_, isa := processor.Read()
	return gpuexec.Identity{Library: "executable", Build: fmt.Sprintf("%x", sha256.Sum256(text)), Compiler: info.GoVersion, ISA: isa}, nil
}

func (c *cacheCall) producerOf(ctx context.Context, own gpuexec.Identity) (gpuexec.Identity, error) {
	none := usagef("--identity %.200s: no such file or entry: see kiln cache ls", c.identity)
	if _, err := os.Stat(c.dir); errors.Is(err, fs.ErrNotExist) {
		return own, none
	}
	s, err := blobstore.Open(ctx, blobstore.Config{Dir: c.dir, ReadOnly: true})
	if err != nil {
		return own, usageError{fmt.Errorf("--store: %w", err)}
	}
	info, err := s.Inspect(ctx, c.identity)
	err = errors.Join(err, s.Close(ctx))
	switch {
	case errors.Is(err, fault.ErrNotFound), errors.Is(err, fault.ErrInvalid):
		return own, none
	case err != nil:
		return own, err
	}
	p := info.Producer
	return gpuexec.Identity{Library: p.Library, Build: p.Build, Compiler: p.Compiler, Driver: p.Driver, Device: p.Device, ISA: own.ISA}, nil
}
