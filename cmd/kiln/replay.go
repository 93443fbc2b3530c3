package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/cmd/kiln/internal/manifest"
	"github.com/kiln-cache/kiln/cmd/kiln/internal/report"
	"github.com/kiln-cache/kiln/cmd/kiln/internal/trace"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/onednn"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/shapegroups"
)

// replayer drives one job: its requests are dealt to lanes, one a session, each
// with a goroutine of its own while a pass runs.
type replayer struct {
	*job
	runtime  *kiln.Runtime
	engine   *constants.Engine
	weights  *forward.Weights
	lanes    []*lane
	outputs  [][]float32 // of the pass, in the trace's order
	progress *report.Progress
	checked  []check

	// compiling is the latest event of a compile that takes long, for the progress
	// line; nil while there is none.
	compiling atomic.Pointer[gpuexec.CompileEvent]
}

// lane is a session with its model handle and its share of the trace.
type lane struct {
	session *kiln.Session
	model   *forward.Model
	places  []int // in the trace
}

// check is a request with the output that the reference computed for it.
type check struct {
	place int
	want  []float64
}

// replay opens the runtime, runs every pass, and closes everything again. With an
// error it gives the passes that ended before, and what an interrupted one has.
func (j *job) replay(ctx context.Context, progress *report.Progress) (run *report.Run, recorders []*report.Recorder, err error) {
	r := &replayer{job: j, progress: progress}
	defer r.progress.Clear()
	j.config.Compiling, j.config.Listen = r.compiles, forward.Listen
	if r.runtime, err = kiln.Open(j.config); err != nil {
		if j.store != "" {
			err = usageError{fmt.Errorf("--store: %w", err)}
		}
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, r.runtime.Close(context.WithoutCancel(ctx))) }()
	if r.weights, err = forward.OpenWeights(j.model, j.seed); err != nil {
		return nil, nil, usageError{fmt.Errorf("--model: %w", err)}
	}
	defer r.weights.Close()
	if err = r.open(ctx); err != nil {
		return nil, nil, err
	}
	defer r.close()
	run = &report.Run{Version: Version, Device: j.device, Model: j.model.Name(), Policy: j.session.Policy,
		Bucket: j.session.Bucket.String(), Groups: j.session.Groups, Sessions: j.sessions}
	_, run.Rounds = j.library.(*onednn.Backend)
	for n := range j.passes {
		name := "warm"
		if n == 0 {
			name = "cold"
		} else if n > 1 {
			name = fmt.Sprintf("warm %d", n)
		}
		pass, recorder, err := r.pass(ctx, name)
		if pass != nil {
			run.Passes = append(run.Passes, *pass)
			recorders = append(recorders, recorder)
		}
		if err != nil {
			return run, recorders, err
		}
	}
	for _, l := range r.lanes {
		j.recorded = manifest.Merge(j.recorded, manifest.Items(l.model.Recorded()))
	}
	return run, recorders, nil
}

// open makes the lanes and deals the requests: by the trace's session, else in turn.
func (r *replayer) open(ctx context.Context) error {
	exec, err := r.runtime.Executor(ctx, r.library, r.index)
	if err != nil {
		return err
	}
	if r.engine, err = r.runtime.Constants().Engine(constants.CPU, 0, ""); err != nil {
		return err
	}
	for n := range r.sessions {
		cfg := r.session
		cfg.Name = fmt.Sprintf("session %d", n)
		s, err := r.runtime.Session(cfg)
		if err != nil {
			return err
		}
		m := forward.New(forward.Config{Session: s, Executor: exec, Library: r.library, Engine: r.engine, Weights: r.weights, Record: r.record != ""})
		r.lanes = append(r.lanes, &lane{session: s, model: m})
	}
	for place, q := range r.requests {
		owner := place
		if q.Session != trace.Unknown {
			owner = int(q.Session % int64(r.sessions))
		}
		l := r.lanes[owner%r.sessions]
		l.places = append(l.places, place)
	}
	return nil
}

