package frame_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/frame/hashlist"
)

func of(key string) frame.ID { return frame.ID{Backend: "cpu", Key: key} }

func sample() frame.Entry {
	return frame.Entry{
		Created:  time.Unix(1_700_000_000, 123),
		Cost:     1500 * time.Millisecond,
		Identity: frame.Identity{Library: "1", Build: "b", Compiler: "c", Driver: "d", Device: "e"},
		Requires: []string{"avx2", "fma"},
		Payload:  []byte("machine code"),
	}
}

func encode(t testing.TB, key string, e frame.Entry, s *frame.Signer) []byte {
	t.Helper()
	f, err := frame.Encode(of(key), e, s)
	if err != nil {
		t.Fatal(err)
	}
	f.Seal(of(key))
	text := bytes.Join([][]byte{f.Head, f.Payload, f.Tail}, nil)
	if int64(len(text)) != f.Size() {
		t.Errorf("size %d of %d bytes", f.Size(), len(text))
	}
	return text
}

// P3: what is written is read.
func TestRoundTrip(t *testing.T) {
	for _, e := range []frame.Entry{sample(), {Created: time.Unix(0, 1)}} {
		text := encode(t, "key", e, nil)
		got, flaw := frame.Parse(text, of("key"))
		if !flaw.None() || got.Signer != "" || !got.Created.Equal(e.Created) || got.Cost != e.Cost ||
			!reflect.DeepEqual(got.Identity, e.Identity) || !reflect.DeepEqual(got.Requires, e.Requires) || !bytes.Equal(got.Payload, e.Payload) {
			t.Errorf("%+v %v", got, flaw)
		}
		meta, ok := frame.ReadMeta(text)
		if !ok || meta.Cost != e.Cost || meta.Digest != got.Digest || frame.DigestOf(text) != got.Digest {
			t.Errorf("meta %+v", meta)
		}
		if n, ok := frame.KeySize(text); !ok || n != 3 {
			t.Errorf("key size %d", n)
		}
		if _, flaw := frame.Parse(text, frame.ID{Backend: "gpu", Key: "key"}); flaw.Reason != fault.Checksum {
			t.Errorf("another backend: %v", flaw)
		}
		if _, flaw := frame.Parse(text, of("kez")); flaw.Reason != fault.Checksum {
			t.Errorf("another key: %v", flaw)
		}
	}
}

// P3: of an entry of a later version nothing is told, since its fields may lie elsewhere; that
// of the first version differs in its digest alone.
func TestMetaOfOtherVersions(t *testing.T) {
	text := encode(t, "key", sample(), nil)
	for version, want := range map[uint32]bool{0: false, 1: true, frame.Version: true, frame.Version + 1: false} {
		binary.LittleEndian.PutUint32(text[8:], version)
		if meta, ok := frame.ReadMeta(text); ok != want || ok && meta.Cost != sample().Cost {
			t.Errorf("version %d: %v %+v", version, ok, meta)
		}
	}
}

// P3, P4: every flipped bit and every cut is noticed, and says how.
func TestDamage(t *testing.T) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text := encode(t, "key", sample(), &frame.Signer{ID: "ci", Key: private})
	for bit := range len(text) * 8 {
		damaged := bytes.Clone(text)
		damaged[bit/8] ^= 1 << (bit % 8)
		if _, flaw := frame.Parse(damaged, of("key")); flaw.None() {
			t.Errorf("bit %d: not noticed", bit)
		}
	}
	for n := range text {
		if _, flaw := frame.Parse(text[:n], of("key")); flaw.Reason != fault.Truncated {
			t.Errorf("cut to %d: %v", n, flaw)
		}
	}
	if _, flaw := frame.Parse(append(bytes.Clone(text), 0), of("key")); flaw.Reason != fault.Trailing {
		t.Errorf("one more byte: %v", flaw)
	}
}

