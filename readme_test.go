package kiln_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// blocks are the fenced blocks of a text: their languages and what is in them.
func blocks(text string) (languages, contents []string) {
	for _, b := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		languages, contents = append(languages, b[1]), append(contents, b[2])
	}
	return languages, contents
}

// P6, P12: the README's program, built as it stands there, compiles and stores;
// run again it finds what it stored and compiles nothing; built from a changed
// source it compiles anew. README shows the first two outputs, in the two blocks
// behind the program. The second program takes the place of the first one's main,
// and its output stands behind it.
func TestReadmeProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a program")
	}
	languages, contents := blocks(string(must(os.ReadFile("README.md"))))
	at := slices.Index(languages, "go")
	if at < 0 || at+4 >= len(contents) || languages[at+3] != "go" {
		t.Fatalf("README.md has the blocks %q: want a go block and two outputs behind it, then another one and its output", languages)
	}
	program, first, second := contents[at], contents[at+1], contents[at+2]
	before, rest, _ := strings.Cut(program, "func main() {")
	_, after, _ := strings.Cut(rest, "\n}\n")
	server, served := before+contents[at+3]+after, contents[at+4]
	imports, _, _ := strings.Cut(program, "\n)\n")
	var paths []string
	for _, quoted := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(imports, -1) {
		paths = append(paths, quoted[1])
	}
	if want := []string{"context", "fmt", "github.com/kiln-cache/kiln"}; !slices.Equal(paths, want) {
		t.Errorf("it imports %q, want %q", paths, want)
	}
	dir := t.TempDir()
	runs := filepath.Join(dir, "runs")
	if err := os.Mkdir(runs, 0o700); err != nil {
		t.Fatal(err)
	}
	build := func(name, program string) (binary string) {
		source, binary := filepath.Join(dir, name+".go"), filepath.Join(dir, name)
		if runtime.GOOS == "windows" {
			binary += ".exe"
		}
		if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
		if said, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, said)
		}
		return binary
	}
	original := build("original", program)
	tenants := build("tenants", server)
	changed := build("changed", strings.Replace(program, "code of ", "other code of ", 1))
	for i, c := range []struct{ binary, want string }{
		{original, first}, {original, second}, {changed, strings.ReplaceAll(first, "code of ", "other code of ")},
		{tenants, served}, {tenants, strings.Replace(served, "compile", "load", 1)},
	} {
		run := exec.Command(c.binary)
		run.Dir = runs
		run.Env = []string{"HOME=" + dir} // and nothing that would change what it does
		said, err := run.CombinedOutput()
		if err != nil || string(said) != c.want {
			t.Errorf("run %d: %v, it prints\n%s\nwant\n%s", i+1, err, said, c.want)
		}
		if compiled := strings.Contains(string(said), "compile"); compiled != (i != 1 && i != 4) {
			t.Errorf("run %d compiled: %v", i+1, compiled)
		}
	}
}
