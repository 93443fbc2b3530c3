package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// P8: a key that has an entry keeps it, and put says so, and what to do.
func TestCachePutOverAnEntry(t *testing.T) {
	dir := stocked(t, "a")
	put := []string{"cache", "put", "--dir", dir, "--key-file", file(t, "key", "a"), "--value-file", file(t, "value", "new")}
	get := []string{"cache", "get", "--dir", dir, "--key-file", file(t, "key", "a")}
	if o := object(t, exitDone, put...); o["stored"] != false {
		t.Errorf("over an entry: %v", o)
	}
	entry := filepath.Dir(kernels(t, dir)[0])
	if text := done(t, put...); !strings.Contains(text, "has an entry already") || !strings.Contains(text, "remove the folder "+entry+" ") {
		t.Errorf("over an entry: %s", text)
	}
	if got := done(t, get...); got != "aa" {
		t.Errorf("the value is %q", got)
	}
	if err := os.RemoveAll(entry); err != nil {
		t.Fatal(err)
	}
	if o := object(t, exitDone, put...); o["stored"] != true || done(t, get...) != "new" {
		t.Errorf("in the place of an entry: %v", o)
	}
	code, out, errs := invoke(append(put[:4:4], "--key-file", file(t, "key", "b"), "--value-file", file(t, "value", strings.Repeat("v", 1<<20)), "--capacity", "1")...)
	if code != exitFailed || out != "" || !strings.Contains(errs, "too_large") || !strings.Contains(errs, "raise --capacity") {
		t.Errorf("too large: exit %d, %q, %q", code, out, errs)
	}
	if s := object(t, exitDone, "cache", "stats", "--dir", dir); s["capacity_bytes"] != float64(1<<30) { // P7: it failed
		t.Errorf("after a put that failed: %v", s)
	}
}

// A blob that can never fit makes no store: the capacity is compared with what the store would
// write, to the block.
func TestCachePutTooLarge(t *testing.T) {
	key := file(t, "key", "k")
	for _, c := range []struct {
		capacity, variable string
		bytes              int
		fits               bool
	}{
		{"8KiB", "1024", 3 << 10, true},
		{"8KiB", "1024", 4 << 10, false}, // with its head it is more than a block
		{"12KiB", "1024", 4 << 10, true},
		{"", "1", 1 << 20, false},
		{"", "1", 1<<20 - 8<<10, true},
	} {
		t.Setenv("KILN_STORE_CAPACITY", c.variable)
		dir := filepath.Join(t.TempDir(), "store")
		put := []string{"cache", "put", "--dir", dir, "--key-file", key, "--value-file", file(t, "value", strings.Repeat("v", c.bytes))}
		if c.capacity != "" {
			put = append(put, "--capacity", c.capacity)
		}
		if c.fits {
			done(t, put...)
			continue
		}
		code, out, errs := invoke(put...)
		if code != exitFailed || out != "" || !strings.Contains(errs, "too_large") || !strings.Contains(errs, "raise --capacity") {
			t.Errorf("%+v: exit %d, %q, %q", c, code, out, errs)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%+v: there is a store (%v)", c, err)
		}
	}
	put := []string{"cache", "put", "--dir", filepath.Join(t.TempDir(), "store"), "--value-file", file(t, "value", strings.Repeat("v", 1<<20))}
	done(t, append(put, "--key-file", key, "--capacity", "5")...)
	done(t, append(put, "--key-file", file(t, "other", "o"))...) // the directory has a capacity
}

