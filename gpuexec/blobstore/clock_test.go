//go:build unix

package blobstore_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

// P7: entries that were made while the clock was ahead, or behind, go in the order in
// which they were made, also after restarts.
func TestOrderUnderJumpingClocks(t *testing.T) {
	jumps := map[string]time.Duration{"ahead": 3 * time.Hour, "behind": -3 * time.Hour, "of another age": 100 * 365 * 24 * time.Hour,
		"of an age that no number reaches": 200 * 365 * 24 * time.Hour}
	for what, jump := range jumps {
		for name, restart := range map[string]func(*shop){"in one process": func(*shop) {}, "over restarts": (*shop).reopen} {
			t.Run(what+" "+name, func(t *testing.T) {
				r := newRig(t)
				s := r.open("d", 350*kib)
				s.fill(1, 1, 100*kib)
				r.clock(jump)
				s.fill(2, 3, 100*kib)
				restart(s)
				r.clock(-jump)
				for i := 4; i < 8; i++ {
					s.fill(i, i, 100*kib)
					restart(s)
					r.want("have", s.has(i-3, i-2, i-1, i), []int{i - 2, i - 1, i})
				}
			})
		}
	}
}

// P7: so they do where each store lists the directory, since that has no locks and no journal.
func TestOrderUnderJumpingClocksWithoutLocks(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 350*kib, func(c *blobstore.Config) { c.Shared = true })
	r.clock(3 * time.Hour)
	s.fill(1, 3, 100*kib)
	r.clock(-3 * time.Hour)
	for i := 4; i < 8; i++ {
		s.fill(i, i, 100*kib)
		r.want("have", s.has(i-3, i-2, i-1, i), []int{i - 2, i - 1, i})
	}
}

// P7: what is stored after a restart is younger than the uses before it, though the clock was
// ahead then and the index is there.
func TestStoredAfterUsesUnderAClockSetBack(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 350*kib, policy(blobstore.LRU))
	r.clock(3 * time.Hour)
	s.fill(1, 3, 100*kib)
	for range 4 {
		r.want("use", s.has(2, 1, 3), []int{2, 1, 3})
	}
	s.reopen()
	r.clock(-3 * time.Hour)
	s.fill(4, 4, 100*kib)
	s.fill(5, 5, 100*kib)
	r.want("have", s.has(1, 2, 3, 4, 5), []int{3, 4, 5})
}

// P7: an index that is made anew begins with creation times; those after now count as
// now, so that what is stored afterwards is younger.
func TestOrderOfARebuiltIndex(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 450*kib)
	r.clock(-time.Hour)
	s.fill(2, 2, 100*kib)
	r.clock(10 * time.Hour)
	s.fill(3, 4, 100*kib)
	r.clock(-9 * time.Hour)
	s.shut()
	r.must(os.RemoveAll(r.path("d/lease"))) // and with it the sequence
	s = r.open("d", 450*kib)
	s.fill(5, 5, 100*kib)
	r.want("have", s.has(2, 3, 4, 5), []int{2, 3, 4, 5})
	for i, want := range [][]int{{3, 4, 5}, {4, 5}, {5}} {
		s.fill(6+i, 6+i, 100*kib)
		r.want("have", s.has(2, 3, 4, 5), want)
	}
}

// P8, P9: a clock that jumps does not replace a living builder, nor sweeps what it holds,
// whoever opens or sweeps meanwhile; and what it saves is found.
func TestBuilderUnderJumpingClocks(t *testing.T) {
	for _, shared := range []bool{false, true} {
		r := newRig(t)
		of := func(c *blobstore.Config) { c.Shared = shared }
		a, b := r.open("d", mib, of), r.open("d", mib, of)
		_, claim, _, err := a.Obtain(background, backend, "k")
		r.must(err)
		for i, jump := range []time.Duration{3 * time.Hour, -9 * time.Hour, 100 * 365 * 24 * time.Hour, -200 * 365 * 24 * time.Hour} {
			r.clock(jump)
			r.want("put", words(b.put(words("b", i), "v"), r.open("d", mib, of).put(words("c", i), "v")), "ok ok") // both sweep
			ctx, cancel := context.WithTimeout(background, 30*time.Millisecond)
			_, second, _, err := b.Obtain(ctx, backend, "k")
			cancel()
			r.want(words("shared", shared, jump), words(second == nil, err), words(true, context.DeadlineExceeded))
		}
		r.must(claim.Save(background, []byte("v"), 0))
		blob, claim, _, err := b.Obtain(background, backend, "k")
		r.want("found", words(string(blob.Payload), claim == nil, err), "v true <nil>")
	}
}

