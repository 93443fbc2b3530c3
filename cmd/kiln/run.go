package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/cmd/kiln/internal/manifest"
	"github.com/kiln-cache/kiln/cmd/kiln/internal/report"
	"github.com/kiln-cache/kiln/cmd/kiln/internal/trace"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/outfile"
	"github.com/kiln-cache/kiln/internal/picture"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/size"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// runFlags are the flags of `kiln run` as they are typed.
type runFlags struct {
	trace, model, device, policy, bucket, plot string
	store, bases, record                       string
	memory                                     string
	groups, constants, storeCapacity           kiln.Limit
	sessionBytes, poolBytes, floorBytes        kiln.Limit
	floorGroups                                int
	sessions, announce, requests, passes       int
	seed                                       uint64
}

// The largest numbers that the flags take.
const (
	mostSessions = 1024
	mostPasses   = 1000
	mostRequests = math.MaxInt32
)

const bucketings = "exact, multiple:N, pow2 or geometric:K, with N and K from 1"

// sessionPolicies are the names of the policies that a session may have.
func sessionPolicies() []string {
	var all []string
	for _, k := range policy.Kinds() {
		all = append(all, string(k))
	}
	return all
}

// defaultBucket is the command's own default: a session of the library buckets
// nothing unless it is told to.
const defaultBucket = "geometric:8"

func (f *runFlags) define(c *call) {
	*f = runFlags{model: "minilm_l6_h384", device: cpu.Name, sessions: 4, passes: 2, seed: 1}
	c.file(&f.trace, "trace FILE", "request trace: CSV, also gzipped, with a column len (default a built-in sample)", "the file of a trace")
	c.text(&f.model, "model NAME|FILE", "built in are "+strings.Join(data.Models(), ", ")+"; else an op list's file", "a built-in model or an op list's file", nil)
	c.device(&f.device, "the device that runs it")
	c.whole(&f.sessions, "sessions N", 1, mostSessions, "sessions that work side by side")
	c.capacity(&f.groups, "groups N", "shape groups a session may hold, a number or unlimited; 0 keeps none (default KILN_SESSION_GROUPS, else 64)")
	c.size(&f.sessionBytes, size.Byte, "session-bytes SIZE", "what a session may hold, bytes, a size such as 64MiB, or unlimited (default unlimited)")
	c.size(&f.poolBytes, size.Byte, "pool-bytes SIZE", "what all sessions may hold together, bytes, a size such as 64MiB, or unlimited (default unlimited)")
	c.bounded(&f.floorBytes, size.Byte, "floor-bytes SIZE", "what the others cannot take from a session, of --pool-bytes or --memory-limit: bytes, or a size such as 64MiB (default 0)")
	c.whole(&f.floorGroups, "floor-groups N", 0, mostCapacity, "shape groups of a session that the others cannot take from it, with --pool-bytes or --memory-limit")
	c.text(&f.memory, "memory-limit MiB", "for kernels and weights together: MiB, a size such as 4GiB, off or auto (default KILN_MEMORY_LIMIT, else off)", "off, auto, or from 1 MiB on "+size.Grammar, isMemoryLimit)
	c.oneOf(&f.policy, "policy P", "which group goes when a session is full: "+list(sessionPolicies())+" (default KILN_SESSION_POLICY, else duel)", sessionPolicies()...)
	c.text(&f.bucket, "bucket B", "which shape is compiled for a request's: "+bucketings+" (default KILN_BUCKET, else "+defaultBucket+")", bucketings, isBucketing)
	c.whole(&f.announce, "announce N", 0, mostRequests, "tell a session the shapes of its next N requests")
	c.whole(&f.requests, "requests N", 0, mostRequests, "replay only the first N requests; 0 is all")
	c.whole(&f.passes, "passes N", 1, mostPasses, "times that the trace is replayed")
	c.size(&f.constants, size.MiB, "constants MiB", "for prepared weights: MiB, a size such as 4GiB, or unlimited; 0 shares none (default unlimited)")
	c.text(&f.store, "store DIR", "keep compiled kernels over restarts in this directory (default KILN_STORE_DIR, else none)", "a directory's name", nil)
	c.directories(&f.bases, "base DIR", "read-only directories that are asked after the store's, a list as PATH is one (default KILN_STORE_BASES)")
	c.size(&f.storeCapacity, size.MiB, "store-capacity MiB", "for the store: MiB, a size such as 512KiB or 5GiB, or unlimited (default KILN_STORE_CAPACITY, else 1024)")
	c.seed(&f.seed, "seed N", "what token ids, and weights that no file has, are made from")
	c.file(&f.record, "record FILE", "write what was asked for as a manifest for kiln warm", "a file's name")
	c.file(&f.plot, "plot FILE.png", "draw hits and latency over time as this picture", "the name of a PNG file")
}

