// Package dl opens shared libraries, and tells which files a process has mapped.
package dl

import (
	"os"
	"regexp"
	"strconv"
	"strings"
)

// Mapping is a part of a file in the process's addresses, From to before To.
type Mapping struct {
	From, To uintptr
	Path     string
}

// Has is whether an address is in it.
func (m Mapping) Has(at uintptr) bool { return m.From <= at && at < m.To }

var mapped = regexp.MustCompile(`^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s+(/.*)$`)

// Mappings are those of the process, by address; none where the system is not Linux.
func Mappings() []Mapping {
	text, _ := os.ReadFile("/proc/self/maps")
	var all []Mapping
	for line := range strings.Lines(string(text)) {
		m := mapped.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		from, err1 := strconv.ParseUint(m[1], 16, strconv.IntSize)
		to, err2 := strconv.ParseUint(m[2], 16, strconv.IntSize)
		if err1 == nil && err2 == nil {
			all = append(all, Mapping{uintptr(from), uintptr(to), m[3]})
		}
	}
	return all
}
