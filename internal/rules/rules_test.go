package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tree writes files, by path, into a folder of the test's own.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// numbers is a specification with rules K1..K6, F1..F6 and G1..G5.
func numbers(t *testing.T) spec {
	t.Helper()
	text := "# Rules\n"
	for i, letter := range []string{"K", "F", "G"} {
		text += fmt.Sprintf("\n## %d. Section (%s)\n\n", i+1, letter)
		for n := range 6 {
			text += fmt.Sprintf("- %s%d. A rule\n  on two lines, like K9.\n", letter, n+1)
		}
	}
	s, err := parseSpec(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSpec(t *testing.T) {
	s := numbers(t)
	want := strings.Fields("K1 K2 K3 K4 K5 K6 F1 F2 F3 F4 F5 F6 G1 G2 G3 G4 G5 G6")
	if !slices.Equal(s.rules, want) || s.letters() != "KFG" || !s.sections["3"] || s.sections["4"] {
		t.Errorf("rules %v, letters %s, sections %v", s.rules, s.letters(), s.sections)
	}
	for text, why := range map[string]string{
		"":                                "no rules",
		"## 1. A (K)\n- K1. x\n- K3. x\n": "K3: want K2",
		"## 1. A (K)\n- K1. x\n- K1. x\n": "K1: want K2",
		"## 1. A (K)\n- K2. x\n":          "K2: want K1",
		"## 1. A (K)\n- F1. x\n":          "F1: want K1",
		"- K1. x\n":                       "K1: want 1",
		"## 1. A (K)\n- K1. x\n## 1. B (F)\n- F1. x\n": "section 1 stands there twice",
	} {
		if _, err := parseSpec(text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("parseSpec(%q) = %v, want %q", text, err, why)
		}
	}
}

func TestGather(t *testing.T) {
	root := tree(t, map[string]string{
		scripts + "/a.kiln":               "case X1 rules=K1,K2\nopen c artefacts\n# case X2 rules=K3\n",
		scripts + "/deep/b.kiln":          "  case X3 needs=gpu rules=K4,X9 # why\n",
		"elsewhere/c.kiln":                "case X4 rules=K5\n",
		"room/testdata/d_test.go":         "package d // K5\n",
		".hidden/e_test.go":               "package e // K5\n",
		"room/f.go":                       "package f // K5\n\n// Put is SPEC K7 (G28), SPEC section 3, SPEC section 9.\n\n// P50 is no citation, nor is this K8.\n\n// F7 is what a type is called.\ntype F7 int\n",
		"room/READ.md":                    "A rule (F9) in SPEC K6.\n",
		".ci/run":                         "# SPEC G7 is none.\n",
		"Makefile":                        "# SPEC G8 is none.\n",
		"out/i_test.go":                   "package i // K5\n",
		"bin/j_test.go":                   "package j // K5\n",
		"docs/SPEC.md":                    "- K7. F8 is not yet there\n",
		"room/g_test.go":                  "package g\n\n// F6\n\n// F1, F2: both\n\n// F3 and F4.\n\nvar a = 1 // F5\n\nvar s = \"// K5\"\n",
		"room/h_test.go":                  "package g\n\n/* G1\n G2 */\n\n// The rule of SPEC G3, and these (G4..G6).\n\n// Words before K5 cite nothing, nor do K6x or (xK6).\n",
		"room/testdata/fuzz/FuzzX/0_test": "K5",
	})
	cited, err := gather(root, numbers(t))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for rule := range cited.tested {
		got = append(got, rule)
	}
	slices.Sort(got)
	want := strings.Fields("F1 F2 F3 F4 F5 F6 G1 G2 G3 G4 G6 K1 K2 K4")
	if !slices.Equal(got, want) {
		t.Errorf("cited %v, want %v", got, want)
	}
	if place := cited.tested["G2"]; len(place) != 1 || place[0] != "room/h_test.go:4" {
		t.Errorf("G2 at %v", place)
	}
	wantUnknown := []string{
		".ci/run:1: G7 is no rule of docs/SPEC.md",
		"Makefile:1: G8 is no rule of docs/SPEC.md",
		"room/READ.md:1: F9 is no rule of docs/SPEC.md",
		"room/f.go:3: K7 is no rule of docs/SPEC.md",
		"room/f.go:3: G28 is no rule of docs/SPEC.md",
		"room/f.go:3: docs/SPEC.md has no section 9",
		"stress/conform/testdata/deep/b.kiln:1: X9 is no rule of docs/SPEC.md",
	}
	if !slices.Equal(cited.unknown, wantUnknown) {
		t.Errorf("unknown %q, want %q", cited.unknown, wantUnknown)
	}
}

func TestJudge(t *testing.T) {
	cited := citations{
		spec:   spec{rules: []string{"A1", "A2", "A3", "A4"}},
		tested: map[string][]string{"A1": {"x"}, "A3": {"y:7"}}, unknown: []string{"z"},
	}
	got := judge(map[string]string{"A3": "later", "A4": "later", "A9": "later"}, cited)
	want := []string{
		"A2 is cited by no conformance script and no test",
		"A3 is pending and yet cited by y:7: take it out of pending.txt",
		"A9 is pending and no rule of docs/SPEC.md",
		"z",
	}
	if !slices.Equal(got, want) {
		t.Errorf("judge = %q, want %q", got, want)
	}
}

func TestPending(t *testing.T) {
	got, err := parsePending("# why\n\nA1 not yet\n")
	if err != nil || len(got) != 1 || got["A1"] != "not yet" {
		t.Errorf("parsePending = %v, %v", got, err)
	}
	for _, bad := range []string{"A1", "A1  ", "A1 once\nA1 twice"} {
		if _, err := parsePending(bad); err == nil || !strings.Contains(err.Error(), "A1") {
			t.Errorf("parsePending(%q) = %v", bad, err)
		}
	}
}

// TestSpecOfThisProject: the rules that the project has, and every citation of
// one, from product comments to documents.
func TestSpecOfThisProject(t *testing.T) {
	wrong, pending, rules, err := check("../..")
	if err != nil {
		t.Fatal(err)
	}
	if rules != 119 {
		t.Errorf("%s has %d rules, want 119", specFile, rules)
	}
	if pending > 0 {
		t.Errorf("%d rules are pending, and none was: the list may only shrink", pending)
	}
	for _, line := range wrong {
		t.Error(line)
	}
}

var span = regexp.MustCompile(`([A-Z])([0-9]+)(?: to [A-Z]([0-9]+))?`)

// TestHouseSaysWhereEachRuleLives: the table in docs/HOUSE.md has every rule that is not
// pending.
func TestHouseSaysWhereEachRuleLives(t *testing.T) {
	cited, err := read("../..")
	if err != nil {
		t.Fatal(err)
	}
	pending, err := parsePending(pendingList)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/HOUSE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Where a rule lives")
	lives := make(map[string]bool)
	for line := range strings.Lines(table) {
		rules, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		for _, found := range span.FindAllStringSubmatch(rules, -1) {
			first, _ := strconv.Atoi(found[2])
			last, _ := strconv.Atoi(cmp.Or(found[3], found[2]))
			for n := first; n <= last; n++ {
				lives[found[1]+strconv.Itoa(n)] = true
			}
		}
	}
	for _, rule := range cited.spec.rules {
		if _, waits := pending[rule]; lives[rule] == waits {
			t.Errorf("%s: in the table %v, pending %v", rule, lives[rule], waits)
		}
	}
}

func TestRunFailsWhereNothingIsCited(t *testing.T) {
	var out, trouble strings.Builder
	root := tree(t, map[string]string{specFile: "## 2. Compute once (F)\n\n- F1. One flight.\n"})
	if code := run(root, &out, &trouble); code != 1 || !strings.Contains(out.String(), "F1 is cited by no") {
		t.Errorf("code %d, %q", code, out.String())
	}
	for _, root := range []string{tree(t, nil), filepath.Join(t.TempDir(), "absent")} {
		trouble.Reset()
		if code := run(root, &out, &trouble); code != 2 || !strings.Contains(trouble.String(), "SPEC.md") {
			t.Errorf("no specification: code %d, %q", code, trouble.String())
		}
	}
}

func TestWhere(t *testing.T) {
	var out, trouble strings.Builder
	root := tree(t, map[string]string{
		specFile:      "## 2. Compute once (F)\n\n- F1. One flight.\n",
		"a/a_test.go": "package a\n\n// F1\n",
		"b/b.go":      "package b\n\n// Get is SPEC F1.\n",
	})
	if code := where(root, "F1", &out, &trouble); code != 0 || out.String() != "b/b.go:3\na/a_test.go:3\n" {
		t.Errorf("code %d, %q", code, out.String())
	}
	if code := where(root, "F2", &out, &trouble); code != 2 || !strings.Contains(trouble.String(), "F2 is no rule") {
		t.Errorf("code %d, %q", code, trouble.String())
	}
}
