package env

import (
	"os"
	"slices"
	"strings"
)

// own is how the names of variables begin that are Kiln's alone, shared how others
// begin that it reads.
const own = "KILN_"

var shared = []string{"ONEDNN_", "DNNL_"}

// Unknown is the Source of a Row that is a Stray's.
const Unknown Source = "unknown"

// Stray is a variable whose name begins like one of Kiln's, but which Kiln does not
// read: most likely a misspelt one.
type Stray struct {
	Name    string
	Nearest string // the known name that is at most two letters away, else empty
}

// Names lists the variables of this process's environment.
func Names() []string {
	pairs := os.Environ()
	names := make([]string, len(pairs))
	for i, pair := range pairs {
		names[i], _, _ = strings.Cut(pair, "=")
	}
	return names
}

// Strays gives the names that begin with KILN_ and that Read does not ask for, each
// once, sorted. They are no errors: another version of Kiln may know them. Of oneDNN's
// names it gives those that are nearly one that Read asks for.
func Strays(names []string) []Stray {
	var known []string
	for _, v := range variables {
		known = append(known, v.names...)
	}
	var all []Stray
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		begins := func(with string) bool { return strings.HasPrefix(name, with) }
		if slices.Contains(known, name) || !begins(own) && !slices.ContainsFunc(shared, begins) {
			continue
		}
		if near := nearest(name, known); near != "" || begins(own) {
			all = append(all, Stray{Name: name, Nearest: near})
		}
	}
	return all
}

// String is the variable as one line of a log, whatever its name contains.
func (s Stray) String() string { return quote(s.Name) + " " + s.help() }

func (s Stray) help() string {
	if s.Nearest == "" {
		return "is no variable of Kiln's"
	}
	return "is no variable that Kiln reads: is it meant to be " + s.Nearest + "?"
}

// Row is the variable as kiln env shows it, after the settings. The value is left
// out: it may belong to another program, and be a secret.
func (s Stray) Row() Row {
	return Row{Name: s.Name, Source: Unknown, Help: s.help(), Nearest: s.Nearest}
}

// nearest is the first of the known names with the fewest edits from name, if
// these are at most two.
func nearest(name string, known []string) string {
	const most = 2
	best, fewest := "", most+1
	for _, k := range known {
		if max(len(name)-len(k), len(k)-len(name)) > most {
			continue // it takes that many to be as long
		}
		if n := edits(name, k); n < fewest {
			best, fewest = k, n
		}
	}
	return best
}

// edits is the number of bytes to insert, remove or replace that make a of b, the
// distance of Levenshtein. Two that changed places are two.
func edits(a, b string) int {
	row := make([]int, len(b)+1) // of a's beginning so far, to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
