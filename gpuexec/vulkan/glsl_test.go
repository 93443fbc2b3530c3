//go:build linux && (amd64 || arm64)

package vulkan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// glslc is taken, then glslang by either of its names; one that does not run is none.
func TestChoiceOfCompiler(t *testing.T) {
	says := func(what string) string { return "#!/bin/sh\necho " + what + "\n" }
	for _, c := range []struct {
		here    map[string]string
		want    string
		glslang bool
	}{
		{map[string]string{"glslc": says("one"), "glslang": says("two"), "glslangValidator": says("three")}, "one", false},
		{map[string]string{"glslang": says("two"), "glslangValidator": says("three")}, "two", true},
		{map[string]string{"glslangValidator": says("three")}, "three", true},
		{map[string]string{"glslc": "#!/bin/sh\nexit 1\n", "glslangValidator": says("three")}, "three", true},
		{nil, "", false},
	} {
		dir := t.TempDir()
		for name, script := range c.here {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", dir)
		if got := findCompiler(); got.version != c.want || got.glslang != c.glslang {
			t.Errorf("with %v: %+v, want %q", c.here, got, c.want)
		}
	}
	_, err := compiler{}.compile(t.Context(), gpuexec.Code{})
	if !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "Debian: glslc, or glslang-tools") {
		t.Errorf("no compiler: %v, want ErrUnavailable and what to install", err)
	}
}

// compilers runs a test with each compiler that is here.
func compilers(t *testing.T, test func(t *testing.T, c compiler)) {
	for _, name := range []string{"glslc", "glslangValidator"} {
		t.Run(name, func(t *testing.T) {
			c, err := compilerOf(name)
			if err != nil {
				t.Skip(err)
			}
			test(t, c)
		})
	}
}

// Both compilers make the same of a shader: of its defines, of includes that it asks for
// without an extension, and whatever options it has.
func TestCompilers(t *testing.T) {
	b := driven(t, Config{})
	e := open(t, b, 1)
	const text = `// A shader.
#version 450
#include "a.h"
layout(local_size_x = 1) in;
layout(std430, binding = 0) buffer X { float x[]; };
void main() { x[0] = factor * BY; }
`
	code := gpuexec.Code{Language: GLSL, Entry: "main", Text: text, Defines: map[string]string{"BY": "3.5"},
		Includes: map[string]string{"a.h": "#include \"b/c.h\"\n", "b/c.h": "const float factor = 2;\n"}}
	compilers(t, func(t *testing.T, c compiler) {
		for _, options := range [][]string{nil, {"-O", "-w", "--target-env=vulkan1.1"}, {"-O0", "-g", "--target-spv=spv1.3"}, {"-Os", "-std=460core"}} {
			code.Options = options
			words, err := c.compile(t.Context(), code)
			if err != nil {
				t.Fatal(options, err)
			}
			k := compile(t, e, source(t, gpuexec.Code{Language: SPIRV, Text: string(gpuexec.BytesOf(words))}, buffer))
			x, got := alloc(t, e, 4), []float32{0}
			err = e.Submit(t.Context(), gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.BufferArg(x)}}, gpuexec.CopyFrom(x, 0, gpuexec.BytesOf(got)))
			if err != nil || got[0] != 7 {
				t.Errorf("%v: %v, %v, want 7", options, got, err)
			}
		}
		code.Options = []string{"-Werror"}
		if _, err := c.compile(t.Context(), code); c.glslang != errors.Is(err, fault.ErrUnavailable) || !c.glslang && err != nil {
			t.Errorf("-Werror: %v", err)
		}
		code.Options = nil
		wrong := code
		wrong.Text = strings.Replace(text, "BY;", "BY", 1)
		if _, err := c.compile(t.Context(), wrong); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), shaderFile+":6:") {
			t.Errorf("an error in line 6: %v", err)
		}
	})
}

// K6: no compiler reads what is not in the code, however the directive is spelt.
func TestCompilersRead(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside.h")
	if err := os.WriteFile(outside, []byte("const float factor = 3;\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fromFolder, err := filepath.Rel(filepath.Join(os.TempDir(), "folder"), outside)
	if err != nil {
		t.Fatal(err)
	}
	compilers(t, func(t *testing.T, c compiler) {
		for _, include := range []string{"#in\\\nclude \"" + fromFolder + `"`, `#/**/include "` + fromFolder + `"`} {
			code := gpuexec.Code{Includes: map[string]string{"a.h": ""}, Text: "#version 450\n#extension GL_GOOGLE_include_directive : enable\n" + include +
				"\nlayout(std430, binding = 0) buffer X { float x[]; };\nvoid main() { x[0] = factor; }\n"}
			_, err := c.compile(t.Context(), code)
			if reason, field := fault.ReasonOf(err); reason != fault.KeyRefused || field != "includes" {
				t.Errorf("%s: %v, want key_refused, includes", include, err)
			}
		}
	})
}

// Both find includes wherever the version stands, and call lines by their numbers.
func TestCompilersFindTheVersion(t *testing.T) {
	const rest = "#include \"a.h\"\nlayout(local_size_x = 1) in;\nlayout(std430, binding = 0) buffer X { float x[]; };\nvoid main() { x[0] = factor; }\n"
	code := gpuexec.Code{Language: GLSL, Entry: "main", Includes: map[string]string{"a.h": "const float factor = 2;\n"}}
	compilers(t, func(t *testing.T, c compiler) {
		for text, options := range map[string][]string{
			"/* once:\n#version 100\n*/ # version 450 core // for Vulkan\n": {"--target-env=vulkan"},
			"// #version 100\r\n\r\n\t#version 450\r\n":                     nil,
			"#version 450 /* for\nVulkan */\n":                              nil,
			"":                                                              {"-std=450"},
		} {
			code.Text, code.Options = text+rest, options
			if _, err := c.compile(t.Context(), code); err != nil {
				t.Errorf("%q: %v", text, err)
			}
			code.Text = strings.Replace(code.Text, "factor;", "factor", 1)
			_, err := c.compile(t.Context(), code)
			if line := fmt.Sprint(shaderFile, ":", 4+strings.Count(text, "\n"), ":"); err == nil || !strings.Contains(err.Error(), line) {
				t.Errorf("%q: %v, want %s", text, err, line)
			}
		}
	})
}

// K6: a macro has one line, whichever compiler is here.
func TestMacroOfTwoLines(t *testing.T) {
	err := checkGLSL(gpuexec.Code{Entry: "main", Defines: map[string]string{"TWO": "1\n+ 1"}})
	if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "TWO") {
		t.Errorf("%v, want ErrInvalid", err)
	}
}
