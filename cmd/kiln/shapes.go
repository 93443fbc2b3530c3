package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/trace"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
	"github.com/kiln-cache/kiln/shapegroups/advice"
)

func shapesCommand(ctx context.Context, c *call) error {
	verbs := map[string]struct {
		use, about string
		run        func(context.Context, *call) error
	}{
		"simulate": {"--trace FILE --key KEY[,...] [flags]", "replay a trace through eviction policies", shapesSimulate},
		"advise":   {"--trace FILE [flags]", "say which bucketing saves most on a trace", shapesAdvise},
	}
	if len(c.args) > 0 {
		if v, ok := verbs[c.args[0]]; ok {
			c.name, c.use, c.about, c.args = "shapes "+c.args[0], v.use, v.about, c.args[1:]
			return v.run(ctx, c)
		}
	}
	c.about += "\nsee kiln shapes simulate --help and kiln shapes advise --help"
	return c.noVerb(slices.Sorted(maps.Keys(verbs)))
}

// cell is one line of `kiln shapes simulate`.
type cell struct {
	Trace    string  `json:"trace"`
	Key      string  `json:"key"`
	Capacity int     `json:"capacity"`
	Policy   string  `json:"policy"`
	Announce int     `json:"announce"`
	Keep     string  `json:"keep"`
	Waiting  int     `json:"waiting"`
	Requests int     `json:"requests"`
	Hits     int     `json:"hits"`
	HitRatio float64 `json:"hit_ratio"`
	Distinct int     `json:"distinct"`
}

// shapesSimulate replays a trace through every key, capacity and policy asked for.
func shapesSimulate(ctx context.Context, c *call) error {
	file, keys, capacities, policies, kept := "", "", strconv.Itoa(sessioncache.DefaultGroups), string(policy.Duel), string(policy.Always)
	announce, waiting := 0, 0
	c.file(&file, "trace FILE", "CSV, also gzipped, with a column len, or batch and max_len for pair: keys", "the file of a trace")
	c.text(&keys, "key KEY[,...]", simulateKeys, simulateKeys, nil)
	c.text(&capacities, "capacity N[,...]", "shape groups", capacityWant, nil)
	c.text(&policies, "policy P[,...]", list(simulatePolicies())+"; belady is the offline optimum", list(simulatePolicies()), nil)
	c.whole(&announce, "announce N", 0, mostAhead, "the shapes of the next N rows are announced")
	c.oneOf(&kept, "keep WHICH", "which new shapes are kept: always or worth", string(policy.Always), string(policy.Worth))
	c.whole(&waiting, "waiting N", 0, mostAhead, "rows are served out of N+1 at hand, the first whose group is resident")
	if err := c.begin(0); err != nil {
		return err
	}
	switch {
	case file == "" && keys == "":
		return usagef("--trace and --key must be given: see kiln shapes simulate --help")
	case file == "":
		return usagef("--trace must be given: see kiln shapes simulate --help")
	case keys == "":
		return usagef("--key must be given: see kiln shapes simulate --help")
	}
	setups, err := setups(capacities, policies, kept, announce, waiting)
	if err != nil {
		return err
	}
	streams, err := interruptible(ctx, func() ([]stream, error) { return streams(file, keys) })
	if err != nil {
		return err
	}
	for _, stream := range streams {
		for _, s := range setups {
			if err := ctx.Err(); err != nil {
				return err
			}
			r, err := advice.Simulate(stream.shapes, s)
			if err != nil {
				return usageError{err}
			}
			if err := c.cell(cell{filepath.Base(file), stream.key, s.Groups, string(s.Policy), s.Announce, string(s.Keep), s.Waiting,
				r.Requests, r.Hits, r.Ratio(), r.Distinct}); err != nil {
				return err
			}
		}
	}
	return nil
}

// stream is a trace under one key.
type stream struct {
	key    string
	shapes []shapegroups.Shape
}

// streams reads the trace under every key, before any of them is replayed.
func streams(file, keys string) ([]stream, error) {
	var all []stream
	for text := range strings.SplitSeq(keys, ",") {
		key, err := trace.ParseKey(text)
		if err != nil {
			return nil, usagef("--key %.40q: want %s", text, simulateKeys)
		}
		shapes, err := key.Stream(file)
		if err != nil {
			columns := requestColumns
			if strings.HasPrefix(text, "pair:") {
				columns = batchColumns
			}
			return nil, usagef("--trace: %w", readable(err, columns))
		}
		all = append(all, stream{key.String(), shapes})
	}
	return all, nil
}

func (c *call) cell(x cell) error {
	return c.say(x, "%s  %-14s %5d groups  %-6s announce %d keep %s waiting %d  %6.2f %% of %d hit, %d shapes",
		x.Trace, x.Key, x.Capacity, x.Policy, x.Announce, x.Keep, x.Waiting, 100*x.HitRatio, x.Requests, x.Distinct)
}

// mostAhead bounds how far ahead a simulated server sees.
const mostAhead = 1 << 20

const simulateKeys = "exact, multiple:N, pow2 or geometric:K, or pair: and one of these; several with commas"

var capacityWant = fmt.Sprintf("a whole number from 1 to %d, several with commas", mostCapacity)

func simulatePolicies() []string { return append(sessionPolicies(), string(advice.Belady)) }

