package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/outfile"
	"github.com/kiln-cache/kiln/limit"
)

// inputs reads the files that a subcommand is given. It runs before the store is
// opened, so that a mistake makes no new store.
func (c *cacheCall) inputs(ctx context.Context, v cacheVerb) (err error) {
	switch {
	case c.keyFile == dash && c.valueFile == dash:
		return usagef("--key-file - and --value-file -: standard input holds one of them: want a file for the other")
	case c.json && (c.keyOut == dash || c.out == dash || v.name == "export" && c.rest[0] == dash):
		return usagef("--json with - for standard output: want a file beside it")
	case c.trust != "":
		if _, err := os.Stat(c.trust); err != nil { // what else is wrong with it the store says
			return usageError{fmt.Errorf("--trust: %w", err)}
		}
	}
	if c.flags.Lookup("key-file") != nil {
		key, err := c.input(ctx, "key-file", c.keyFile, blobstore.LongestKey)
		if err != nil {
			return err
		}
		if c.key = string(key); c.key == "" {
			return usagef("--key-file %s: the key is empty", c.keyFile)
		}
	}
	switch v.name {
	case "put":
		c.payload, err = c.input(ctx, "value-file", c.valueFile, blobstore.Largest)
		return err
	case "prune":
		if _, counted := c.to.Value(); !counted {
			return usagef("--to must be given, a size: see kiln %s --help", c.name)
		}
	case "import":
		if c.rest[0] == dash {
			return nil
		}
		info, err := os.Stat(c.rest[0])
		switch {
		case err != nil:
			return usageError{err}
		case info.IsDir():
			return usagef("%.200q: a folder is no archive: want what kiln cache export wrote", c.rest[0])
		case info.Mode().IsRegular(): // a pipe is read once
			return whole(c.rest[0])
		}
	case "merge":
		for _, dir := range c.rest {
			if info, err := os.Stat(dir); err != nil || !info.IsDir() {
				return usagef("%.200q: want a directory that is there", dir)
			}
			s, err := blobstore.Open(ctx, blobstore.Config{Dir: dir, ReadOnly: true, Existing: true})
			if err == nil {
				err = s.Close(ctx)
			}
			if err != nil {
				return usageError{err}
			}
		}
	}
	return nil
}

// whole refuses a file that is no archive, or a part of one.
func whole(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return usageError{err}
	}
	defer f.Close()
	if err := blobstore.Whole(f); err != nil {
		return usagef("%.200q: %w", file, err)
	}
	return nil
}

// input reads the file that a flag names. It stops one byte beyond the most that is
// allowed, since the file may have no end.
func (c *cacheCall) input(ctx context.Context, name, file string, most int64) ([]byte, error) {
	if file == "" {
		return nil, usagef("--%s must be given: see kiln %s --help", name, c.name)
	}
	text, err := interruptible(ctx, func() ([]byte, error) {
		from := c.stdin
		if file != dash {
			f, err := os.Open(file)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			from = f
		}
		return io.ReadAll(io.LimitReader(from, most+1))
	})
	switch {
	case err != nil:
		return nil, usagef("--%s: %w", name, err)
	case int64(len(text)) > most:
		return nil, usagef("--%s %s: want at most %d bytes", name, file, most)
	}
	return text, nil
}

// fits refuses an entry that is larger than the capacity, as the store would, before there is
// one. A directory that has something may have another capacity than the default.
func (c *cacheCall) fits(capacity limit.Limit, producer gpuexec.Identity) error {
	most, counted := capacity.Value()
	if list, _ := os.ReadDir(c.dir); !counted || !c.capacity.Given() && len(list) > 0 {
		return nil
	}
	file, err := frame.Encode(frame.ID{Backend: c.backend, Key: c.key}, frame.Entry{Identity: frame.Identity(producer), Payload: c.payload}, nil)
	if err != nil {
		return err
	}
	if disk := frame.OnDisk(int64(len(c.key))) + frame.OnDisk(file.Size()); disk > most {
		return tooLarge(&fault.Error{Op: "store: put", Backend: c.backend, Key: c.key, Reason: fault.TooLarge,
			Err: fmt.Errorf("%w: %w: %d bytes: at most %d are stored", fault.ErrRefused, fault.ErrTooLarge, disk, most)})
	}
	return nil
}

