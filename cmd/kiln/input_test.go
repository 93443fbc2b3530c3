package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/internal/data"
)

// refused checks how wrong input ends: exit 2, nothing on stdout, and one line
// on stderr that begins as the contract says and has every one of the words.
func refused(t *testing.T, args []string, words ...string) {
	t.Helper()
	code, out, errs := invoke(args...)
	what := strings.Join(args, " ")
	if code != exitUsage || out != "" {
		t.Errorf("kiln %s: exit %d, stdout %.80q, stderr %q", what, code, out, errs)
		return
	}
	prefix := "kiln: "
	if len(args) > 0 {
		prefix += args[0]
	}
	if !strings.HasPrefix(errs, prefix) || strings.Count(errs, "\n") != 1 || !strings.HasSuffix(errs, "\n") {
		t.Errorf("kiln %s: not one line that begins with %q: %q", what, prefix, errs)
	}
	for _, w := range words {
		if !strings.Contains(errs, w) {
			t.Errorf("kiln %s: no %q in %q", what, w, errs)
		}
	}
}

func TestWrongCommand(t *testing.T) {
	for _, args := range [][]string{{"rnu"}, {""}, {"--json"}, {"help", "rnu"}, {"run\nx"}} {
		code, out, errs := invoke(args...)
		if code != exitUsage || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "no such command: want run, ") {
			t.Errorf("kiln %q: exit %d, %q, %q", args, code, out, errs)
		}
	}
	for _, c := range commands {
		refused(t, []string{c.name, "--bogus"}, "bogus", "see kiln "+c.name+" --help")
		refused(t, []string{c.name, "--log-level", ""}, "--log-level", "want debug, info, warn or error")
	}
	for _, name := range []string{"run", "devices", "env", "stress"} {
		refused(t, []string{name, "extra"}, `unexpected argument "extra"`)
		refused(t, []string{name, "--json=maybe"}, `--json "maybe": want true or false`)
	}
	refused(t, []string{"shapes"}, "simulate", "advise")
	refused(t, []string{"shapes", "simulated"}, "simulate", "advise")
	refused(t, []string{"bench"}, "name what to measure: all, matmul")
	refused(t, []string{"bench", "matmull", "--gate"}, `"matmull": no such bench: want all, matmul`)
	refused(t, []string{"bench", "matmul", "forward"}, `unexpected argument "forward"`)
	refused(t, []string{"conform"}, "name a script")
	refused(t, []string{"conform", "none.kiln"}, "none.kiln")
}

