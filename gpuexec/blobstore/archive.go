package blobstore

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/guard"
)

// Transfer counts the entries of an export, an import or a merge.
type Transfer struct {
	Taken    int                  // entries that the target has now, also those that it had before
	Known    int                  // of these, those that it had before; 0 for an export
	Rejected map[fault.Reason]int // entries that were not taken, by reason
}

func (t *Transfer) reject(r fault.Reason) {
	if t.Rejected == nil {
		t.Rejected = map[fault.Reason]int{}
	}
	t.Rejected[r]++
}

// Export writes every sound entry into one archive: a tar file of the folders of
// entries. Equal entries give equal archives. The error is that of w, as
// fault.ErrIO, or as List's.
func (s *Store) Export(ctx context.Context, w io.Writer) (Transfer, error) {
	const op = "store: export"
	var t Transfer
	if err := s.begin(op); err != nil {
		return t, err
	}
	defer s.leave()
	out := tar.NewWriter(w)
	if !s.off {
		if err := s.transfer(ctx, s.main, &t, func(place, key string, file []byte) error {
			return errors.Join(add(out, place+"/"+keyFile, []byte(key)), add(out, place+"/"+kernelFile, file))
		}); err != nil {
			return t, trouble(op, s.cfg.Dir, err)
		}
	}
	if err := out.Close(); err != nil {
		return t, trouble(op, s.cfg.Dir, err)
	}
	return t, nil
}

func add(out *tar.Writer, name string, text []byte) error {
	// A fixed time: equal entries give equal archives.
	if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := out.Write(text)
	return err
}

// transfer calls take for each sound entry of a directory. It counts the other
// entries, and folders that may not be listed, as rejected.
func (s *Store) transfer(ctx context.Context, l folder, t *Transfer, take func(place, key string, file []byte) error) error {
	var refused refusals
	if err := refused.read(l.FS); err != nil {
		s.logOnce("read what was refused", err)
	}
	return l.scan(func(place string, _ files) error {
		if err := ctx.Err(); err != nil || !s.concerns(place) {
			return err
		}
		key, v := s.readKey(l, place)
		var file []byte
		if v.kind == sound {
			file, v = s.readKernel(l, place, nil)
		}
		switch v.kind {
		case vanished:
			return nil
		case sound:
		default:
			t.reject(v.reason())
			return nil
		}
		if _, flaw := frame.Parse(file, frame.ID{Backend: backendOf(place), Key: key}); !flaw.None() && flaw.Reason != fault.Outdated {
			t.reject(flaw.Reason)
			return nil
		}
		if digest := frame.DigestOf(file); refused.has(digest) || s.isRefused(digest) { // it could not be moved
			t.reject(fault.Quarantined)
			return nil
		}
		if err := take(place, key, file); err != nil {
			return err
		}
		t.Taken++
		return nil
	}, func(name string, err error) {
		if s.concerns(name) {
			s.skipped(name, err)
			t.reject(fault.Degraded)
		}
	})
}

func (v verdict) reason() fault.Reason {
	if v.kind == unreadable {
		return fault.Degraded
	}
	return v.miss.Reason
}

// Import stores the entries of an archive that Export wrote. Each entry is verified,
// and with Config.Trust its signature too; an entry that fails is rejected and the
// others are taken. The error is fault.ErrInvalid for a file that is no archive or
// only the beginning of one (see Whole), fault.ErrRefused for a store that is off or
// read-only and for one that cannot be written, fault.ErrClosed or the context's.
//
// Entries are stored many at a time, so that they share their syncs, and what exceeds
// the capacity is evicted at the end. Until then the capacity may be exceeded by an eighth.
func (s *Store) Import(ctx context.Context, r io.Reader) (Transfer, error) {
	const op = "store: import"
	if err := s.receives(op); err != nil {
		return Transfer{}, err
	}
	to := intake{s: s}
	return to.end(ctx, s.unpack(ctx, op, r, &to))
}

// receives refuses entries for a store that writes nothing.
func (s *Store) receives(op string) error {
	switch {
	case s.sealed:
		return s.unwritable(op, "", "")
	case s.off || s.cfg.ReadOnly:
		return refused(op, "", "", Miss{Reason: fault.Disabled}, errors.New("the store is off or read-only"))
	}
	return nil
}

