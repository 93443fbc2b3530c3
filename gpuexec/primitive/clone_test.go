package primitive

import (
	"reflect"
	"testing"
)

// A copy shares no list with its original: whatever is changed in the original,
// at any depth, is not seen in the copy.
func TestCloneSharesNothing(t *testing.T) {
	s := full()
	want := *full()
	c := s.clone()
	var scramble func(v reflect.Value)
	scramble = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				scramble(v.Field(i))
			}
		case reflect.Slice:
			for i := range v.Len() {
				scramble(v.Index(i))
			}
		default:
			v.SetZero()
		}
	}
	scramble(reflect.ValueOf(s).Elem())
	if !reflect.DeepEqual(c, want) {
		t.Errorf("the copy became %+v", c)
	}
}
