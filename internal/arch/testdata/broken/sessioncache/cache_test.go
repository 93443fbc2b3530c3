package sessioncache_test

import (
	"os"
	"testing"

	_ "github.com/asynkron/protoactor-go/actor"
)

func TestMayStartGoroutines(t *testing.T) {
	go func() {}()
	os.Getenv("NOT_EVEN_IN_TESTS")
}
