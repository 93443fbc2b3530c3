// Package clean breaks nothing, not even where its words look like it.
package clean

// Getenv is a name of our own.
func Getenv(os struct{ Getenv func() }) { os.Getenv() }