// P3, P4: of a text of many pieces, too, those that are hashed by twos and by several
// cores at once: damage at random places and on both sides of every piece's end.
func TestDamageOfPieces(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, pieces := range []int{5, 70} {
		e := sample()
		e.Payload = bytes.Repeat([]byte("machine code"), pieces*hashlist.Piece/12+random.IntN(hashlist.Piece/12))
		text := encode(t, "key", e, &frame.Signer{ID: "ci", Key: private})
		var places []int
		for end := frame.Preamble; end+1 < len(text); end += hashlist.Piece {
			places = append(places, end-1, end, end+1)
		}
		for range 100 {
			places = append(places, frame.Preamble+random.IntN(len(text)-frame.Preamble))
		}
		for _, at := range places {
			bit := byte(1) << random.IntN(8)
			text[at] ^= bit
			if _, flaw := frame.Parse(text, of("key")); flaw.Reason != fault.Checksum {
				t.Errorf("%d bytes, bit %#x of byte %d flipped: %v", len(text), bit, at, flaw)
			}
			text[at] ^= bit
			if _, flaw := frame.Parse(text[:at], of("key")); flaw.Reason != fault.Truncated {
				t.Errorf("%d bytes cut to %d: %v", len(text), at, flaw)
			}
		}
		if _, flaw := frame.Parse(text, of("key")); !flaw.None() {
			t.Errorf("%d bytes, whole: %v", len(text), flaw)
		}
	}
}

// P3: lengths are not believed, even under a right digest; another version is outdated.
func TestForge(t *testing.T) {
	text := encode(t, "key", sample(), nil)
	for value, want := range map[uint64]fault.Reason{1 << 63: fault.Truncated, 1<<64 - 1: fault.Truncated, 1e9: fault.Truncated, 1: fault.Trailing} {
		forged, err := frame.Forge(text, of("key"), "length", value)
		if err != nil {
			t.Fatal(err)
		}
		if _, flaw := frame.Parse(forged, of("key")); flaw.Reason != want {
			t.Errorf("length %d: %v", value, flaw)
		}
	}
	forged, err := frame.Forge(text, of("key"), "format", 999)
	if err != nil {
		t.Fatal(err)
	}
	if _, flaw := frame.Parse(forged, of("key")); flaw != (frame.Flaw{Reason: fault.Outdated, Field: "format"}) {
		t.Errorf("version: %v", flaw)
	}
	forged[60] ^= 1
	if _, flaw := frame.Parse(forged, of("key")); flaw.Reason != fault.Checksum {
		t.Errorf("a damaged foreign version: %v", flaw)
	}
	if _, err := frame.Forge(text, of("key"), "colour", 1); err == nil {
		t.Error("forged an unknown field")
	}
}

// P15: the signature covers preamble, key, payload and identity.
func TestSignature(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer := &frame.Signer{ID: "ci", Key: private}
	text := encode(t, "key", sample(), signer)
	e, flaw := frame.Parse(text, of("key"))
	if !flaw.None() || e.Signer != "ci" || !e.Verify(public) {
		t.Fatalf("%+v %v", e, flaw)
	}
	if other, _, _ := ed25519.GenerateKey(nil); e.Verify(other) || e.Verify(nil) {
		t.Error("verified by another key")
	}
	signature := text[len(text)-ed25519.SignatureSize:]
	foreign := frame.ID{Backend: "gpu", Key: "key"}
	for name, change := range map[string]func(*frame.Entry) string{
		"backend":  func(*frame.Entry) string { return "" }, // foreign
		"payload":  func(e *frame.Entry) string { e.Payload = []byte("machine kode"); return "key" },
		"identity": func(e *frame.Entry) string { e.Identity.Driver = "x"; return "key" },
		"requires": func(e *frame.Entry) string { e.Requires[1] = "fmb"; return "key" },
		"cost":     func(e *frame.Entry) string { e.Cost++; return "key" },
		"key":      func(*frame.Entry) string { return "kez" },
	} {
		e := sample()
		id := of(change(&e))
		if id.Key == "" {
			id = foreign
		}
		f, err := frame.Encode(id, e, signer)
		if err != nil {
			t.Fatal(err)
		}
		copy(f.Tail[len(f.Tail)-ed25519.SignatureSize:], signature) // replayed onto something else
		f.Seal(id)
		got, flaw := frame.Parse(bytes.Join([][]byte{f.Head, f.Payload, f.Tail}, nil), id)
		if !flaw.None() || got.Verify(public) {
			t.Errorf("%s: a replayed signature was taken (%v)", name, flaw)
		}
	}
}

