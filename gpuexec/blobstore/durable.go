package blobstore

import (
	"errors"

	"github.com/kiln-cache/kiln/internal/vfs"
)

// confirm makes an entry that was found as durable as one that this store writes:
// its writer may sync less, or may have been killed before it did (SPEC P10).
func (w *writing) confirm() error {
	s, b := w.s, w.found
	if s.cfg.Durability != Full || b.layer > 0 || s.isDurable(b.digest) {
		return nil
	}
	for _, name := range []string{keyFile, kernelFile} {
		f, err := s.main.Open(b.Place + "/" + name)
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if isGone(err) { // evicted by now
			return nil
		}
		if err != nil {
			return err
		}
	}
	if err := s.syncDir(b.Place); err != nil && !isGone(err) {
		return err
	}
	return w.settle(b.digest)
}

func (s *Store) isDurable(digest [32]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.durable[digest]
}

// settle syncs the folders above the entry.
func (w *writing) settle(digest [32]byte) error {
	s := w.s
	if s.cfg.Durability != Full {
		return nil
	}
	names := []string{w.backend + "/" + s.Bucket(w.key), w.backend}
	s.mu.Lock()
	synced := s.mu.synced
	if !synced[w.backend] {
		names = append(names, ".")
	}
	s.mu.Unlock()
	for _, name := range names {
		if err := s.syncDir(name); err != nil && !isGone(err) { // gone = evicted by now
			return err
		}
	}
	s.mu.Lock()
	if len(s.mu.durable) >= mostDurable {
		clear(s.mu.durable) // at worst an entry is synced again
	}
	s.mu.durable[digest] = true
	synced[w.backend] = true // has no effect if the folder was made again since: there is another map then
	s.mu.Unlock()
	return nil
}

const mostDurable = 1 << 16

// syncDir syncs a folder. A file system that cannot do so is logged once, and the
// store goes on with what that file system promises.
func (s *Store) syncDir(name string) error {
	err := s.main.SyncDir(name)
	if vfs.NoSync(err) {
		s.logOnce("sync folders", err)
		return nil
	}
	return err
}

func (s *Store) forgetSynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.synced = map[string]bool{}
}
