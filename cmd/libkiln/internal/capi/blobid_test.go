package capi

import (
	"reflect"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
)

// B1: the id of a blob stays what it is from one version of Kiln to the next, and each field of the
// identity changes it.
func TestBlobIDStays(t *testing.T) {
	machine := gpuexec.Identity{Library: "1", Build: "2", Compiler: "3", Driver: "4", Device: "5", ISA: []string{"avx", "avx2"}}
	const id = "3e037a02d5b774b20726a20a1baca36729745cb0161b896e7fc14ff75a0a2714"
	if got := blobID("key", "opencl", machine); got != id {
		t.Errorf("it is %s now", got)
	}
	others := map[string]string{blobID("other", "opencl", machine): "the key", blobID("key", "other", machine): "the backend"}
	for i := range reflect.TypeFor[gpuexec.Identity]().NumField() {
		other := machine
		if f := reflect.ValueOf(&other).Elem().Field(i); f.Kind() == reflect.String {
			f.SetString("other")
		} else {
			other.ISA = []string{"avx"}
		}
		others[blobID("key", "opencl", other)] = reflect.TypeFor[gpuexec.Identity]().Field(i).Name
	}
	if what, same := others[id]; same || len(others) != 8 {
		t.Errorf("%d ids of 8 differ from each other; the one of another %q is the same", len(others), what)
	}
}
