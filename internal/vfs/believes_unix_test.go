//go:build unix

package vfs

import (
	"os"
	"testing"

	"github.com/kiln-cache/kiln/internal/self"
)

// P13: beside its own files and root's a process believes those of the user who called it by sudo,
// if it is root, and not by the bits of its file: who calls such a program writes SUDO_UID.
func TestBelieves(t *testing.T) {
	defer func() { raised = self.Raised }()
	user := os.Geteuid()
	for _, c := range []struct {
		owner  uint32
		sudo   string
		raised bool
		want   bool
	}{
		{0, "", false, true}, {uint32(user), "", false, true}, {65533, "", false, false}, {65533, "65534", false, false},
		{65533, "65533", false, user == 0}, {65533, "65533", true, false}, {uint32(user), "", true, true},
	} {
		raised = func() bool { return c.raised }
		if got := Believes(func(string) (string, bool) { return c.sudo, c.sudo != "" }, c.owner); got != c.want {
			t.Errorf("user %d, called by %q, raised %t: files of user %d: %t", user, c.sudo, c.raised, c.owner, got)
		}
	}
}
