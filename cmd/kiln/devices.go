package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/gpuexec"
)

// deviceRow is one line of `kiln devices --json`.
type deviceRow struct {
	Backend      string `json:"backend"`
	Index        int    `json:"index"`
	Name         string `json:"name"`
	Driver       string `json:"driver"`
	Available    bool   `json:"available"`
	Reason       string `json:"reason"`
	MemoryBytes  int64  `json:"memory_bytes"`
	ComputeUnits int    `json:"compute_units"`
}

func devicesCommand(ctx context.Context, c *call) error {
	if err := c.begin(0); err != nil {
		return err
	}
	library := libraries(c.settings, "")
	for _, b := range gpuexec.Backends() {
		if lib, _, err := library(b.Name()); err == nil { // as kiln run would use it
			b = lib
		}
		for _, d := range b.Devices(ctx) {
			if err := c.row(d); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *call) row(d gpuexec.DeviceInfo) error {
	name := fmt.Sprintf("%s:%d  %s", d.Backend, d.Index, d.Name)
	if d.Name == "" { // no device of it was found
		name = d.Backend
	}
	state := d.Driver
	if d.ComputeUnits > 0 { // else the driver does not say
		state += fmt.Sprintf(", %d compute units", d.ComputeUnits)
	}
	if d.MemoryBytes > 0 {
		state += fmt.Sprintf(", %.1f GiB", float64(d.MemoryBytes)/(1<<30))
	}
	if !d.Available {
		state = "absent: " + d.Reason
	}
	row := deviceRow{d.Backend, d.Index, d.Name, d.Driver, d.Available, d.Reason, d.MemoryBytes, d.ComputeUnits}
	return c.say(row, "%s  (%s)", name, state)
}

func envCommand(_ context.Context, c *call) error {
	if err := c.parse(0); err != nil {
		return err
	}
	if lines, strict := env.Wrong(c.settings, env.Names()); len(c.settings.Refusals) > 0 || strict && len(lines) > 0 {
		c.code = exitFinding // the rows say which
	}
	rows := env.Table(c.settings)
	for _, s := range env.Strays(env.Names()) {
		rows = append(rows, s.Row())
	}
	if !c.json {
		return env.Print(c.stdout, rows)
	}
	out := json.NewEncoder(c.stdout)
	for _, r := range rows {
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	return nil
}
