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
