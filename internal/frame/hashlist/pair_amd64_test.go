package hashlist

import "testing"

// Without the extensions the lists are the same.
func TestWithoutExtensions(t *testing.T) {
	if !extended {
		t.Skip("this processor has no SHA extensions: the other tests ran without them")
	}
	extended = false
	defer func() { extended = true }()
	t.Run("list", TestList)
	t.Run("pair", TestPair)
}
