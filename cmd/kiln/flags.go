package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/internal/size"
	"github.com/kiln-cache/kiln/limit"
)

// value is a flag whose errors say what it wants. Each flag reads its text strictly:
// no sign, blank, fraction, base or unit, and no empty text.
type value struct {
	c            *call
	name, holder string // holder stands for the text in --help
	shown        string // the default there
	want         string
	given        bool
	toggle       bool // may stand without a text, which is then "true"
	read         func(text string) bool
}

func (v *value) String() string   { return v.shown }
func (v *value) IsBoolFlag() bool { return v.toggle }

// Set reads the text. It keeps the first mistake for parse to return.
func (v *value) Set(text string) error {
	if v.given = v.read(text); v.given {
		return nil
	}
	v.c.mistake = usagef("--%s %.40q: want %s", v.name, text, v.want)
	return v.c.mistake
}

// define adds a flag of a form such as "trace FILE". shown is its default, empty
// for none. --help leaves out a flag whose about is empty.
func (c *call) define(form, about, shown, want string, read func(string) bool) *value {
	name, holder, _ := strings.Cut(form, " ")
	v := &value{c: c, name: name, holder: holder, shown: shown, want: want, read: read}
	c.flags.Var(v, name, about)
	return v
}

// toggle is a flag that is on or off.
func (c *call) toggle(p *bool, form, about string) {
	v := c.define(form, about, "", "true or false", func(text string) bool {
		on, err := strconv.ParseBool(text)
		*p = on
		return err == nil
	})
	v.toggle = true
}

// whole is a whole number between two bounds; what *p holds is the default.
func (c *call) whole(p *int, form string, least, most int, about string) {
	want := fmt.Sprintf("a whole number from %d to %d", least, most)
	c.define(form, about, strconv.Itoa(*p), want, func(text string) bool {
		n, ok := decimal(text)
		if !ok || n > math.MaxInt || int(n) < least || int(n) > most {
			return false
		}
		*p = int(n)
		return true
	})
}

// seed is any 64-bit number.
func (c *call) seed(p *uint64, form, about string) {
	c.define(form, about, strconv.FormatUint(*p, 10), fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64)), func(text string) (ok bool) {
		*p, ok = decimal(text)
		return ok
	})
}