func isBucketing(text string) bool {
	_, err := shapegroups.ParseBucketing(text)
	return err == nil
}

func isMemoryLimit(text string) bool {
	_, err := env.ParseMemoryLimit(text)
	return err == nil
}

// job is a checked `kiln run`.
type job struct {
	model    *forward.List
	requests []trace.Request
	library  ops.Library
	index    int // of the device
	session  kiln.SessionConfig
	config   kiln.Config
	runFlags

	recorded []manifest.Item // with --record
	failed   error           // of the first request that failed, once it ran
}

func runCommand(ctx context.Context, c *call) error {
	var f runFlags
	f.define(c)
	if err := c.parse(0); err != nil {
		return err
	}
	if _, strict := env.Wrong(c.settings, nil); strict { // else the runtime says it
		if err := c.environment(); err != nil {
			return err
		}
	}
	j, err := interruptible(ctx, func() (*job, error) { return f.check(c.settings) })
	if err != nil {
		return usageError{err}
	}
	progress := report.NewProgress(c.stderr)
	c.stderr = progress // what is logged does not run into it
	j.config.Logger = c.logger()
	run, recorders, err := j.replay(ctx, progress)
	write := run.WriteText
	if c.json {
		write = run.WriteJSON
	}
	if run != nil && err != nil && ctx.Err() != nil { // interrupted: the passes until then
		return errors.Join(write(c.stdout), err)
	}
	if err != nil {
		return err
	}
	if f.plot != "" {
		if err := report.Plot(f.plot, run, recorders); err != nil {
			return err
		}
	}
	if f.record != "" {
		if err := outfile.Write(f.record, 0o600, func(w io.Writer) error { return manifest.Write(w, j.recorded) }); err != nil {
			return err
		}
	}
	return errors.Join(write(c.stdout), verdict(run, j.failed))
}

// check turns the flags into a job, or returns what is wrong with the first bad flag.
func (f runFlags) check(settings env.Settings) (*job, error) {
	j := &job{runFlags: f}
	var err error
	library := libraries(settings, f.device)
	if j.library, j.index, err = library(backendOf(f.device)); err != nil {
		return nil, err
	}
	if j.session, err = f.sessionConfig(settings); err != nil {
		return nil, err
	}
	if err = f.checkShared(settings); err != nil {
		return nil, err
	}
	j.config.CPUConstantsMiB, j.config.MemoryLimit, j.config.SessionBytes = f.constants, f.memory, f.poolBytes
	if n, counted := f.constants.Value(); counted {
		if j.config.CPUConstantsMiB = kiln.LimitOf(n / size.MiB); n%size.MiB != 0 {
			return nil, fmt.Errorf("--constants %d bytes: want whole MiB", n)
		}
	}
	if (f.bases != "" || f.storeCapacity.Given()) && f.store == "" && settings.StoreDir.Value == "" {
		return nil, errors.New("--base and --store-capacity are for a store: give --store DIR, too")
	}
	if f.store != "" {
		if _, err := roomOf(settings, "store-capacity", f.storeCapacity); err != nil {
			return nil, err
		}
	}
	j.config.Store = blobstore.Config{Dir: f.store, Capacity: f.storeCapacity, Identity: identities(library)}
	if f.bases != "" {
		j.config.Store.Bases = filepath.SplitList(f.bases)
	}
	j.config.StoreRequired = f.store != ""
	j.config.ArtefactEntries = kiln.Unlimited
	if settings.ArtefactCapacity.Source == env.Environment {
		j.config.ArtefactEntries = kiln.Limit{}
	}
	if f.plot != "" {
		if err := picture.Check(f.plot); err != nil {
			return nil, fmt.Errorf("--plot: %w", err)
		}
	}
	if f.record != "" {
		if err := outfile.Check(f.record); err != nil {
			return nil, fmt.Errorf("--record: %w", err)
		}
	}
	if j.model, err = model(f.model); err != nil {
		return nil, fmt.Errorf("--model: %w", err)
	}
	if j.requests, err = requests(f.trace); err != nil {
		return nil, fmt.Errorf("--trace: %w", err)
	}
	if f.requests > 0 {
		j.requests = j.requests[:min(f.requests, len(j.requests))]
	}
	return j, nil
}

