//go:build linux && (amd64 || arm64)

package vulkan

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/spirv"
	"github.com/kiln-cache/kiln/internal/guard"
)

// optionsOfGLSL are those that read no files and write none.
var optionsOfGLSL = regexp.MustCompile(`^(-O|-O0|-Os|-g|-w|-Werror|--target-env=[a-z0-9.]+|--target-spv=[a-z0-9.]+|-std=[a-z0-9]+)$`)

// includeName is how includes may be called: glslc lists them with blanks between.
var includeName = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)

// elsewhere is an include that does not stay among those given by value.
var elsewhere = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]*)`)

// unhashable refuses a source whose key would not cover all that goes in.
func unhashable(field, format string, args ...any) error {
	err := failure("glsl", fault.ErrInvalid, format, args...)
	err.Reason, err.Field = fault.KeyRefused, field
	return err
}

// checkGLSL refuses a source that could read what is not in it (SPEC K6).
func checkGLSL(code gpuexec.Code) error {
	const op = "vulkan: glsl"
	if code.Entry != "main" {
		return fault.Invalidf(op, "entry %q: a shader in GLSL has main", code.Entry)
	}
	for _, o := range code.Options {
		if !optionsOfGLSL.MatchString(o) {
			return unhashable("options", "option %q is not among those that depend on nothing else: -O, -O0, -Os, -g, -w, -Werror, --target-env=, --target-spv=, -std=", o)
		}
	}
	for name := range code.Defines {
		if strings.ContainsAny(name, "= \n") {
			return fault.Invalidf(op, "%q is no name of a macro", name)
		}
	}
	texts := map[string]string{"the shader": code.Text}
	for name, text := range code.Includes {
		if !filepath.IsLocal(name) || filepath.Clean(name) != name || !includeName.MatchString(name) {
			return fault.Invalidf(op, "include %q: want a plain relative name of letters, digits and ._-/", name)
		}
		texts[name] = text
	}
	for in, text := range texts {
		for _, m := range elsewhere.FindAllStringSubmatch(text, -1) {
			if _, given := code.Includes[m[1]]; !given {
				return unhashable("includes", "%s includes %q, which is not in Includes: give its text there", in, m[1])
			}
		}
	}
	return nil
}

// glslc is the compiler's path and version.
var glslc = sync.OnceValues(func() (path, version string) {
	path, err := exec.LookPath("glslc")
	if err != nil {
		return "", ""
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return "", ""
	}
	return path, strings.Join(strings.Fields(string(out)), " ")
})

// library is what made the modules of shaders, as an identity has it.
func library() string {
	if _, v := glslc(); v != "" {
		return "kiln, " + v
	}
	return "kiln"
}

// compile has glslc make the module of a shader.
func (b *Backend) compile(ctx context.Context, code gpuexec.Code) ([]uint32, error) {
	path, _ := glslc()
	if path == "" {
		return nil, failure("glsl", fault.ErrUnavailable, "glslc is not here: install it (Debian: glslc), or compile the shader to SPIR-V before")
	}
	dir, err := os.MkdirTemp("", "kiln-glsl-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for name, text := range code.Includes {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.WriteFile(at, []byte(text), 0o600)); err != nil {
			return nil, err
		}
	}
	const listed = "kiln listed" // no include is called so
	args := []string{"-fshader-stage=compute", "--target-env=vulkan1.2", "-I", dir, "-MD", "-MF", listed}
	for _, name := range slices.Sorted(maps.Keys(code.Defines)) {
		args = append(args, "-D"+name+"="+code.Defines[name])
	}
	c := exec.CommandContext(ctx, path, append(append(args, code.Options...), "-o", "-", "-")...)
	c.Dir, c.Stdin = dir, strings.NewReader(code.Text)
	var out, log bytes.Buffer
	c.Stdout, c.Stderr = &out, &log
	if err := c.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, guard.Ended(ctx)
		}
		return nil, fault.Invalidf("vulkan: glsl", "%w\n%s", err, strings.TrimSpace(log.String()))
	}
	b.counts.fromGLSL.Add(1)
	if err := onlyIncluded(code, dir, filepath.Join(dir, listed)); err != nil {
		return nil, err
	}
	return spirv.Words(out.Bytes())
}

// onlyIncluded refuses a shader for which glslc read what is not in its code, however
// the directive was spelt (SPEC K6). The file has what it read: "-: <stdin> FILE ...".
func onlyIncluded(code gpuexec.Code, dir, list string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	_, files, _ := strings.Cut(string(text), "<stdin>")
	for _, name := range strings.Fields(files) {
		own := name
		if filepath.IsAbs(name) {
			own, _ = filepath.Rel(dir, name)
		}
		if _, given := code.Includes[filepath.Clean(own)]; !given {
			return unhashable("includes", "it includes %q, which is not in Includes: give its text there", name)
		}
	}
	return nil
}