// P7: uses are kept over a restart, also in a directory that a clock of another age has seen.
func TestUsesAfterAClockOfAnotherAge(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 3*small, policy(blobstore.LRU))
	r.clock(100 * 365 * 24 * time.Hour)
	r.want("put", s.put("ahead", "v"), "ok")
	r.clock(-100 * 365 * 24 * time.Hour)
	s.fill(1, 3, 10)
	r.want("use", s.has(1), []int{1})
	s.shut()
	r.must(os.Remove(r.path("d/lease/index"))) // which has the uses, too
	s.reopen()
	s.fill(4, 4, 10)
	r.want("have", s.has(1, 2, 3, 4), []int{1, 3, 4})
}

// P7: uses count in their order, whatever the clock says, also after a restart.
func TestUsesUnderJumpingClocks(t *testing.T) {
	for name, restart := range map[string]func(*shop){"in one process": func(*shop) {}, "over a restart": (*shop).reopen} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.open("d", 350*kib, policy(blobstore.LRU))
			s.fill(1, 3, 100*kib)
			r.clock(3 * time.Hour)
			r.want("use", s.has(1), []int{1})
			restart(s)
			r.clock(-3 * time.Hour)
			r.want("use", s.has(2, 3), []int{2, 3})
			restart(s)
			s.fill(4, 4, 100*kib)
			r.want("have", s.has(1, 2, 3, 4), []int{2, 3, 4})
		})
	}
}

// P7, P8: of processes whose clocks differ, each change counts as later than what was
// there; one that only reads learns of it when it writes its uses.
func TestOrderOfDifferentClocks(t *testing.T) {
	r := newRig(t)
	ahead := func(c *blobstore.Config) { c.Now = func() time.Time { return r.now().Add(3 * time.Hour) } }
	a, b := r.open("d", 350*kib, ahead), r.open("d", 350*kib)
	for i := 1; i < 10; i++ {
		[]*shop{a, b}[i%2].fill(i, i, 100*kib)
		r.want("have", b.has(i-3, i-2, i-1, i), []int{i - 2, i - 1, i}[max(0, 3-i):])
	}
	var write func()
	lru := policy(blobstore.LRU)
	a, b = r.open("e", 350*kib, ahead, lru), r.open("e", 350*kib, lru, minutely(&write))
	a.fill(1, 3, 100*kib)
	r.want("use", b.has(1), []int{1})
	write()
	r.want("use", b.has(1), []int{1})
	write()
	r.clock(time.Minute)
	a.fill(4, 4, 100*kib)
	r.want("have", b.has(1, 2, 3, 4), []int{1, 3, 4})
}

// P7: a clock that jumps by an hour whenever it is asked does not make a call begin
// anew without end.
func TestCallsUnderAClockThatOnlyJumps(t *testing.T) {
	for _, p := range []blobstore.Policy{blobstore.FIFO, blobstore.LRU, blobstore.Cost} {
		r := newRig(t)
		var asked atomic.Int64
		s := r.open("d", 350*kib, policy(p), func(c *blobstore.Config) {
			c.Now = func() time.Time {
				if asked.Add(1) < 1000 { // else nothing would end the test
					r.clock(time.Hour)
				}
				return r.now()
			}
		})
		s.fill(1, 5, 100*kib)
		r.want("used", words(s.usage().Entries, s.get("k5")), "3 v5")
		info, err := s.Inspect(background, "test/"+s.Bucket("k5")+"/0")
		r.want("uses", words(info.Uses, err, s.Prune(background, 0), s.usage().Entries), "1 <nil> <nil> 0")
		if n := asked.Load(); n > 500 {
			t.Errorf("%s: the clock was asked %d times", p, n)
		}
	}
}

