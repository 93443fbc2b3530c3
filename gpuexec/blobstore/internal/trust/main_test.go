package trust_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/trust"
)

var child = flag.String("child", "", "list that a child process opens, to say what came of it")

func TestMain(m *testing.M) {
	flag.Parse()
	if *child != "" {
		_, err := trust.Open(*child)
		fmt.Print(err)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
