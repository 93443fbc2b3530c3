package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// Call is one statement on its way to the code that answers it. Owned by the
// goroutine that runs the statement.
type Call struct {
	Ctx   context.Context // the script's ctx=, or the case's
	World *outside.World
	Name  string // of the component, or the statement's first word

	run     *run
	slot    *slot
	line    int
	text    string
	args    []script.Word
	options []script.Option
	flags   []string
	begun   func()
	heard   bool // it came from another process and is not told again
	strict  bool // an option that cannot be read fails the case
	leases  []Lease
}

// refuse is an ErrInvalid about this call's words.
func (c *Call) refuse(format string, args ...any) error {
	return fault.Invalidf("conform: "+c.Name, format, args...)
}

// Len is the number of plain words behind the verb.
func (c *Call) Len() int { return len(c.args) }

// Arg is the plain word i behind the verb, or empty.
func (c *Call) Arg(i int) string {
	if i >= len(c.args) {
		return ""
	}
	return c.args[i].Text
}

// Option gives name=.
func (c *Call) Option(name string) (string, bool) {
	for _, o := range c.options {
		if o.Name == name {
			return o.Value, true
		}
	}
	return "", false
}

// Or gives name=, or a default.
func (c *Call) Or(name, byDefault string) string {
	if v, ok := c.Option(name); ok {
		return v
	}
	return byDefault
}

// Options are all options as written, those of every statement left out.
func (c *Call) Options() []script.Option {
	var own []script.Option
	for _, o := range c.options {
		if !listed(commonOptions, o.Name) {
			own = append(own, o)
		}
	}
	return own
}

// Flag tells whether a bare word was given.
func (c *Call) Flag(name string) bool { return slices.Contains(c.flags, name) }

// ending is a panic that ends a statement; the engine answers with its error.
type ending struct{ err error }

// Check ends the statement if there is an error, which is its answer. It is for the
// goroutine that the statement runs on.
func Check(err error) {
	if err != nil {
		panic(ending{err})
	}
}

// Must gives v; an error ends the statement, as in Check.
func Must[T any](v T, err error) T {
	Check(err)
	return v
}

// Must2 is Must for two values.
func Must2[A, B any](a A, b B, err error) (A, B) {
	Check(err)
	return a, b
}

// Parsed gives name= as parse reads it, or a default.
func Parsed[T any](c *Call, name string, byDefault T, parse func(string) (T, error)) T {
	text, ok := c.Option(name)
	if !ok {
		return byDefault
	}
	v, err := parse(text)
	if err != nil {
		err = c.refuse("%s=%s: %w", name, text, err)
		if c.strict {
			err = c.slip(err)
		}
	}
	return Must(v, err)
}

// Keys reads word i as a list of keys; a quoted word is one key.
func (c *Call) Keys(i int) []string {
	if i >= len(c.args) {
		Check(c.refuse("want a list of keys"))
	}
	if c.args[i].Quoted {
		return []string{c.args[i].Text}
	}
	return Must(script.Items(c.args[i].Text))
}

// Int gives name= as an integer.
func (c *Call) Int(name string, byDefault int) int {
	return Parsed(c, name, byDefault, strconv.Atoi)
}

// Size gives name= in bytes.
func (c *Call) Size(name string, byDefault uint64) uint64 {
	return Parsed(c, name, byDefault, ParseSize)
}

// Duration gives name= as a Go duration.
func (c *Call) Duration(name string, byDefault time.Duration) time.Duration {
	return Parsed(c, name, byDefault, time.ParseDuration)
}

// Cost gives cost= in seconds.
func (c *Call) Cost() time.Duration {
	return Parsed(c, "cost", outside.Default("").Cost, func(text string) (time.Duration, error) {
		s, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(s) || s < 0 || s > 1e9 {
			return 0, errors.New("want seconds")
		}
		return time.Duration(s * float64(time.Second)), nil
	})
}

