package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/encoder"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == model { // as TestNoTexts starts it
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// The model here has random weights; make model fetches a real one.
const model = "../../encoder/testdata/tiny"

// ask opens the model and searches.
func ask(model string, folder fs.FS, question string) (string, error) {
	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{}))
	defer rt.Close(ctx)
	e := must(encoder.Open(ctx, rt, model, encoder.Config{Normalize: true}))
	defer e.Close(ctx)
	found, err := search(ctx, e, folder, question)
	return strings.Join(found, "\n") + "\n", err
}

func Example() {
	folder := fstest.MapFS{
		"ovens.txt": {Data: []byte("w7 w8 w9\r\n\r\n\r\n\r\nw40 w41\nw42\n\n")},
		"empty.txt": {},
		"kilns.txt": {Data: []byte("w7 w8\nw9 w10")},
		"pots.jpg":  {Data: []byte("w7 w8 w9")},
	}
	fmt.Print(must(ask(model, folder, "w7 w8 w9")))
	// Output:
	// 1.00 ovens.txt: w7 w8 w9
	// 0.96 kilns.txt: w7 w8 w9 w10
	// 0.77 ovens.txt: w40 w41 w42
}

// A folder without texts is an error, and so is one that is not there: the question is not embedded
// for it. What is empty is no paragraph.
func TestNoTexts(t *testing.T) {
	const want = "there is no .txt file with a text in the folder"
	none := t.TempDir() + "/none"
	for _, folder := range []fs.FS{fstest.MapFS{}, fstest.MapFS{"pots.jpg": {Data: []byte("w7")}}, fstest.MapFS{"a.txt": {}, "b.txt": {Data: []byte(" \n\n\n")}}, os.DirFS(none)} {
		if got, err := ask(model, folder, "w7"); err == nil || err.Error() != want {
			t.Errorf("%v: %q, %v", folder, got, err)
		}
	}
	var answers, complaints strings.Builder
	program := exec.Command(must(os.Executable()), model, none, "w7")
	program.Stdout, program.Stderr = &answers, &complaints
	if _ = program.Run(); program.ProcessState.ExitCode() != 1 || answers.Len() > 0 || !strings.HasSuffix(complaints.String(), want+"\n") {
		t.Errorf("%v, answers %q, complaints %q", program.ProcessState, &answers, &complaints)
	}
}

// The page's question has the page's answers, and its program is as long as it says.
func TestPage(t *testing.T) {
	page := string(must(os.ReadFile("../search.md")))
	lines := 0
	for line := range strings.Lines(string(must(os.ReadFile("main.go")))) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			lines++
		}
	}
	if want := fmt.Sprintf("%d lines", lines); lines > 60 || !strings.Contains(page, want) {
		t.Errorf("the page does not say %s, or there are more than 60", want)
	}
	const minilm = "../../.cache/minilm"
	if _, err := os.Stat(minilm); err != nil {
		t.Skip("the model MiniLM is not here; fetch it with: make model")
	}
	_, rest, _ := strings.Cut(page, "docs/search .cache/minilm docs/search/testdata \"")
	question, rest, _ := strings.Cut(rest, "\"\n")
	want, _, _ := strings.Cut(rest, "```")
	if got := must(ask(minilm, os.DirFS("testdata"), question)); got != want {
		t.Errorf("%q: got\n%s, want\n%s", question, got, want)
	}
}
