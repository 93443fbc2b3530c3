package processor

import (
	"os"
	"runtime"
	"slices"
	"strings"
)

// Read gives the model, and the features by the names of Linux, sorted: what the kernel
// says of the first processor. Where it says nothing there are no features.
func Read() (model string, isa []string) {
	model = runtime.GOARCH
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return model, nil
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); strings.TrimSpace(name) {
		case "model name":
			model = value
		case "flags", "Features":
			isa = strings.Fields(value)
			slices.Sort(isa)
			return model, isa
		}
	}
	return model, nil
}