// A backend that is named bounds what a subcommand sees and touches to its
// entries, and none is named by default.
func TestCacheOfOneBackend(t *testing.T) {
	dir := stocked(t, "a", "b")
	gpu := []string{"--backend", "gpu"}
	identity := file(t, "identity.json", `{"library":"kiln","build":"b","compiler":"c","driver":"1","device":"d","isa":[]}`)
	for _, key := range []string{"x", "y", "z"} {
		done(t, append([]string{"cache", "put", "--dir", dir, "--key-file", file(t, "key", key), "--value-file", file(t, "value", key), "--identity", identity}, gpu...)...)
	}
	flip(t, kernels(t, dir)[0], 1)
	verb := func(code int, dir, verb string, args ...string) map[string]any {
		return object(t, code, append([]string{"cache", verb, "--dir", dir}, args...)...)
	}
	entries := func(dir string) string {
		return fmt.Sprint(verb(exitDone, dir, "stats")["entries"], verb(exitDone, dir, "stats", gpu...)["entries"])
	}
	if got := entries(dir); got != "5 3" {
		t.Errorf("stats: %s", got)
	}
	if by := verb(exitDone, dir, "stats", gpu...)["by_backend"]; len(by.(map[string]any)) != 1 {
		t.Errorf("stats: %v", by)
	}
	if n := strings.Count(done(t, append([]string{"cache", "ls", "--dir", dir}, gpu...)...), "gpu/"); n != 3 {
		t.Errorf("ls: %d entries", n)
	}
	same(t, verb(exitDone, dir, "verify", gpu...), "[bad:[] looked_at:3 repaired:false]")
	verb(exitFinding, dir, "verify", "--backend", "cpu")
	archive := filepath.Join(t.TempDir(), "archive")
	same(t, verb(exitDone, dir, "export", append(gpu, archive)...), "[rejected:map[] taken:3]")
	from := filepath.Join(t.TempDir(), "from")
	verb(exitFinding, from, "merge", dir)
	same(t, verb(exitDone, from, "export", archive), "[rejected:map[] taken:4]")
	for _, way := range [][]string{{"import", archive}, {"merge", dir}} {
		into := filepath.Join(t.TempDir(), "into")
		same(t, verb(exitDone, into, way[0], append(gpu, way[1])...), "[evicted:0 kept:3 known:0 new:3 rejected:map[] taken:3]")
		if got := entries(into); got != "3 3" {
			t.Errorf("%s: %s", way[0], got)
		}
	}
	verb(exitDone, dir, "prune", append(gpu, "--to", "0")...)
	if got := entries(dir); got != "2 0" {
		t.Errorf("pruned: %s", got)
	}
}