// P3: where a payload will begin is known before it is there.
func TestHeadBytes(t *testing.T) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*frame.Entry){
		"sample":      func(*frame.Entry) {},
		"no identity": func(e *frame.Entry) { e.Identity = frame.Identity{} },
		"no needs":    func(e *frame.Entry) { e.Requires = nil },
		"long":        func(e *frame.Entry) { e.Identity.Build, e.Requires = strings.Repeat("x", 999), []string{"", "avx"} },
	} {
		e := sample()
		change(&e)
		before := e.HeadBytes()
		e.Payload = []byte("payload")
		for _, signer := range []*frame.Signer{nil, {ID: "ci", Key: private}} {
			text := encode(t, "key", e, signer)
			got, flaw := frame.Parse(text, of("key"))
			if !flaw.None() || before != got.Begins || string(text[got.Begins:][:len(e.Payload)]) != "payload" {
				t.Errorf("%s: %v: %d bytes before the payload, it is said to begin at %d of %q", name, flaw, before, got.Begins, text)
			}
		}
	}
}

// K7, P4: the first factor that differs speaks, in its order.
func TestMisfits(t *testing.T) {
	e := sample()
	present := e.Identity
	present.ISA = []string{"avx2", "avx512", "fma"}
	if m := e.Misfits(present); len(m) != 0 {
		t.Error(m)
	}
	present.ISA = []string{"avx2"}
	present.Device, present.Library = "x", "x"
	if m := strings.Join(e.Misfits(present), " "); m != "library device isa" {
		t.Error(m)
	}
	for factor, want := range map[string]fault.Reason{"library": fault.Outdated, "driver": fault.Outdated, "device": fault.DeviceMismatch, "isa": fault.Incompatible} {
		if got := frame.Misfit(factor); got.Reason != want || got.Field != factor {
			t.Error(factor, got)
		}
	}
}

// What cannot be written down is refused.
func TestTooLong(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	for _, change := range []func(*frame.Entry){
		func(e *frame.Entry) { e.Identity.Build = long },
		func(e *frame.Entry) { e.Requires = []string{long} },
		func(e *frame.Entry) { e.Requires = make([]string, 2000) },
	} {
		e := sample()
		change(&e)
		if _, err := frame.Encode(of("key"), e, nil); err == nil {
			t.Error("encoded")
		}
	}
}

// P3, P4: no bytes make the parser panic, read past the end or take memory that
// is not there; with the digest made right, everything behind it is reached.
func FuzzParse(f *testing.F) {
	text := encode(f, "key", sample(), nil)
	_, private, err := ed25519.GenerateKey(bytes.NewReader(make([]byte, 32)))
	if err != nil {
		f.Fatal(err)
	}
	signed := encode(f, "key", sample(), &frame.Signer{ID: "ci", Key: private})
	f.Add(text, "key")
	f.Add(signed, "key")
	f.Add(text[:60], "")
	f.Fuzz(func(t *testing.T, file []byte, key string) {
		frame.ReadMeta(file)
		frame.KeySize(file)
		check := func(file []byte) {
			e, flaw := frame.Parse(file, of(key))
			if flaw.None() && len(e.Payload) > len(file) {
				t.Error("a payload larger than the file")
			}
			if flaw.None() && e.Signer != "" {
				e.Verify(make(ed25519.PublicKey, ed25519.PublicKeySize))
			}
		}
		check(file)
		if version := uint64(frame.Version); len(file) >= frame.Preamble {
			if sealed, err := frame.Forge(file, of(key), "format", version); err == nil {
				check(sealed)
			}
		}
	})
}
