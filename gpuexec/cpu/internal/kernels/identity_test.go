package kernels

import (
	"runtime/debug"
	"testing"
)

// P3, P12: only a released compiler is named by its version: the sources of a
// workspace or of a replaced folder change without it.
func TestRecordedCompiler(t *testing.T) {
	other := &debug.Module{Path: "example.com/other", Version: "v1.0.0"}
	for _, c := range []struct {
		compiler debug.Module
		want     string
	}{
		{debug.Module{Version: "v1.12.0"}, "v1.12.0"},
		{debug.Module{Version: "(devel)"}, ""},
		{debug.Module{}, ""},
		{debug.Module{Version: "v1.12.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.0.0"}}, "example.com/fork@v1.0.0"},
		{debug.Module{Version: "v1.12.0", Replace: &debug.Module{Path: "../wazero"}}, ""},
		{debug.Module{Version: "v1.12.0", Replace: &debug.Module{Path: "../wazero", Version: "(devel)"}}, ""},
	} {
		c.compiler.Path = compilerModule
		if got := recorded([]*debug.Module{other, &c.compiler}); got != c.want {
			t.Errorf("%+v, replaced by %+v: %q, want %q", c.compiler, c.compiler.Replace, got, c.want)
		}
	}
	if got := recorded([]*debug.Module{other}); got != "" {
		t.Errorf("a build without the compiler: %q", got)
	}
}
