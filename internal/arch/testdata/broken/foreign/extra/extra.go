// Package extra is a module nobody allowed.
package extra

type Thing struct{ Size int }
