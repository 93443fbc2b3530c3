package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/race"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

func TestStatements(t *testing.T) {
	for name, statements := range map[string]string{
		"results and leases": `
open c cache
c get k create=v lease=l -> v by=miss
c get k -> v by=hit
use l -> v
freed v -> 0
end l
freed v -> 1
use l -> error invalid
c len -> 1
c close
c get k -> error closed`,
		"creators": `
open c cache
c creates k create=w
c get k -> w by=miss
c get f fail=E -> error failed text=E
c get p panic=boom -> error panic text=boom stack=yes
c get g goexit -> error goexit
c creations k,f,p,g -> 4
c get l log=runs
c get m log=runs
lines runs -> 2
lines none -> 0`,
		"threads and gates": `
open c cache
A: c get k create=v wait=g
B: c get k
blocked A
blocked B
go g
await A -> v by=miss
await B -> v by=joined
T*8: c get k{t} create=v{t} -> v{t} by=miss
await T -> v{t} by=miss
c creations k0..k7 -> 8
W: for 0..7: c get k{i} -> v{i} by=hit
await W`,
		"threads are let go together, behind what they do already": `
open c cache
T*1: c get k wait=g
T*3: c get j{t}
sleep 10ms
c len -> 1
go g
await T -> j{t}
c len -> 4`,
		"the case waits for its threads": "open c cache\nA: c get k after=150ms\nA: c get j -> j by=miss",
		"contexts": `
open c cache
A: c get k wait=g
B: c get k ctx=X
blocked B
cancel X
await B -> error canceled
A: c get k wait=never ctx=Y
go g
await A -> k by=hit
C: c get n wait=never ctx=Z
cancel Z
await C -> error canceled
c aborted n -> 1`,
		"a counter is read again":      "open c cache\nc count x -> 5",
		"loops":                        "open c cache\nfor 0..9 as=m: c get k{i} ; c get k{9-i} -> *\nfor 0..9 as=n: c len -> 10\nratio m n -> 0..\nfor x,y: c say {i} {i}{i} -> {i} {i}{i}",
		"nested loops behind threads":  "open c cache\nfor 0..2: T*2: for 0..3: c get {t*4+i}\nawait T\nc len -> 8",
		"an item of several words":     "open c cache\nfor c get k,c len: {i} -> *",
		"env and refused":              "env A=1 B=\"x y\"\nrefused -> 0\nrefused A -> 0",
		"identity, clock, driver":      "identity driver=7 isa=a,b\nidentity driver=default\nclock +90s\ndriver blob=x\ndriver create=refuse\ndriver ok\ndriver calls create -> 0\nfault write=ENOSPC sync=EIO\nfault off\nio reset\nio sync -> 0",
		"watch":                        "open c cache\nwatch c len -> 0..4\nfor 0..3: c get k{i}",
		"leaks":                        "open c cache\nA: c len\nT*20: c get k{t}\nawait T\nleaks -> 0\nc leak\nleaks -> 1\ngo leaked\nleaks -> 0",
		"files":                        "write a/b text\ntext a/b -> text\nexists a/b -> yes\nexists a/c -> no\nmode a/b -> 0600\nflip a/b byte=0\ntext a/b -> uext\nsnapshot a/b\ncopy a z\nunchanged a/b -> yes\nappend a/b 2\nunchanged a/b -> no\ntext a/b -> uext++\ntruncate a/b len=1\ntext a/b -> u\nzero a/b\ntext a/b -> \"\\x00\"\ntext z/b -> uext\nfiles . -> 2\nsymlink l a/b\nfifo p\nfiles . -> 4\nremove a\nexists a/b -> no\nremove a -> error not_found\nmkdir d mode=0750\nmode d -> 0750\nchmod d 0700\nmode d -> 0700\nsparse s bytes=2MiB\nwrite mem:m abc\ncopy mem:m f\ntext f -> abc\ncopy f mem:n\nflip mem:n byte=-1\ntext mem:n -> abb\nwrite ../up x -> error invalid",
		"damage":                       "open s files\ns put k value\nflip-each s:k/kernel.bin bits: s get k value -> miss reason=checksum\ns seen -> 40\ntruncate-each s:k/kernel.bin: s get k value -> miss reason=*\ns seen -> 45\ns get k value -> value\nfiles . -> 1",
		"opening a name again":         "open c cache\nc get k\nopen c cache\nc len -> 0",
		"bad options of open":          "open c cache cap=-1 -> error invalid",
		"bypass reasons are their own": "open c cache\nc say bypass reason=full",
		"alternatives":                 "open c cache\nc say a by=x -> b | a by=y|x",
	} {
		t.Run(name, func(t *testing.T) { passes(t, statements) })
	}
}

