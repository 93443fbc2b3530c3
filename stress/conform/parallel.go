package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
)

// parallel runs each job in a process of its own, n at a time, since counters
// of goroutines and allocations are a process's. Outcomes are added in order.
func (c *command) parallel(ctx context.Context, jobs []job, n int, add func(engine.Outcome)) {
	outcomes := make([]chan engine.Outcome, len(jobs))
	for i := range outcomes {
		outcomes[i] = make(chan engine.Outcome, 1)
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(n, len(jobs)) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(jobs)); i = next.Add(1) - 1 {
				var o engine.Outcome
				if ctx.Err() == nil {
					o = c.apart(jobs[i])
				}
				outcomes[i] <- o
			}
		})
	}
	for _, o := range outcomes {
		add(<-o)
	}
	workers.Wait()
}

// apart runs a job in another process. If that dies, the case has failed.
func (c *command) apart(j job) engine.Outcome {
	args := append(append([]string(nil), c.self[1:]...), "--json", "--run", "^"+regexp.QuoteMeta(j.c.ID)+"$", j.file)
	cmd := exec.Command(c.self[0], args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var o engine.Outcome
	if line, _, _ := bytes.Cut(stdout.Bytes(), []byte("\n")); json.Unmarshal(line, &o) == nil && o.Case == j.c.ID {
		return o
	}
	const most = 16 << 10
	text := stderr.Bytes()
	if len(text) > most {
		text = text[:most] // a crash says why at its beginning
	}
	return engine.Outcome{File: j.file, Case: j.c.ID, Rules: j.c.Rules, Result: engine.Fail, Line: j.c.Line,
		Got: fmt.Sprintf("the process of the case died: %v\n%s", err, text), Want: "a process that lives"}
}
