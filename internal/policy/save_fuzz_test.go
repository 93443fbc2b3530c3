package policy_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/policy"
)

// saved are states of all policies, some with a hand or a class in mid-life.
func saved(t testing.TB) (all [][]byte) {
	for _, kind := range policy.Kinds() {
		p := must(policy.New(policy.Config{Kind: kind, Groups: 4}))
		all = append(all, p.Save())
		run(p, 1, 2, 3, 4, 1, 2, 5, 6, 1, 7)
		p.Resize(p.Resident(shape(7)), 100, 3)
		all = append(all, p.Save())
	}
	return all
}

func seal(body []byte) []byte {
	sum := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
	return binary.LittleEndian.AppendUint32(bytes.Clone(body), sum)
}

// S9: a loaded state saves as the same bytes, also with another capacity.
func TestSaveRoundTrip(t *testing.T) {
	for i, state := range saved(t) {
		kind := policy.Kinds()[i/2]
		p, err := policy.Load(state, policy.Config{Kind: kind, Groups: 4})
		if err != nil {
			t.Fatal(err)
		}
		if again := p.Save(); !bytes.Equal(again, state) {
			t.Errorf("%s: saved again as %x, was %x", kind, again, state)
		}
		smaller, err := policy.Load(state, policy.Config{Kind: kind, Groups: 2, Keep: policy.Worth})
		if err != nil || smaller.Config().Groups != 2 || smaller.Config().Keep != policy.Worth || smaller.Len() != p.Len() {
			t.Errorf("%s: %v, %+v", kind, err, smaller.Config())
		}
	}
}

// Every flipped bit and every shorter length is refused with a reason.
func TestLoadDamaged(t *testing.T) {
	for i, state := range saved(t) {
		c := policy.Config{Kind: policy.Kinds()[i/2], Groups: 4}
		refused := func(b []byte, reasons ...fault.Reason) {
			t.Helper()
			_, err := policy.Load(b, c)
			typed, ok := errors.AsType[*fault.Error](err)
			if !ok || !errors.Is(err, policy.ErrInvalid) {
				t.Fatalf("%v, want a typed refusal", err)
			}
			for _, r := range reasons {
				if typed.Reason == r {
					return
				}
			}
			t.Fatalf("reason %q (%v), want one of %q", typed.Reason, err, reasons)
		}
		for bit := range len(state) * 8 {
			b := bytes.Clone(state)
			b[bit/8] ^= 1 << (bit % 8)
			refused(b, fault.Checksum, fault.Format)
		}
		for n := range state {
			refused(state[:n], fault.Truncated, fault.Checksum, fault.Format)
			if n < len(state)-4 {
				refused(seal(state[:n]), fault.Truncated, fault.Format)
			}
		}
		refused(seal(append(bytes.Clone(state[:len(state)-4]), 0)), fault.Trailing, fault.Format)
	}
	if _, err := policy.Load(saved(t)[0], policy.Config{Kind: policy.LRU, Groups: 4}); !errors.Is(err, policy.ErrInvalid) {
		t.Fatalf("fifo's state as lru: %v", err)
	}
}

// Whatever the bytes are, Load answers with an error or with a policy that works
// and saves itself; memory stays in proportion.
func FuzzLoad(f *testing.F) {
	for i, state := range saved(f) {
		f.Add(uint8(i/2), state[:len(state)-4])
	}
	f.Fuzz(func(t *testing.T, kind uint8, body []byte) {
		c := policy.Config{Kind: policy.Kinds()[kind%4], Groups: 4}
		p, err := policy.Load(seal(body), c)
		if err != nil {
			if !errors.Is(err, policy.ErrInvalid) {
				t.Fatalf("%v is not typed", err)
			}
			return
		}
		if p.Len() > len(body) || p.Remembered() > len(body) {
			t.Fatalf("%d groups out of %d bytes", p.Remembered(), len(body))
		}
		again, err := policy.Load(p.Save(), c)
		if err != nil {
			t.Fatalf("what was loaded does not load again: %v", err)
		}
		for _, p := range []*policy.Policy{p, again} {
			for p.Len() > 4 {
				p.Remove(p.Victim(nil, policy.Busy))
			}
			run(p, 1, 2, 3, 4, 5, 1, 2, 6, 7, 8)
		}
	})
}
