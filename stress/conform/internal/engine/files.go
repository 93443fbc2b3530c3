package engine

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// Forger is a component that can rewrite a field of a file of its format and
// make lengths and digests around it right again. path is the file's place on
// disk, empty for one in memory.
type Forger interface {
	Forge(path string, content []byte, field, value string) ([]byte, error)
	Forges(content []byte) bool // tells whether the content is of its format
}

// file is a statement about one FILE.
func file(do func(c *Call, f *outside.Files, name string) (script.Result, error)) func(*Call) (script.Result, error) {
	return func(c *Call) (script.Result, error) {
		c.strict = true
		return do(c, c.World.Files, c.Arg(0))
	}
}

// edits is one that changes the FILE's bytes; words are those of the statement.
func edits(words int, options string, change func(c *Call, b []byte) ([]byte, error)) Verb {
	return Verb{Least: words, Most: words, Options: options, Run: file(func(c *Call, f *outside.Files, name string) (script.Result, error) {
		return Done(f.Edit(name, func(b []byte) ([]byte, error) { return change(c, b) }))
	})}
}

// does is one that says nothing.
func does(do func(f *outside.Files, name string) error) Verb {
	return Verb{Least: 1, Most: 1, Run: file(func(_ *Call, f *outside.Files, name string) (script.Result, error) { return Done(do(f, name)) })}
}

// doesWith is one that says nothing and has a word behind the FILE.
func doesWith(do func(f *outside.Files, name, word string) error) Verb {
	return Verb{Least: 2, Most: 2, Run: file(func(c *Call, f *outside.Files, name string) (script.Result, error) {
		return Done(do(f, name, c.Arg(1)))
	})}
}

// tells is one that asks something of the FILE.
func tells[T any](ask func(f *outside.Files, name string) (T, error), say func(T) script.Result) Verb {
	return Verb{Least: 1, Most: 1, Run: file(func(_ *Call, f *outside.Files, name string) (script.Result, error) {
		v, err := ask(f, name)
		return say(v), err
	})}
}

var fileStatements = Verbs{
	"flip": edits(1, "byte", func(c *Call, b []byte) ([]byte, error) { return outside.Flip(b, c.Int("byte", 0), 0) }),
	"zero": edits(1, "", func(_ *Call, b []byte) ([]byte, error) { return make([]byte, len(b)), nil }),
	"truncate": edits(1, "len", func(c *Call, b []byte) ([]byte, error) {
		n := c.Int("len", 0)
		if n < 0 || n > len(b) {
			return nil, c.refuse("the file has %d bytes, not %d", len(b), n)
		}
		return b[:n], nil
	}),
	"append": edits(2, "", func(c *Call, b []byte) ([]byte, error) {
		n, err := ParseSize(c.Arg(1))
		if err != nil || n > 1<<30 {
			return nil, c.slip(c.refuse("%s: want a number of bytes", c.Arg(1)))
		}
		return append(b, bytes.Repeat([]byte{'+'}, int(n))...), nil
	}),
	"write":  doesWith(func(f *outside.Files, name, word string) error { return f.Write(name, []byte(word)) }),
	"remove": does((*outside.Files).Remove),
	"mkdir": {Least: 1, Most: 1, Options: "mode", Run: file(func(c *Call, f *outside.Files, name string) (script.Result, error) {
		return Done(f.Mkdir(name, Parsed(c, "mode", 0o700, octal)))
	})},
	"chmod": {Least: 2, Most: 2, Run: file(func(c *Call, f *outside.Files, name string) (script.Result, error) {
		mode, err := octal(c.Arg(1))
		if err != nil {
			return Done(c.slip(err))
		}
		return Done(f.Chmod(name, mode))
	})},
	"symlink": doesWith((*outside.Files).Symlink),
	"fifo":    does((*outside.Files).Fifo),
	"sparse": {Least: 1, Most: 1, Options: "bytes", Run: file(func(c *Call, f *outside.Files, name string) (script.Result, error) {
		n := c.Size("bytes", 0)
		if n > 1<<40 {
			return Done(c.slip(c.refuse("want bytes=N")))
		}
		return Done(f.Sparse(name, int64(n)))
	})},
	"copy":      doesWith((*outside.Files).Copy),
	"snapshot":  does((*outside.Files).Snapshot),
	"unchanged": tells((*outside.Files).Unchanged, YesNo),
	"exists":    tells((*outside.Files).Exists, YesNo),
	"mode":      tells((*outside.Files).Mode, func(m fs.FileMode) script.Result { return script.Say(fmt.Sprintf("%04o", m)) }),
	"text":      tells((*outside.Files).Read, func(text []byte) script.Result { return script.Say(strings.TrimSuffix(string(text), "\n")) }),
	"files":     tells((*outside.Files).Count, Number[int]),
	"lines":     tells(lines, Number[int]),
	"forge":     {Least: 1, Most: 2, Options: "*", Run: file(forge)},
}