func (r *replayer) close() {
	for _, l := range r.lanes {
		l.model.Close()
	}
}

// tokens is the number of tokens of a request that are run, and whether it was cut.
func (r *replayer) tokens(place int) (n int, cut bool) {
	if most := int64(r.model.MaxTokens()); r.requests[place].Len > most {
		return int(most), true
	}
	return int(r.requests[place].Len), false
}

func (r *replayer) ids(place int) []int32 {
	n, _ := r.tokens(place)
	return r.model.Tokens(r.seed, place, n)
}

// before is what was counted before a pass.
type before struct {
	constants      forward.Constants
	useful, padded int64
	evicted        int64
	thrash         int64
}

// pass replays the trace once. If ctx ends it gives what was measured until then with
// the error.
func (r *replayer) pass(ctx context.Context, name string) (*report.Pass, *report.Recorder, error) {
	recorder := report.NewRecorder(len(r.requests))
	r.outputs = make([][]float32, len(r.requests))
	p := &report.Pass{Name: name, Requests: len(r.requests)}
	was, err := r.counted(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := r.prepare(ctx); err != nil {
		return nil, nil, err
	}
	start := time.Now()
	sums := make([]served, len(r.lanes))
	var done atomic.Int64
	var wg sync.WaitGroup
	for i, l := range r.lanes {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r.serve(ctx, l, start, recorder, &sums[i], &done)
		}()
	}
	r.watch(name, &wg, &done)
	cut := ctx.Err()
	if cut != nil {
		p.Interrupted, p.Requests = true, int(done.Load())
	}
	p.Seconds = time.Since(start).Seconds()
	for _, s := range sums {
		if s.failed != nil && r.failed == nil {
			r.failed = s.failed
		}
		p.Errors += s.Errors
		p.Truncated += s.Truncated
		p.Joined += s.Joined
		p.Compiles += s.Compiles
		p.CompileSeconds += s.CompileSeconds
		p.SecondsSaved += s.SecondsSaved
	}
	p.Latency, p.Hits = recorder.Latency(), recorder.Hits()
	if err := r.count(context.WithoutCancel(ctx), p, was); err != nil {
		return nil, nil, err
	}
	p.PeakRSSBytes = report.PeakRSS()
	if cut != nil {
		return p, recorder, cut
	}
	p.OutputSHA256 = r.digest()
	p.MaxAbsError, err = r.compare(ctx, p.Errors > 0)
	return p, recorder, err
}