// P7: who takes over what a garbled file of uses says can still count on.
func TestUsesOfNoSequence(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 350*kib, policy(blobstore.LRU))
	s.fill(1, 2, 100*kib)
	s.shut()
	place := "test/" + s.Bucket("k1") + "/0"
	created := r.created(s, "k1")
	r.write(r.path("d/uses/junk"), []byte("closed\n1 9223372036854775807 "+created+" "+place+"\n"))
	s = r.open("d", 350*kib, policy(blobstore.LRU))
	s.fill(3, 4, 100*kib)
	r.want("have", s.has(1, 2, 3, 4), []int{2, 3, 4})

	r.write(r.path("d/uses/junk"), []byte("open 7000000000000000000\n")) // others would not read what counts on from there
	s.reopen()
	s.fill(5, 5, 100*kib)
	end := strings.Fields(string(r.read(r.path("d/lease/journal"))))
	number, err := strconv.ParseInt(end[len(end)-5], 16, 64)
	r.want("a number", words(err, number < r.now().Add(time.Hour).UnixNano()), "<nil> true")
	r.must(os.RemoveAll(r.path("d/uses/junk")))
}

func (r *rig) created(s *shop, key string) string {
	r.t.Helper()
	b, _, err := r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true }).Get(background, backend, key)
	r.must(err)
	return words(b.Created.UnixNano())
}

// P7, P8: of a full bucket the oldest by the sequence goes, also where the clock was set back
// since it was stored: a newcomer is not the next victim.
func TestFullBucketUnderAClockSetBack(t *testing.T) {
	for name, restart := range map[string]func(*shop){"in one process": func(*shop) {}, "over restarts": (*shop).reopen} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.open("d", 10*mib, hash(7))
			s.fill(1, 64, 10)
			r.clock(-3 * time.Hour)
			for i := 65; i < 70; i++ {
				restart(s)
				s.fill(i, i, 10)
			}
			r.want("have", s.has(4, 5, 6, 64, 65, 66, 67, 68, 69), []int{6, 64, 65, 66, 67, 68, 69})
		})
	}
}

// P7: of two uses of one place those of the entry that has it now count, also where the clock
// was set back before that was stored.
func TestUsesOfAPlaceTakenAgainUnderAClockSetBack(t *testing.T) {
	r := newRig(t)
	lru := policy(blobstore.LRU)
	a, b := r.open("d", 350*kib, lru), r.open("d", 350*kib, lru)
	b.fill(9, 9, 10)
	r.must(b.Prune(background, 0)) // which reads of uses, once a minute
	a.fill(1, 1, 100*kib)
	r.want("use", a.has(1), []int{1})
	a.shut()
	r.must(b.Prune(background, 0))
	r.clock(-3 * time.Hour)
	b.fill(1, 3, 100*kib)
	r.want("use", b.has(1), []int{1})
	b.shut()
	r.must(os.Remove(r.path("d/lease/index"))) // which has the uses, too
	b = r.open("d", 350*kib, lru)
	b.fill(4, 4, 100*kib)
	r.want("have", b.has(1, 2, 3, 4), []int{1, 3, 4})
}

// P7: an entry that is used after it was stored under a clock ahead is used later.
func TestUsedAfterTheClockWentBack(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 3*small, policy(blobstore.LRU))
	r.clock(3 * time.Hour)
	s.fill(1, 3, 10)
	r.clock(-3 * time.Hour)
	r.want("use", s.has(1), []int{1})
	s.fill(4, 4, 10)
	r.want("have", s.has(1, 2, 3, 4), []int{1, 3, 4})
}

// usedAhead writes that another process, whose clock is three hours ahead, has used entries in
// their order once, and as many others as that.
func (r *rig) usedAhead(s *shop, from, to, others int) {
	ahead := r.now().Add(3 * time.Hour).UnixNano()
	var lines []string
	for i := from; i <= to; i++ {
		key := fmt.Sprint("k", i)
		lines = append(lines, words(1, ahead+int64(i), r.created(s, key), backend+"/"+s.Bucket(key)+"/0"))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(strings.Fields(a)[3], strings.Fields(b)[3]) })
	for i := range others {
		lines = append(lines, fmt.Sprintf("1 1 1 zz/%d/0", 10000+i))
	}
	r.write(r.path("d/uses/other"), []byte(fmt.Sprintf("open %d\n", ahead+int64(to))+strings.Join(lines, "\n")+"\n"))
}

