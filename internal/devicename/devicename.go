// Package devicename parses the names that users give devices: cpu, opencl:1.
package devicename

import (
	"strconv"
	"strings"
)

// Parse gives the backend of a name and the number of its device, 0 where the name has
// none. ok reports whether the number is one as Go writes it, not below 0.
func Parse(name string) (backend string, index int, ok bool) {
	backend, text, numbered := strings.Cut(name, ":")
	if !numbered {
		return backend, 0, true
	}
	index, err := strconv.Atoi(text)
	if err != nil || index < 0 || strconv.Itoa(index) != text {
		return backend, 0, false
	}
	return backend, index, true
}
