// Package cgroup reads how much memory the process may have: the least of the
// limits of its control group and of those above it, versions 1 and 2, and of
// what the machine has. It reads the files of the kernel's documents cgroup-v1,
// cgroup-v2 and proc(5); where there are none it knows nothing.
package cgroup