// lines is how many a file has; one that is not there has none.
func lines(f *outside.Files, name string) (int, error) {
	there, err := f.Exists(name)
	if err != nil || !there {
		return 0, err
	}
	text, err := f.Read(name)
	return bytes.Count(text, []byte{'\n'}), err
}

// forge asks the components of the case whose format the file has.
func forge(c *Call, f *outside.Files, name string) (script.Result, error) {
	fields := c.Options()
	if c.Len() == 2 {
		fields = append(fields, script.Option{Name: c.Arg(1)})
	}
	if len(fields) != 1 {
		return Done(c.slip(c.refuse("want forge FILE FIELD=VALUE")))
	}
	field := fields[0]
	path, _ := Must2(f.Path(name))
	return Done(f.Edit(name, func(b []byte) ([]byte, error) {
		for _, s := range c.run.slots.All() {
			if forger, ok := s.component.(Forger); ok && forger.Forges(b) {
				forged, err := forger.Forge(path, b, field.Name, field.Value)
				return forged, c.slip(err)
			}
		}
		return nil, c.slip(c.refuse("no component of this case knows the format of %s", name))
	}))
}

// each damages a file in every way in turn and runs a statement each time, with
// stores and pipelines closed while the file changes.
func (x *frame) each(s *script.Statement, v script.Vars) script.Result {
	head, err := script.Expand(s.Each.Head, v)
	if err != nil {
		return x.fail(s, err.Error(), "a file")
	}
	words, _, err := script.Words(head)
	flip := s.Each.Verb == "flip-each"
	bits := len(words) == 2 && flip && words[1].Text == "bits"
	if err != nil || len(words) == 0 || len(words) > 1 && !bits {
		return x.fail(s, head, s.Each.Verb+" FILE: STATEMENT")
	}
	name, files := words[0].Text, x.run.world.Files
	restore, err := files.Pristine()
	if err != nil {
		return x.fail(s, err.Error(), "files that can be read")
	}
	text, err := files.Read(name)
	if err != nil {
		return x.fail(s, err.Error(), "a file")
	}
	again := x.run.reopeners()
	try := func(damaged []byte, how string) bool {
		err := x.reopened(again, func() error {
			if err := restore(); err != nil || damaged == nil {
				return err
			}
			return files.Write(name, damaged)
		})
		if err != nil {
			x.fail(s, how+": "+err.Error(), "components that open again")
			return false
		}
		if damaged != nil {
			x.run.note(event{who: x.who, line: s.Line, text: how, got: "damaged"})
			x.do(&s.Each.Body, v)
		}
		return !x.run.stopped()
	}
	perByte := 1
	if bits {
		perByte = 8
	}
	for i := range text {
		if !flip {
			if !try(text[:i:i], "truncate "+name+" len="+strconv.Itoa(i)) {
				return OK()
			}
			continue
		}
		for bit := range perByte {
			damaged, _ := outside.Flip(bytes.Clone(text), i, bit)
			if !try(damaged, fmt.Sprintf("flip %s byte=%d bit %d", name, i, bit)) {
				return OK()
			}
		}
	}
	try(nil, "restore")
	return OK()
}

func (r *run) reopeners() []Reopener {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Reopener
	for _, s := range r.mu.opened {
		if again, ok := s.component.(Reopener); ok && r.slots.Get(s.name) == s {
			all = append(all, again)
		}
	}
	return all
}

// reopened closes all that can open again, calls damage, and opens it.
func (x *frame) reopened(all []Reopener, damage func() error) error {
	ctx, cancel := context.WithTimeout(x.run.ctx, statementLimit)
	defer cancel()
	for _, c := range slices.Backward(all) {
		if err := c.Close(ctx); err != nil {
			return err
		}
	}
	if err := damage(); err != nil {
		return err
	}
	for _, c := range all {
		if err := c.Reopen(ctx); err != nil {
			return err
		}
	}
	return nil
}
