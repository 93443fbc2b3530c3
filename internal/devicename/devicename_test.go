package devicename

import "testing"

func TestParse(t *testing.T) {
	for name, want := range map[string]struct {
		backend string
		index   int
		ok      bool
	}{
		"": {"", 0, true}, "cpu": {"cpu", 0, true}, "opencl:0": {"opencl", 0, true}, "opencl:12": {"opencl", 12, true},
		"opencl:": {"opencl", 0, false}, "opencl:x": {"opencl", 0, false}, "opencl:-1": {"opencl", 0, false}, "opencl:-0": {"opencl", 0, false},
		"opencl:01": {"opencl", 0, false}, "opencl:+1": {"opencl", 0, false}, "opencl:1:2": {"opencl", 0, false}, "opencl:99999999999999999999": {"opencl", 0, false},
	} {
		if backend, index, ok := Parse(name); backend != want.backend || index != want.index || ok != want.ok {
			t.Errorf("%q: %q, %d, %v, want %v", name, backend, index, ok, want)
		}
	}
}
