package capi

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// matches are what the first group of a pattern finds in a text, sorted.
func matches(pattern, text string) (found []string) {
	for _, m := range regexp.MustCompile("(?m)"+pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	slices.Sort(found)
	return found
}

// B4: kiln.h declares the functions that the library exports, and no others.
func TestHeaderHasTheFunctions(t *testing.T) {
	declared := matches(`^(?:kiln_status |const char \*)(kiln_\w+)\(`, read(t, "../../kiln.h"))
	exported := matches(`^//export (\w+)$`, read(t, "../../main.go"))
	if len(declared) < 10 || !slices.Equal(declared, exported) {
		t.Errorf("kiln.h declares %q, the library exports %q", declared, exported)
	}
}

// R3: the statuses of kiln.h have their numbers in order, up to the last that a call answers, and
// their names are those that the library gives.
func TestHeaderHasTheStatuses(t *testing.T) {
	_, after, _ := strings.Cut(read(t, "../../kiln.h"), "typedef int32_t kiln_status;")
	statuses, _, _ := strings.Cut(after, "};")
	var names []string
	for _, m := range regexp.MustCompile(`(KILN_\w+) = (\d+)`).FindAllStringSubmatch(statuses, -1) {
		if m[2] != strconv.Itoa(len(names)) {
			t.Errorf("%s is %s, want %d", m[1], m[2], len(names))
		}
		names = append(names, m[1])
	}
	var given []string
	for _, m := range regexp.MustCompile(`"(KILN_\w+)",`).FindAllStringSubmatch(read(t, "../../names_linux.c"), -1) {
		given = append(given, m[1])
	}
	if !slices.Equal(names, given) || len(names) != int(failed)+1 {
		t.Errorf("kiln.h has %q, the library names %q", names, given)
	}
}

// R3: no sentinel of package fault is without a status, a new one neither.
func TestNoSentinelIsForgotten(t *testing.T) {
	texts := matches(`^\tErr\w+ += errors\.New\("([^"]*)"`, read(t, "../../../../fault/fault.go"))
	if len(texts) < 10 {
		t.Fatalf("package fault has %q", texts)
	}
	for _, s := range sentinels {
		texts = slices.DeleteFunc(texts, func(text string) bool { return text == s.err.Error() })
	}
	if len(texts) > 0 {
		t.Errorf("without a status: %q", texts)
	}
}
