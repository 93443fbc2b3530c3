//go:build unix

package blobstore_test

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

var (
	killCount = flag.Int("kills", 24, "writers killed in TestKill; 1000 is thorough")
	stopCount = flag.Int("stops", 12, "times that a writer is stopped for a while there; 500 is thorough")
)

// killer keeps processes at work, and stops and kills them.
type killer struct {
	r       *rig
	events  chan syscall.Signal // what is still to be done to some writer
	readers sync.WaitGroup
	mu      struct {
		sync.Mutex
		acknowledged map[string]bool
	}
}

// evicting is a writer of a directory that is full all the time.
func (k *killer) evicting(from int) *exec.Cmd {
	return k.r.child("puts", k.r.path("d"), fmt.Sprint(4*mib), fmt.Sprint(from), "1000", "5000")
}

// keeping is a writer with full of a directory that is never full.
func (k *killer) keeping() *exec.Cmd {
	cmd := exec.Command(os.Args[0], fmt.Sprintf("-child=acks,%s,%d,full", k.r.path("kept"), 1000*mib))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		k.r.t.Error(err)
		return nil
	}
	k.r.t.Cleanup(func() { _ = cmd.Process.Kill() }) // should the test end before
	k.readers.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			k.mu.Lock()
			k.mu.acknowledged[lines.Text()] = true
			k.mu.Unlock()
		}
	})
	return cmd
}

// drive keeps one writer at work until there is no event left.
func (k *killer) drive(start func() *exec.Cmd, rng *rand.Rand) {
	cmd := start()
	for event := range k.events {
		time.Sleep(time.Duration(min(1, rng.ExpFloat64()/5) * float64(time.Second))) // when is what varies
		if event == syscall.SIGKILL {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			cmd = start()
			continue
		}
		_ = cmd.Process.Signal(syscall.SIGSTOP)         // unless it has ended
		pause := []int{10, 100, 300, 1500}[rng.IntN(4)] // the lease is a second
		time.Sleep(time.Duration(pause) * time.Millisecond)
		_ = cmd.Process.Signal(syscall.SIGCONT)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// P8, P9, P10: 16 writers are killed and stopped at any point, half of them on a directory
// that evicts, half on one that keeps all. Nothing is wrong or torn, the accounts are
// right, and what was acknowledged is there.
func TestKill(t *testing.T) {
	const writers = 16
	k := &killer{r: newRig(t), events: make(chan syscall.Signal, *killCount+*stopCount)}
	r := k.r
	k.mu.acknowledged = map[string]bool{}
	first := []*exec.Cmd{k.keeping(), k.evicting(0)}
	r.eventually("the first stores", func() bool { // however busy the machine is
		text, _ := os.ReadFile(r.path("d/size.txt"))
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.mu.acknowledged) > 0 && len(text) > 1
	})
	for _, cmd := range first {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for _, i := range rand.New(rand.NewPCG(2, 2)).Perm(cap(k.events)) {
		event := syscall.SIGKILL
		if i >= *killCount {
			event = syscall.SIGSTOP
		}
		k.events <- event
	}
	close(k.events)
	var wg sync.WaitGroup
	for w := range writers {
		rng := rand.New(rand.NewPCG(1, uint64(w)))
		start := k.keeping
		if w%2 == 0 {
			start = func() *exec.Cmd { return k.evicting(rng.IntN(900)) }
		}
		wg.Go(func() { k.drive(start, rng) })
	}
	wg.Wait()
	k.readers.Wait()
	s := r.open("d", 4*mib)
	r.want("bad", s.verify(), 0)
	r.want("audit", s.audit(), "ok")
	found := 0
	for i := range 1000 {
		switch got := s.get("k" + strconv.Itoa(i)); got {
		case "v" + strconv.Itoa(i):
			found++
		case "miss reason=absent":
		default:
			t.Errorf("k%d: %s", i, got)
		}
	}
	r.want("found some", found > 0, true)
	r.want("temporary files", len(r.names("d/tmp")), 0)
	r.want("put", s.put("fresh", "w"), "ok")
	r.want("get", s.get("fresh"), "w")

	kept := r.open("kept", 1000*mib, sync_(blobstore.Full))
	r.want("bad", kept.verify(), 0)
	r.want("audit", kept.audit(), "ok")
	for key := range k.mu.acknowledged {
		r.want(key, kept.get(key), "v"+key[1:])
	}
	t.Logf("%d and %d entries, %d acknowledged", s.usage().Entries, kept.usage().Entries, len(k.mu.acknowledged))
	r.want("acknowledged some", len(k.mu.acknowledged) > 0, true)
}
