package vfs

import (
	"os"
	"strconv"

	"github.com/kiln-cache/kiln/internal/self"
)

var raised = self.Raised // tests have others

// Believes reports whether this process believes what a user owns: its own user, root, and if it
// is root the one who called it through sudo, as the environment tells (SPEC P13). Not so that
// of a program which is root by the bits of its file: its caller writes that environment.
func Believes(environment func(name string) (value string, set bool), owner uint32) bool {
	user := os.Geteuid()
	if owner == 0 || int(owner) == user {
		return true
	}
	caller, _ := environment("SUDO_UID")
	return user == 0 && caller == strconv.FormatUint(uint64(owner), 10) && !raised()
}
