package blobstore

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/internal/vfs"
)

// commits gathers the syncs of stores that wait at the same time (SPEC P18): one pass
// serves all that asked before it began, and one pass follows another.
type commits struct {
	running turnstile // of the pass under way
	mu      struct {
		sync.Mutex
		next *round
	}
}

// round is one pass of syncs. Its fields are complete when it begins.
type round struct {
	stores int
	names  []string // some more than once
	done   chan struct{}
	failed map[string]error // set when done
	unable error            // the file system cannot sync folders
}

// syncedAtOnce bounds the syncs of a pass that run at the same time, where several
// stores wait.
const syncedAtOnce = 8

// commit makes files, and the names in folders, survive a loss of power (SPEC P10). A
// name that ends with "/" is that of a folder. With evicted, a name that is gone is no
// error.
func (s *Store) commit(evicted bool, names ...string) error {
	c := &s.commits
	c.mu.Lock()
	p := c.mu.next
	first := p == nil
	if first {
		p = &round{done: make(chan struct{}), failed: map[string]error{}}
		c.mu.next = p
	}
	p.stores++
	p.names = append(p.names, names...)
	c.mu.Unlock()
	if first {
		c.running <- struct{}{}
		c.mu.Lock()
		c.mu.next = nil // who asks from now on waits for the next pass
		c.mu.Unlock()
		s.carry(p)
		close(p.done)
		c.running.unlock()
		s.cannotSync(p.unable)
	}
	<-p.done
	var err error
	for _, name := range names {
		if e := p.failed[name]; !evicted || !isGone(e) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// carry makes a pass. For several stores it is one call for the whole file system: that
// waits for what other programs have written too, and still costs less than five syncs a
// store. For one store, and where the call fails, it syncs each name once.
func (s *Store) carry(p *round) {
	if p.stores > 1 && !s.cfg.Shared && s.main.SyncAll() == nil {
		return
	}
	slices.Sort(p.names)
	p.names = slices.Compact(p.names)
	atOnce := 1
	if p.stores > 1 {
		atOnce = syncedAtOnce
	}
	var mu sync.Mutex
	for names := range slices.Chunk(p.names, atOnce) {
		var wg sync.WaitGroup
		for _, name := range names {
			wg.Go(func() {
				err := s.sync(name)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case strings.HasSuffix(name, "/") && vfs.NoSync(err):
					p.unable = err
				case err != nil:
					p.failed[name] = err
				}
			})
		}
		wg.Wait()
	}
}

func (s *Store) sync(name string) error {
	if folder, ok := strings.CutSuffix(name, "/"); ok {
		return s.main.SyncDir(folder)
	}
	f, err := s.main.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// confirm makes an entry that was found as durable as one that this store writes:
// its writer may sync less, or may have been killed before it did (SPEC P10).
func (w *writing) confirm() error {
	s, b := w.s, w.found
	if s.cfg.Durability == None || b.layer > 0 {
		return nil
	}
	kernel := b.Place + "/" + kernelFile
	info, err := s.main.Lstat(kernel) // an error is that of the sync too, unless the entry is gone
	v := version{b.digest, stampOf(info)}
	s.mu.Lock()
	durable := err == nil && s.mu.durable[v]
	s.mu.Unlock()
	if durable {
		return nil
	}
	names := []string{b.Place + "/" + keyFile, kernel}
	if s.cfg.Durability == Full {
		names = append(names, b.Place+"/")
	}
	return w.settle(v, names...)
}

// version is one kernel.bin. One of the same content, which was stored again when it had
// been evicted, is another.
type version struct {
	digest [32]byte
	stamp
}

// settle syncs what is named of an entry, and with Full the folders above it.
func (w *writing) settle(v version, names ...string) (err error) {
	s := w.s
	switch {
	case s.cfg.Durability == None:
		return nil
	case s.cfg.Durability == Full:
		names = append(names, w.backend+"/"+s.Bucket(w.key)+"/", w.backend+"/")
		err = s.commitIn(w.backend, true, names...)
	case len(names) > 0:
		err = s.commit(true, names...)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	if len(s.mu.durable) >= mostDurable {
		clear(s.mu.durable) // at worst an entry is synced again
	}
	s.mu.durable[v] = true
	s.mu.Unlock()
	return nil
}

// commitIn is commit for names in a folder of the root, and makes the folder's own name
// durable, too, where that may be new.
func (s *Store) commitIn(folder string, evicted bool, names ...string) error {
	var fresh vfs.File
	if !s.named(folder) {
		names = append(names, "./")
		fresh, _ = s.main.Open(folder) // else the next call syncs the name again
	}
	err := s.commit(evicted, names...)
	switch {
	case fresh == nil:
	case err != nil:
		_ = fresh.Close() // it was only held
	default:
		s.name(folder, fresh)
	}
	return err
}

// rootFolder is a folder in the root whose name is durable. It is held open, so that
// no other folder has its inode.
type rootFolder struct {
	inode uint64
	file  vfs.File
}

// named reports whether the name of a folder in the root is durable: somebody may have
// removed the folder, and another process, that syncs less, have made it again.
func (s *Store) named(folder string) bool {
	info, err := s.main.Lstat(folder)
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.mu.synced[folder]
	return ok && err == nil && known.inode == info.Inode
}

// name holds a folder of the root that was opened before its name was synced, if it has
// that name still.
func (s *Store) name(folder string, f vfs.File) {
	opened, err := f.Stat()
	now, e := s.main.Lstat(folder)
	if err == nil && e == nil && now.Inode == opened.Inode {
		s.mu.Lock()
		known, ok := s.mu.synced[folder]
		for other, held := range s.mu.synced {
			if ok || len(s.mu.synced) < mostNamed {
				break
			}
			delete(s.mu.synced, other) // at worst its name is synced again
			known, ok = held, true
		}
		s.mu.synced[folder] = rootFolder{now.Inode, f}
		s.mu.Unlock()
		if f = known.file; !ok {
			return
		}
	}
	_ = f.Close() // it was only held
}

const (
	mostDurable = 1 << 16
	mostNamed   = 32 // folders that are held open
)

// syncDir syncs a folder. A file system that cannot do so is logged once, and the
// store goes on with what that file system promises.
func (s *Store) syncDir(name string) error {
	err := s.main.SyncDir(name)
	if vfs.NoSync(err) {
		s.cannotSync(err)
		return nil
	}
	return err
}

func (s *Store) cannotSync(err error) {
	if err != nil {
		s.logOnce("sync folders", err)
	}
}

// discard removes folders of tmp/, after the moves that brought them there are on the
// disk: else a loss of power could bring back an entry without its files (SPEC P9).
func (s *Store) discard(names []string) {
	if len(names) == 0 {
		return
	}
	if s.cfg.Durability != None {
		if err := s.commit(true, tmpDir+"/"); err != nil {
			s.logOnce("sync what was evicted", err)
			s.retain(names)
			return
		}
	}
	for _, name := range names {
		if s.main.RemoveAll(name) != nil {
			s.retain([]string{name})
		}
	}
}

// retain keeps names for the next sweep, which else leaves what is of a living process: they would
// stay, and no account has them, for as long as that lives.
func (s *Store) retain(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.trash) < mostRetained { // beyond that a sweep after the end of this process removes them
		s.mu.trash = append(s.mu.trash, names...)
	}
}

const mostRetained = 1 << 12