func tooLarge(err error) error {
	return fmt.Errorf("%w: raise --capacity, unless that is all that an entry may have", err)
}

func (c *cacheCall) put(ctx context.Context) error {
	switch err := c.store.Put(ctx, c.backend, c.key, c.payload, time.Duration(c.cost*float64(time.Second)), []string{}...); {
	case errors.Is(err, fault.ErrTooLarge):
		return tooLarge(err)
	case err != nil:
		return err
	}
	stored, text := c.store.Stats().Stores > 0, fmt.Sprintf("stored %d bytes", len(c.payload))
	if !stored {
		text = "nothing stored: the key has an entry already, which stays"
		if old, err := c.store.Explain(ctx, c.backend, c.key); err == nil && old.Miss.None() { // which counts no use
			text += ": to replace it, remove the folder " + filepath.Join(c.dir, old.Nearest) + " first"
		}
	}
	went := c.store.Stats().Evictions
	fields := map[string]any{"stored": stored, "bytes": len(c.payload), "bucket": c.store.Bucket(c.key), "evicted": went}
	return c.say(fields, "%s; %d evicted", text, went)
}

func (c *cacheCall) get(ctx context.Context) error {
	blob, miss, err := c.store.Get(ctx, c.backend, c.key)
	if err != nil {
		return err
	}
	if miss.Reason != "" {
		c.code = exitNotFound
		if c.json {
			return json.NewEncoder(c.stdout).Encode(map[string]any{"hit": false, "reason": miss.Reason, "field": miss.Field})
		}
		text := strings.TrimSpace(string(miss.Reason) + " " + miss.Field)
		switch all := c.backends(ctx); {
		case len(all) == 0 || slices.Equal(all, []string{c.backend}):
		case c.only.given && !slices.Contains(all, c.backend):
			text += fmt.Sprintf("; no entries of backend %s; this store has: %s", c.backend, strings.Join(all, ", "))
		case !c.only.given:
			text += fmt.Sprintf("; only backend %s was asked, and this store has: %s: see --backend", c.backend, strings.Join(all, ", "))
		}
		_, err := fmt.Fprintf(c.stderr, "kiln: %s: a miss: %s\n", c.name, text)
		return err
	}
	if c.json && c.out == "" {
		return usagef("--json without --out: the blob would be lost: give --out FILE")
	}
	if c.out != "" && c.out != dash {
		if err := toFile("out", c.out, blob.Payload); err != nil {
			return err
		}
	} else {
		_, err := c.stdout.Write(blob.Payload)
		return err
	}
	return c.say(map[string]any{"hit": true, "bytes": len(blob.Payload), "compile_seconds": blob.Cost.Seconds()}, "%d bytes", len(blob.Payload))
}