func TestFailures(t *testing.T) {
	for name, tt := range map[string]struct {
		statements string
		line       int
		got        string
	}{
		"mismatch":                    {"open c cache\nc get k -> k by=hit\nc len -> 7", 2, "k by=miss"},
		"error without an arrow":      {"open c cache\nc get k fail=E", 2, "error failed text=E"},
		"unknown statement":           {"nonsense", 1, "no statement"},
		"unknown verb":                {"open c cache\nc fly", 2, "no verb fly"},
		"unknown option":              {"open c cache\nc len fast=yes -> *", 2, "no option fast"},
		"unknown option of open":      {"open c cache deep=1 -> *", 1, "no option deep"},
		"unknown kind":                {"open c carriage -> *", 1, "no kind carriage"},
		"too many words":              {"open c cache\nc len twice -> *", 2, "takes 0 words"},
		"unreadable":                  {"open c cache\nc say \"x -> *", 2, "not closed"},
		"unknown in a thread":         {"open c cache\nA: c fly\nc len -> *", 2, "no verb fly"},
		"a thread's own expectation":  {"open c cache\nA: c get k wait=g -> w by=miss\ngo g\nawait A", 2, "k by=miss"},
		"a thread at the case's end":  {"open c cache\nA: c get k after=20ms -> w", 2, "k by=miss"},
		"await judges":                {"open c cache\nA: c get k fail=E\nawait A", 3, "error failed"},
		"await of a group":            {"open c cache\nT*4: c get k{t%2}\nawait T -> k{t}", 3, "k0"},
		"await of nobody":             {"await A", 1, "no thread"},
		"not blocked":                 {"open c cache\nA: c get k\nblocked A", 3, "error returned"},
		"watched":                     {"open c cache\nwatch c len -> 0..2\nfor 0..3: c get k{i}\nsleep 50ms", 2, ""},
		"watched at the end":          {"open c cache\nwatch c len -> 0..2\nfor 0..3: c get k{i}", 2, ""},
		"within":                      {"open c cache\nc get k after=60ms within=20ms", 2, "no answer after 20ms"},
		"hangs in a thread":           {"open c cache\nA: c hang within=20ms\nc get k after=5s", 2, "no answer after 20ms"},
		"panic":                       {"open c cache\nc blow -> *", 2, "panic: blown"},
		"panic in a thread":           {"open c cache\nA: c blow\nawait A -> *", 2, "panic: blown"},
		"reason outside R1":           {"open c cache\nc say miss reason=tired -> *", 2, "reason=tired"},
		"reason of bypass is outside": {"open c cache\nc say miss reason=full -> *", 2, "reason=full"},
		"bypass with another's":       {"open c cache\nc say bypass reason=absent -> *", 2, "reason=absent"},
		"a loop's statement":          {"open c cache\nfor 0..3: c get k{i} ; c say {i} -> 0..2", 2, "3"},
		"i outside":                   {"open c cache\nc say {i}", 2, "no loop or thread"},
		"place of a flip":             {"write f x\nflip f byte=one -> error invalid", 2, "byte=one"},
		"mode":                        {"mkdir d mode=rwx -> error invalid", 1, "mode=rwx"},
		"identity":                    {"identity colour=red", 1, "no field colour"},
		"fault":                       {"fault write=ENOENT", 1, "ENOSPC"},
		"damage that is not noticed":  {"open s files\ns put k value\nflip-each s:k/kernel.bin: s get k value -> value", 3, "miss"},
		"option twice":                {"open c cache\nc say a x=1 x=2", 2, "twice"},
		"lease of nobody":             {"use l", 1, "error invalid"},
		"measured by nobody":          {"ratio a b -> ..3", 1, "error invalid"},
		"name of a statement":         {"open flip cache", 1, "error invalid"},
	} {
		t.Run(name, func(t *testing.T) { fails(t, tt.statements, tt.line, tt.got) })
	}
	if !race.Enabled {
		fails(t, "open c cache\nc allocate alloc=1MiB", 2, "having allocated")
		passes(t, "open c cache\nc allocate alloc=32MiB")
	}
}