// ParseSize reads a number of bytes, with KiB or MiB behind it.
func ParseSize(text string) (uint64, error) {
	digits, unit := text, uint64(1)
	if d, ok := strings.CutSuffix(text, "KiB"); ok {
		digits, unit = d, 1<<10
	} else if d, ok := strings.CutSuffix(text, "MiB"); ok {
		digits, unit = d, 1<<20
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > math.MaxUint64/unit {
		return 0, fmt.Errorf("want a size such as 100, 4KiB or 1MiB")
	}
	return n * unit, nil
}

// At gives the open component of a name, which has to be a T.
func At[T Component](c *Call, name string) T {
	s := c.run.slots.Get(name)
	if s == nil {
		Check(c.refuse("there is no component %s", name))
	}
	at, ok := s.component.(T)
	if !ok {
		Check(c.refuse("%s is of another kind", name))
	}
	return at
}

// Shared gives what components of the case have in common under a name. open
// runs once, for the first that asks; its result is closed after all components.
func (c *Call) Shared(name string, open func() (Component, error)) (Component, error) {
	c.run.sharing.Lock()
	defer c.run.sharing.Unlock()
	for _, s := range c.run.shared {
		if s.name == name {
			return s.component, nil
		}
	}
	component, err := open()
	if err != nil {
		return nil, err
	}
	c.run.shared = append(c.run.shared, &slot{name: name, component: component})
	return component, nil
}

// Tally counts what the creators of this call's component do.
func (c *Call) Tally() *outside.Tally { return &c.slot.tally }

// Tallies are that one and those of other components.
func (c *Call) Tallies(others ...string) (all []*outside.Tally) {
	for _, s := range c.at(others) {
		all = append(all, &s.tally)
	}
	return all
}

// at is the call's component and the others, where they are open.
func (c *Call) at(others []string) []*slot {
	all := []*slot{c.slot}
	for _, name := range others {
		if s := c.run.slots.Get(name); s != nil {
			all = append(all, s)
		}
	}
	return all
}

// Lease hands over what the statement got: it is kept under lease=, or ended
// with the statement.
func (c *Call) Lease(l Lease) {
	if name, ok := c.Option("lease"); ok {
		c.Keep(name, l)
		return
	}
	c.leases = append(c.leases, l)
}

// Keep keeps a lease or held reference under a name of the script; the one that had
// the name ends.
func (c *Call) Keep(name string, l Lease) {
	if old := c.run.leases.Set(name, l); old != nil {
		old.End()
	}
}

// KeepIdentity keeps a key or blob id under a name, for `same`.
func (c *Call) KeepIdentity(name string, id any) { c.run.identities.Set(name, id) }

// Identity gives what KeepIdentity kept.
func (c *Call) Identity(name string) any {
	id, ok := c.run.identities.Lookup(name)
	if !ok {
		Check(c.refuse("there is no key or id %s", name))
	}
	return id
}

// Begun tells that a creator of this call has begun; the script may go on.
func (c *Call) Begun() { c.begun() }

func (c *Call) end() {
	for _, l := range c.leases {
		l.End()
	}
	c.leases = nil
}

// Creator is the creator of key: as this call's options say, else CreatorOf.
func (c *Call) Creator(key string, others ...string) outside.Creator {
	given := c.Flag("goexit") || c.Flag("deaf")
	for _, o := range c.options {
		given = given || listed(CreatorOptions, o.Name)
	}
	if given {
		return c.readCreator(key)
	}
	return c.CreatorOf(key, others...)
}

// CreatorOf is the creator that the script gave a key with `creates`, here or else at
// other components, or the default one. nest= asks for keys with it.
func (c *Call) CreatorOf(key string, others ...string) outside.Creator {
	for _, s := range c.at(others) {
		if creator, ok := s.creators.Lookup(key); ok {
			return creator
		}
	}
	return outside.Default(key)
}

func (c *Call) readCreator(key string) outside.Creator {
	cr := outside.Default(key)
	text := func(name string) *string {
		if v, ok := c.Option(name); ok {
			return &v
		}
		return nil
	}
	cr.Value = c.Or("create", key)
	cr.Wait, cr.Kernel, cr.Log = c.Or("wait", ""), c.Or("kernel", ""), c.Or("log", "")
	cr.Fail, cr.Panic, cr.Goexit, cr.Deaf = text("fail"), text("panic"), c.Flag("goexit"), c.Flag("deaf")
	cr.Load = outside.Load(c.Or("load", string(outside.LoadOK)))
	if cr.Load != outside.LoadOK && cr.Load != outside.LoadRefuse && cr.Load != outside.LoadAbort {
		Check(c.refuse("load=%s: want ok, refuse or abort", cr.Load))
	}
	size := c.Size("bytes", 1)
	if size > math.MaxInt64 {
		Check(c.refuse("bytes=%d is more than a creator can make", size))
	}
	cr.Bytes = int64(size)
	cr.Cost = c.Cost()
	cr.After = c.Duration("after", 0)
	cr.Nest = Parsed(c, "nest", nil, script.Items)
	return cr
}
