package versus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/onednn"
	"github.com/kiln-cache/kiln/internal/gemm"
	"github.com/kiln-cache/kiln/internal/measure"
)

// ErrDiffers says that the two gave different products.
var ErrDiffers = errors.New("the products differ")

// Config is a product to measure: M x K by K x N, float32.
type Config struct {
	M, K, N int
	Rounds  int       // at least 1; 0 means 9
	Set     *gemm.Set // nil means gemm.Best(); with AVX2 the peer is held to AVX2
	Library string    // the path of oneDNN's library; empty: as it is installed
	// Weights is how many right-hand matrices are gone through in turn; 0
	// means 1. With many they come from where a model larger than the cache
	// has them.
	Weights int
}

// Result is a finished comparison.
type Result struct {
	Config Config
	Set    string         // instruction set of package gemm
	Peer   string         // oneDNN's version and the kernel that it chose
	Ours   measure.Spread // GFLOP/s, over the rounds
	Theirs measure.Spread // GFLOP/s, over the rounds
	Ratio  measure.Spread // ours / theirs in the same round: above 1 we are faster
	// MaxDifference is the largest difference between the two products of
	// standard normal matrices, in units of sqrt(K).
	MaxDifference float64
}

// tolerance bounds MaxDifference: both sum K products of numbers around 1 in
// float32, in different orders.
const tolerance = 1e-4

// pair is one right-hand matrix as both sides hold it.
type pair struct {
	ours   gemm.Args
	theirs *product
}

// Compare packs the weights for both sides, compares the products and measures.
// It ends early, with the context's error, when ctx does. fault.ErrUnavailable names
// the package of oneDNN where that is not installed.
func Compare(ctx context.Context, c Config) (_ Result, err error) {
	if c.Rounds == 0 {
		c.Rounds = 9
	}
	if c.Weights == 0 {
		c.Weights = 1
	}
	if c.Set == nil {
		c.Set = gemm.Best()
	}
	if c.M < 1 || c.K < 1 || c.N < 1 || c.Rounds < 1 || c.Weights < 1 {
		return Result{}, fault.Invalidf("versus: compare", "M, K, N, rounds, weights are %d, %d, %d, %d, %d: all must be positive", c.M, c.K, c.N, c.Rounds, c.Weights)
	}
	peer, err := openPeer(c.Library, c.Set.Name() != "avx512")
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, peer.close()) }()
	runtime.LockOSThread() // whose time is measured
	defer runtime.UnlockOSThread()

	rng := rand.New(rand.NewPCG(uint64(c.M), uint64(c.N)))
	a := normal(rng, c.M*c.K)
	pairs := make([]pair, c.Weights)
	defer func() {
		for _, p := range pairs {
			if p.theirs != nil {
				p.theirs.release()
			}
		}
	}()
	res := Result{Config: c, Set: c.Set.Name()}
	for i := range pairs {
		if err := ctx.Err(); err != nil {
			return Result{}, err
		}
		if pairs[i], err = prepare(ctx, c, peer, a, normal(rng, c.K*c.N)); err != nil {
			return Result{}, err
		}
		d := difference(pairs[i]) / math.Sqrt(float64(c.K))
		if res.MaxDifference = max(res.MaxDifference, d); !(d <= tolerance) {
			return res, fmt.Errorf("versus: compare %d x %d x %d: %w by %g", c.M, c.K, c.N, ErrDiffers, d)
		}
	}
	res.Peer = fmt.Sprintf("oneDNN %s %s", peer.lib.About().Version, pairs[0].theirs.lease.Primitive().Descriptor().Name())
	return res, res.measure(ctx, pairs)
}

func prepare(ctx context.Context, c Config, peer *peer, a, w []float32) (pair, error) {
	b := make([]float32, c.Set.PackedLen(c.K, c.N))
	if err := c.Set.Pack(b, w, c.K, c.N, false); err != nil {
		return pair{}, err
	}
	theirs, err := peer.product(ctx, int64(c.M), int64(c.K), int64(c.N), a, w)
	if err != nil {
		return pair{}, err
	}
	p := pair{theirs: theirs, ours: gemm.Args{M: c.M, N: c.N, K: c.K, A: a, LDA: c.K, B: b, C: make([]float32, c.M*c.N), LDC: c.N}}
	return p, errors.Join(p.run(c.Set), p.theirs.run(ctx))
}

func (p *pair) run(s *gemm.Set) error {
	return s.Run(&p.ours, 0, s.Blocks(p.ours.M, p.ours.N, p.ours.K))
}

func difference(p pair) float64 {
	var most float64
	theirs := onednn.Of[float32](p.theirs.dst)
	for i, x := range p.ours.C {
		d := math.Abs(float64(x) - float64(theirs[i]))
		if !(d <= most) { // a NaN stays
			most = d
		}
	}
	return most
}

// turn is how long one side runs before the other has its turn, and turns how
// many each has in a round; the fastest of them counts, since what disturbs a
// turn only ever adds to it.
const (
	turn  = 4 * time.Millisecond
	turns = 10
)

func (r *Result) measure(ctx context.Context, pairs []pair) error {
	c := r.Config
	side := func(run func(p *pair) error) measure.Side {
		at := 0 // each side goes through the weights by itself
		return func(runs int) (time.Duration, error) {
			began, _ := measure.ThreadTime() // what other programs take from the core is not in it
			for range runs {
				p := &pairs[at%len(pairs)]
				at++
				if err := run(p); err != nil {
					return 0, err
				}
			}
			ended, _ := measure.ThreadTime()
			return ended - began, nil
		}
	}
	ours := side(func(p *pair) error { return p.run(c.Set) })
	theirs := side(func(p *pair) error { return p.theirs.run(ctx) })
	runs := 1
	for { // as many runs as fill a turn; warms up, too
		took, err := theirs(runs)
		if err != nil {
			return err
		}
		if took >= turn {
			break
		}
		runs *= 2
	}
	flops := 2 * float64(c.M) * float64(c.K) * float64(c.N) * float64(runs)
	var speeds [2][]float64
	for range c.Rounds {
		best, err := measure.Turns(ctx, turns, runs, ours, theirs)
		if err != nil {
			return err
		}
		for i, took := range best {
			speeds[i] = append(speeds[i], flops/float64(took.Nanoseconds()))
		}
	}
	r.Ours, r.Theirs, r.Ratio = measure.SpreadOf(speeds[0]), measure.SpreadOf(speeds[1]), measure.SpreadOf(measure.Ratios(speeds[0], speeds[1]))
	return nil
}

func normal(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}
