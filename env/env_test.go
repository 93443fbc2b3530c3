package env_test

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/limit"
)

const (
	onednn = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
	dnnl   = "DNNL_PRIMITIVE_CACHE_CAPACITY"
)

// from is an environment of the tests' own.
func from(vars map[string]string) env.Lookup {
	return func(name string) (string, bool) {
		value, set := vars[name]
		return value, set
	}
}

func read(vars map[string]string) env.Settings { return env.Read(from(vars)) }

// C9, C1: cases E01 to E07 of the conformance scripts and their neighbours.
func TestArtefactCapacity(t *testing.T) {
	for _, c := range []struct {
		name    string
		vars    map[string]string
		want    limit.Limit
		source  env.Source
		by      string
		refused int
	}{
		{"nothing set", nil, limit.Of(1024), env.Default, "", 0},
		{"E01", map[string]string{onednn: "7"}, limit.Of(7), env.Environment, onednn, 0},
		{"E02 old name", map[string]string{dnnl: "9"}, limit.Of(9), env.Environment, dnnl, 0},
		{"E03 new name wins", map[string]string{dnnl: "9", onednn: "5"}, limit.Of(5), env.Environment, onednn, 0},
		{"E04 zero", map[string]string{onednn: "0"}, limit.Of(0), env.Environment, onednn, 0},
		{"E06 negative", map[string]string{onednn: "-5"}, limit.Of(1024), env.Default, "", 1},
		{"E07 junk", map[string]string{onednn: "12abc"}, limit.Of(1024), env.Default, "", 1},
		{"no fall through", map[string]string{onednn: "12abc", dnnl: "9"}, limit.Of(1024), env.Default, "", 1},
		{"set to nothing", map[string]string{onednn: "", dnnl: "9"}, limit.Of(1024), env.Default, "", 1},
		{"unlimited", map[string]string{onednn: "unlimited"}, limit.Unlimited, env.Environment, onednn, 0},
		{"the word has one spelling", map[string]string{onednn: "Unlimited"}, limit.Of(1024), env.Default, "", 1},
		{"blank", map[string]string{onednn: " 7"}, limit.Of(1024), env.Default, "", 1},
		{"overflow", map[string]string{onednn: "9223372036854775808"}, limit.Of(1024), env.Default, "", 1},
		{"largest", map[string]string{onednn: "9223372036854775807"}, limit.Of(math.MaxInt64), env.Environment, onednn, 0},
		{"refused old name", map[string]string{dnnl: "+9"}, limit.Of(1024), env.Default, "", 1},
	} {
		s := read(c.vars)
		got := s.ArtefactCapacity
		if got.Value != c.want || got.Source != c.source || got.Name != c.by || len(s.Refusals) != c.refused {
			t.Errorf("%s: %v from %s %q, refused %v", c.name, got.Value, got.Source, got.Name, s.Refusals)
		}
	}
}

// C9: read once; what the environment says later changes nothing.
func TestReadOnceAndOverride(t *testing.T) {
	vars := map[string]string{onednn: "7"}
	asked := map[string]int{}
	s := env.Read(func(name string) (string, bool) {
		asked[name]++
		value, set := vars[name]
		return value, set
	})
	vars[onednn] = "11"
	if s.ArtefactCapacity.Value != limit.Of(7) {
		t.Errorf("capacity %v changed with the environment", s.ArtefactCapacity.Value)
	}
	for name, times := range asked {
		if times != 1 {
			t.Errorf("%s was looked up %d times", name, times)
		}
	}
	s.ArtefactCapacity = s.ArtefactCapacity.Override(limit.Of(3))
	if got := s.ArtefactCapacity; got.Value != limit.Of(3) || got.Source != env.API || got.Name != "" {
		t.Errorf("override gave %+v", got)
	}
}

