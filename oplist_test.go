package kiln_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
)

// operation is a line of an op list, as far as it says what is computed.
type operation struct {
	Name     string
	Kind     string
	Src, Dst json.RawMessage
	Weights  []struct{ Shape json.RawMessage }
	Attr     string
}

// identity is what two operations that compute the same have in common.
func (o operation) identity() string {
	o.Name = ""
	return fmt.Sprintf("%s", o)
}

// operations are those of an op list: the lines behind its header.
func operations(t *testing.T, list []byte) (all []operation) {
	t.Helper()
	lines := json.NewDecoder(bytes.NewReader(list))
	var header json.RawMessage
	if err := lines.Decode(&header); err != nil {
		t.Fatal(err)
	}
	for lines.More() {
		var o operation
		if err := lines.Decode(&o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}
