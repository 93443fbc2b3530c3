package main

import (
	"os"
	"path/filepath"
	"slices"
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

func TestGather(t *testing.T) {
	known := strings.Fields(ruleList)
	root := tree(t, map[string]string{
		scripts + "/a.kiln":               "case X1 rules=K1,K2\nopen c artefacts\n# case X2 rules=K3\n",
		scripts + "/deep/b.kiln":          "  case X3 needs=gpu rules=K4,X9 # why\n",
		"elsewhere/c.kiln":                "case X4 rules=K5\n",
		"room/testdata/d_test.go":         "package d // K5\n",
		".hidden/e_test.go":               "package e // K5\n",
		"room/f.go":                       "package f // K5\n",
		"room/g_test.go":                  "package g\n\n// F6\n\n// F1, F2: both\n\n// F3 and F4.\n\nvar a = 1 // F5\n\nvar s = \"// K5\"\n",
		"room/h_test.go":                  "package g\n\n/* G1\n G2 */\n\n// The rule of SPEC G3, and this one (G4, G5).\n\n// Words before K5 cite nothing, nor do K6x or (xK6).\n",
		"room/testdata/fuzz/FuzzX/0_test": "K5",
	})
	cited, err := gather(root, known)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for rule := range cited.places {
		got = append(got, rule)
	}
	slices.Sort(got)
	want := strings.Fields("F1 F2 F3 F4 F5 F6 G1 G2 G3 G4 G5 K1 K2 K4")
	if !slices.Equal(got, want) {
		t.Errorf("cited %v, want %v", got, want)
	}
	if place := cited.places["G2"]; len(place) != 1 || place[0] != "room/h_test.go:4" {
		t.Errorf("G2 at %v", place)
	}
	if len(cited.unknown) != 1 || !strings.Contains(cited.unknown[0], "deep/b.kiln:1: X9") {
		t.Errorf("unknown %v; want X9 with its place", cited.unknown)
	}
}

func TestJudge(t *testing.T) {
	cited := citations{places: map[string][]string{"A1": {"x"}, "A3": {"y:7"}}, unknown: []string{"z"}}
	got := judge([]string{"A1", "A2", "A3", "A4"}, map[string]string{"A3": "later", "A4": "later", "A9": "later"}, cited)
	want := []string{
		"A2 is cited by no conformance script and no test",
		"A3 is pending and yet cited by y:7: take it out of pending.txt",
		"A9 is pending and no rule of rules.txt",
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

func TestLists(t *testing.T) {
	known := strings.Fields(ruleList)
	if len(known) != 106 {
		t.Errorf("rules.txt has %d rules", len(known))
	}
	for i, rule := range known {
		if slices.Contains(known[:i], rule) || !citation.MatchString(rule) {
			t.Errorf("rules.txt: %s", rule)
		}
	}
	if _, err := parsePending(pendingList); err != nil {
		t.Error(err)
	}
}

func TestRunFailsWhereNothingIsCited(t *testing.T) {
	var out, trouble strings.Builder
	if code := run(tree(t, nil), &out, &trouble); code != 1 || !strings.Contains(out.String(), "F6 is cited by no") {
		t.Errorf("code %d, %q", code, out.String())
	}
	if code := run(filepath.Join(t.TempDir(), "absent"), &out, &trouble); code != 2 || trouble.Len() == 0 {
		t.Errorf("an absent root: code %d, %q", code, trouble.String())
	}
}