// T10: each kind of entry and its neighbours. want is "cpu gpu" in the
// variable's grammar.
func TestConstantCapacities(t *testing.T) {
	for _, c := range []struct {
		name, text, cpu, gpu string
		refused              []string // a part of each reason, in order
	}{
		{"E08", "cpu:10240;gpu:2048", "10240", "2048", nil},
		{"E09 any case", "CPU:10;Gpu:20;", "10", "20", nil},
		{"E10 last wins", "cpu:10;gpu:7;cpu:20", "20", "7", nil},
		{"E11 blanks around an entry", " cpu:5 ; gpu:6 ", "5", "6", nil},
		{"tabs are blanks", "\tcpu:5\t;\tgpu:6", "5", "6", nil},
		{"a line feed is none", "cpu:5\n;gpu:6", "unlimited", "6", []string{"plain decimal"}},
		{"E12 unknown kind", "npu:5", "unlimited", "unlimited", []string{`kind "npu"`}},
		{"E13 sign", "cpu:-1;gpu:5", "unlimited", "5", []string{"sign"}},
		{"plus", "cpu:+1;gpu:5", "unlimited", "5", []string{"sign"}},
		{"E14 fraction and junk", "cpu:1.9;gpu:12abc;cpu:4", "4", "unlimited", []string{"plain decimal", "plain decimal"}},
		{"E15 overflow", "cpu:99999999999999999999;gpu:unlimited", "unlimited", "unlimited", []string{"above"}},
		{"E16 policy", "cpu:2:COST;gpu:2:NO_EVICT", "2:COST", "2", nil},
		{"policy in any case", "cpu:2:cost;gpu:unlimited:Cost", "2:COST", "unlimited:COST", nil},
		{"E17 unknown policy", "cpu:2:SOMETIMES;gpu:3", "unlimited", "3", []string{`policy "SOMETIMES"`}},
		{"E18", "cpu:2", "2", "unlimited", nil},
		{"zero", "cpu:0;gpu:0", "0", "0", nil},
		{"a refused duplicate takes nothing back", "cpu:4;cpu:-1", "4", "unlimited", []string{"sign"}},
		{"a duplicate wins as a whole", "cpu:4:COST;cpu:5", "5", "unlimited", nil},
		{"blank before a colon", "cpu :5;gpu: 6;gpu:7 :COST", "unlimited", "unlimited", []string{`kind "cpu "`, "plain decimal", "plain decimal"}},
		{"blank behind the last colon", "cpu:5: COST", "unlimited", "unlimited", []string{`policy " COST"`}},
		{"empty policy", "cpu:5:", "unlimited", "unlimited", []string{`policy ""`}},
		{"four parts", "cpu:5:COST:1", "unlimited", "unlimited", []string{`policy "COST:1"`}},
		{"no size", "cpu;gpu:", "unlimited", "unlimited", []string{"empty", "empty"}},
		{"no kind", ":5", "unlimited", "unlimited", []string{`kind ""`}},
		{"a bare number is nobody's", "5", "unlimited", "unlimited", []string{`kind "5"`}},
		{"the word has one spelling", "cpu:Unlimited", "unlimited", "unlimited", []string{"plain decimal"}},
		{"case folds in ASCII alone", "cpu:5:co\u017ft", "unlimited", "unlimited", []string{"policy"}},
		{"empty list", "", "unlimited", "unlimited", nil},
		{"nothing but separators", " ; ;;", "unlimited", "unlimited", nil},
		{"commas separate nothing", "cpu:5,gpu:6", "unlimited", "unlimited", []string{"plain decimal"}},
	} {
		s := read(map[string]string{env.ConstantCapacities: c.text})
		if cpu, gpu := s.CPUConstants.Value.String(), s.GPUConstants.Value.String(); cpu != c.cpu || gpu != c.gpu {
			t.Errorf("%s: cpu %s, gpu %s; want %s, %s", c.name, cpu, gpu, c.cpu, c.gpu)
		}
		if len(s.Refusals) != len(c.refused) {
			t.Errorf("%s: refused %v, want %q", c.name, s.Refusals, c.refused)
			continue
		}
		for i, r := range s.Refusals {
			if r.Name != env.ConstantCapacities || !strings.Contains(r.Why, c.refused[i]) {
				t.Errorf("%s: refusal %+v, want one that says %s", c.name, r, c.refused[i])
			}
		}
	}
}

