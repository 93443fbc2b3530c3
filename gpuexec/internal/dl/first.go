package dl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// First opens one library by open: that of path or, where that is empty, the first of the
// installed names that open takes. A path with a folder becomes that of its file, from the
// root and without links, since what a library needs lies beside that. A name without a
// folder is the loader's to look for. The error has every cause, in one line.
func First(path string, installed []string, open func(name string) error) error {
	names := installed
	switch {
	case strings.Contains(path, "/"):
		file, err := fileOf(path)
		if err != nil {
			return err
		}
		names = []string{file}
	case path != "":
		names = []string{path}
	}
	var causes []string
	for _, name := range names {
		err := open(name)
		if err == nil {
			return nil
		}
		causes = append(causes, err.Error())
	}
	return errors.New(strings.Join(causes, "; "))
}

// fileOf is the file that a path leads to. The loader would wait for a pipe.
func fileOf(path string) (string, error) {
	whole, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	file, err := filepath.EvalSymlinks(whole)
	if err != nil {
		return "", err
	}
	if about, err := os.Stat(file); err != nil || !about.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file of a library", path)
	}
	return file, nil
}