// prepare prepares the weights of every lane that has work. It does so before the
// pass is timed: packing weights is part of loading the model, not of a request.
func (r *replayer) prepare(ctx context.Context) error {
	r.progress.Note("preparing weights")
	defer r.progress.Clear()
	errs := make([]error, len(r.lanes))
	var wg sync.WaitGroup
	for i, l := range r.lanes {
		if len(l.places) > 0 {
			wg.Go(func() { errs[i] = l.model.Prepare(ctx) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// served is what a lane adds to a pass.
type served struct {
	report.Pass
	failed error // of the lane's first request that failed
}

// compiles notes a compile that takes long, for the progress line and for the log.
func (r *replayer) compiles(e gpuexec.CompileEvent) {
	r.config.Logger.Info("compile", "kernel", e.Name, "phase", e.Phase, "elapsed", e.Elapsed)
	if e.Phase == gpuexec.PhaseEnd {
		r.compiling.Store(nil)
	} else {
		r.compiling.Store(&e)
	}
}

// watch shows progress until all lanes have ended.
func (r *replayer) watch(name string, wg *sync.WaitGroup, done *atomic.Int64) {
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			r.progress.Clear()
			return
		case now := <-tick.C:
			if e := r.compiling.Load(); e != nil {
				r.progress.Note(fmt.Sprintf("%s  compiling %s for %s", name, e.Name, e.Elapsed.Round(time.Second)))
			} else {
				r.progress.Update(name, int(done.Load()), len(r.requests), now)
			}
		}
	}
}

// serve runs one lane's requests in their order.
func (r *replayer) serve(ctx context.Context, l *lane, start time.Time, recorder *report.Recorder, sum *served, done *atomic.Int64) {
	for i, place := range l.places {
		if ctx.Err() != nil {
			return
		}
		if r.announce > 0 {
			r.announceNext(l, i)
		}
		if _, cut := r.tokens(place); cut {
			sum.Truncated++
		}
		ids := r.ids(place)
		began := time.Now()
		a, err := l.model.Run(ctx, [][]int32{ids})
		ended := time.Now()
		if err != nil && ctx.Err() != nil {
			return
		}
		done.Add(1)
		if err != nil {
			r.config.Logger.Info("request failed", "request", place+1, "tokens", len(ids), "error", err)
			if sum.Errors++; sum.Errors == 1 {
				sum.failed = fmt.Errorf("request %d: %w", place+1, err)
			}
			continue
		}
		r.outputs[place] = a.Output
		sum.Joined += a.Joined
		sum.Compiles += a.Compiles
		sum.CompileSeconds += a.CompileTime.Seconds()
		sum.SecondsSaved += a.Saved.Seconds()
		recorder.Record(place, report.Sample{At: ended.Sub(start), Latency: ended.Sub(began), Compiles: a.Compiles,
			Hits: report.Hits{Held: a.Held, Group: a.Group, Session: a.Session, Artefact: a.Artefact, Disk: a.Disk}})
	}
}

// announceNext tells the session which shapes its waiting requests need.
func (r *replayer) announceNext(l *lane, i int) {
	var waiting []shapegroups.Shape
	for _, place := range l.places[i:min(i+1+r.announce, len(l.places))] {
		n, _ := r.tokens(place)
		if s, err := forward.Shape(1, n); err == nil {
			waiting = append(waiting, s)
		}
	}
	if err := l.session.Announce(waiting...); err != nil {
		r.config.Logger.Error("announce", "error", err)
	}
}

// counted sums what sessions and handles count over all passes.
func (r *replayer) counted(ctx context.Context) (before, error) {
	var b before
	for _, l := range r.lanes {
		c := l.model.Constants()
		b.constants.Hits += c.Hits
		b.constants.Owners += c.Owners
		b.constants.Bypass += c.Bypass
		if _, err := l.session.Cache().Stream(ctx); err != nil { // a turn, so that all requests are counted
			return b, err
		}
		stats := l.session.Cache().Stats()
		b.useful, b.padded = b.useful+stats.Useful, b.padded+stats.Padded
		b.evicted += int64(stats.Evicted)
		b.thrash += int64(stats.Thrash)
	}
	return b, nil
}

// count fills in what the caches count.
func (r *replayer) count(ctx context.Context, p *report.Pass, was before) error {
	now, err := r.counted(ctx)
	if err != nil {
		return err
	}
	for _, l := range r.lanes {
		p.GroupsResident += l.session.Cache().Groups()
	}
	p.GroupsEvicted, p.Thrash = now.evicted-was.evicted, now.thrash-was.thrash
	p.ResidentBytes = r.runtime.Artefacts().Bytes()
	p.Padding = report.Padding{Useful: now.useful - was.useful, Padded: now.padded - was.padded}
	p.Constants = report.Constants{Entries: int64(r.engine.Len()), Bytes: int64(r.engine.Size()),
		Hits: now.constants.Hits - was.constants.Hits, Owners: now.constants.Owners - was.constants.Owners,
		Bypass: now.constants.Bypass - was.constants.Bypass}
	return nil
}

// digest covers every output, in the trace's order, as little-endian float32.
func (r *replayer) digest() string {
	h := sha256.New()
	var text []byte
	for _, out := range r.outputs {
		text = text[:0]
		for _, v := range out {
			text = binary.LittleEndian.AppendUint32(text, math.Float32bits(v))
		}
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil))
}
