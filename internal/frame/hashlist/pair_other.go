//go:build !amd64

package hashlist

import "crypto/sha256"

// pair hashes two texts.
func pair(p, q []byte) (first, second [sha256.Size]byte) {
	return sha256.Sum256(p), sha256.Sum256(q)
}