// T10: a kind that no entry was taken for keeps its default and its source.
func TestConstantSources(t *testing.T) {
	s := read(map[string]string{env.ConstantCapacities: "gpu:5;cpu:x"})
	if s.CPUConstants.Source != env.Default || s.GPUConstants.Source != env.Environment {
		t.Errorf("cpu %s, gpu %s", s.CPUConstants.Source, s.GPUConstants.Source)
	}
	if len(s.Refusals) != 1 || s.Refusals[0].Entry != "cpu:x" {
		t.Errorf("refusals %+v; want the entry cpu:x", s.Refusals)
	}
}

// K7: Kiln's own variables. An accepted text reads back as it was written.
func TestOwnVariables(t *testing.T) {
	const list = string(os.PathListSeparator)
	for name, c := range map[string]struct{ good, bad []string }{
		"KILN_STORE_DIR":      {[]string{"store", "/var/cache/kiln", " odd name "}, []string{"", "a\x00b"}},
		"KILN_STORE_BASES":    {[]string{"/a", "/a" + list + "/b"}, []string{"", "a\x00b", list, "/a" + list, "/a" + list + list + "/b"}},
		"KILN_STORE_CAPACITY": {[]string{"0", "512", "unlimited", "8796093022207", "1025B"}, []string{"", "-1", "8796093022208", "1gib", "1.5", "1.5GiB"}},
		"KILN_SESSION_GROUPS": {[]string{"0", "2", "unlimited"}, []string{"", "-1", "many", "99999999999999999999"}},
		"KILN_SESSION_POLICY": {[]string{"fifo", "lru", "sieve", "duel"}, []string{"", "LRU", "belady", "lru "}},
		"KILN_BUCKET": {
			[]string{"exact", "pow2", "multiple:16", "geometric:8", "multiple:1"},
			[]string{"", "exact:1", "multiple", "multiple:", "multiple:0", "multiple:-4", "multiple:unlimited", "geometric:x", "third", "geometric:8:8", "pow2:"},
		},
		"KILN_LOG_LEVEL":      {[]string{"debug", "info", "warn", "error"}, []string{"", "INFO", "trace", "2"}},
		"KILN_STRICT":         {[]string{"0", "1"}, []string{"", "yes", "true", "2"}},
		"KILN_CPU_ISA":        {[]string{"auto", "avx512", "avx2", "generic"}, []string{"", "AVX2", "neon"}},
		"KILN_ONEDNN_LIBRARY": {[]string{"/lib/libdnnl.so.3", "libdnnl.so.2"}, []string{""}},
		"KILN_NVRTC":          {[]string{"/lib/libnvrtc.so.13"}, []string{""}},
		"KILN_CUBLAS":         {[]string{"/lib/libcublas.so.13", "installed"}, []string{""}},
		"KILN_VULKAN_DEVICE":  {[]string{"radeon", "RTX 4090"}, []string{""}},
		"KILN_WORKERS":        {[]string{"auto", "1", "4096"}, []string{"", "0", "-1", "4097", "unlimited", "99999999999999999999"}},
		"KILN_MEMORY_LIMIT":   {[]string{"off", "auto", "1", "8796093022207", "1048577B"}, []string{"", "0", "-1", "OFF", "8796093022208", "unlimited", "1023KiB"}},
	} {
		for _, text := range c.good {
			s := read(map[string]string{name: text})
			if r := row(t, s, name); r.Value != text || r.Source != env.Environment || len(s.Refusals) != 0 {
				t.Errorf("%s=%q: %+v, refused %v", name, text, r, s.Refusals)
			}
		}
		for _, text := range c.bad {
			s := read(map[string]string{name: text})
			r := row(t, s, name)
			if r.Value != r.Default || r.Source != env.Default {
				t.Errorf("%s=%q: %+v; want the default", name, text, r)
			}
			if len(s.Refusals) != 1 || s.Refusals[0].Name != name || s.Refusals[0].Entry != text || s.Refusals[0].Why == "" {
				t.Errorf("%s=%q: refusals %+v", name, text, s.Refusals)
			}
		}
	}
}