// Every flag of run, shapes and stress that takes a number or one of some words
// refuses all else, and says what it wants.
func TestWrongFlag(t *testing.T) {
	trace := file(t, "some.csv", "len\n3\n5\n")
	const whole, sizes = "a whole number from ", "a whole number, or one with its unit such as 512KiB or 5GiB"
	numbers := []string{"", "-1", "-3", "1.5", "+1", " 1", "0x10", "1e3", "1_000", "none", "NaN", "99999999999999999999999", "１"}
	run := []string{"run"}
	simulate := []string{"shapes", "simulate", "--trace", trace, "--key", "exact"}
	advise := []string{"shapes", "advise", "--trace", trace}
	for _, c := range []struct {
		command []string
		flag    string
		want    string
		texts   []string
	}{
		{run, "sessions", whole + "1 to 1024", append(numbers, "0", "1025")},
		{run, "passes", whole + "1 to 1000", append(numbers, "0", "1001")},
		{run, "requests", whole + "0 to ", append(numbers, "2147483648")},
		{run, "announce", whole + "0 to ", append(numbers, "2147483648")},
		{run, "groups", whole + "0 to 2147483647, or unlimited", append(numbers, "Unlimited", "2147483648")},
		{run, "session-bytes", sizes + ", or unlimited", append(numbers, "5gib", "5 GiB", "8388608TiB", "9223372036854775808")},
		{run, "pool-bytes", sizes + ", or unlimited", append(numbers, "9223372036854775808")},
		{run, "floor-bytes", sizes, append(numbers, "unlimited", "9223372036854775808")},
		{run, "floor-groups", whole + "0 to 2147483647", append(numbers, "unlimited", "2147483648")},
		{run, "memory-limit", "want off, auto, or from 1 MiB on " + sizes, append(numbers, "0", "Auto", "unlimited", "1023KiB")},
		{run, "constants", sizes + ", or unlimited", append(numbers, "unlimit")},
		{run, "store-capacity", sizes + ", or unlimited", append(numbers, "8796093022208")},
		{run, "seed", whole + "0 to 18446744073709551615", append(numbers, "18446744073709551616")},
		{run, "device", "want cpu", []string{"", "gpu", "CPU", "cpu:x", "cpu:-1", "cpu:"}},
		{run, "policy", "want fifo, lru, sieve or duel", []string{"", "mru", "FIFO", "belady", "lru,fifo"}},
		{run, "bucket", "want exact, multiple:N, pow2 or geometric:K, with N and K from 1", []string{"", "third", "multiple:0", "geometric:0", "geometric:-8", "multiple:", "pow2:2", "exact:1", "multiple:1.5", "Exact"}},
		{simulate, "announce", whole + "0 to ", append(numbers, "9999999999")},
		{simulate, "waiting", whole + "0 to ", append(numbers, "9999999999")},
		{simulate, "capacity", whole + "1 to ", append(numbers, "0", "8,", ",8", "8,,9", "8,-1", "unlimited", "2147483648")},
		{simulate, "policy", "want fifo, lru, sieve, duel or belady", []string{"", "mru", "fifo,", "fifo lru"}},
		{simulate, "keep", "want always or worth", []string{"", "never", "Always"}},
		{simulate, "key", "want exact, multiple:N, pow2 or geometric:K, or pair:", []string{"", "none", "exact,", "pair:", "pair:none", "multiple:0"}},
		{advise, "capacity", whole + "1 to ", append(numbers, "0", "unlimited", "2147483648")},
		{advise, "compile-seconds", "want a number of seconds from 0 to 1000000000", []string{"", "-1", "-0.1", "NaN", "Inf", "1s", "1e10", "none"}},
		{advise, "run-seconds", "want a number of seconds from 0 to 1000000000", []string{"", "-1", "-0.1", "NaN", "Inf", "1s", "1e10", "none"}},
		{[]string{"stress"}, "seed", whole, numbers},
		{[]string{"stress"}, "workers", whole + "1 to ", append(numbers, "0", "9999999999")},
		{[]string{"stress"}, "duration", "want a time of at least 1ms with its unit", []string{"", "1", "-1s", "0s", "1us", "soon"}},
		{[]string{"stress"}, "scenario", "want ", []string{"", "none"}},
	} {
		for _, text := range c.texts {
			refused(t, append(c.command[:len(c.command):len(c.command)], "--"+c.flag, text), "--"+c.flag+` "`, c.want)
		}
		refused(t, append(c.command[:len(c.command):len(c.command)], "--"+c.flag), "a value is missing after --"+c.flag)
	}
	refused(t, []string{"run", "--session-bytes", "10", "--floor-bytes", "11"}, "--floor-bytes 11: want at most 10", "--session-bytes")
	refused(t, []string{"run", "--pool-bytes", "11", "--floor-bytes", "3"}, "--floor-bytes 3: want at most 2", "--pool-bytes")
	refused(t, []string{"run", "--groups", "10", "--floor-groups", "11"}, "--floor-groups 11: want at most 10", "--groups")
	refused(t, []string{"run", "--floor-groups", "65"}, "--floor-groups 65: want at most 64", "--groups")
	refused(t, []string{"run", "--floor-groups", "1"}, "--floor-groups without --pool-bytes or --memory-limit")
	refused(t, []string{"run", "--floor-bytes", "1MiB", "--memory-limit", "off"}, "--floor-bytes without --pool-bytes or --memory-limit")
	refused(t, []string{"run", "--store", t.TempDir(), "--store-capacity", "0"}, "--store-capacity 0: nothing would be stored")
	for _, command := range [][]string{{"run"}, {"cache", "get"}, {"cache", "explain"}} {
		refused(t, append(command, "--base", "a"+string(os.PathListSeparator)), `--base "a`, "want directories, none of them empty")
	}
	for _, flag := range [][]string{{"--base", "d"}, {"--store-capacity", "5"}} { // without a store they would do nothing
		refused(t, append([]string{"run"}, flag...), "--base and --store-capacity are for a store: give --store DIR, too")
	}
	for _, verb := range []string{"get", "explain"} {
		refused(t, []string{"cache", verb, "--dir", t.TempDir(), "--key-file", trace, "--backend", "gpu"}, `--backend "gpu": no such backend: want cpu, cuda, go, onednn, opencl or vulkan; or name with --identity`)
	}
	refused(t, []string{"shapes", "simulate"}, "--trace and --key must be given")
	refused(t, []string{"shapes", "simulate", "--trace", trace}, "simulate: --key must be given: see")
	refused(t, []string{"shapes", "simulate", "--key", "length"}, "simulate: --trace must be given: see")
	refused(t, []string{"shapes", "advise"}, "--trace must be given")
}

