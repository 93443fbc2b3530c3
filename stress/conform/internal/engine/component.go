package engine

import (
	"context"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// Kind opens the components of one kind: `open NAME KIND OPTIONS`.
type Kind struct {
	Options string // that open takes, separated by blanks
	Open    func(*Call) (Component, error)
}

// Component is one opened component. Close waits for what it owns, within ctx;
// closing twice is fine, and verbs after Close answer what a user would get.
type Component interface {
	Verbs() Verbs
	Close(ctx context.Context) error
}

// Reopener is a component that can open again after Close with the options it
// was opened with. Damage to files is done between the two.
type Reopener interface {
	Component
	Reopen(ctx context.Context) error
}

// Keeper is a component that keeps keys in folders on disk; it answers also
// for a key that it kept last, and when closed.
type Keeper interface {
	Component
	Folder(key string) (string, error)
}

// Verbs are the verbs of a component, or statements, by name.
type Verbs map[string]Verb

// Verb is one verb. The engine checks the words and options before Run.
type Verb struct {
	Least, Most int    // words behind the verb; Most below 0: any number
	Options     string // separated by blanks; "*" for any
	Flags       string // bare words that may follow the plain ones
	Run         func(*Call) (script.Result, error)
}

// CreatorOptions and CreatorFlags describe the creator of a call that may compute.
const (
	CreatorOptions = "create bytes cost after wait fail panic nest kernel log load "
	CreatorFlags   = "goexit deaf"
)

// commonOptions are taken by every statement.
const commonOptions = "ctx within alloc"

func listed(list, word string) bool {
	for w := range strings.FieldsSeq(list) {
		if w == word || w == "*" {
			return true
		}
	}
	return false
}

// counters are read again for a while, since work off the caller's path may
// end a little later.
const counters = "count creations aborted loads events freed fired lines refused leaks quarantined io"

// OK is the result of a statement that has nothing to say.
func OK() script.Result { return script.Say("ok") }

// Number is a result of one number.
func Number[N int | int64](n N) script.Result { return script.Say(strconv.FormatInt(int64(n), 10)) }

// Word is yes or no, or another pair of words.
func Word(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

// YesNo is yes or no.
func YesNo(yes bool) script.Result { return script.Say(Word(yes, "yes", "no")) }

// Done is ok, or the error's result.
func Done(err error) (script.Result, error) { return OK(), err }

// Does is a verb of so many words that has nothing to say.
func Does(words int, do func(c *Call) error) Verb {
	return Verb{Least: words, Most: words, Run: func(c *Call) (script.Result, error) { return Done(do(c)) }}
}

// Count is a verb that gives a number.
func Count[N int | int64](get func() N) Verb {
	return Verb{Run: func(*Call) (script.Result, error) { return Number(get()), nil }}
}

// Lease is a reader's right to a value, or a held reference to it. The engine
// calls End once.
type Lease interface {
	Value() (text string, resident bool) // not resident: gone, for held references
	End()
}