// P15: with --trust, import and merge take only what a key of the list has signed, and
// a list that is none is refused before anything is made.
func TestCacheImportTrusts(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := stocked(t, "a")
	id := gpuexec.Identity{Library: "l", Build: "b"}
	s, err := blobstore.Open(t.Context(), blobstore.Config{Dir: dir, Capacity: limit.Unlimited, Signer: &blobstore.Signer{ID: "ci", Key: private}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.For(id).Put(t.Context(), "cpu", "signed", []byte("v"), 0), s.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "archive")
	done(t, "cache", "export", archive, "--dir", dir)
	trust := file(t, "trust", fmt.Sprintf(`{"keys":[{"id":"ci","public":%q}]}`, base64.StdEncoding.EncodeToString(public)))
	for _, way := range [][]string{{"import", archive}, {"merge", dir}} {
		to := filepath.Join(t.TempDir(), "to")
		call := append([]string{"cache"}, append(way, "--dir", to, "--trust")...)
		code, _, errs := invoke(append(call, archive+"-not")...)
		if _, err := os.Stat(to); code != exitUsage || !strings.Contains(errs, "--trust: ") || err == nil {
			t.Errorf("%v: a list that is not there: exit %d, %q, %v", way, code, errs, err)
		}
		refused(t, []string{"cache", way[0], archive + "-either", "--dir", to, "--trust", archive + "-not"}, "--trust: ", "archive-not: ")
		same(t, object(t, exitFinding, append(call, trust)...), "[evicted:0 kept:1 known:0 new:1 rejected:map[unsigned:1] taken:1]")
	}
}

// A "-" for the one file that a subcommand reads or writes is a stream, and else refused: nothing
// makes a file of that name.
func TestCacheStreams(t *testing.T) {
	t.Chdir(t.TempDir())
	piped := func(code int, input string, args ...string) (string, string) {
		t.Helper()
		var out, errs bytes.Buffer
		if got := Main(args, strings.NewReader(input), &out, &errs); got != code {
			t.Errorf("kiln %v: exit %d, want %d: %q", args, got, code, errs.String())
		}
		return out.String(), errs.String()
	}
	dir, key, value := stocked(t, "a"), file(t, "key", "k"), file(t, "value", "vv")
	at := []string{"--dir", dir}
	cache := func(verb string, args ...string) []string {
		return slices.Concat([]string{"cache", verb}, at, args)
	}
	piped(exitDone, "k", cache("put", "--key-file", "-", "--value-file", value)...)
	piped(exitDone, "second", cache("put", "--key-file", file(t, "key", "2"), "--value-file", "-")...)
	for _, args := range [][]string{{"--key-file", key}, {"--key-file", key, "--out", "-"}} {
		if out, errs := piped(exitDone, "", cache("get", args...)...); out != "vv" || errs != "" {
			t.Errorf("get %v: %q, %q", args, out, errs)
		}
	}
	if out, _ := piped(exitDone, "2", cache("get", "--key-file", "-")...); out != "second" {
		t.Errorf("get of a key from a pipe: %q", out)
	}
	entry, _, _ := strings.Cut(done(t, cache("ls")...), " ")
	if out, _ := piped(exitDone, "", cache("inspect", entry, "--key-out", "-")...); len(out) != 1 {
		t.Errorf("the key alone: %q", out)
	}
	archive, errs := piped(exitDone, "", cache("export", "-")...)
	if named := filepath.Join(t.TempDir(), "archive"); done(t, cache("export", named)...) != errs || errs != "3 entries written\n" {
		t.Errorf("export: %q", errs)
	} else if text, err := os.ReadFile(named); string(text) != archive {
		t.Errorf("another archive: %v", err)
	}
	at[1] = filepath.Join(t.TempDir(), "into")
	if out, errs := piped(exitDone, archive, cache("import", "-")...); out != "3 new, 0 known before; 3 entries kept, 0 evicted\n" || errs != "" {
		t.Errorf("import: %q, %q", out, errs)
	}
	if _, errs := piped(exitUsage, archive[:len(archive)/2], cache("import", "-")...); !strings.Contains(errs, "not all of one") {
		t.Errorf("import of a half: %q", errs)
	}
	refused(t, cache("put", "--key-file", "-", "--value-file", "-"), "--key-file - and --value-file -", "want a file")
	refused(t, cache("export", "-", "--json"), "--json with -")
	refused(t, cache("get", "--key-file", key, "--out", "-", "--json"), "--json with -")
	for _, args := range [][]string{cache("import", archive, "--trust", "-"), cache("get", "--key-file", key, "--identity", "-"),
		{"run", "--trace", "-"}, {"run", "--record", "-"}, {"run", "--plot", "-"}, {"warm", "--manifest", "-"}, {"shapes", "advise", "--trace", "-"}} {
		refused(t, args, "not - for a stream")
	}
	if list, err := os.ReadDir("."); len(list) > 0 || err != nil {
		t.Errorf("made %v, %v", list, err)
	}
}

// R2: explain names the fields of an operation's key in which the nearest entry
// of the same kind differs.
func TestCacheExplainsOperations(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	done(t, append(slices.Clone(tiny), "--requests", "6", "--passes", "1", "--store", dir)...)
	inspected := func(entry string) string {
		return object(t, exitDone, "cache", "inspect", entry, "--dir", dir)["key"].(string)
	}
	real := ""
	for row := range strings.Lines(done(t, "cache", "ls", "--dir", dir, "--json")) {
		var r struct{ Entry string }
		if err := json.Unmarshal([]byte(row), &r); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(inspected(r.Entry), "layernorm descriptor=") {
			key, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(r.Entry), "key.bin"))
			if err != nil {
				t.Fatal(err)
			}
			real = string(key)
		}
	}
	factors := primitive.Factors("cpu", real)
	if factors == nil {
		t.Fatalf("no layernorm in the store: %q", real)
	}
	stated, err := strconv.Unquote(factors["descriptor"])
	if err != nil {
		t.Fatal(err)
	}
	asked := func(rows, width int64, stated string) string {
		op := ops.New(ops.LayerNorm, rows, width)
		op.Epsilon = 1e-12
		s := primitive.Of(op, "", stated)
		s.Engine = "cpu"
		_, key, err := s.Keys("cpu", gpuexec.Identity{})
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	rows, err := strconv.ParseInt(factors["rows"], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		asked(rows, 128, stated):        "[]", // a hit
		asked(980, 128, stated):         "[rows]",
		asked(rows, 128, stated+" too"): "[descriptor]",
		"unlike any":                    "[]",
	} {
		x := object(t, exitDone, "cache", "explain", "--dir", dir, "--key-file", file(t, "key", key))
		if fmt.Sprint(x["factors"]) != want || x["hit"] != (key == real) || want != "[]" && !strings.HasPrefix(inspected(x["nearest"].(string)), "layernorm ") {
			t.Errorf("%q: %v, want %s", key, x, want)
		}
	}
}

