package script

import (
	"reflect"
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	r := func(words string, fields ...string) Result {
		var res Result
		for w := range strings.FieldsSeq(words) {
			res.Words = append(res.Words, strings.Trim(w, "'"))
		}
		for _, f := range fields {
			n, v, _ := strings.Cut(f, "=")
			res.Fields = append(res.Fields, Field{n, v})
		}
		return res
	}
	tests := []struct {
		want   string
		got    Result
		agrees bool
	}{
		{"v1 by=hit", r("v1", "by=hit"), true},
		{"v1", r("v1", "by=hit"), true},
		{"v1 by=hit", r("v1", "by=miss"), false},
		{"v1 by=hit", r("v1"), false},
		{"v1", r("v1 v2"), false},
		{"*", r("anything"), true},
		{"*", r("error closed"), false},
		{"1..3", r("3"), true},
		{"1..3", r("4"), false},
		{"..3", r("-2.5"), true},
		{"2..", r("1"), false},
		{"2..", r("two"), false},
		{"8796093022207..17592186044416", r("17592186044416"), true},
		{"8796093022207..17592186044416", r("17592186044417"), false},
		{"..18446744073709551615", r("18446744073709551616"), false},
		{"a|b", r("b"), true},
		{"1|2|51", r("51"), true},
		{"error invalid|too_large", r("error too_large"), true},
		{"v by=joined | error closed", r("error closed"), true},
		{"v by=joined | error closed", r("v", "by=hit"), false},
		{"unlimited | 1..2", r("2"), true},
		{`""`, r("''"), true},
		{`""`, r("x"), false},
		{`"*"`, r("x"), false},
		{`"*"`, r("*"), true},
		{`"" bytes=0`, r("''", "bytes=0"), true},
		{"hits=95", r("", "distinct=5", "hits=95"), true},
		{"text=*", r("", "text="), true},
		{"../up", r("../up"), true},
		{"1..2|9", r("9"), true},
	}
	for _, tt := range tests {
		e, err := ParseExpectation(tt.want)
		if err != nil {
			t.Errorf("%s: %v", tt.want, err)
		} else if e.Match(tt.got) != tt.agrees {
			t.Errorf("%q agrees with %q: %v", tt.want, tt.got.String(), !tt.agrees)
		}
	}
	if (Expectation{}).Match(r("error closed")) || !(Expectation{}).Match(r("miss")) {
		t.Error("without an arrow any result is right but an error")
	}
	for _, bad := range []string{"", "a | ", " | a", `"x`} {
		if _, err := ParseExpectation(bad); err == nil {
			t.Errorf("%q is let through", bad)
		}
	}
}

func TestResultTextReadsBack(t *testing.T) {
	r := Result{Words: []string{"", "a b", `q"`, "plain", "tab\t", "#x"}, Fields: []Field{{"text", "two words"}, {"n", "1"}}}
	words, options, err := Words(r.String())
	if err != nil {
		t.Fatal(err)
	}
	var back Result
	for _, w := range words {
		back.Words = append(back.Words, w.Text)
	}
	for _, o := range options {
		back.Fields = append(back.Fields, Field{o.Name, o.Value})
	}
	if !reflect.DeepEqual(r, back) {
		t.Errorf("%q read back as %q", r, back)
	}
}