// setups is every capacity with every policy.
func setups(capacities, policies string, keep string, announce, waiting int) ([]advice.Setup, error) {
	var all []advice.Setup
	for text := range strings.SplitSeq(capacities, ",") {
		groups, ok := decimal(text)
		if !ok || groups < 1 || groups > mostCapacity {
			return nil, usagef("--capacity %.40q: want %s", text, capacityWant)
		}
		for name := range strings.SplitSeq(policies, ",") {
			if !slices.Contains(simulatePolicies(), name) {
				return nil, usagef("--policy %.40q: want %s", name, list(simulatePolicies()))
			}
			all = append(all, advice.Setup{Policy: name, Groups: int(groups), Keep: keep, Announce: announce, Waiting: waiting})
		}
	}
	return all, nil
}

// choiceRow is one bucketing of `kiln shapes advise --json`.
type choiceRow struct {
	Bucketing string  `json:"bucketing"`
	Distinct  int     `json:"distinct"`
	Hits      int     `json:"hits"`
	HitRatio  float64 `json:"hit_ratio"`
	Useful    int64   `json:"useful"`
	Padded    int64   `json:"padded"`
	Lost      float64 `json:"lost"`
}

// adviceReport is `kiln shapes advise --json`.
type adviceReport struct {
	Trace      string              `json:"trace"`
	Requests   int                 `json:"requests"`
	Distinct   int                 `json:"distinct"`
	WorkingSet []advice.WorkingSet `json:"working_set"`
	Capacity   int                 `json:"capacity"`
	HitRatios  []advice.Cell       `json:"hit_ratios"`
	Bucketings []choiceRow         `json:"bucketings"`
	Use        string              `json:"use"`
}

func shapesAdvise(ctx context.Context, c *call) error {
	file, compile, running, capacity := "", 1.0, 0.01, sessioncache.DefaultGroups
	c.file(&file, "trace FILE", "CSV, also gzipped, with a column len", "the file of a trace")
	c.seconds(&compile, "compile-seconds C", "what a shape costs to compile, in seconds")
	c.seconds(&running, "run-seconds R", "what a request costs to run without padding, in seconds")
	c.whole(&capacity, "capacity N", 1, mostCapacity, "shape groups of the session")
	if err := c.begin(0); err != nil {
		return err
	}
	if file == "" {
		return usagef("--trace must be given: see kiln shapes advise --help")
	}
	requests, err := interruptible(ctx, func() ([]trace.Request, error) { return requests(file) })
	if err != nil {
		return usageError{fmt.Errorf("--trace: %w", err)}
	}
	stream := make([]shapegroups.Shape, len(requests))
	for i, q := range requests {
		if stream[i], err = shapegroups.N(q.Len); err != nil {
			return usageError{fmt.Errorf("--trace: %s: request %d: %w", file, i+1, err)}
		}
	}
	r, err := advice.Advise(stream, advice.Costs{Compile: compile, Run: running, Groups: capacity})
	if err != nil {
		return usageError{err}
	}
	return c.advice(filepath.Base(file), capacity, r)
}

func (c *call) advice(file string, capacity int, r advice.Report) error {
	out := adviceReport{Trace: file, Requests: r.Requests, Distinct: r.Distinct, WorkingSet: r.Working, Capacity: capacity, HitRatios: r.Cells, Use: r.String()}
	for _, x := range r.Choices {
		out.Bucketings = append(out.Bucketings, choiceRow{x.Bucketing.String(), x.Distinct, x.Hits, x.HitRatio, x.Padding.Asked, x.Padding.Compiled, x.Lost})
	}
	if c.json {
		return json.NewEncoder(c.stdout).Encode(out)
	}
	fmt.Fprintf(c.stdout, "%s: %d requests, %d distinct shapes\n", file, out.Requests, out.Distinct)
	for _, w := range out.WorkingSet {
		fmt.Fprintf(c.stdout, "  in use within %d requests: %.1f shapes\n", w.Window, w.Shapes)
	}
	fmt.Fprintf(c.stdout, "\nbucketings with %d groups:\n", capacity)
	for _, b := range out.Bucketings {
		fmt.Fprintf(c.stdout, "  %-14s %5d shapes  %6.2f %% hit  %6.2f %% padding  %10.1f s lost\n",
			b.Bucketing, b.Distinct, 100*b.HitRatio, 100*(float64(b.Padded)/float64(b.Useful)-1), b.Lost)
	}
	c.hitRatios(out.HitRatios)
	_, err := fmt.Fprintf(c.stdout, "\n%s\n", out.Use)
	return err
}

// hitRatios prints a line for each capacity and a column for each policy. The rows
// come capacity by capacity, with the policies always in one order.
func (c *call) hitRatios(rows []advice.Cell) {
	fmt.Fprintf(c.stdout, "\nhits in %% by groups and policy, of the shapes as asked:\n  %10s", "groups")
	for _, x := range rows {
		if x.Groups == rows[0].Groups {
			fmt.Fprintf(c.stdout, " %7s", x.Policy)
		}
	}
	for i, x := range rows {
		if i == 0 || x.Groups != rows[i-1].Groups {
			fmt.Fprintf(c.stdout, "\n  %10d", x.Groups)
		}
		fmt.Fprintf(c.stdout, " %7.2f", 100*x.HitRatio)
	}
	fmt.Fprintln(c.stdout)
}
