package kiln_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/env"
)

const driverCachesChild = "TEST_DRIVER_CACHES_DIR"

// Drivers that bound their own caches are given a tenth of the store's capacity
// (docs/devices.md). The variables are a process's, and set once: it is a child's.
func TestDriverCachesHaveATenthOfTheStore(t *testing.T) {
	if dir, child := env.Process()(driverCachesChild); child {
		var bytes kiln.Limit // not given: the directory has its own from the process before
		if _, err := os.Stat(dir); err != nil {
			bytes = kiln.LimitOf(100 << 20)
		}
		rt := must(kiln.Open(kiln.Config{StoreDir: dir, StoreBytes: bytes, DriverCaches: true,
			Lookup: func(string) (string, bool) { return "", false }}))
		mesa, _ := env.Process()("MESA_SHADER_CACHE_MAX_SIZE")
		cuda, _ := env.Process()("CUDA_CACHE_MAXSIZE")
		fmt.Println("bounds", mesa, cuda)
		if err := rt.Close(ctx); err != nil {
			t.Error(err)
		}
		return
	}
	dir := filepath.Join(t.TempDir(), "store")
	for range 2 {
		cmd := exec.CommandContext(t.Context(), must(os.Executable()), "-test.run=^"+t.Name()+"$")
		cmd.Env = append(slices.DeleteFunc(cmd.Environ(), func(v string) bool { return strings.Contains(v, "_CACHE_") }), driverCachesChild+"="+dir)
		text, err := cmd.CombinedOutput()
		if want := "bounds 10240K 10485760"; err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%v, %s: want %s", err, text, want)
		}
	}
}
