package blobstore

import (
	"slices"
	"strings"
)

// Folders and files of the store itself. Every other folder in the root belongs to
// the backend of that name.
const (
	leaseDir      = "lease"
	lockDir       = "lease/directory"
	keyDir        = "lease/key"
	ownerDir      = "lease/owner"
	tmpDir        = "tmp"
	markDir       = "mark"
	usesDir       = "uses"
	quarantineDir = "quarantine"

	sizeFile     = "size.txt"
	journalFile  = "lease/journal"
	indexFile    = "lease/index"
	settingsFile = "lease/settings"
	refusedFile  = "lease/refused"
	lateFile     = "lease/late"
	sharedFile   = "lease/shared"
	keyFile      = "key.bin"
	kernelFile   = "kernel.bin"
)

var ownDirs = []string{leaseDir, lockDir, keyDir, ownerDir, tmpDir, markDir, usesDir, quarantineDir}

// validBackend reports whether a name can be a backend's folder.
func validBackend(name string) bool {
	if name == "" || len(name) > 64 || name[0] == '.' || slices.Contains(ownDirs, name) || name == sizeFile {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	})
}

// note is the text of a mark: the path of its entry. A path in the directory itself
// is relative, since other processes may reach the directory by another path.
func note(l folder, place string) string {
	if l.base {
		place = l.Root() + "/" + place
	}
	return place + "\n"
}

// noted gives the place that a note names. ok is false for a note that says nothing,
// and for one about a base that is missing now and may come back. noLonger must follow.
func (s *Store) noted(text string) (l folder, place string, ok bool) {
	text, whole := strings.CutSuffix(text, "\n")
	parts := strings.Split(text, "/")
	place = strings.Join(parts[max(0, len(parts)-3):], "/")
	if !whole || !isPlace(place) {
		return folder{}, "", false
	}
	if text == place {
		return s.main, place, true
	}
	l = folder{FS: s.cfg.fs(strings.TrimSuffix(text, "/"+place)), base: true}
	_, err := l.Lstat(".")
	return l, place, err == nil
}

func (l folder) noLonger() {
	if l.base {
		_ = l.Close() // it was only looked at
	}
}

// mostPath is above the length of any entry's path, in bytes.
const mostPath = 64 << 10