func TestProcesses(t *testing.T) {
	for name, statements := range map[string]string{
		"a process with components of its own": "open c cache\nc get k\nprocess B\nB: open c cache\nB: c len -> 0\nB: c get k create=v -> v by=miss\nawait B -> v by=miss\nc len -> 1",
		"the same files":                       "process B*4\nB: open s files\nB: for 0..2: s put k{t*3+i} v{i} ; s get k{t*3+i} v{i} -> v{i}\nawait B\nopen s files\nfor 0..11: s get k{i} v{i%3} -> v{i%3}\nawait B -> v2",
		"gates reach it":                       "process B\nB: open c cache\nB: c get k wait=g\nblocked B\ngo g\nawait B -> k by=miss",
		"and come from it":                     "open c cache\nprocess B\nA: c get k wait=g\nblocked A\nB: go g\nawait A -> k by=miss",
		"the outside so far":                   "go g\nenv A=1\nclock +1h\nprocess B\nB: open c cache\nB: c get k wait=g -> k\nawait B",
		"kill":                                 "process B\nB: open c cache\nB: c get k after=1h\nkill B\nawait B -> killed",
		"kill and start anew":                  "for 1..3: process B ; B: open c cache ; B: for 0..9: c get k{i} ; sleep {i}ms ; kill B",
		"naming a dead one starts a new one":   "process B\nB: open c cache\nkill B\nB: open c cache\nB: c len -> 0\nawait B -> 0",
		"stop and cont":                        "process B\nB: open c cache\nawait B\nstop B\nB: c len\nblocked B\ncont B\nawait B -> 0",
		"it may end by itself where that is waited for": "process B\nB: open c cache\nB: c die\nexited B",
		"its components are closed at its end":          "process B\nB: open s files mark=m\nawait B\nexists m -> no\nprocess B\nexists m -> yes",
		"stopped at the end":                            "process B\nstop B",
	} {
		t.Run(name, func(t *testing.T) { passes(t, statements) })
	}
	for name, tt := range map[string]struct {
		statements string
		line       int
		got        string
	}{
		"its expectations":   {"process B\nB: open c cache\nB: for 0..9: c say {i} -> 0..7\nawait B", 3, "8"},
		"its unknown verbs":  {"process B\nB: open c cache\nB: c fly -> *\nawait B", 3, "no verb fly"},
		"await judges":       {"process B\nB: open c cache\nB: c get k fail=E\nawait B", 4, "error failed"},
		"a death":            {"process B\nB: open c cache\nB: c die", 3, "process B died"},
		"a death, awaited":   {"process B\nB: open c cache\nB: c die\nawait B", 4, "error died"},
		"a watch of its own": {"process B\nB: open c cache\nB: watch c len -> 0..2\nB: for 0..3: c get k{i}\nawait B\nsleep 1s", 3, ""},
		"at the end":         {"process B\nB: open c cache\nB: c get k after=50ms -> x", 3, "k by=miss"},
	} {
		t.Run(name, func(t *testing.T) { fails(t, tt.statements, tt.line, tt.got) })
	}
}

func TestNeeds(t *testing.T) {
	f, err := script.Parse("x", []byte("case A rules=K1 needs=cache\ncase B rules=K1 needs=cache,moon\nnonsense"))
	if err != nil {
		t.Fatal(err)
	}
	e := fakeEngine()
	if o := e.Run("x", &f.Cases[0]); o.Result != Pass {
		t.Errorf("%+v", o)
	}
	if o := e.Run("x", &f.Cases[1]); o.Result != Skip || o.Got != "needs moon" {
		t.Errorf("%+v", o)
	}
}

// A word that cannot be read ends its statement with an answer, and no more.
func TestMisread(t *testing.T) {
	passes(t, `
open c cache cap=many -> error invalid
open c cache
c get k bytes=-1 -> error invalid
c get k cost=NaN -> error invalid
c get k after=soon -> error invalid
c creations "k" -> 0
c get k -> k by=miss`)
}

func TestAnswer(t *testing.T) {
	own := &outside.CreatorError{Text: "E"}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fault.Invalidf("x: y", "no"), "error invalid"},
		{fmt.Errorf("a: %w", fault.ErrCycle), "error cycle"},
		{errors.Join(own, fault.ErrCycle), "error cycle"},
		{errors.Join(own, fault.ErrClosed), "error closed"},
		{errors.Join(own, context.Canceled), "error canceled"},
		{context.DeadlineExceeded, "error canceled"},
		{errors.Join(own, &fault.PanicError{Value: "v"}), "error panic text=v stack=no"},
		{errors.Join(own, fault.ErrGoexit), "error goexit"},
		{fmt.Errorf("compile: %w", own), "error failed text=E"},
		{errors.Join(own, fault.ErrIO), "error failed text=E"},
		{fault.ErrNotFound, "error not_found"},
		{fmt.Errorf("%w: %w", fault.ErrRefused, &fault.Error{Op: "k", Reason: fault.KeyRefused, Field: "f", Err: fault.ErrRefused}), "error refused reason=key_refused field=f"},
		{&fault.Error{Op: "k", Err: &fault.Error{Reason: fault.KeyRefused, Err: fault.ErrRefused}}, "error refused reason=key_refused"},
		{errors.New("odd"), "error unknown text=odd"},
	} {
		if got := Answer(tt.err).String(); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.err, got, tt.want)
		}
	}
}
