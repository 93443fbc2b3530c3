// Command search finds the paragraphs of a folder's text files that are nearest to a
// question in meaning: docs/search.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"slices"
	"strings"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/encoder"
)

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: search MODEL FOLDER QUESTION")
	}
	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{}))
	defer rt.Close(ctx)
	e := must(encoder.Open(ctx, rt, os.Args[1], encoder.Config{Normalize: true}))
	defer e.Close(ctx)
	for _, line := range must(search(ctx, e, os.DirFS(os.Args[2]), os.Args[3])) {
		fmt.Println(line)
	}
}

// search gives the three paragraphs that are nearest to the question.
func search(ctx context.Context, e *encoder.Encoder, folder fs.FS, question string) (found []string, err error) {
	texts, files, order := []string{question}, []string{""}, []int{}
	for _, file := range must(fs.Glob(folder, "*.txt")) {
		text := strings.ReplaceAll(string(must(fs.ReadFile(folder, file))), "\r\n", "\n")
		for paragraph := range strings.SplitSeq(text, "\n\n") {
			if paragraph = strings.Join(strings.Fields(paragraph), " "); paragraph != "" {
				order = append(order, len(texts))
				texts, files = append(texts, paragraph), append(files, file)
			}
		}
	}
	if len(order) == 0 {
		return nil, errors.New("there is no .txt file with a text in the folder")
	}
	embeddings := must(e.Encode(ctx, texts)) // of any lengths, packed together
	near := func(i int) (cosine float32) {   // of embeddings, which have the length 1
		for at, v := range embeddings[i] {
			cosine += v * embeddings[0][at]
		}
		return cosine
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(near(b), near(a)) })
	for _, i := range order[:min(3, len(order))] {
		found = append(found, fmt.Sprintf("%.2f %s: %.90s", near(i), files[i], texts[i]))
	}
	return found, nil
}
