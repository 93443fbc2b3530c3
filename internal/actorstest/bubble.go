// Package actorstest runs tests of actors in fake time.
package actorstest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/actors"
)

// Bubble is synctest.Test for code that uses actors: it first waits until
// nothing outside uses lent goroutines, since a bubble must not share them. It
// must not be used in a parallel test. Random drawing (rapid) goes outside, with
// a Bubble for each drawn case.
func Bubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !actors.Idle(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("actorstest: an actor of an earlier test still runs: Close it")
		}
	}
	synctest.Test(t, f)
}
