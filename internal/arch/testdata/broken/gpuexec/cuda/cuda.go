// Package cuda breaks nothing.
package cuda
