//go:build unix

package pipelinefile_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// saver, if given, makes this process one that saves to FILE again and again and
// writes down what was acknowledged: FILE,NAME,SAVES.
var saver = flag.String("saver", "", "save to FILE as NAME so many times")

// TestSaver is the child process of TestProcesses.
func TestSaver(t *testing.T) {
	if *saver == "" {
		t.Skip("runs as a child only")
	}
	parts := strings.Split(*saver, ",")
	var saves int
	fmt.Sscan(parts[2], &saves)
	v := open(t)
	for i := range saves {
		name := fmt.Sprintf("%s-%d", parts[1], i)
		v.shader(name, name)
		v.built(name)
		v.save(parts[0])
		fmt.Println("saved", name)
	}
}

// SPEC V6: several processes save to one path while one after the other is
// killed. The file is whole at any time and holds all that was acknowledged.
func TestProcesses(t *testing.T) {
	const children, kills = 4, 6
	saves := 25
	if testing.Short() {
		saves = 5
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	acknowledged := make(chan string, 4096) // all that children could say
	run := func(name string, saves int) (*exec.Cmd, chan struct{}) {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSaver$", "-test.v", fmt.Sprintf("-saver=%s,%s,%d", path, name, saves))
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		read := make(chan struct{})
		go func() {
			defer close(read)
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if name, ok := strings.CutPrefix(lines.Text(), "saved "); ok {
					acknowledged <- name
				}
			}
		}()
		return c, read
	}
	type child struct {
		*exec.Cmd
		read chan struct{}
	}
	var steady []child
	for i := range children {
		c, read := run(fmt.Sprint("c", i), saves)
		steady = append(steady, child{c, read})
	}
	for i := range kills {
		c, read := run(fmt.Sprint("victim", i), 1000)
		first := <-acknowledged // somebody saved: things are under way
		acknowledged <- first
		timer := time.NewTimer(time.Duration(rand.IntN(int(30 * time.Millisecond)))) // any moment of a save
		<-timer.C
		if err := c.Process.Kill(); err != nil {
			t.Error(err)
		}
		<-read
		c.Wait()
		decode(t, path)
	}
	for _, c := range steady {
		<-c.read
		if err := c.Wait(); err != nil {
			t.Errorf("a saver that nobody killed: %v", err)
		}
	}
	close(acknowledged)
	there := map[string]bool{}
	for _, e := range decode(t, path).Entries {
		there[e.Shader] = true
	}
	for name := range acknowledged {
		if !there[name] {
			t.Errorf("%s was saved and is not there", name)
		}
	}
	if n := files(t, dir); n > 1+kills {
		t.Errorf("%d files: more than the target and one a kill", n)
	}
	later := open(t, func(c *setup) { c.Now = func() time.Time { return time.Now().Add(2 * time.Hour) } })
	if _, err := later.Save(context.Background(), path); err != nil {
		t.Error(err)
	}
	if n := files(t, dir); n != 1 {
		t.Errorf("%d files after the sweep", n)
	}
}
