package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kiln-cache/kiln/stress"
	"github.com/kiln-cache/kiln/stress/conform"
)

// conformCommand hands everything over: the runner reads its own flags, since a
// script's processes start this very command again.
func conformCommand(ctx context.Context, c *call) error {
	if !slices.Contains(c.args, "@process") { // a script's process: its parent has said it
		if err := c.environment(); err != nil {
			return err
		}
	}
	c.code = conform.Main(ctx, c.args, c.stdout, c.stderr)
	return ctx.Err() // interrupted: that was until then
}

// mostWorkers is more goroutines than find anything.
const mostWorkers = 4096

func stressCommand(ctx context.Context, c *call) error {
	cfg := stress.Config{Seed: 1, Duration: 10 * time.Second, Workers: 8}
	c.seed(&cfg.Seed, "seed N", "what every goroutine asks for is made from")
	c.duration(&cfg.Duration, "duration D", "of each scenario, with its unit as in 30s")
	c.oneOf(&cfg.Scenario, "scenario NAME", list(stress.Scenarios())+" (default each in turn)", stress.Scenarios()...)
	c.whole(&cfg.Workers, "workers N", 1, mostWorkers, "goroutines of a scenario")
	if err := c.begin(0); err != nil {
		return err
	}
	report, err := stress.Run(ctx, cfg)
	if err != nil {
		return err
	}
	if len(report.Violations) > 0 {
		c.code = exitFinding
	}
	if c.json {
		return errors.Join(json.NewEncoder(c.stdout).Encode(report), ctx.Err())
	}
	for _, n := range report.Notes {
		fmt.Fprintln(c.stdout, n)
	}
	fmt.Fprintf(c.stdout, "%d operations, %d violations\n", report.Operations, len(report.Violations))
	for _, v := range report.Violations {
		fmt.Fprintln(c.stdout, "  "+v)
	}
	if len(report.Violations) > 0 {
		repeat := fmt.Sprintf("kiln stress --seed %d --duration %v --workers %d", cfg.Seed, cfg.Duration, cfg.Workers)
		if cfg.Scenario != "" {
			repeat += " --scenario " + cfg.Scenario
		}
		fmt.Fprintln(c.stdout, "to repeat:", repeat)
	}
	return ctx.Err() // interrupted: that was until then
}