// unpack takes the entries of an archive.
func (s *Store) unpack(ctx context.Context, op string, r io.Reader, to *intake) error {
	t := &to.t
	in := newArchive(r)
	var place, key string // of the key that still wants its kernel
	var without string    // the place of a key that was rejected: its kernel does not count
	for {
		h, err := in.next(op)
		if err == io.EOF {
			if place != "" {
				t.reject(fault.Format)
			}
			return nil
		}
		if err != nil {
			return err
		}
		dir, name := path.Dir(h.Name), path.Base(h.Name)
		flaw := s.unfit(ctx, op, h)
		switch {
		case name == kernelFile && dir == without:
			without = ""
			continue
		case flaw != "":
			t.reject(flaw)
			switch {
			case name == keyFile:
				without = dir
			case name == kernelFile && dir == place:
				place = ""
			}
			continue
		case !s.concerns(dir):
			continue
		}
		text, err := io.ReadAll(in.tar) // tar yields no more than h.Size
		if err != nil {
			return broken(op, err)
		}
		if name == keyFile {
			if place != "" {
				t.reject(fault.Format)
			}
			place, key, without = dir, string(text), ""
			continue
		}
		if dir != place { // the two halves stand side by side
			t.reject(fault.Format)
			continue
		}
		place = ""
		if err := to.add(ctx, backendOf(dir), key, text); err != nil {
			return err
		}
	}
}

// unfit says why a file of an archive is not taken, whatever it has.
func (s *Store) unfit(ctx context.Context, op string, h *tar.Header) fault.Reason {
	dir, name := path.Dir(h.Name), path.Base(h.Name)
	switch {
	case h.Typeflag != tar.TypeReg || sparse(h) || !isPlace(dir) || name != keyFile && name != kernelFile:
		return fault.Format
	case s.concerns(dir) && (name == keyFile && h.Size > LongestKey || name == kernelFile && !s.takes(ctx, op, h.Size)):
		return fault.TooLarge
	}
	return ""
}

// takes reports whether a file is not larger than the capacity of now.
func (s *Store) takes(ctx context.Context, op string, bytes int64) bool {
	if bytes <= s.largest() || s.begin(op) != nil {
		return bytes <= s.largest()
	}
	defer s.leave()
	return s.allows(ctx, bytes)
}

// intake takes entries in batches. The stores of a batch run at the same time, since
// stores that wait together share their syncs.
type intake struct {
	s     *Store
	t     Transfer
	batch []taking
	bytes int
}

type taking struct {
	backend, key string
	file         []byte
	known        bool
	err          error
}

const (
	mostTaken      = 64
	mostTakenBytes = 16 << 20
)

func (in *intake) add(ctx context.Context, backend, key string, file []byte) error {
	same := func(e taking) bool { return e.backend == backend && e.key == key }
	if slices.ContainsFunc(in.batch, same) { // of one key the first stays
		if err := in.store(ctx); err != nil {
			return err
		}
	}
	in.batch = append(in.batch, taking{backend: backend, key: key, file: file})
	if in.bytes += len(file); len(in.batch) < mostTaken && in.bytes < mostTakenBytes {
		return nil
	}
	return in.store(ctx)
}

// store stores the batch. The error is one that concerns the whole import.
func (in *intake) store(ctx context.Context) error {
	var wg sync.WaitGroup
	for i := range in.batch {
		wg.Go(func() {
			e := &in.batch[i]
			guard.Guard(func() (err error) {
				e.known, err = in.s.adopt(ctx, e.backend, e.key, e.file)
				return err
			}, func(err error) { e.err = err })
		})
	}
	wg.Wait()
	var first error
	for _, e := range in.batch {
		if e.known {
			in.t.Known++
		}
		if err := in.t.count(e.err); first == nil {
			first = err
		}
	}
	in.batch, in.bytes = nil, 0
	return first
}

// end stores what is left, and evicts what is too much now. err is how the import went.
func (in *intake) end(ctx context.Context, err error) (Transfer, error) {
	s := in.s
	if e := in.store(ctx); err == nil {
		err = e
	}
	if s.begin("store: import") == nil {
		defer s.leave()
		s.dir.repay(context.WithoutCancel(ctx))
	}
	return in.t, err
}

// count counts one entry. It gives an error back if that concerns the whole import.
func (t *Transfer) count(err error) error {
	var f *fault.Error
	switch {
	case err == nil:
		t.Taken++
	case errors.As(err, &f) && f.Reason == fault.Degraded:
		return err
	case errors.As(err, &f) && f.Reason != "":
		t.reject(f.Reason)
	case errors.Is(err, fault.ErrInvalid):
		t.reject(fault.Format)
	default:
		return err
	}
	return nil
}

