package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

// P3: a blob of no bytes is one: get makes its file, and says so.
func TestCacheEmptyValue(t *testing.T) {
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	key := file(t, "key", "a")
	done(t, "cache", "put", "--dir", dir, "--key-file", key, "--value-file", file(t, "value", ""))
	get := []string{"cache", "get", "--dir", dir, "--key-file", key}
	same(t, object(t, exitDone, append(get, "--out", out)...), "[bytes:0 compile_seconds:0 hit:true]")
	if text, err := os.ReadFile(out); err != nil || len(text) > 0 {
		t.Errorf("%q, %v", text, err)
	}
	same(t, object(t, exitDone, append(get, "--out", filepath.Join(t.TempDir(), "out"))...), "[bytes:0 compile_seconds:0 hit:true]")
}

// P7: a directory may be given no bound.
func TestCacheWithoutBound(t *testing.T) {
	dir := t.TempDir()
	key := file(t, "key", "a")
	done(t, "cache", "put", "--dir", dir, "--key-file", key, "--value-file", key, "--capacity", "unlimited")
	if got := object(t, exitDone, "cache", "stats", "--dir", dir)["capacity_bytes"]; got != "unlimited" {
		t.Errorf("capacity: %v", got)
	}
}

// Where there are no entries of a backend each subcommand says what it says of none, and an
// archive stays.
func TestCacheOfNoEntries(t *testing.T) {
	dir, archive := stocked(t, "a"), file(t, "archive", "of before")
	for want, args := range map[string][]string{"0 entries, ": {"stats"}, "0 bad entries, 0 looked at\n": {"verify"}, "0 entries evicted; ": {"prune", "--to", "0"}} {
		code, out, _ := invoke(append([]string{"cache"}, append(args, "--dir", dir, "--backend", "foo")...)...)
		if code != exitDone || !strings.HasPrefix(out, want) {
			t.Errorf("%v: exit %d, %q", args, code, out)
		}
	}
	for _, more := range [][]string{nil, {"--json"}} {
		code, _, errs := invoke(append([]string{"cache", "export", archive, "--dir", dir, "--backend", "foo"}, more...)...)
		text, err := os.ReadFile(archive)
		if code != exitNotFound || !strings.Contains(errs, "no entries of backend foo") || string(text) != "of before" || err != nil {
			t.Errorf("export %v: exit %d, %q, the archive is %q, %v", more, code, errs, text, err)
		}
	}
}

// An identity is one object, and nothing after it.
func TestCacheIdentityIsOneObject(t *testing.T) {
	key := file(t, "key", "a")
	for _, tail := range []string{"}", "1", " x"} {
		identity := file(t, "identity.json", `{"library":"kiln","build":"b"}`+tail)
		refused(t, []string{"cache", "get", "--dir", stocked(t), "--key-file", key, "--identity", identity}, "more after the object")
	}
}

// R2: what is nearest to a hit answers: an entry of the key, then one with fewer factors that
// differ, and last a backend that this binary knows nothing of.
func TestCacheExplainsTheNearest(t *testing.T) {
	dir := stocked(t, "a")
	identity := file(t, "identity.json", `{"library":"kiln","build":"b"}`)
	key := file(t, "key", "b")
	done(t, "cache", "put", "--dir", dir, "--key-file", key, "--value-file", key, "--backend", "zzz", "--identity", identity)
	if x := object(t, exitDone, "cache", "explain", "--dir", dir, "--key-file", file(t, "key", "c")); x["reason"] != "absent" {
		t.Errorf("a key that no backend has: %v", x["reason"])
	}
	of := func(reason fault.Reason, nearest string, factors ...string) blobstore.Explanation {
		return blobstore.Explanation{Miss: blobstore.Miss{Reason: reason}, Nearest: nearest, Factors: factors}
	}
	order := []blobstore.Explanation{{}, of(fault.Outdated, "e", "driver", "device"), of(fault.Absent, "e", "shape"), of(fault.Absent, "e", "shape", "type"), of(fault.Disabled, "")}
	for i := range order[1:] {
		if distance(order[i]) >= distance(order[i+1]) {
			t.Errorf("%v is not nearer than %v", order[i], order[i+1])
		}
	}
}

// P4: a repair that could not set all aside says so.
func TestCacheRepairsSome(t *testing.T) {
	dir := stocked(t, "a", "b")
	all := kernels(t, dir)
	flip(t, all[0], 1)
	if err := os.Chmod(all[1], 0o666); err != nil {
		t.Fatal(err)
	}
	found := object(t, exitFinding, "cache", "verify", "--dir", dir, "--repair")
	if found["repaired"] != false || len(found["bad"].([]any)) != 2 {
		t.Errorf("%v", found)
	}
}
