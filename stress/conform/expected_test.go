package conform

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
)

// waiting are the cases that wait for a component, by ID, with what they wait
// for. The command knows no expected failures.
type waiting map[string]string

// readWaiting reads lines `ID what it waits for`; # begins a comment.
func readWaiting(r io.Reader) (waiting, error) {
	e := waiting{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		id, why, _ := strings.Cut(strings.TrimSpace(text), " ")
		if id == "" {
			continue
		}
		if why = strings.TrimSpace(why); why == "" {
			return nil, fmt.Errorf("line %d: say what %s waits for", n, id)
		}
		if _, twice := e[id]; twice {
			return nil, fmt.Errorf("line %d: %s is listed twice", n, id)
		}
		e[id] = why
	}
	return e, lines.Err()
}

// judge turns the failure of a listed case into a skip, and its success into a
// failure: then the list has to be mended.
func (e waiting) judge(o engine.Outcome) engine.Outcome {
	why, listed := e[o.Case]
	switch {
	case !listed:
	case o.Result == engine.Fail:
		o.Result, o.Got = engine.Skip, "waits for "+why+": "+o.Got
	case o.Result == engine.Pass:
		o.Result, o.Got, o.Want = engine.Fail, "passes", "a failure: "+o.Case+" is listed as waiting for "+why+"; take it off the list"
	}
	return o
}