// sessionConfig takes each setting from the flags, else from the environment, else
// from the defaults.
func (f runFlags) sessionConfig(settings env.Settings) (kiln.SessionConfig, error) {
	cfg := kiln.SessionConfig{Groups: settings.SessionGroups.Value, Policy: settings.SessionPolicy.Value}
	bucket, from := defaultBucket, "--bucket"
	if settings.Bucket.Source == env.Environment {
		bucket, from = settings.Bucket.Value, settings.Bucket.Name
	}
	if f.bucket != "" {
		bucket, from = f.bucket, "--bucket"
	}
	if f.policy != "" {
		cfg.Policy = f.policy
	}
	if f.groups.Given() {
		cfg.Groups = f.groups
	}
	floor, _ := f.floorBytes.Value()
	cfg.Bytes, cfg.Floor = f.sessionBytes, kiln.Floor{Bytes: floor, Groups: int64(f.floorGroups)}
	err := f.checkFloor(cfg.Groups, floor)
	if err != nil {
		return cfg, err
	}
	if cfg.Bucket, err = shapegroups.ParseBucketing(bucket); err != nil {
		return cfg, fmt.Errorf("%s %q: want %s", from, bucket, bucketings)
	}
	_, err = sessioncache.Config{Groups: cfg.Groups, Bytes: cfg.Bytes, Floor: cfg.Floor, Policy: cfg.Policy}.Validate()
	return cfg, err
}

// checkFloor refuses a floor above what a session may hold.
func (f runFlags) checkFloor(groups kiln.Limit, floor int64) error {
	if !groups.Allows(int64(f.floorGroups)) {
		return fmt.Errorf("--floor-groups %d: want at most %v, what a session may hold by --groups", f.floorGroups, groups)
	}
	for _, of := range []struct {
		flag     string
		capacity kiln.Limit
		sessions int
	}{{"--session-bytes", f.sessionBytes, 1}, {"--pool-bytes", f.poolBytes, f.sessions}} {
		if most, counted := of.capacity.Value(); counted && floor > most/int64(of.sessions) {
			return fmt.Errorf("--floor-bytes %d: want at most %d, what %s %d has for each session", floor, most/int64(of.sessions), of.flag, most)
		}
	}
	return nil
}

// checkShared refuses a floor where sessions share nothing that they could take.
func (f runFlags) checkShared(settings env.Settings) error {
	memory := settings.MemoryLimit.Value
	if f.memory != "" {
		memory, _ = env.ParseMemoryLimit(f.memory) // the flag takes no other
	}
	floor, _ := f.floorBytes.Value()
	if f.poolBytes.Given() || memory.Auto || memory.Bytes > 0 || floor == 0 && f.floorGroups == 0 {
		return nil
	}
	flag := "--floor-bytes"
	if floor == 0 {
		flag = "--floor-groups"
	}
	return fmt.Errorf("%s without --pool-bytes or --memory-limit: sessions share nothing that others could take: give one", flag)
}

// model reads a built-in op list or a file.
func model(name string) (*forward.List, error) {
	if text, ok := data.Model(name); ok {
		return forward.Parse(name, text)
	}
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%q is neither a file nor one of %s", name, strings.Join(data.Models(), ", "))
	}
	return forward.ReadList(name)
}

// requests reads a trace, the built-in sample without a file. A trace that
// cannot be run as a whole is refused before anything is.
func requests(file string) (all []trace.Request, err error) {
	if file == "" {
		name, text := data.Sample()
		return trace.ReadRequests(name, bytes.NewReader(text))
	}
	if all, err = trace.Requests(file); err != nil {
		return nil, readable(err, requestColumns)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no request after its header: want one a line", file)
	}
	for i, q := range all {
		if q.Len < 1 {
			return nil, fmt.Errorf("%s: request %d has the len 0: want at least 1 token", file, i+1)
		}
	}
	return all, nil
}

// The columns that a trace must have, by what its rows are.
const (
	requestColumns = "a column len"
	batchColumns   = "the columns batch and max_len"
)

// readable adds to an error of a file that is no trace what a trace with these
// columns looks like.
func readable(err error, columns string) error {
	if bad, ok := errors.AsType[*trace.Error](err); ok && bad.Line <= 1 && errors.Is(err, kiln.ErrInvalid) {
		return fmt.Errorf("%w; a trace is CSV, or that gzipped, whose header names %s", err, columns)
	}
	return err
}

// mostRelativeError is how far a sampled output may lie from the reference.
const mostRelativeError = 1e-4

// verdict is an error if requests failed. (Wrong outputs in the sample are an error
// of replay.)
func verdict(run *report.Run, first error) error {
	for _, p := range run.Passes {
		if p.Errors > 0 {
			return fmt.Errorf("pass %s: %d of %d requests failed, the first with: %w", p.Name, p.Errors, p.Requests, first)
		}
	}
	return nil
}