// Merge stores the entries of other directories, as Import does those of an archive.
// The other directories are only read. A directory that another user could write is
// fault.ErrRefused.
func (s *Store) Merge(ctx context.Context, dirs ...string) (Transfer, error) {
	const op = "store: merge"
	if err := s.receives(op); err != nil {
		return Transfer{}, err
	}
	to := intake{s: s}
	return to.end(ctx, s.gather(ctx, op, dirs, &to))
}

// gather takes the entries of directories.
func (s *Store) gather(ctx context.Context, op string, dirs []string, to *intake) error {
	for _, dir := range dirs {
		absolute, err := filepath.Abs(dir)
		if err != nil {
			return trouble(op, dir, err)
		}
		l := folder{FS: s.cfg.fs(resolve(absolute)), base: true}
		defer l.Close()
		if err := checkOwner(l.FS, dir, false); err != nil {
			if errors.Is(err, fault.ErrRefused) {
				return err
			}
			return trouble(op, dir, err)
		}
		if !l.isStore() {
			return &fault.Error{Op: op, Key: dir, Err: fmt.Errorf("%w: this is no directory of a store", fault.ErrNotFound)}
		}
		var from Transfer
		err = s.transfer(ctx, l, &from, func(place, key string, file []byte) error {
			return to.add(ctx, backendOf(place), key, file)
		})
		for reason, n := range from.Rejected {
			for range n {
				to.t.reject(reason)
			}
		}
		if err != nil {
			return trouble(op, dir, err)
		}
	}
	return nil
}

// adopt stores a whole kernel.bin that another store has written for a key, with
// its identity and signature unchanged. One that is not sound, not trusted or of a
// backend that is off is fault.ErrRefused with a reason. known reports that the store
// had an entry that made it superfluous.
func (s *Store) adopt(ctx context.Context, backend, key string, file []byte) (known bool, err error) {
	const op = "store: adopt"
	if err := s.enter(op, backend, key); err != nil {
		return false, err
	}
	defer s.leave()
	e, flaw := frame.Parse(file, frame.ID{Backend: backend, Key: key})
	if flaw.None() {
		_, flaw = s.trust.Judge(&e)
	}
	if s.switchedOff(backend) || s.cfg.ReadOnly || !e.Identity.Known() && flaw.None() {
		flaw = frame.Flaw{Reason: fault.Disabled}
	}
	if !flaw.None() {
		s.stats.reason(flaw.Reason)
		return false, refused(op, backend, key, Miss(flaw), errors.New("the entry cannot be taken"))
	}
	present := e.Identity
	present.ISA = e.Requires // an entry that runs wherever this one does makes this one superfluous
	w := writing{s: s, backend: backend, key: key, entry: e, file: frame.File{Head: file}, sealed: true, present: present, many: true}
	err = w.run(ctx, op)
	return err == nil && w.found != nil, err
}

// sparse reports whether a header is that of a file with holes, which may claim any
// size. No store writes one. Sparse files of the older kind have their own type.
func sparse(h *tar.Header) bool {
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// Whole checks that r is an archive and has its end. The error is fault.ErrInvalid.
// Import would find the same error only after it has stored the entries before it.
// Whole does not verify entries.
func Whole(r io.Reader) error {
	in := newArchive(r)
	for {
		switch _, err := in.next("store: archive"); err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// archive reads a tar file up to the mark at its end.
type archive struct {
	end trailer
	tar *tar.Reader
}

func newArchive(r io.Reader) *archive {
	a := &archive{end: trailer{r: r}}
	a.tar = tar.NewReader(&a.end)
	return a
}

// next gives the next file's header; io.EOF behind the last.
func (a *archive) next(op string) (*tar.Header, error) {
	a.end.zeros = 0
	h, err := a.tar.Next()
	if err == io.EOF && a.end.zeros < endMark {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && err != io.EOF {
		err = broken(op, err)
	}
	return h, err
}

func broken(op string, err error) error {
	return &fault.Error{Op: op, Err: fmt.Errorf("%w: no archive, or not all of one: %w: export it again", fault.ErrInvalid, err)}
}

// endMark is the number of zero bytes that end a tar file. It is more than a file's
// padding and half of the mark. archive/tar accepts a file without it.
const endMark = 1024

// trailer counts the zero bytes since the last byte that was not zero.
type trailer struct {
	r     io.Reader
	zeros int
}

func (t *trailer) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.zeros += n
	if last := bytes.TrimRight(p[:n], "\x00"); len(last) > 0 {
		t.zeros = n - len(last)
	}
	return n, err
}
