package weights

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

// generation names the generator in a tensor's identity. It changes whenever
// the same seed would give other numbers.
const generation = "kiln-weights-1"

// Generate makes a tensor's values from a seed.
func Generate(seed uint64, w oplist.Weight) []float32 {
	out := make([]float32, w.Elements())
	mean, deviation := scale(w)
	fill(out, stream(seed, "weight", w.Name), mean, deviation)
	return out
}

// scale is the mean and standard deviation of a weight's values.
func scale(w oplist.Weight) (mean, deviation float64) {
	switch w.Role {
	case oplist.Kernel:
		return 0, 1 / math.Sqrt(float64(w.Shape[0]))
	case oplist.Gamma:
		return 1, 0.1
	case oplist.Beta, oplist.Bias:
		return 0, 0.1
	default: // tables: a layer norm follows their sum
		return 0, 0.5
	}
}

// fill writes values of this mean and deviation from place 0 of a stream on.
func fill(out []float32, stream uint64, mean, deviation float64) {
	// The sum of four uniform numbers on [0, 2^16) has the variance 4*(2^32-1)/12.
	step := float32(deviation / math.Sqrt((1<<32-1)/3.0))
	center := float32(mean)
	for i := range out {
		x := mix(stream + uint64(i)*golden)
		sum := int32(x&0xffff) + int32(x>>16&0xffff) + int32(x>>32&0xffff) + int32(x>>48) - 2*0xffff
		// The conversion keeps the product from being fused into the sum, which
		// would round otherwise on some machines.
		out[i] = float32(float32(sum)*step) + center
	}
}

const golden = 0x9e3779b97f4a7c15

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// stream is where a counter starts for this use of a seed.
func stream(seed uint64, use, name string) uint64 {
	b := binary.LittleEndian.AppendUint64([]byte(use+"\x00"), seed)
	sum := sha256.Sum256(append(b, name...))
	return binary.LittleEndian.Uint64(sum[:])
}

// The ids of google-research/bert's uncased vocabulary that a request needs.
const (
	classID     = 101  // [CLS], first
	separatorID = 102  // [SEP], last
	firstWordID = 1000 // below are special, unused and single-letter entries
)

// Tokens makes the n ids of the request at this place of a trace, as a
// tokenizer would give them: [CLS], words, [SEP], and [CLS] alone where n is 1.
// With a vocabulary too small for BERT's layout every id below vocab may come
// up anywhere. n below 1 gives none; vocab is at least 1.
func Tokens(seed uint64, place, n, vocab int) []int32 {
	if n < 1 {
		return nil
	}
	first := firstWordID
	if vocab <= firstWordID {
		first = 0
	}
	out := make([]int32, n)
	start := mix(stream(seed, "tokens", "") + uint64(place)*golden)
	for i := range out {
		high, _ := bits.Mul64(mix(start+uint64(i)*golden), uint64(vocab-first))
		out[i] = int32(first) + int32(high)
	}
	if first == firstWordID {
		out[n-1] = separatorID
		out[0] = classID
	}
	return out
}
