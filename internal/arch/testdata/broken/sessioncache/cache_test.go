package sessioncache_test

import (
	"os"
	"testing"

	_ "github.com/asynkron/protoactor-go/actor"
	"github.com/kiln-cache/kiln/constants"
)

func TestMayStartGoroutines(t *testing.T) {
	go func() {}()
	os.Getenv("NOT_EVEN_IN_TESTS")
	new(constants.Cache).Tested()
}