// decimal reads digits only.
func decimal(text string) (uint64, bool) {
	if text == "" || text[0] == '+' {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// mostCapacity is more than any cache holds, in entries.
const mostCapacity = math.MaxInt32

// capacity is a number of 0 or more, or unlimited; *p stays "not given" without
// the flag.
func (c *call) capacity(p *kiln.Limit, form, about string) {
	c.define(form, about, "", fmt.Sprintf("a whole number from 0 to %d, or %s", mostCapacity, limit.Word), func(text string) bool {
		l, err := limit.Parse(text)
		if n, _ := l.Value(); err != nil || n > mostCapacity {
			return false
		}
		*p = l
		return true
	})
}

// size is a size, or unlimited, in bytes; *p stays "not given" without the flag. A number
// without a unit counts alone.
func (c *call) size(p *kiln.Limit, alone int64, form, about string) {
	c.define(form, about, "", size.Grammar+", or "+limit.Word, func(text string) (ok bool) {
		*p, ok = parseSize(text, alone)
		return ok
	})
}

// bounded is size without unlimited.
func (c *call) bounded(p *kiln.Limit, alone int64, form, about string) {
	c.define(form, about, "", size.Grammar, func(text string) (ok bool) {
		*p, ok = parseSize(text, alone)
		return ok && !p.IsUnlimited()
	})
}

func parseSize(text string, alone int64) (kiln.Limit, bool) {
	l, err := size.Parse(text, alone)
	return l, err == nil
}

// seconds is a length of time that may have a fraction.
func (c *call) seconds(p *float64, form, about string) {
	const most = 1e9 // thirty years
	c.define(form, about, strconv.FormatFloat(*p, 'g', -1, 64), fmt.Sprintf("a number of seconds from 0 to %.0f", most), func(text string) bool {
		s, err := strconv.ParseFloat(text, 64)
		if err != nil || !(s >= 0 && s <= most) {
			return false
		}
		*p = s
		return true
	})
}

// duration is a length of time with its unit.
func (c *call) duration(p *time.Duration, form, about string) {
	c.define(form, about, p.String(), "a time of at least 1ms with its unit, such as 30s", func(text string) bool {
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Millisecond {
			return false
		}
		*p = d
		return true
	})
}

// text is a text that holds accepts; where holds is nil, any text but the empty one.
func (c *call) text(p *string, form, about, want string, holds func(string) bool) *value {
	return c.define(form, about, *p, want, func(text string) bool {
		if text == "" || holds != nil && !holds(text) {
			return false
		}
		*p = text
		return true
	})
}

// file is the name of a file that is not read or written as a stream.
func (c *call) file(p *string, form, about, want string) *value {
	return c.text(p, form, about, want+", not - for a stream", func(text string) bool { return text != dash })
}

// dash in the place of a file's name is standard input or output.
const dash = "-"

// directories is a list as PATH is one, without an empty entry.
func (c *call) directories(p *string, form, about string) {
	c.text(p, form, about, "directories, none of them empty", func(text string) bool { return !slices.Contains(filepath.SplitList(text), "") })
}

// oneOf is one of some words.
func (c *call) oneOf(p *string, form, about string, words ...string) *value {
	return c.text(p, form, about, list(words), func(text string) bool { return slices.Contains(words, text) })
}

// list joins words with commas and an "or".
func list(words []string) string {
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " or " + words[n-1]
	}
	return strings.Join(words, "")
}

var logLevels = []string{"debug", "info", "warn", "error"}

// common adds the flags that every command has.
func (c *call) common() {
	c.flags.SetOutput(io.Discard)
	c.flags.Usage = func() {}
	c.toggle(&c.json, "json", "write JSON")
	c.level = "warn"
	c.settings = env.Read(env.Process())
	if s := c.settings.LogLevel; s.Source == env.Environment {
		c.level = s.Value
	}
	c.oneOf(&c.level, "log-level LEVEL", "the least that is logged to stderr: "+list(logLevels), logLevels...)
}

// parse reads the flags. They may stand before, between and after the other
// arguments, of which there may be as many as most says.
func (c *call) parse(most int) error {
	hint := ": see kiln " + c.name + " --help"
	for {
		if err := c.flags.Parse(c.args); err != nil {
			switch {
			case errors.Is(err, flag.ErrHelp):
				return err
			case c.mistake != nil:
				return c.mistake
			}
			text := strings.Replace(err.Error(), "flag provided but not defined: -", "no such flag: --", 1)
			text = strings.Replace(text, "flag needs an argument: -", "a value is missing after --", 1)
			return usagef("%s%s", text, hint)
		}
		if c.flags.NArg() == 0 {
			return nil
		}
		if len(c.rest) == most {
			return usagef("unexpected argument %.40q%s", c.flags.Arg(0), hint)
		}
		c.rest = append(c.rest, c.flags.Arg(0))
		c.args = c.flags.Args()[1:]
	}
}

// begin reads the flags, and says what is wrong with the environment.
func (c *call) begin(most int) error {
	if err := c.parse(most); err != nil {
		return err
	}
	return c.environment()
}

// usage prints what the command takes.
func (c *call) usage() {
	fmt.Fprintf(c.stdout, "usage: kiln %s\n%s\n\n", strings.TrimSpace(c.name+" "+c.use), c.about)
	c.flags.VisitAll(func(f *flag.Flag) {
		if f.Usage == "" {
			return
		}
		form, about := f.Name, f.Usage
		if v, ok := f.Value.(*value); ok && v.holder != "" {
			form += " " + v.holder
		}
		if f.DefValue != "" {
			about += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(c.stdout, "  --%-20s %s\n", form, about)
	})
}
