package env

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/size"
	"github.com/kiln-cache/kiln/limit"
)

const (
	auto = "auto"
	off  = "off"

	mostWorkers = 4096    // beyond every machine, and a typing error by then
	mostStep    = 1 << 48 // of a bucketing: the largest dimension of a shape
)

// errNotSaid refuses a variable that is set to nothing.
var errNotSaid = errors.New("the value is empty: unset the variable for its default")

func parseLimit(text string) (limit.Limit, error) { return limit.Parse(text) }

func parseSize(text string) (limit.Limit, error) { return size.Parse(text, size.MiB) }

func parsePath(text string) (string, error) {
	if text == "" {
		return "", errNotSaid
	}
	if strings.ContainsRune(text, 0) {
		return "", errors.New("the path holds a zero byte: want the path of a directory")
	}
	return text, nil
}

// parsePaths reads a list as PATH is one. An empty entry, which PATH takes for the working
// directory, is refused.
func parsePaths(text string) (string, error) {
	if i := slices.Index(filepath.SplitList(text), ""); i >= 0 {
		return "", fmt.Errorf("entry %d of %s is empty: want the path of a directory", i+1, quote(text))
	}
	return parsePath(text)
}

func oneOf(words ...string) func(string) (string, error) {
	return func(text string) (string, error) {
		for _, word := range words {
			if text == word {
				return word, nil
			}
		}
		return "", fmt.Errorf("%s is none of: %s", quote(text), strings.Join(words, ", "))
	}
}

func parseBucket(text string) (string, error) {
	word, step, stepped := strings.Cut(text, ":")
	switch {
	case (word == "exact" || word == "pow2") && !stepped:
		return text, nil
	case (word == "multiple" || word == "geometric") && stepped:
		l, err := limit.Parse(step)
		if n, counted := l.Value(); err == nil && counted && n > 0 && n <= mostStep && step[0] != '0' {
			return text, nil
		}
		return "", fmt.Errorf("%s: the number behind the colon is %s: want 1 to %d", quote(text), quote(step), int64(mostStep))
	}
	return "", fmt.Errorf("%s is none of: exact, multiple:N, pow2, geometric:K", quote(text))
}

func parseWorkers(text string) (Workers, error) {
	if text == auto {
		return AutoWorkers, nil
	}
	l, err := limit.Parse(text)
	if n, counted := l.Value(); err == nil && counted && n >= 1 && n <= mostWorkers {
		return Workers(n), nil
	}
	return 0, fmt.Errorf("%s: want 1 to %d, or %s", quote(text), mostWorkers, auto)
}

// ParseMemoryLimit reads "off", "auto" or a size of at least 1 MiB, as KILN_MEMORY_LIMIT:
// a number of MiB, or one with its unit such as 512MiB or 4GiB.
// Anything else is a fault.ErrInvalid.
func ParseMemoryLimit(text string) (MemoryLimit, error) {
	m, err := parseMemoryLimit(text)
	if err != nil {
		return m, fault.Invalidf("env: memory limit", "%w", err)
	}
	return m, nil
}

func parseMemoryLimit(text string) (MemoryLimit, error) {
	switch text {
	case off:
		return MemoryLimit{}, nil
	case auto:
		return MemoryLimit{Auto: true}, nil
	}
	l, err := size.Parse(text, size.MiB)
	if n, counted := l.Value(); err == nil && counted && n >= size.MiB {
		return MemoryLimit{Bytes: n}, nil
	}
	return MemoryLimit{}, fmt.Errorf("%s: want %s or %s, or from 1 MiB on %s", quote(text), off, auto, size.Grammar)
}

// why is what an error says beyond that an argument is invalid, which a refusal
// says itself.
func why(err error) string {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Err != nil {
		err = e.Err
	}
	return strings.TrimPrefix(err.Error(), fault.ErrInvalid.Error()+": ")
}

// quote is text as a Go literal, at a length that a log line bears.
func quote(text string) string {
	const most = 40
	if len(text) > most {
		return fmt.Sprintf("%q...", text[:most])
	}
	return fmt.Sprintf("%q", text)
}
