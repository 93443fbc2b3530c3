package cpu

import (
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// readMachine reads what the kernel says of the processor and the memory.
func readMachine() hardware {
	h := hardware{model: runtime.GOARCH}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		h.memory = int64(info.Totalram) * int64(info.Unit)
	}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return h
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); strings.TrimSpace(name) {
		case "model name":
			h.model = value
		case "flags", "Features":
			h.isa = strings.Fields(value)
			slices.Sort(h.isa)
			return h
		}
	}
	return h
}
