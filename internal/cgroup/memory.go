package cgroup

import (
	"io"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// Memory is what the process may have, in bytes, and whether that is known.
// files is the root of the file system, without a leading slash in its names.
func Memory(files fs.FS) (bytes int64, known bool) {
	least := int64(math.MaxInt64)
	for _, limit := range []int64{machine(files), group(files)} {
		if limit > 0 {
			least = min(least, limit)
		}
	}
	return least, least < math.MaxInt64
}

// machine is MemTotal of /proc/meminfo, 0 if it is not known.
func machine(files fs.FS) int64 {
	for line := range strings.Lines(read(files, "proc/meminfo")) {
		value, found := strings.CutPrefix(line, "MemTotal:")
		if !found {
			continue
		}
		value, found = strings.CutSuffix(strings.TrimSpace(value), " kB")
		n := number(value)
		if !found || n > math.MaxInt64>>10 {
			return 0
		}
		return n << 10
	}
	return 0
}

// group is the least limit from the process's groups up to the roots of their
// mounts, 0 if there is none.
func group(files fs.FS) int64 {
	least := int64(0)
	mounts := parseMounts(read(files, "proc/self/mountinfo"))
	for _, g := range parseGroups(read(files, "proc/self/cgroup")) {
		for _, m := range mounts {
			if m.v2 != g.v2 {
				continue
			}
			name := "memory.limit_in_bytes"
			if m.v2 {
				name = "memory.max"
			}
			for dir := m.folder(g.path); ; dir = path.Dir(dir) {
				n := number(strings.TrimSpace(read(files, path.Join(dir, name))))
				if n > 0 && (least == 0 || n < least) {
					least = n
				}
				if dir == m.point || dir == "." || dir == "/" {
					break
				}
			}
		}
	}
	return least
}

// membership is one line of /proc/self/cgroup that matters: "0::/path" of
// version 2, "4:memory,hugetlb:/path" of version 1.
type membership struct {
	v2   bool
	path string
}

func parseGroups(text string) (groups []membership) {
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") {
			continue
		}
		v2 := parts[0] == "0" && parts[1] == ""
		if v2 || has(parts[1], "memory") {
			groups = append(groups, membership{v2: v2, path: path.Clean(parts[2])})
		}
	}
	return groups
}

// mount is where the memory controller's groups are seen: the part of the tree
// from root on stands at point.
type mount struct {
	v2          bool
	root, point string
}

// parseMounts reads the lines of mountinfo: id, parent, device, root, mount
// point, options, optional fields, "-", type, source, options of the type.
func parseMounts(text string) (mounts []mount) {
	for line := range strings.Lines(text) {
		left, right, found := strings.Cut(line, " - ")
		before, after := strings.Fields(left), strings.Fields(right)
		if !found || len(before) < 5 || len(after) < 3 {
			continue
		}
		v2 := after[0] == "cgroup2"
		if !v2 && (after[0] != "cgroup" || !has(after[2], "memory")) {
			continue
		}
		m := mount{v2: v2, root: path.Clean(unescape(before[3])), point: path.Clean(unescape(before[4]))}
		if path.IsAbs(m.root) && path.IsAbs(m.point) {
			mounts = append(mounts, m)
		}
	}
	return mounts
}

// folder is where the group of a path is seen below the mount. One that is not
// below its root, as in a container that sees the host's names, is at the mount
// itself.
func (m mount) folder(group string) string {
	if m.root == "/" {
		return path.Join(m.point, group)
	}
	if below, ok := strings.CutPrefix(group, m.root); ok && (below == "" || below[0] == '/') {
		return path.Join(m.point, below)
	}
	return m.point
}

// unescape resolves the octal escapes of mountinfo, as \040 for a blank.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func has(list, word string) bool {
	for item := range strings.SplitSeq(list, ",") {
		if item == word {
			return true
		}
	}
	return false
}

// number is a decimal above 0, else 0: "max" and what is not there are no limit.
// One that does not fit is the largest there is, as version 1 writes no limit.
func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if n < 0 || err != nil && n != math.MaxInt64 {
		return 0
	}
	return n
}

// read gives the text of one of the kernel's files, at most 1 MiB, or nothing.
func read(files fs.FS, name string) string {
	f, err := files.Open(strings.TrimPrefix(name, "/"))
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 1 << 20
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return ""
	}
	return string(text)
}
