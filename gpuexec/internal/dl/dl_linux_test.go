//go:build linux && (amd64 || arm64)

package dl

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
)

// The code of a test is in the file of its program.
func TestMappings(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if program, err = filepath.EvalSymlinks(program); err != nil {
		t.Fatal(err)
	}
	at := reflect.ValueOf(TestMappings).Pointer()
	var has []Mapping
	for _, m := range Mappings() {
		if m.Has(at) {
			has = append(has, m)
		}
		if m.From >= m.To || m.Has(m.To) || !m.Has(m.From) || !filepath.IsAbs(m.Path) {
			t.Errorf("%+v", m)
		}
	}
	if len(has) != 1 || has[0].Path != program {
		t.Errorf("%#x is in %+v, want it in %s alone", at, has, program)
	}
}

// The reason is there, whoever else runs.
func TestReason(t *testing.T) {
	const name = "libKilnHasNone.so.1"
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				if _, err := Open(name, Local); err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("%v, want a reason with the name", err)
				}
			}
		})
	}
	all.Wait()
}

// E2: a library that is cut short, as by a copy that ended early, is an error; it ended the
// process. Wherever it is cut, the whole one is opened.
func TestCutLibrary(t *testing.T) {
	var whole string
	for _, m := range Mappings() { // of the C library, which every process with a loader has
		if strings.HasPrefix(filepath.Base(m.Path), "libc.so") || strings.HasPrefix(filepath.Base(m.Path), "libc-") {
			whole = m.Path
		}
	}
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Skip(err)
	}
	cut := filepath.Join(t.TempDir(), "libcut.so")
	for _, n := range []int{5, 64, 1000, len(content) / 3, len(content) / 2, len(content) * 9 / 10, len(content) - 1} {
		if err := os.WriteFile(cut, content[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(cut, Local); err == nil || !strings.Contains(err.Error(), cut) {
			t.Errorf("%d of %d bytes: %v, want an error with the name", n, len(content), err)
		}
	}
	clear(content[0x28:0x30]) // nor is there a list of sections, which stands at the end
	clear(content[0x3c:0x40])
	if err := os.WriteFile(cut, content[:len(content)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Whole(cut); err == nil || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("half, without sections: %v", err)
	}
	if _, err := Open(whole, Local); err != nil {
		t.Error(err)
	}
}
