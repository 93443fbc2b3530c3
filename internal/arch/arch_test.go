package arch_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/internal/arch"
)

// An exception is a violation that is right, or one that is to be mended, with
// the reason. what is a word of its text; empty for any.
type exception struct{ check, file, what, reason string }

// exceptions may only shrink: one that excuses nothing fails the test.
var exceptions = []exception{
	{"core", "sessioncache/names.go", "", "memory and claims become effects"},
	{"core", "sessioncache/share.go", "", "memory and claims become effects"},
	{"core", "sessioncache/state.go", "", "memory and claims become effects"},

	{"sibling", "gpuexec/artefacts/cache.go", "Lookup", "what a user does who wants to look and not make"},
	{"sibling", "gpuexec/artefacts/lease.go", "Value", "what a user does with what Lookup gives"},
	{"sibling", "gpuexec/artefacts/lease.go", "Bytes", "a property of what a user holds"},
	{"sibling", "gpuexec/artefacts/lease.go", "Cost", "a property of what a user holds"},
	{"sibling", "gpuexec/artefacts/tenants.go", "AddFloor", "how a user who has this room alone gives a tenant its floor"},
	{"sibling", "gpuexec/backend.go", "Find", "how a user gets a backend by its name"},
	{"sibling", "gpuexec/blobstore/claim.go", "Enter", "to be mended: tiers and store are one room"},
	{"sibling", "gpuexec/blobstore/config.go", "Validate", "how a user checks a config before opening"},
	{"sibling", "gpuexec/blobstore/store.go", "Identity", "to be mended: tiers and store are one room"},
	{"sibling", "gpuexec/blobstore/store.go", "Trusted", "to be mended: tiers and store are one room"},
	{"sibling", "gpuexec/blobstore/upkeep.go", "Touch", "to be mended: tiers and store are one room"},
	{"sibling", "gpuexec/blobstore/trust/trust.go", "", "to be mended: lists of trusted keys are the inside of the store"},

	{"word", "gpuexec/artefacts/lease.go", "log key", "to be mended"},
	{"word", "gpuexec/artefacts/making.go", "log key", "to be mended"},
	{"word", "gpuexec/blobstore/store.go", "log key", "to be mended"},

	{"identifiers", ".", "", "to be mended: 853 when the check was written"},
}

const root = "../.."

// everything runs all checks over a tree.
func everything(t *testing.T, root string, packages, identifiers int) []arch.Violation {
	t.Helper()
	tree, err := arch.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	found := tree.Check()
	shown, err := arch.Surface(root)
	if err != nil {
		t.Error(err) // what does not compile shows nothing; the rest is still worth saying
	}
	found = append(found, shown...)
	program, err := arch.LoadProgram(root)
	if err != nil {
		t.Error(err)
		return found
	}
	for _, more := range [][]arch.Violation{program.Cores(), program.Siblings(), program.Words(), program.Small(packages, identifiers)} {
		found = append(found, more...)
	}
	return found
}

// R3: foreign types stay inside; and the rest of the house's order.
func TestHouse(t *testing.T) {
	used := make(map[exception]bool)
	for _, v := range everything(t, root, arch.MostPackages, arch.MostIdentifiers) {
		i := slices.IndexFunc(exceptions, func(e exception) bool {
			return e.check == v.Check && e.file == v.File && strings.Contains(v.What, e.what)
		})
		if i >= 0 {
			used[exceptions[i]] = true
			continue
		}
		t.Error(v)
	}
	for _, e := range exceptions {
		if !used[e] {
			t.Errorf("%s: %s: this exception excuses nothing any more", e.file, e.check)
		}
		if e.reason == "" {
			t.Errorf("%s: %s: an exception needs a reason", e.file, e.check)
		}
	}
}

// TestEachCheckCanFail holds every check against a tree that breaks it, and
// against what comes close and is right.
func TestEachCheckCanFail(t *testing.T) {
	var got strings.Builder
	for _, v := range everything(t, "testdata/broken", 10, 25) {
		fmt.Fprintln(&got, v)
	}
	want, err := os.ReadFile("testdata/broken.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("found:\n%s\nwant:\n%s", got.String(), want)
	}
}

func TestSmallEnough(t *testing.T) {
	program, err := arch.LoadProgram("testdata/broken")
	if err != nil {
		t.Fatal(err)
	}
	if found := program.Small(11, 26); len(found) != 0 {
		t.Errorf("11 packages of 11, 26 identifiers of 26: %v", found)
	}
}

func TestSizes(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, lines int, first string) {
		t.Helper()
		text := first + "\npackage large\n"
		text += strings.Repeat("//\n", lines-strings.Count(text, "\n"))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want ...string) {
		t.Helper()
		tree, err := arch.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range tree.Check() {
			got = append(got, v.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}
	}
	for i := range 25 {
		write(fmt.Sprintf("f%02d.go", i), 600, "// Package large is as large as may be.")
	}
	write("f_test.go", 600, "")
	write("generated.go", 4000, "// Code generated by a tool. DO NOT EDIT.\n")
	check()
	write("f00.go", 601, "// Package large is as large as may be.")
	check("f00.go: size: 601 lines are more than 600: split it by subject")
	write("f00.go", 600, "// Package large is as large as may be.")
	write("f25.go", 3, "")
	check(".: size: 26 files are more than 25: split the package by responsibility")
}

func TestLoadReportsWhatDoesNotParse(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "half.go"), []byte("package half\nfunc"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := arch.Load(dir); err == nil || !strings.Contains(err.Error(), "half.go:2") {
		t.Errorf("Load = %v; want the place", err)
	}
}
