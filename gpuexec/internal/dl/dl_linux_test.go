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