// sum adds up a field of the objects that have it, one a line.
func sum(t *testing.T, lines, field string) (of float64) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(lines)); d.More(); {
		var o map[string]any
		if err := d.Decode(&o); err != nil {
			t.Fatal(err)
		}
		n, _ := o[field].(float64)
		of += n
	}
	return of
}

// A directory that is no store is refused by what looks into one and by what removes
// entries, and nothing is made in it.
func TestCacheNoStore(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "notes"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, verb := range [][]string{{"put", "--key-file", file(t, "key", "k"), "--value-file", file(t, "value", "v")}, {"merge", stocked(t, "a")}} {
		refused(t, append([]string{"cache"}, append(verb, "--dir", dir)...), "--store", "this is no store, and has other files", "notes", "or a new one")
	}
	for _, verb := range [][]string{{"ls"}, {"stats"}, {"verify"}, {"verify", "--repair"}, {"prune", "--to", "0"}, {"inspect", "cpu/1/0"}, {"export", filepath.Join(dir, "notes")}} {
		refused(t, append([]string{"cache"}, append(verb, "--dir", dir)...), "--store", "no directory of a store")
	}
	if list, err := os.ReadDir(dir); len(list) != 1 || err != nil {
		t.Errorf("made something: %v, %v", list, err)
	}
}

