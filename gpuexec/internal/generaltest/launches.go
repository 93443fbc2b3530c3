package generaltest

import (
	"flag"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/measure"
)

var held = flag.Bool("held", false, "generaltest: what is measured fails beyond its gate")

// Sequence is how many launches LaunchCost has measured together.
const Sequence = 32

// LaunchCost measures what an executor adds to a launch, in turns with the driver's calls alone:
// by runs a sequence of launches to its end by an executor, raw by those calls. The figure is
// the median over rounds of what the quickest sequences differ by; with -held it has a gate.
func LaunchCost(t *testing.T, by, raw func() error) {
	const rounds, turns, most = 9, 100, 3 // most in microseconds
	var alone []float64
	f, err := measure.Figure{Gate: measure.AtMost(most)}.Take(t.Context(), rounds, func() (float64, error) {
		took, err := measure.Turns(t.Context(), turns, 1, measure.Clocked(by), measure.Clocked(raw))
		if err != nil {
			return 0, err
		}
		each := func(d time.Duration) float64 { return 1e6 * d.Seconds() / Sequence }
		alone = append(alone, each(took[1]))
		return each(took[0] - took[1]), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a launch takes %.2f us by the driver's calls, and %.2f [%.2f, %.2f] more by an executor (median, least, most)",
		measure.SpreadOf(alone).Median, f.Ratio, f.Min, f.Max)
	if *held && !f.Holds() {
		t.Errorf("an executor adds %.2f us to a launch, gate %v", f.Ratio, f.Gate)
	}
}

// PauseCost measures for how long garbage collections stop the world while an executor runs
// launches, in turns with the driver's calls alone: by and raw are as for LaunchCost. The figure is the
// median over rounds of the 95th percentiles' quotient, and has a gate. Without -held it is not measured.
func PauseCost(t *testing.T, by, raw func() error) {
	const rounds, collections, most = 9, 100, 1.5
	if !*held {
		t.Skip("-held measures it")
	}
	var alone []float64
	f, err := measure.Figure{Gate: measure.AtMost(most)}.Take(t.Context(), rounds, func() (float64, error) {
		own, err := measure.PauseBeside(collections, 95, by)
		if err != nil {
			return 0, err
		}
		driver, err := measure.PauseBeside(collections, 95, raw)
		alone = append(alone, 1e3*driver.Seconds())
		return own.Seconds() / driver.Seconds(), err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("beside the driver's calls 95 of 100 collections pause for at most %.2f ms, and beside an executor's for %.2f [%.2f, %.2f] times that (median, least, most)",
		measure.SpreadOf(alone).Median, f.Ratio, f.Min, f.Max)
	if !f.Holds() {
		t.Errorf("an executor makes pauses %.2f times as long, gate %v", f.Ratio, f.Gate)
	}
}
