package blobstore

import "github.com/kiln-cache/kiln/internal/vfs"

// confirm makes an entry that was found as durable as one that this store writes:
// its writer may sync less, or may have been killed before it did (SPEC P10).
func (w *writing) confirm() error {
	s, b := w.s, w.found
	if s.cfg.Durability != Full || b.layer > 0 || s.isDurable(b.digest) {
		return nil
	}
	return w.settle(b.digest, b.Place+"/"+keyFile, b.Place+"/"+kernelFile, b.Place+"/")
}

func (s *Store) isDurable(digest [32]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.durable[digest]
}

// settle syncs the folders above an entry, and what is named of the entry itself.
func (w *writing) settle(digest [32]byte, names ...string) error {
	s := w.s
	if s.cfg.Durability != Full {
		return nil
	}
	names = append(names, w.backend+"/"+s.Bucket(w.key)+"/", w.backend+"/")
	s.mu.Lock()
	synced := s.mu.synced
	if !synced[w.backend] {
		names = append(names, "./")
	}
	s.mu.Unlock()
	if err := s.commit(true, names...); err != nil {
		return err
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
