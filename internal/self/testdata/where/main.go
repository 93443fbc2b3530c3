// Program where says in which file Kiln's code is. It is built in all the ways that Go has.
package main

import "C"

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kiln-cache/kiln/internal/self"
)

func main() { Where() }

// Where is for hosts in C and in Go.
//
//export Where
func Where() {
	if name := os.Getenv("REPLACED"); name != "" { // by another file, as an upgrade does it
		if err := errors.Join(os.WriteFile(name+".new", nil, 0o700), os.Rename(name+".new", name)); err != nil {
			fmt.Println(err)
		}
	}
	program, err := self.Start()
	if err != nil {
		program = err.Error()
	}
	var size int64
	f, err := self.Open()
	if err == nil {
		size, err = io.Copy(io.Discard, f)
		_ = f.Close()
	}
	fmt.Println(self.Loaded(), size, err, program)
}