func row(t *testing.T, s env.Settings, name string) env.Row {
	t.Helper()
	for _, r := range env.Table(s) {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("no row %s", name)
	return env.Row{}
}

// C9, T10: a refusal says what is wrong in one short printable line, whatever
// was written.
func TestRefusalIsOneLine(t *testing.T) {
	huge := strings.Repeat("9", 1<<16)
	for _, text := range []string{huge, "a\nb", "a\x00b", "\xff\xfe", "cpu:" + huge, "cpu:5:\x1b[31m", huge + ":1"} {
		for _, name := range []string{onednn, env.ConstantCapacities, "KILN_SESSION_POLICY", "KILN_BUCKET", "KILN_WORKERS"} {
			s := read(map[string]string{name: text})
			if len(s.Refusals) != 1 {
				t.Fatalf("%s=%.20q: %d refusals", name, text, len(s.Refusals))
			}
			line := s.Refusals[0].String()
			if len(line) > 400 || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == '\ufffd' }) {
				t.Errorf("%s=%.20q: %q", name, text, line)
			}
		}
	}
}

func TestTable(t *testing.T) {
	s := read(map[string]string{dnnl: "9", env.ConstantCapacities: "cpu:2:COST;npu:1", "KILN_STORE_DIR": "a\tb"})
	s.SessionGroups = s.SessionGroups.Override(limit.Unlimited)
	rows := env.Table(s)
	for _, want := range []env.Row{
		{Name: dnnl, Value: "9", Source: env.Environment, Default: "1024", Also: []string{onednn}},
		{Name: env.ConstantCapacities, Value: "cpu:2:COST;gpu:unlimited", Source: env.Environment, Default: "cpu:unlimited;gpu:unlimited"},
		{Name: "KILN_SESSION_GROUPS", Value: "unlimited", Source: env.API, Default: "64"},
		{Name: "KILN_MEMORY_LIMIT", Value: "off", Source: env.Default, Default: "off"},
	} {
		got := row(t, s, want.Name)
		if got.Value != want.Value || got.Source != want.Source || got.Default != want.Default || strings.Join(got.Also, " ") != strings.Join(want.Also, " ") {
			t.Errorf("%+v; want %+v", got, want)
		}
	}
	var text strings.Builder
	if err := env.Print(&text, rows); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	if want := 1 + len(rows) + 1; len(lines) != want { // heading, settings, the refused npu
		t.Fatalf("%d lines, want %d:\n%s", len(lines), want, text.String())
	}
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "refused: "+env.ConstantCapacities) {
		t.Errorf("last line %q", last)
	}
	help := strings.Index(lines[0], "HELP")
	for i, r := range rows {
		if line := lines[i+1]; r.Help == "" || !strings.HasPrefix(line[help:], r.Help) {
			t.Errorf("line %d is out of column or has no help: %q", i+1, line)
		}
	}
}

// C9, T10: what the table shows is in the grammar it is read with.
func TestDefaultsReadBack(t *testing.T) {
	for _, r := range env.Table(read(nil)) {
		if r.Default == "" { // no directory is the absence of the variable
			continue
		}
		s := read(map[string]string{r.Name: r.Default})
		if got := row(t, s, r.Name); got.Value != r.Default || got.Source != env.Environment || len(s.Refusals) != 0 {
			t.Errorf("%s=%s read back as %+v, refused %v", r.Name, r.Default, got, s.Refusals)
		}
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errBroken }

var errBroken = errors.New("broken pipe")

func TestPrintReportsTheWriter(t *testing.T) {
	if err := env.Print(brokenPipe{}, env.Table(read(nil))); !errors.Is(err, errBroken) {
		t.Errorf("Print = %v", err)
	}
}

func TestProcessIsTheEnvironment(t *testing.T) {
	t.Setenv(onednn, "77")
	if got := env.Read(env.Process()).ArtefactCapacity.Value; got != limit.Of(77) {
		t.Errorf("capacity %v, want what the process was given", got)
	}
}
