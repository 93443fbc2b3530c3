//go:build linux && (amd64 || arm64)

package vulkan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// includeName is how includes may be called: compilers list them with blanks between.
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
	for name, value := range code.Defines {
		if strings.ContainsAny(name, "= \n") {
			return fault.Invalidf(op, "%q is no name of a macro", name)
		}
		if strings.Contains(value, "\n") { // glslang leaves out what follows, glslc takes it for lines of the shader
			return fault.Invalidf(op, "macro %s: %q is more than one line", name, value)
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

// compiler makes modules of shaders in GLSL: glslc or glslang. Its zero value is that
// neither is installed.
type compiler struct {
	path, version string
	glslang       bool
}

// installed is the compiler of this process.
var installed = sync.OnceValue(findCompiler)

// findCompiler takes glslc if it is there: it has all of optionsOfGLSL. glslang has two names.
func findCompiler() compiler {
	for _, name := range []string{"glslc", "glslang", "glslangValidator"} {
		if c, err := compilerOf(name); err == nil {
			return c
		}
	}
	return compiler{}
}

func compilerOf(name string) (compiler, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return compiler{}, err
	}
	out, err := exec.Command(path, "--version").Output()
	return compiler{path, strings.Join(strings.Fields(string(out)), " "), name != "glslc"}, err
}

// library is what made the modules of shaders, as an identity has it.
func library() string {
	if v := installed().version; v != "" {
		return "kiln, " + v
	}
	return "kiln"
}

// Names of a compiler's files. No include is called so.
const (
	shaderFile = "shader+.comp"
	moduleFile = "shader+.spv"
	readFile   = "shader+.d" // which files it read
)

// compile has the compiler that is installed make the module of a shader.
func (b *Backend) compile(ctx context.Context, code gpuexec.Code) ([]uint32, error) {
	words, err := installed().compile(ctx, code)
	if err == nil {
		b.counts.fromGLSL.Add(1)
	}
	return words, err
}

func (c compiler) compile(ctx context.Context, code gpuexec.Code) ([]uint32, error) {
	if c.path == "" {
		return nil, failure("glsl", fault.ErrUnavailable, "no compiler of GLSL is here: install glslc or glslang (Debian: glslc, or glslang-tools), or compile the shader to SPIR-V before")
	}
	args, err := c.arguments(code)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kiln-glsl-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	write := func(name, text string) error {
		at := filepath.Join(dir, name)
		return errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.WriteFile(at, []byte(text), 0o600))
	}
	err = write(shaderFile, c.text(code))
	for name, text := range code.Includes {
		err = errors.Join(err, write(name, text))
	}
	if err != nil {
		return nil, err
	}
	run := exec.CommandContext(ctx, c.path, args...)
	run.Dir = dir
	if log, err := run.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return nil, guard.Ended(ctx)
		}
		return nil, fault.Invalidf("vulkan: glsl", "%w\n%s", err, bytes.TrimSpace(log))
	}
	if err := onlyIncluded(code, dir); err != nil {
		return nil, err
	}
	module, err := os.ReadFile(filepath.Join(dir, moduleFile))
	if err != nil {
		return nil, err
	}
	return spirv.Words(module)
}

// arguments are the compiler's for a shader in its folder.
func (c compiler) arguments(code gpuexec.Code) ([]string, error) {
	args := []string{"-fshader-stage=compute", "--target-env=vulkan1.2", "-MD", "-MF", readFile}
	if c.glslang {
		args = []string{"--quiet", "-S", "comp", "--target-env", "vulkan1.2", "--depfile", readFile}
	}
	for _, name := range slices.Sorted(maps.Keys(code.Defines)) {
		args = append(args, "-D"+name+"="+code.Defines[name])
	}
	for _, o := range code.Options {
		if !c.glslang {
			args = append(args, o)
			continue
		}
		of, known := glslangOption(o)
		if !known {
			return nil, failure("glsl", fault.ErrUnavailable, "glslang, which is here, has no option %q: install glslc (Debian: glslc), or leave it out", o)
		}
		args = append(args, of...)
	}
	return append(args, "-I.", "-o", moduleFile, shaderFile), nil
}

// glslangOption is what glslang takes for one of optionsOfGLSL.
func glslangOption(o string) (args []string, known bool) {
	name, value, _ := strings.Cut(o, "=")
	switch name {
	case "-O": // it optimises for size alone
		return nil, true
	case "-O0":
		return []string{"-Od"}, true
	case "-Os", "-g", "-w":
		return []string{o}, true
	case "--target-env":
		if value == "vulkan" {
			value += "1.0"
		}
		return []string{name, value}, true
	case "--target-spv":
		return []string{"--target-env", "spirv" + strings.TrimPrefix(value, "spv")}, true
	case "-std":
		return []string{"--glsl-version", strings.TrimSuffix(value, "core")}, true
	}
	return nil, false
}

// beginning is a shader up to the end of the line of its version, which only comments precede.
var beginning = regexp.MustCompile(`\A(?:\s|//.*\n|/\*(?s:.*?)\*/)*#[ \t]*version\b(?:[^\n/]|//.*|/\*(?s:.*?)\*/)*`)

// text is the shader as its compiler wants it: glslang has includes as an extension that
// the text asks for, which glslc has switched on. Its lines keep their numbers.
func (c compiler) text(code gpuexec.Code) string {
	if !c.glslang || len(code.Includes) == 0 {
		return code.Text
	}
	begun := beginning.FindString(code.Text)
	next, rest := 2+strings.Count(begun, "\n"), code.Text[len(begun):]
	if begun == "" { // -std says the version
		next, rest = 1, "\n"+rest
	}
	return fmt.Sprintf("%s\n#extension GL_GOOGLE_include_directive : enable\n#line %d%s", begun, next, rest)
}

// onlyIncluded refuses a shader for which its compiler read what is not in its code, however
// the directive was spelt (SPEC K6). readFile has what it read: "MODULE: SHADER FILE ...".
func onlyIncluded(code gpuexec.Code, dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, readFile))
	if err != nil {
		return err
	}
	_, files, _ := strings.Cut(string(text), shaderFile)
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
