package main

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/internal/forward"
)

// sampled is the number of requests of a trace that are checked against the
// reference. It prefers requests of at most shortEnough tokens: the reference is slow.
const (
	sampled     = 8
	shortEnough = 64 // tokens
)

// compare gives the largest absolute error of the sampled outputs, and an error
// if one of them is too far from the reference.
func (r *replayer) compare(ctx context.Context, incomplete bool) (float64, error) {
	if r.checked == nil {
		if err := r.reference(ctx); err != nil {
			return 0, err
		}
	}
	worst := 0.0
	for _, c := range r.checked {
		if incomplete && r.outputs[c.place] == nil {
			continue
		}
		d, err := forward.Compare(r.outputs[c.place], c.want)
		if err != nil {
			return 0, err
		}
		worst = max(worst, d.Absolute)
		if !(d.Relative <= mostRelativeError) {
			return worst, fmt.Errorf("request %d differs from the reference by %.3g, want at most %g: report it with the output of kiln devices and kiln env", c.place+1, d.Relative, mostRelativeError)
		}
	}
	return worst, nil
}

// reference computes the sampled requests in float64: spread over the trace,
// short ones if there are any.
func (r *replayer) reference(ctx context.Context) error {
	r.progress.Note("checking a sample of the outputs against the float64 reference")
	defer r.progress.Clear()
	var places []int
	var requests [][]int32
	every := max(1, len(r.requests)/sampled)
	for first := 0; first < len(r.requests) && len(places) < sampled; first += every {
		place := first
		for at := first; at < min(first+every, len(r.requests)); at++ {
			if n, _ := r.tokens(at); n <= shortEnough {
				place = at
				break
			}
		}
		places, requests = append(places, place), append(requests, r.ids(place))
	}
	outputs, err := r.weights.Reference(ctx, requests)
	if err != nil {
		return err
	}
	for i, place := range places {
		r.checked = append(r.checked, check{place, outputs[i]})
	}
	return nil
}