// toFile writes the file that a flag names.
func toFile(name, file string, text []byte) error {
	err := outfile.Write(file, 0o600, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
	if err != nil {
		return fmt.Errorf("--%s: %w", name, err)
	}
	return nil
}

// cacheRow is an entry as ls and inspect show it.
type cacheRow struct {
	Entry    string       `json:"entry"`
	Backend  string       `json:"backend"`
	Bucket   string       `json:"bucket"`
	Slot     string       `json:"slot"`
	Bytes    int64        `json:"bytes"`
	Created  float64      `json:"created"` // seconds since 1970; 0 where the entry cannot be read
	Compile  float64      `json:"compile_seconds"`
	Uses     int64        `json:"uses"`
	Producer identityFile `json:"producer"`
	Requires []string     `json:"requires,omitempty"`
	Signer   string       `json:"signer,omitempty"`
	Reason   string       `json:"reason,omitempty"`
	Field    string       `json:"field,omitempty"`
	Key      string       `json:"key,omitempty"`
}

func rowOf(i blobstore.Info) cacheRow {
	p := i.Producer
	created := 0.0
	if !i.Created.IsZero() {
		created = float64(i.Created.UnixMilli()) / 1000
	}
	return cacheRow{Entry: i.Entry, Backend: i.Backend, Bucket: i.Bucket, Slot: i.Slot, Bytes: i.Bytes,
		Created: created, Compile: i.Cost.Seconds(), Uses: i.Uses,
		Producer: identityFile{p.Library, p.Build, p.Compiler, p.Driver, p.Device, p.ISA}, Requires: i.Requires, Signer: i.Signer,
		Reason: string(i.Flaw.Reason), Field: i.Flaw.Field}
}

func (c *cacheCall) list(ctx context.Context) error {
	return c.store.List(ctx, func(i blobstore.Info) error {
		if !i.Flaw.None() {
			return c.say(rowOf(i), "%-40s %10d bytes  bad: %s", i.Entry, i.Bytes, why(i))
		}
		row := rowOf(i)
		var shown string
		row.Key, shown = keyOf(i)
		return c.say(row, "%-40s %10d bytes  %s  %8.3f s  %-7s  %.60s", i.Entry, i.Bytes, i.Created.Format(time.DateTime), i.Cost.Seconds(), counted(i.Uses, "use", "uses"), shown)
	})
}

// why says what is wrong with an entry.
func why(i blobstore.Info) string {
	return strings.TrimSpace(string(i.Flaw.Reason) + " " + i.Flaw.Field)
}

// counted counts things.
func counted[N int | int64](n N, one, more string) string {
	if n == 1 {
		more = one
	}
	return fmt.Sprint(n, " ", more)
}

func (c *cacheCall) inspect(ctx context.Context) error {
	if of, _, _ := strings.Cut(c.rest[0], "/"); c.only.given && of != c.backend {
		return usagef("--backend %s: %.200q is an entry of another backend: leave out --backend", c.backend, c.rest[0])
	}
	i, err := c.store.Inspect(ctx, c.rest[0])
	if errors.Is(err, fault.ErrNotFound) {
		c.code = exitNotFound
		if c.json {
			return json.NewEncoder(c.stdout).Encode(map[string]any{"entry": c.rest[0], "reason": fault.Absent})
		}
		_, err := fmt.Fprintf(c.stderr, "kiln: %s: %.200q: no such entry: see kiln cache ls\n", c.name, c.rest[0])
		return err
	}
	if err != nil {
		return err
	}
	switch c.keyOut {
	case "":
	case dash:
		_, err := io.WriteString(c.stdout, i.Key)
		return err
	default:
		if err := toFile("key-out", c.keyOut, []byte(i.Key)); err != nil {
			return err
		}
	}
	row := rowOf(i)
	var shown string
	row.Key, shown = keyOf(i)
	if !i.Flaw.None() {
		return c.say(row, "%s: %d bytes, key %s\n  bad: %s", i.Entry, i.Bytes, shown, why(i))
	}
	by, p := "", i.Producer
	for _, part := range [][2]string{{"library", p.Library}, {"build", p.Build}, {"compiler", p.Compiler}, {"driver", p.Driver}, {"device", p.Device}} {
		if part[1] != "" {
			by += " " + part[0] + " " + fault.Printable(part[1])
		}
	}
	return c.say(row, "%s: %d bytes, key %s\n  made %s in %.3f s, %s, by%s", i.Entry, i.Bytes, shown,
		i.Created.Format(time.DateTime), i.Cost.Seconds(), counted(i.Uses, "use", "uses"), by)
}

// keyOf is the key of an entry, and as a line shows it. That of a primitive is given
// as its fields, but for those that are empty or 0.
func keyOf(i blobstore.Info) (key, shown string) {
	factors := primitive.Factors(i.Backend, i.Key)
	if factors == nil {
		return i.Key, fmt.Sprintf("%.200q", i.Key)
	}
	text := factors["kind"]
	for _, name := range slices.Sorted(maps.Keys(factors)) {
		switch value := factors[name]; {
		case name == "kind" || name == "format" || slices.Contains([]string{"0", "[]", `""`}, value):
		case value == "":
			text += " " + name
		default:
			text += " " + name + "=" + value
		}
	}
	return text, text
}

func (c *cacheCall) stats(ctx context.Context) error {
	u, err := c.store.Usage(ctx)
	if err != nil {
		return err
	}
	fields, text := c.usage(u)
	return c.say(fields, "%s", text)
}

func (c *cacheCall) usage(u blobstore.Usage) (fields map[string]any, text string) {
	room := u.Capacity.Or(c.settings.StoreCapacity.Value)
	return map[string]any{"entries": u.Entries, "bytes": u.Bytes, "disk_bytes": u.DiskBytes, "capacity_bytes": room, "quarantined": u.Quarantined, "by_backend": u.ByBackend},
		fmt.Sprintf("%s, %d bytes; on the disk %d bytes of at most %v; %d set aside", counted(u.Entries, "entry", "entries"), u.Bytes, u.DiskBytes, room, u.Quarantined)
}

func (c *cacheCall) verify(ctx context.Context) error {
	u, err := c.store.Usage(ctx)
	if err != nil {
		return err
	}
	bad, err := c.store.Verify(ctx, c.repair)
	if err != nil {
		return err
	}
	rows := []cacheRow{}
	text := fmt.Sprintf("%s, %d looked at", counted(len(bad), "bad entry", "bad entries"), u.Entries)
	repaired, aside := c.repair && len(bad) > 0, 0
	for _, i := range bad {
		rows = append(rows, rowOf(i))
		text += fmt.Sprintf("\n  %s: %s", i.Entry, why(i))
		if i.Slot == "" {
			text += ", a folder whose entries are not used: see its owner and mode"
		}
		if i.Flaw.Field == "mode" && !c.repair {
			text += ": chmod -R go-w " + c.dir
		}
		switch {
		case i.SetAside:
			aside++
		case c.repair:
			repaired = false
			text += ", and could not be set aside: see its owner and mode, and those of quarantine/"
		}
	}
	if len(bad) > 0 {
		c.code = exitFinding
		if aside > 0 {
			text += fmt.Sprintf("\n%d of them set aside in quarantine/, and no longer found", aside)
		}
	}
	return c.say(map[string]any{"bad": rows, "looked_at": u.Entries, "repaired": repaired}, "%s", text)
}

func (c *cacheCall) prune(ctx context.Context) error {
	to, _ := c.to.Value()
	if err := c.store.Prune(ctx, to); err != nil {
		return err
	}
	u, err := c.store.Usage(ctx)
	if err != nil {
		return err
	}
	went := c.store.Stats().Evictions
	fields, text := c.usage(u)
	fields["evicted"] = went
	return c.say(fields, "%s evicted; %s", counted(went, "entry", "entries"), text)
}

// explain asks for the key in one backend, or in all that have entries: then the one
// that comes nearest to a hit answers.
func (c *cacheCall) explain(ctx context.Context) error {
	backends := []string{c.backend}
	if !c.only.given {
		u, err := c.store.Usage(ctx)
		if err != nil {
			return err
		}
		if len(u.ByBackend) > 0 {
			backends = slices.Sorted(maps.Keys(u.ByBackend))
		}
	}
	var x blobstore.Explanation
	for i, backend := range backends {
		at, err := c.store.Explain(ctx, backend, c.key)
		if err != nil {
			return err
		}
		if i == 0 || distance(at) < distance(x) {
			x = at
		}
	}
	factors := append([]string{}, x.Factors...)
	text := "a hit"
	if x.Miss.Reason != "" {
		text = fmt.Sprintf("a miss: %s", x.Miss.Reason)
		if x.Nearest != "" {
			text += fmt.Sprintf("; the nearest entry %s differs in %s", x.Nearest, strings.Join(factors, ", "))
		}
	}
	return c.say(map[string]any{"hit": x.Miss.Reason == "", "reason": x.Miss.Reason, "field": x.Miss.Field, "nearest": x.Nearest, "factors": factors}, "%s", text)
}

// distance orders explanations: a hit, an entry of the key, the fewest factors that
// differ, none.
func distance(x blobstore.Explanation) int {
	switch {
	case x.Miss.None():
		return 0
	case x.Miss.Reason != fault.Absent && x.Miss.Reason != fault.Disabled:
		return 1
	case x.Nearest != "":
		return 1 + len(x.Factors)
	}
	return math.MaxInt
}

// transferred says what an import or a merge took, and what the directory has after it.
func (c *cacheCall) transferred(ctx context.Context, t blobstore.Transfer, err error) error {
	if err != nil {
		return err
	}
	u, err := c.store.Usage(ctx)
	if err != nil {
		return err
	}
	if c.only.given && !c.json && t.Taken == 0 && len(t.Rejected) == 0 {
		fmt.Fprintf(c.stderr, "kiln: %s: nothing there is of backend %s\n", c.name, c.backend)
	}
	went := c.store.Stats().Evictions
	fields := map[string]any{"new": t.Taken - t.Known, "known": t.Known, "evicted": went, "kept": u.Entries}
	return c.rejections(t, fields, fmt.Sprintf("%d new, %d known before", t.Taken-t.Known, t.Known), fmt.Sprintf("; %s kept, %d evicted", counted(u.Entries, "entry", "entries"), went))
}

// rejections ends what is said of a transfer with what was not taken.
func (c *cacheCall) rejections(t blobstore.Transfer, fields map[string]any, text, end string) error {
	rejected := map[string]int{}
	for _, why := range slices.Sorted(maps.Keys(t.Rejected)) {
		rejected[string(why)] = t.Rejected[why]
		text += fmt.Sprintf(", %d rejected as %s", t.Rejected[why], why)
	}
	if len(rejected) > 0 {
		c.code = exitFinding
	}
	fields["taken"], fields["rejected"] = t.Taken, rejected
	return c.say(fields, "%s%s", text, end)
}

func (c *cacheCall) export(ctx context.Context) error {
	var t blobstore.Transfer
	write := func(w io.Writer) (err error) {
		t, err = c.store.Export(ctx, w)
		return err
	}
	var err error
	if c.rest[0] == dash {
		err, c.stdout = write(c.stdout), c.stderr // where the rest is said
	} else {
		err = outfile.Write(c.rest[0], 0o600, write)
	}
	if err != nil {
		return err
	}
	return c.rejections(t, map[string]any{}, counted(t.Taken, "entry", "entries")+" written", "")
}

func (c *cacheCall) take(ctx context.Context) error {
	if c.rest[0] == dash {
		t, err := interruptible(ctx, func() (blobstore.Transfer, error) { return c.store.Import(ctx, c.stdin) })
		return c.transferred(ctx, t, err)
	}
	f, err := interruptible(ctx, func() (*os.File, error) { return os.Open(c.rest[0]) })
	if err != nil {
		return usageError{err}
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })() // ends a read that waits
	t, err := c.store.Import(ctx, f)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return c.transferred(ctx, t, err)
}

func (c *cacheCall) merge(ctx context.Context) error {
	t, err := c.store.Merge(ctx, c.rest...)
	if errors.Is(err, fault.ErrNotFound) {
		return usageError{err}
	}
	return c.transferred(ctx, t, err)
}
