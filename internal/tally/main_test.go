package main

import (
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	const in = `make: a line of its own
{"Action":"start","Package":"a"}
{"Action":"run","Package":"a","Test":"TestGood"}
{"Action":"output","Package":"a","Test":"TestGood","Output":"chatter\n"}
{"Action":"pass","Package":"a","Test":"TestGood/sub"}
{"Action":"pass","Package":"a","Test":"TestGood"}
{"Action":"output","Package":"a","Test":"TestSkipped","Output":"a_test.go:9: no device\n"}
{"Action":"skip","Package":"a","Test":"TestSkipped"}
{"Action":"pass","Package":"a","Elapsed":1.25}
{"Action":"output","Package":"b","Test":"TestBad/sub","Output":"b_test.go:7: why\n"}
{"Action":"fail","Package":"b","Test":"TestBad/sub"}
{"Action":"fail","Package":"b","Test":"TestBad"}
{"Action":"fail","Package":"b","Elapsed":2}
{"ImportPath":"c","Action":"build-output","Output":"c.go:1: undefined: x\n"}
{"ImportPath":"c","Action":"build-fail"}
{"Action":"fail","Package":"c","Elapsed":0,"FailedBuild":"c"}
{"Action":"output","Package":"d","Test":"TestFatal","Output":"fatal error: of the process\n"}
{"Action":"output","Package":"d","Output":"exit status 2\n"}
{"Action":"fail","Package":"d","Elapsed":0}
{"Action":"output","Package":"e","Output":"?   e [no test files]\n"}
{"Action":"skip","Package":"e","Elapsed":0}
{"not":"an event"}
`
	var out strings.Builder
	got, err := read(strings.NewReader(in), &out)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != "1 passed, 3 failed" || got.skipped != 1 {
		t.Errorf("total %q", got)
	}
	const want = `make: a line of its own
a_test.go:9: no device
ok    a  1.2s
b_test.go:7: why
FAIL  b  2.0s
c.go:1: undefined: x
FAIL  c  0.0s
exit status 2
fatal error: of the process
FAIL  d  0.0s
{"not":"an event"}
`
	if out.String() != want {
		t.Errorf("printed:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestReadOfNothingRan(t *testing.T) {
	got, err := read(strings.NewReader("make: stopped"), new(strings.Builder))
	if err != nil || got.String() != "0 passed, 0 failed" {
		t.Errorf("read = %q, %v", got, err)
	}
}
