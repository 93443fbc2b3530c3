package limit_test

import (
	"encoding/json"
	"errors"
	"flag"
	"math"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

// C1, G2: a capacity is a plain decimal or the word.
func TestParse(t *testing.T) {
	for in, want := range map[string]limit.Limit{
		"0": limit.Of(0), "7": limit.Of(7), "007": limit.Of(7), "unlimited": limit.Unlimited,
		"9223372036854775807": limit.Of(math.MaxInt64),
	} {
		got, err := limit.Parse(in)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for in, why := range map[string]string{
		"": "empty", "-5": "sign", "+5": "sign", "-": "sign", "12abc": "plain decimal", "1.9": "plain decimal", "1e3": "plain decimal",
		"0x10": "plain decimal", "1_000": "plain decimal", " 7": "plain decimal", "7 ": "plain decimal", "7\n": "plain decimal",
		"Unlimited": "plain decimal", "UNLIMITED": "plain decimal", "unlimited ": "plain decimal", "\u0667": "plain decimal",
		"9223372036854775808": "above", "99999999999999999999": "above", strings.Repeat("9", 4096): "above",
	} {
		got, err := limit.Parse(in)
		if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), why) {
			t.Errorf("Parse(%q) = %v, %v; want an ErrInvalid that says %q", in, got, err, why)
		}
		if got.Given() {
			t.Errorf("Parse(%q) gave %v beside its error", in, got)
		}
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("Parse of %d bytes: error of %d bytes", len(in), len(err.Error()))
		}
	}
}

func TestZeroValueIsNotGiven(t *testing.T) {
	var l limit.Limit
	if l.Given() || l.IsUnlimited() || l.String() != "" {
		t.Errorf("zero value: given %v, unlimited %v, %q", l.Given(), l.IsUnlimited(), l)
	}
	if n, ok := l.Value(); ok {
		t.Errorf("zero value has the count %d", n)
	}
	if got := l.Or(limit.Of(64)); got != limit.Of(64) {
		t.Errorf("Or = %v, want the default", got)
	}
	for _, given := range []limit.Limit{limit.Of(0), limit.Unlimited} { // 0 is a wish, not an absence
		if got := given.Or(limit.Of(64)); got != given {
			t.Errorf("%v.Or = %v", given, got)
		}
	}
}

func TestAllows(t *testing.T) {
	for _, c := range []struct {
		l    limit.Limit
		n    int64
		want bool
	}{
		{limit.Of(0), 0, true}, {limit.Of(0), 1, false}, {limit.Of(3), 3, true}, {limit.Of(3), 4, false},
		{limit.Unlimited, math.MaxInt64, true}, {limit.Limit{}, math.MaxInt64, true},
	} {
		if got := c.l.Allows(c.n); got != c.want {
			t.Errorf("%q.Allows(%d) = %v", c.l, c.n, got)
		}
	}
}

// C1: negative is an error.
func TestValidate(t *testing.T) {
	if err := limit.Of(-1).Validate(); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Of(-1): %v", err)
	}
	for _, l := range []limit.Limit{{}, limit.Of(0), limit.Of(math.MaxInt64), limit.Unlimited} {
		if err := l.Validate(); err != nil {
			t.Errorf("%q: %v", l, err)
		}
	}
}

// C1: unlimited is the word, never a number, in JSON too.
func TestJSON(t *testing.T) {
	type config struct {
		Given, Open, Absent limit.Limit
	}
	in := config{Given: limit.Of(7), Open: limit.Unlimited}
	text, err := json.Marshal(in)
	if err != nil || string(text) != `{"Given":7,"Open":"unlimited","Absent":null}` {
		t.Fatalf("Marshal = %s, %v", text, err)
	}
	out := config{Absent: limit.Of(1)}
	if err := json.Unmarshal(text, &out); err != nil || out != in {
		t.Fatalf("Unmarshal = %+v, %v; want %+v", out, err, in)
	}
	for _, bad := range []string{`-1`, `1.5`, `1e3`, `"7"`, `"Unlimited"`, `true`, `{}`, `[]`, `9223372036854775808`} {
		l := limit.Of(3)
		if err := json.Unmarshal([]byte(bad), &l); err == nil || l != limit.Of(3) {
			t.Errorf("Unmarshal(%s) = %v, %v; want an error and the old value", bad, l, err)
		}
	}
}

func TestFlag(t *testing.T) {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(new(strings.Builder))
	var groups limit.Limit
	set.TextVar(&groups, "groups", limit.Of(64), "")
	if err := set.Parse(nil); err != nil || groups != limit.Of(64) {
		t.Fatalf("default: %v, %v", groups, err)
	}
	if err := set.Parse([]string{"--groups", limit.Word}); err != nil || groups != limit.Unlimited {
		t.Fatalf("--groups unlimited: %v, %v", groups, err)
	}
	if err := set.Parse([]string{"--groups", "-2"}); err == nil {
		t.Fatal("--groups -2 was taken")
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "0", "unlimited", "-1", "12abc", "9223372036854775808", "007", "\u0667"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := limit.Parse(s)
		if err != nil {
			if l != (limit.Limit{}) || !errors.Is(err, fault.ErrInvalid) {
				t.Fatalf("Parse(%q) = %v, %v", s, l, err)
			}
			return
		}
		if err := l.Validate(); err != nil {
			t.Fatalf("Parse(%q) gave an invalid limit: %v", s, err)
		}
		if again, err := limit.Parse(l.String()); err != nil || again != l {
			t.Fatalf("%q -> %q -> %v, %v", s, l, again, err)
		}
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		var again limit.Limit
		if err := json.Unmarshal(text, &again); err != nil || again != l {
			t.Fatalf("%q -> %s -> %v, %v", s, text, again, err)
		}
	})
}