// R2, P12: what a Go program compiles for itself is explained too: for this binary,
// or for the program that --identity names.
func TestExplainOfAGoProgram(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	rt, err := kiln.Open(kiln.Config{StoreDir: dir, Lookup: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	session, err := rt.Session(kiln.SessionConfig{})
	if err != nil {
		t.Fatal(err)
	}
	group, err := session.Group(t.Context(), []int64{1})
	if err != nil {
		t.Fatal(err)
	}
	made := kiln.Made[string]{Value: "v", Blob: func(context.Context) ([]byte, error) { return []byte("v"), nil }}
	if _, err := kiln.Get(t.Context(), group, "n", kiln.Recipe[string]{Key: "k",
		Make: func(context.Context) (kiln.Made[string], error) { return made, nil },
		Load: func(context.Context, []byte) (kiln.Made[string], error) { return made, nil }}); err != nil {
		t.Fatal(err)
	}
	group.Close()
	if err := rt.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"cache", "explain", "--dir", dir, "--backend", "go", "--key-file", file(t, "key", "k")}
	for _, identity := range [][]string{nil, {"--identity", self}} {
		if x := object(t, exitDone, append(args, identity...)...); x["hit"] != true {
			t.Errorf("by %q: %v", identity, x)
		}
	}
	other := file(t, "other", string(text)+"x")
	done(t, "cache", "put", "--dir", dir, "--key-file", file(t, "key", "another"), "--value-file", self) // of backend cpu
	everywhere := slices.Concat(args[:4], args[6:])
	if x := object(t, exitDone, everywhere...); x["hit"] != true || !strings.HasPrefix(x["nearest"].(string), "go/") {
		t.Errorf("in all backends: %v", x)
	}
	if x := object(t, exitDone, append(everywhere, "--identity", other)...); x["reason"] != "outdated" || !strings.HasPrefix(x["nearest"].(string), "go/") {
		t.Errorf("in all backends, by another program: %v", x)
	}
	if x := object(t, exitDone, "cache", "explain", "--dir", dir, "--key-file", file(t, "key", "third")); x["reason"] != "absent" || !strings.HasPrefix(x["nearest"].(string), "cpu/") {
		t.Errorf("in all backends, of no entry: %v", x)
	}
	if x := object(t, exitDone, append(args, "--identity", other)...); x["hit"] != false || !strings.Contains(fmt.Sprint(x), "build") {
		t.Errorf("by another program: %v", x)
	}
	refused(t, append(args, "--identity", file(t, "text", "no program")), "--identity")
}

// The directory is that of --store, as for kiln run, else of KILN_STORE_DIR; prune says
// what went, and a producer reaches the terminal without control characters.
func TestCacheWords(t *testing.T) {
	dir := stocked(t, "a")
	id := gpuexec.Identity{Library: "l", Build: "b\x1b[2J\nforged"}
	s, err := blobstore.Open(t.Context(), blobstore.Config{Dir: dir, Capacity: limit.Unlimited})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.For(id).Put(t.Context(), "cpu", "k", []byte("v"), 0), s.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KILN_STORE_DIR", dir)
	text := done(t, "cache", "inspect", "cpu/"+s.Bucket("k")+"/0")
	if strings.Contains(text, "\x1b") || !strings.HasSuffix(text, `by library l build "b\x1b[2J\nforged"`+"\n") { // and nothing of what it does not have
		t.Errorf("%q", text)
	}
	if got := object(t, exitDone, "cache", "stats"); got["entries"] != 2.0 || got["disk_bytes"] != float64(16<<10) {
		t.Errorf("%v", got)
	}
	t.Setenv("KILN_STORE_DIR", dir+"-not")
	if got := done(t, "cache", "prune", "--to", "0", "--store", dir); !strings.HasPrefix(got, "2 entries evicted; 0 entries, ") {
		t.Errorf("%q", got)
	}
}

// P2: the key of an entry can be had as a file, whatever bytes it has.
func TestCacheKeyAsAFile(t *testing.T) {
	key := "k\x00\n\xff\x1b[31m"
	dir, out := stocked(t, key, "other"), filepath.Join(t.TempDir(), "key")
	for line := range strings.Lines(done(t, "cache", "ls", "--dir", dir)) {
		done(t, "cache", "inspect", strings.Fields(line)[0], "--dir", dir, "--key-out", out)
		text, err := os.ReadFile(out)
		if got := done(t, "cache", "get", "--dir", dir, "--key-file", out); err != nil || got != string(text)+string(text) {
			t.Errorf("the key %q: %q %v", text, got, err)
		}
	}
	at, err := filepath.Rel(dir, filepath.Dir(kernels(t, dir)[0]))
	if err != nil {
		t.Fatal(err)
	}
	refused(t, []string{"cache", "inspect", filepath.ToSlash(at), "--dir", dir, "--key-out", filepath.Join(out, "x")}, "--key-out: ", "make it first")
}

// P7: sizes have units, in flags and in the environment.
func TestCacheSizes(t *testing.T) {
	dir := stocked(t, "a", "b", "c", "d")
	stats := func() string {
		s := object(t, exitDone, "cache", "stats", "--dir", dir)
		return fmt.Sprint(s["entries"], s["capacity_bytes"])
	}
	put := func(args ...string) {
		done(t, append([]string{"cache", "put", "--dir", dir, "--key-file", file(t, "key", "e"), "--value-file", file(t, "value", "e")}, args...)...)
	}
	for _, c := range []struct {
		text string
		want float64
	}{{"5GiB", 5 << 30}, {"5GB", 5e9}, {"5G", 5 << 30}, {"5", 5 << 20}, {"512KiB", 512 << 10}, {"65536B", 65536}} {
		put("--capacity", c.text)
		if got := stats(); got != fmt.Sprint(5.0, c.want) {
			t.Errorf("--capacity %s: %s", c.text, got)
		}
	}
	t.Setenv("KILN_STORE_CAPACITY", "0") // which is for stores that are begun
	done(t, "cache", "verify", "--repair", "--dir", dir)
	done(t, "cache", "prune", "--to", "16KiB", "--dir", dir)
	if got := stats(); got != fmt.Sprint(2.0, 65536.0) {
		t.Errorf("pruned: %s", got)
	}
	t.Setenv("KILN_STORE_CAPACITY", "24KiB")
	dir = stocked(t, "a", "b", "c", "d")
	if got := stats(); got != fmt.Sprint(3.0, float64(24<<10)) {
		t.Errorf("by the environment: %s", got)
	}
	if out := done(t, "env"); !strings.Contains(out, "24576B") {
		t.Errorf("env: %s", out)
	}
}

// P8: an import and a merge say in words what is new, known, rejected, kept and evicted.
func TestCacheTransferWords(t *testing.T) {
	from, archive := stocked(t, "a", "b", "c", "d"), filepath.Join(t.TempDir(), "archive")
	flip(t, kernels(t, from)[0], 1)
	code, out, _ := invoke("cache", "export", archive, "--dir", from)
	if want := "3 entries written, 1 rejected as checksum\n"; code != exitFinding || out != want {
		t.Errorf("export: exit %d, %q, want %q", code, out, want)
	}
	to := filepath.Join(t.TempDir(), "to")
	if out, want := done(t, "cache", "import", archive, "--dir", to, "--capacity", "16KiB"), "3 new, 0 known before; 2 entries kept, 1 evicted\n"; out != want {
		t.Errorf("import: %q, want %q", out, want)
	}
	done(t, "cache", "import", archive, "--dir", to, "--capacity", "5MiB")
	code, out, _ = invoke("cache", "merge", from, "--dir", to)
	if want := "0 new, 3 known before, 1 rejected as checksum; 3 entries kept, 0 evicted\n"; code != exitFinding || out != want {
		t.Errorf("merge: exit %d, %q, want %q", code, out, want)
	}
}

// The text of stats says what the directory may hold, that of a repair what became of
// the bad entries; a merge of a folder that is no store is refused.
func TestCacheSaysWhatItDid(t *testing.T) {
	dir := stocked(t, "a", "b")
	if out := done(t, "cache", "stats", "--dir", dir); !strings.Contains(out, " bytes of at most 1073741824; 0 set aside") {
		t.Errorf("stats: %q", out)
	}
	flip(t, kernels(t, dir)[0], 1)
	if _, out, _ := invoke("cache", "verify", "--dir", dir, "--repair"); !strings.HasSuffix(out, "\n1 of them set aside in quarantine/, and no longer found\n") {
		t.Errorf("verify: %q", out)
	}
	fresh := filepath.Join(t.TempDir(), "fresh")
	refused(t, []string{"cache", "merge", t.TempDir(), "--dir", fresh}, "this is no directory of a store")
	if _, err := os.Stat(fresh); err == nil {
		t.Error("a merge of nothing made a store")
	}
	if err := os.Chmod(kernels(t, dir)[0], 0o666); err != nil {
		t.Fatal(err)
	}
	entry := strings.TrimPrefix(filepath.Dir(kernels(t, dir)[0]), dir+"/")
	row := object(t, exitDone, "cache", "inspect", entry, "--dir", dir)
	for want, args := range map[string][]string{
		"1 bad entry, 1 looked at\n  " + entry + ": degraded mode, and could not be set aside: see its owner and mode, and those of quarantine/\n": {"verify", "--repair"},
		fmt.Sprintf("%-40s %10.0f bytes  bad: degraded mode\n", entry, row["bytes"]):                                                               {"ls"},
		fmt.Sprintf("%s: %.0f bytes, key %q\n  bad: degraded mode\n", entry, row["bytes"], row["key"]):                                             {"inspect", entry},
	} {
		if _, out, errs := invoke(append([]string{"cache"}, append(args, "--dir", dir)...)...); out != want {
			t.Errorf("%v: %q, %q", args, out, errs)
		}
	}
}

// A backend of which there is nothing may be misspelt: what looks for it says which there
// are. So does a miss in the backend that was not chosen. A put that finds an entry is no use.
func TestCacheOfAnotherBackend(t *testing.T) {
	dir := stocked(t, "a", "a")
	if row := done(t, "cache", "ls", "--dir", dir); !strings.HasSuffix(row, "  0 uses   \"a\"\n") {
		t.Errorf("put twice: %q", row)
	}
	says := func(want string, code int, args ...string) {
		t.Helper()
		got, _, errs := invoke(append([]string{"cache"}, append(args, "--dir", dir)...)...)
		if want = fmt.Sprintf("kiln: cache %s: %s\n", args[0], want); got != code || errs != want {
			t.Errorf("%v: exit %d, %q, want %q", args, got, errs, want)
		}
	}
	for _, verb := range [][]string{{"ls"}, {"stats"}, {"verify"}, {"prune", "--to", "0"}} {
		says("no entries of backend foo; this store has: cpu", exitDone, append(verb, "--backend", "foo")...)
	}
	archive := filepath.Join(t.TempDir(), "archive")
	done(t, "cache", "export", archive, "--dir", dir)
	before, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	says("no entries of backend foo; this store has: cpu", exitNotFound, "export", archive, "--backend", "foo")
	if after, err := os.ReadFile(archive); err != nil || !slices.Equal(after, before) {
		t.Errorf("the archive was replaced by one without entries; %v", err)
	}
	says("nothing there is of backend foo", exitDone, "import", archive, "--backend", "foo")
	if row := object(t, exitDone, "cache", "ls", "--dir", dir); row["key"] != "a" {
		t.Errorf("the key of an entry: %v", row["key"])
	}
	if object(t, exitDone, "cache", "stats", "--dir", dir, "--backend", "foo")["entries"] != 0.0 {
		t.Error("entries of foo")
	}
	key := file(t, "key", "b")
	says("a miss: absent", exitNotFound, "get", "--key-file", key)
	done(t, "cache", "put", "--dir", dir, "--backend", "go", "--key-file", key, "--value-file", key)
	says("a miss: absent; only backend cpu was asked, and this store has: cpu, go: see --backend", exitNotFound, "get", "--key-file", key)
	says("a miss: absent", exitNotFound, "get", "--key-file", key, "--backend", "cpu")
	producer := file(t, "identity", `{"library":"l","build":"b"}`)
	says("a miss: absent; no entries of backend foo; this store has: cpu, go", exitNotFound, "get", "--key-file", key, "--backend", "foo", "--identity", producer)
	says(`--backend foo: "cpu/1/0" is an entry of another backend: leave out --backend`, exitUsage, "inspect", "cpu/1/0", "--backend", "foo")
	done(t, "cache", "prune", "--dir", dir, "--to", "0")
	says("no entries of backend foo; this store has: none", exitDone, "ls", "--backend", "foo")
}

// What the cache commands count, they count all of, and programs are told too; a key
// reaches the terminal without control characters; help says which backends are meant.
func TestCacheCounts(t *testing.T) {
	dir := stocked(t, "a", "b", "c", "k\x1b[2J")
	for _, kernel := range kernels(t, dir)[:2] {
		flip(t, kernel, 1)
	}
	same(t, object(t, exitFinding, "cache", "export", filepath.Join(t.TempDir(), "archive"), "--dir", dir), "[rejected:map[checksum:2] taken:2]")
	for line := range strings.Lines(done(t, "cache", "ls", "--dir", dir)) {
		if text := done(t, "cache", "inspect", strings.Fields(line)[0], "--dir", dir); strings.Contains(text, "\x1b") {
			t.Errorf("%q", text)
		}
	}
	if got := object(t, exitDone, "cache", "prune", "--to", "0", "--dir", dir)["evicted"]; got != 4.0 {
		t.Errorf("evicted: %v", got)
	}
	for verb, says := range map[string]string{"ls": "(default all)", "explain": "(default all)", "get": "(default cpu)", "put": "(default cpu)"} {
		if help := done(t, "cache", verb, "--help"); !strings.Contains(help, "the folder of a device's entries "+says) {
			t.Errorf("%s: %s", verb, help)
		}
	}
}

// P13, P4: a folder that others can write is told by its name, with what to do; what a put
// evicted is told too.
func TestCacheVerifyOfAFolderOfOthers(t *testing.T) {
	dir := stocked(t, "a")
	key := file(t, "key", "b")
	if got := done(t, "cache", "put", "--dir", dir, "--key-file", key, "--value-file", key, "--capacity", "8KiB"); !strings.Contains(got, "; 1 evicted") {
		t.Errorf("put: %q", got)
	}
	if err := os.Chmod(filepath.Join(dir, "cpu"), 0o777); err != nil {
		t.Fatal(err)
	}
	code, out, _ := invoke("cache", "verify", "--dir", dir)
	if want := "\n  cpu/: degraded mode, a folder whose entries are not used: see its owner and mode: chmod -R go-w " + dir + "\n"; code != exitFinding || !strings.Contains(out, want) {
		t.Errorf("exit %d, %q, want %q", code, out, want)
	}
}