func packed(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A trace that cannot be read is refused as a whole, by each command that reads
// one, with its name and the line.
func TestWrongTrace(t *testing.T) {
	dir := t.TempDir()
	long := "len\n" + strings.Repeat("17\n23\n5\n", 5000)
	zipped := packed(t, long)
	for name, c := range map[string]struct {
		text  string
		words []string
	}{
		"broken.csv":   {"len\n3\nx\n", []string{"broken.csv:3", `len is "x"`, "want a whole number"}},
		"negative.csv": {"t_ms,len\n0,3\n1,-2\n", []string{"negative.csv:3", `len is "-2"`, "want a whole number"}},
		"absurd.csv":   {"len\n1e99\n", []string{"absurd.csv:2", `len is "1e99"`}},
		"large.csv":    {"len\n99999999999999999\n", []string{"large.csv:2", "want a whole number of 0 to"}},
		"half.csv":     {"len\n2.5\n", []string{"half.csv:2", `len is "2.5"`}},
		"session.csv":  {"len,session\n3,-7\n", []string{"session.csv:2", `session is "-7"`}},
		"empty.csv":    {"", []string{"empty.csv", "want a header line"}},
		"none.csv":     {"len\n", []string{"none.csv", "no request"}},
		"zero.csv":     {"len\n3\n0\n", []string{"zero.csv", "request 2 has the len 0", "want at least 1 token"}},
		"binary.csv":   {"\x00\xff\x01\"\xfe\n\x02,\x03\n", []string{"binary.csv:1", "CSV", "column len"}},
		"nolen.csv":    {"a,b\n1,2\n", []string{"nolen.csv:1", `no column "len"`, "CSV", "whose header names a column len"}},
		"twice.csv":    {"len,len\n1,2\n", []string{"twice.csv:1", `two columns "len"`}},
		"ragged.csv":   {"len,out\n1,2\n3\n", []string{"ragged.csv:3", "wrong number of fields"}},
		"cut.csv.gz":   {zipped[:len(zipped)/2], []string{"cut.csv.gz", "cut short"}},
		"flipped.gz":   {zipped[:len(zipped)-6] + "\x00" + zipped[len(zipped)-5:], []string{"flipped.gz", "damaged"}},
		"head.gz":      {zipped[:5], []string{"head.gz", "gzip"}},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		plot := filepath.Join(dir, "run.png")
		words := append(c.words, "--trace: ")
		refused(t, []string{"run", "--model", "bert_tiny_l2_h128", "--trace", path, "--plot", plot}, words...)
		refused(t, []string{"shapes", "advise", "--trace", path}, words...)
		if name != "zero.csv" && name != "none.csv" && name != "session.csv" {
			refused(t, []string{"shapes", "simulate", "--key", "exact", "--trace", path}, words...)
		}
		if _, err := os.Stat(plot); err == nil {
			t.Errorf("%s: a picture was drawn", name)
		}
	}
	for path, word := range map[string]string{dir: "is a directory", filepath.Join(dir, "absent.csv"): "no such file"} {
		refused(t, []string{"run", "--trace", path}, "--trace: ", path, word)
		refused(t, []string{"shapes", "advise", "--trace", path}, "--trace: ", path, word)
		refused(t, []string{"shapes", "simulate", "--key", "exact", "--trace", path}, "--trace: ", path, word)
	}
	// The second key needs columns that the trace has not: no line of the first appears.
	refused(t, []string{"shapes", "simulate", "--key", "exact,pair:exact", "--trace", file(t, "lens.csv", "len\n3\n")}, "lens.csv:1", `no column "batch"`,
		"whose header names the columns batch and max_len")
}

// A model file that is not whole is refused with its name, the line and the
// field; a run never begins with less than the list asks for.
func TestWrongModel(t *testing.T) {
	tiny, _ := data.Model("bert_tiny_l2_h128")
	lines := strings.SplitAfter(string(tiny), "\n")
	without := func(n int) string { return strings.Join(append(append([]string{}, lines[:n-1]...), lines[n:]...), "") }
	change := func(old, new string) string {
		text := strings.Replace(string(tiny), old, new, 1)
		if text == string(tiny) {
			t.Fatalf("the model has no %q", old)
		}
		return text
	}
	for name, c := range map[string]struct {
		text  string
		words []string
	}{
		"shorter.jsonl":  {without(5), []string{"shorter.jsonl:1", `"ops"`, "cut off"}},
		"cut.jsonl":      {string(tiny)[:len(tiny)/2], []string{"cut.jsonl"}},
		"kind.jsonl":     {change(`"kind": "gather"`, `"kind": "conv"`), []string{"kind.jsonl:2", `"kind"`, "matmul"}},
		"weight.jsonl":   {change(`"weights": [{"name": "bert/embeddings/token_type_embeddings", "shape": [2, 128], "bytes": 1024}], "weight_bytes": 1024`, `"weight_bytes": 1024`), []string{"weight.jsonl:3", "weight"}},
		"negative.jsonl": {change(`"shape": [2, 128]`, `"shape": [-2, 128]`), []string{"negative.jsonl:3", "shape"}},
		"absurd.jsonl":   {change(`"shape": [2, 128]`, `"shape": [99999999999999999999, 128]`), []string{"absurd.jsonl:3"}},
		"dim.jsonl":      {change(`"dst": ["B", "S", 128]`, `"dst": ["B", "S", 0]`), []string{"dim.jsonl:2", `"dst"`}},
		"field.jsonl":    {change(`"kind": "gather"`, `"knid": "gather"`), []string{"field.jsonl:2", "knid"}},
		"empty.jsonl":    {"", []string{"empty.jsonl", "empty", "want an op list"}},
		"binary.jsonl":   {"\x00\xff\x01\xfe", []string{"binary.jsonl", "binary"}},
		"text.jsonl":     {"hello\n", []string{"text.jsonl:1"}},
		"absent.jsonl":   {change(`"dtype"`, `"weights": "absent.safetensors", "dtype"`), []string{"absent.safetensors", "no such file"}},
		"part.jsonl":     {change(`"dtype"`, `"weights": "part.safetensors", "dtype"`), []string{"part.safetensors", `"bert/embeddings/word_embeddings" is missing`, "37 of 39"}},
		"shape.jsonl":    {change(`"dtype"`, `"weights": "shape.safetensors", "dtype"`), []string{"shape.safetensors", `"bert/pooler/dense/bias"`, "wants [128]"}},
		"type.jsonl":     {change(`"dtype"`, `"weights": "type.safetensors", "dtype"`), []string{"type.safetensors", `"bert/pooler/dense/bias"`, "is I32, want F32"}},
		"stump.jsonl":    {change(`"dtype"`, `"weights": "stump.safetensors", "dtype"`), []string{"stump.safetensors"}},
	} {
		path := file(t, name, c.text)
		dir := filepath.Dir(path)
		safetensors(t, filepath.Join(dir, "part.safetensors"), `{"bert/pooler/dense/bias":{"dtype":"F32","shape":[128],"data_offsets":[0,512]},`+
			`"bert/embeddings/token_type_embeddings":{"dtype":"F32","shape":[2,128],"data_offsets":[512,1536]}}`, 1536)
		safetensors(t, filepath.Join(dir, "shape.safetensors"), `{"bert/pooler/dense/bias":{"dtype":"F32","shape":[64],"data_offsets":[0,256]}}`, 256)
		safetensors(t, filepath.Join(dir, "type.safetensors"), `{"bert/pooler/dense/bias":{"dtype":"I32","shape":[128],"data_offsets":[0,512]}}`, 512)
		if err := os.WriteFile(filepath.Join(dir, "stump.safetensors"), []byte("\x10\x00"), 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, []string{"run", "--requests", "2", "--model", path}, append(c.words, "--model: ")...)
	}
	refused(t, []string{"run", "--model", "bert_huge"}, "--model", "bert_huge", "bert_tiny_l2_h128")
	refused(t, []string{"run", "--model", ""}, `--model ""`)
	refused(t, []string{"run", "--model", t.TempDir()}, "--model: ", "is a directory")
}

// safetensors writes a file of that format with zeros behind its header.
func safetensors(t *testing.T, path, header string, bytes int) {
	t.Helper()
	text := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	if err := os.WriteFile(path, append(text, make([]byte, bytes)...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What cannot be written is refused before the work, which here would last for
// hours.
func TestWrongPlot(t *testing.T) {
	dir := t.TempDir()
	long := []string{"run", "--passes", "1000", "--plot"}
	if runtime.GOOS == "linux" {
		refused(t, append(long, "/proc/run.png"), "--plot: ", "cannot be written")
		refused(t, append(long[:3:3], "--record", "/proc/manifest"), "--record: ", "cannot be written")
	}
	refused(t, append(long[:3:3], "--record", dir), "--record: ", "is a folder")
	refused(t, append(long[:3:3], "--record", filepath.Join(dir, "none", "manifest")), "--record: ", "make it first")
	refused(t, append(long[:3:3], "--store", file(t, "store", "")), "--store: ", "no folder")
	for path, word := range map[string]string{
		filepath.Join(dir, "run.jpg"):         "does not end in .png",
		filepath.Join(dir, "png"):             "does not end in .png",
		filepath.Join(dir, "none", "run.png"): "make it first",
		"":                                    "want the name of a PNG file",
	} {
		refused(t, []string{"run", "--model", "bert_tiny_l2_h128", "--requests", "1", "--plot", path}, "--plot", word)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A variable that names what this machine does not have is named itself.
func TestWrongEnvironment(t *testing.T) {
	t.Setenv("KILN_CPU_ISA", "avx512")
	if code, _, errs := invoke("run", "--model", "bert_tiny_l2_h128", "--requests", "1", "--passes", "1"); code != exitDone {
		refused(t, []string{"run"}, `KILN_CPU_ISA "avx512"`, "generic")
	} else if errs != "" {
		t.Errorf("stderr %q", errs)
	}
}