// P7: uses that a process with a clock ahead has noted do not make each newcomer of others the
// next victim, whether all are read or those of the next victims are looked up.
func TestUsesOfAClockAhead(t *testing.T) {
	for _, others := range []int{0, 8000} { // entries of which there are uses, too
		r := newRig(t)
		s := r.open("d", 4*small, policy(blobstore.LRU))
		s.fill(1, 4, 10)
		r.usedAhead(s, 1, 4, others)
		for i := 5; i < 10; i++ {
			s.fill(i, i, 10)
		}
		have := s.has(1, 2, 3, 4, 5, 6, 7, 8, 9)
		r.want(words("beside", others), have[max(0, len(have)-3):], []int{7, 8, 9})
	}
}

// P7: uses that others have noted are looked for again when the clock was set back, to choose
// a victim and to tell them.
func TestUsesOfOthersUnderAClockSetBack(t *testing.T) {
	r := newRig(t)
	lru := policy(blobstore.LRU)
	s := r.open("d", 4*small, lru)
	other := r.open("d", 4*small, lru)
	uses := func() (n int64) {
		r.must(s.List(background, func(i blobstore.Info) error { n += i.Uses; return nil }))
		return n
	}
	s.fill(1, 5, 10)
	r.want("uses", uses(), 0)
	r.clock(-time.Hour)
	other.FlushUses() // which looks at the latest number, as each minute does
	r.want("use", other.has(2), []int{2})
	other.FlushUses()
	r.want("uses of others", uses(), 1)

	s.fill(6, 6, 10)
	r.want("have", other.has(3, 4), []int{4})
	r.clock(-time.Hour)
	other.FlushUses()
	s.fill(7, 7, 10)
	r.want("have", s.has(2, 4, 5, 6, 7), []int{2, 4, 6, 7}) // 4 was used
}

// P9: what somebody writes who has no lock is not swept for the time that it will have, when
// the clock was set back.
func TestStagedBeforeTheClockWentBack(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, func(c *blobstore.Config) { c.Shared = true })
	name := r.path("d/tmp/somebody")
	r.write(name, []byte("half"))
	ahead := r.now().Add(3 * time.Hour)
	r.must(os.Chtimes(name, ahead, ahead))
	s.reopen()
	r.want("there", r.exists(name), true)
}

// P7: what is stored first after an opening counts as later than what was used under a clock
// ahead before.
func TestStoredAfterUsesOfAClockAhead(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 4*small, policy(blobstore.LRU))
	s.fill(1, 4, 10)
	s.shut()
	r.usedAhead(s, 1, 4, 0)
	s.reopen()
	s.fill(5, 6, 10)
	r.want("have", s.has(3, 4, 5, 6), []int{3, 4, 5, 6})
}

// P7: uses by who has listed a directory count as later than what a process with a clock
// ahead has stored there before, also where that has begun the journal anew.
func TestUsedAfterAListing(t *testing.T) {
	for _, begun := range []bool{false, true} {
		r := newRig(t)
		lru := policy(blobstore.LRU)
		ahead := r.open("d", 4*small, lru)
		r.clock(3 * time.Hour)
		ahead.fill(1, 4, 10)
		if begun {
			r.must(os.Remove(r.path("d/lease/journal")))
			r.want("lists", ahead.usage().Entries, 4)
		}
		r.clock(-3 * time.Hour)
		r.must(os.RemoveAll(r.path("d/lease/index")))
		s := r.open("d", 4*small, lru)
		r.want("use", s.has(1), []int{1})
		s.FlushUses()
		ahead.fill(5, 5, 10)
		r.want(words("have, begun anew:", begun), ahead.has(1, 2, 3, 4, 5), []int{1, 3, 4, 5})
	}
}

// P7: where a directory is listed again, what somebody has copied there counts as of now if
// it was made under a clock ahead.
func TestCopiedFromAClockAhead(t *testing.T) {
	r := newRig(t)
	s, other := r.open("d", mib), r.open("e", mib)
	r.clock(3 * time.Hour)
	s.fill(1, 2, 10)
	r.clock(2 * time.Hour)
	other.fill(3, 3, 10)
	r.clock(-5 * time.Hour)
	r.must(exec.Command("cp", "-a", r.path("e/"+backend)+"/.", r.path("d/"+backend)).Run())
	r.want("bad", s.verify(), 0) // lists
	r.must(s.Prune(background, 2*small))
	r.want("have", s.has(1, 2, 3), []int{1, 2})
}
