package cgroup_test

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/kiln-cache/kiln/internal/cgroup"
)

const (
	meminfo = "MemTotal:       16384000 kB\nMemFree:         1000 kB\n"
	all     = 16384000 << 10
	v2      = "24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	v1      = "30 1 0:26 / /sys/fs/cgroup/cpu,cpuacct rw shared:8 - cgroup cgroup rw,cpu,cpuacct\n" +
		"33 1 0:29 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory\n"
)

func TestMemory(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64 // 0: not known
	}{
		"nothing": {nil, 0},
		"a machine without groups": {map[string]string{
			"proc/meminfo": meminfo,
		}, all},
		"version 2": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/mountinfo": v2, "proc/self/cgroup": "0::/user.slice/app.service\n",
			"sys/fs/cgroup/user.slice/memory.max":             "max\n",
			"sys/fs/cgroup/user.slice/app.service/memory.max": "2147483648\n",
		}, 2 << 30},
		"version 2, the parent is narrower": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/mountinfo": v2, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/memory.max": "1048576\n", "sys/fs/cgroup/a/b/memory.max": "2147483648\n",
		}, 1 << 20},
		"version 2, a container of its own name space": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/mountinfo": v2, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "536870912\n",
		}, 512 << 20},
		"version 2 without a limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/mountinfo": v2, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n",
		}, all},
		"version 1": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/mountinfo": v1, "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/app\n",
			"sys/fs/cgroup/memory/app/memory.limit_in_bytes": "1073741824\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 1 << 30},
		"version 1 without a limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/mountinfo": v1, "proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, all},
		"version 1, the host's names in a container": {map[string]string{
			"proc/self/mountinfo": "33 1 0:29 /docker/0af /sys/fs/cgroup/memory ro master:1 - cgroup cgroup rw,memory\n",
			"proc/self/cgroup":    "4:hugetlb,memory:/docker/0af\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "268435456\n",
		}, 256 << 20},
		"version 1, a name that is not below the mount": {map[string]string{
			"proc/self/mountinfo": "33 1 0:29 /docker/0af /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"proc/self/cgroup":    "4:memory:/docker/0afe\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "268435456\n",
		}, 256 << 20},
		"both versions": {map[string]string{
			"proc/self/mountinfo": v1 + "24 1 0:22 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"proc/self/cgroup":    "4:memory:/app\n0::/app\n", "sys/fs/cgroup/memory/app/memory.limit_in_bytes": "1073741824\n",
		}, 1 << 30},
		"a blank in the mount point": {map[string]string{
			"proc/self/mountinfo": `24 1 0:22 / /c\040g rw - cgroup2 cgroup2 rw` + "\n", "proc/self/cgroup": "0::/\n", "c g/memory.max": "4096\n",
		}, 4096},
		"damaged": {map[string]string{
			"proc/meminfo": "MemTotal: 99999999999999999999 kB\n", "proc/self/mountinfo": v2 + "24 1 - cgroup2\n", "proc/self/cgroup": "0::\nx\n0::/a\n",
			"sys/fs/cgroup/a/memory.max": "-5\n", "sys/fs/cgroup/memory.max": "12x\n",
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			files := fstest.MapFS{}
			for at, text := range c.files {
				files[at] = &fstest.MapFile{Data: []byte(text)}
			}
			got, known := cgroup.Memory(files)
			if known != (c.want != 0) || known && got != c.want {
				t.Errorf("got %d, %v; want %d", got, known, c.want)
			}
		})
	}
}

// Whatever the files say: no panic, no walk without end, and never more than the
// machine has.
func FuzzMemory(f *testing.F) {
	f.Add(meminfo, v2, "0::/a/b\n", "1048576\n")
	f.Add("MemTotal: 5 kB\n", v1, "4:memory:/\n", "9223372036854771712\n")
	f.Add("", `1 2 3 \057 /sys\0 a - cgroup2 a b`, "0::/../..\n", "max\n")
	f.Add("", "1 2 3 rel rel a - cgroup2 a b", "0::/\n", "1")
	f.Fuzz(func(t *testing.T, meminfo, mounts, groups, limit string) {
		files := fstest.MapFS{
			"proc/meminfo":                               {Data: []byte(meminfo)},
			"proc/self/mountinfo":                        {Data: []byte(mounts)},
			"proc/self/cgroup":                           {Data: []byte(groups)},
			"sys/fs/cgroup/memory.max":                   {Data: []byte(limit)},
			"sys/fs/cgroup/memory/memory.limit_in_bytes": {Data: []byte(limit)},
		}
		got, known := cgroup.Memory(files)
		if known == (got == math.MaxInt64) || got <= 0 {
			t.Fatalf("got %d, %v", got, known)
		}
		if most, ok := cgroup.Memory(fstest.MapFS{"proc/meminfo": {Data: []byte(meminfo)}}); ok && got > most {
			t.Fatalf("%d is more than the machine's %d", got, most)
		}
	})
}
