package figures

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/limit"
)

const storeBackend = "bench"

// Loads measures reads of the persistent store against the plain file operations
// that they need at least, in the temporary folder of the machine.
func Loads(ctx context.Context) ([]measure.Figure, error) {
	return inFolders(ctx,
		one(func(ctx context.Context, dir string) (measure.Figure, error) { return getting(ctx, dir, 1<<10, 1.5) }),
		one(func(ctx context.Context, dir string) (measure.Figure, error) { return loading(ctx, dir, 64<<10, 3) }),
		one(func(ctx context.Context, dir string) (measure.Figure, error) { return loading(ctx, dir, 10<<20, 1.5) }),
		one(opening))
}

// Stores measures writes, as Loads does reads.
func Stores(ctx context.Context) ([]measure.Figure, error) {
	return inFolders(ctx, one(storing), one(storingFull))
}

// one is a measure that gives one figure.
func one(m func(context.Context, string) (measure.Figure, error)) func(context.Context, string) ([]measure.Figure, error) {
	return func(ctx context.Context, dir string) ([]measure.Figure, error) {
		f, err := m(ctx, dir)
		return []measure.Figure{f}, err
	}
}

func inFolders(ctx context.Context, measures ...func(context.Context, string) ([]measure.Figure, error)) (out []measure.Figure, err error) {
	dir, err := os.MkdirTemp("", "kiln-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for i, measure := range measures {
		f, err := measure(ctx, filepath.Join(dir, fmt.Sprint(i)))
		out = append(out, f...)
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

func openStore(ctx context.Context, dir string) (*blobstore.Store, error) {
	return openWith(ctx, dir, blobstore.None)
}

func openWith(ctx context.Context, dir string, level blobstore.Durability) (*blobstore.Store, error) {
	return blobstore.Open(ctx, blobstore.Config{Dir: dir, Capacity: limit.Unlimited, Durability: level,
		Identity: func(string) gpuexec.Identity { return gpuexec.Identity{Library: "1", Build: "1"} }})
}

func payload(bytes int) []byte {
	p := make([]byte, bytes)
	rand.NewChaCha8([32]byte{}).Read(p) // never an error
	return p
}

// loading is a get of a stored blob over reading and hashing its two files.
func loading(ctx context.Context, dir string, bytes int, atMost float64) (measure.Figure, error) {
	f := measure.Figure{Bench: fmt.Sprintf("loading %d KiB", bytes>>10), RatioTo: "reading and hashing them", Goroutines: 1, Gate: measure.AtMost(atMost)}
	return gets(ctx, dir, bytes, f, func(place string) (func() error, func() error, error) {
		return func() error {
			for _, name := range []string{"key.bin", "kernel.bin"} {
				text, err := os.ReadFile(filepath.Join(dir, place, name))
				if err != nil {
					return err
				}
				_ = sha256.Sum256(text)
			}
			return nil
		}, nothing, nil
	})
}

// getting is a get over the system calls that it cannot do without.
func getting(ctx context.Context, dir string, bytes int, atMost float64) (measure.Figure, error) {
	f := measure.Figure{Bench: fmt.Sprintf("getting %d KiB", bytes>>10), RatioTo: "its bare system calls, and the hash", Goroutines: 1, Gate: measure.AtMost(atMost)}
	return gets(ctx, dir, bytes, f, func(place string) (func() error, func() error, error) {
		return bare(dir, path.Dir(place), place)
	})
}

func gets(ctx context.Context, dir string, bytes int, f measure.Figure, plain func(place string) (get, done func() error, err error)) (measure.Figure, error) {
	s, err := openStore(ctx, dir)
	if err != nil {
		return f, err
	}
	defer s.Close(context.WithoutCancel(ctx))
	if err := s.Put(ctx, storeBackend, "key", payload(bytes), time.Second); err != nil {
		return f, err
	}
	stored, _, err := s.Get(ctx, storeBackend, "key")
	if err != nil {
		return f, err
	}
	peer, done, err := plain(stored.Place)
	if err != nil {
		return f, err
	}
	get := func() error {
		_, miss, err := s.Get(ctx, storeBackend, "key")
		if err == nil && !miss.None() {
			err = fmt.Errorf("what was stored is a miss: %s", miss.Reason)
		}
		return err
	}
	turns := 5
	if bytes <= 64<<10 {
		turns = 200
	}
	f, err = inTurn(ctx, f, 15, turns, firstTwo, measure.Clocked(get), measure.Clocked(peer))
	return f, errors.Join(err, done())
}

// storing is a put without any sync over writing the same two files into a folder that is
// then moved to its place, and hashing them, were both shared by the cores: memory is so
// fast on some machines that SHA-256 alone takes four times as long as writing.
func storing(ctx context.Context, dir string) (measure.Figure, error) {
	f := measure.Figure{Bench: "storing 10240 KiB, no sync", RatioTo: "writing and hashing them", Goroutines: 1, Gate: measure.AtMost(1.4)}
	const most = 4 // cores that hash
	cores := min(runtime.GOMAXPROCS(0), most)
	return puts(ctx, dir, blobstore.None, f, 15, func(best []time.Duration) float64 {
		put, write, hash := best[0], best[1], best[2]
		return float64(put) / float64(max(write, (write+hash)/time.Duration(cores)))
	})
}

// storingFull is a put over writing the files, with all that must be synced, by both.
func storingFull(ctx context.Context, dir string) (measure.Figure, error) {
	f := measure.Figure{Bench: "storing 10240 KiB, full", RatioTo: "writing and syncing them", Goroutines: 1, Gate: measure.AtMost(3)}
	return puts(ctx, dir, blobstore.Full, f, 9, firstTwo)
}

// puts gives the figure for the quickest put, writing and hash of each round. What was
// written is removed off the clock.
func puts(ctx context.Context, dir string, level blobstore.Durability, f measure.Figure, rounds int, ratio func([]time.Duration) float64) (measure.Figure, error) {
	s, err := openWith(ctx, dir, level)
	if err != nil {
		return f, err
	}
	defer s.Close(context.WithoutCancel(ctx))
	kernel := payload(10 << 20)
	staged, placed := filepath.Join(dir, "tmp", "plain"), filepath.Join(dir, "plain")
	write := func(name string, text []byte) error {
		file, err := os.OpenFile(filepath.Join(staged, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = file.Write(text)
		if err == nil && level == blobstore.Full {
			err = file.Sync()
		}
		return errors.Join(err, file.Close())
	}
	plain := func() error {
		err := os.Mkdir(staged, 0o700)
		if err == nil {
			err = errors.Join(write("key.bin", []byte("key")), write("kernel.bin", kernel))
		}
		if err == nil {
			err = syncFolder(level, staged)
		}
		if err == nil {
			err = os.Rename(staged, placed)
		}
		if err == nil {
			err = syncFolder(level, dir)
		}
		return err
	}
	put := func() error { return s.Put(ctx, storeBackend, "key", kernel, time.Second) }
	clean := func() error { return os.RemoveAll(placed) }
	hash := func() error {
		_ = sha256.Sum256(kernel)
		return nil
	}
	return inTurn(ctx, f, rounds, 5, ratio, undone(put, func() error { return s.Prune(ctx, 0) }), undone(plain, clean), measure.Clocked(hash))
}

func syncFolder(level blobstore.Durability, name string) error {
	if level != blobstore.Full {
		return nil
	}
	folder, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// opening is an open of a directory of 10,000 entries over a recursive listing of
// it with sizes.
func opening(ctx context.Context, dir string) (measure.Figure, error) {
	const entries = 10_000
	s, err := openStore(ctx, dir)
	if err != nil {
		return measure.Figure{}, err
	}
	for i := 0; i < entries && err == nil; i++ {
		err = s.Put(ctx, storeBackend, fmt.Sprint("key ", i), []byte("kernel"), time.Second)
	}
	if e := s.Close(context.WithoutCancel(ctx)); err == nil {
		err = e
	}
	if err != nil {
		return measure.Figure{}, err
	}
	var bytes int64
	list := func() error {
		return filepath.Walk(dir, func(_ string, info fs.FileInfo, err error) error {
			if err == nil {
				bytes += info.Size()
			}
			return err
		})
	}
	open := func() (err error) {
		s, err = openStore(ctx, dir)
		return err
	}
	undo := func() error { return s.Close(context.WithoutCancel(ctx)) }
	f := measure.Figure{Bench: "opening 10000 entries", RatioTo: "listing them with sizes", Goroutines: 1, Gate: measure.AtMost(2)}
	return inTurn(ctx, f, 5, 2, firstTwo, undone(open, undo), measure.Clocked(list))
}

func nothing() error { return nil }

// inTurn measures rounds in which all sides run this many times in turn. A round counts the
// quickest of each.
func inTurn(ctx context.Context, f measure.Figure, rounds, turns int, ratio func([]time.Duration) float64, sides ...measure.Side) (measure.Figure, error) {
	return f.Take(ctx, rounds, func() (float64, error) {
		best, err := measure.Turns(ctx, turns, 1, sides...)
		if err != nil {
			return 0, err
		}
		return ratio(best), nil
	})
}

// firstTwo is the first side by the second.
func firstTwo(best []time.Duration) float64 { return float64(best[0]) / float64(best[1]) }

// undone is a Side that does something, and undoes it off the clock.
func undone(do, undo func() error) measure.Side {
	return func(int) (time.Duration, error) {
		took, err := measure.Quickest(1, do)
		if err == nil {
			err = undo()
		}
		return took, err
	}
}
