//go:build linux && (amd64 || arm64)

package opencl

import (
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/kiln-cache/kiln/gpuexec"
)

// grids has queues run one kernel at the same time only in the same grid. PoCL before 6
// loads code for each width of a grid, but counts its users by kernel and block alone: it
// ends the process as soon as it has counted below zero (pocl_release_dlhandle_cache;
// mended by PoCL's commit c9ac4c0c3).
var grids struct {
	sync.Mutex
	used map[kernelBlock]*users
}

// kernelBlock is what PoCL counts by: programs of the same code are one to it, in all
// devices of a process.
type kernelBlock struct {
	code  uint64 // a hash: of two that are taken for one, one waits, and no more
	block gpuexec.Size
}

// users are the queues that have launched a kernel, and have not finished.
type users struct {
	of      kernelBlock
	grid    gpuexec.Size
	several bool // grids; then there is one queue
	queues  int
	waiting []waiter // in order
}

type waiter struct {
	grid     gpuexec.Size
	admitted chan struct{} // closed when it is one of the queues
}

// tryGrid makes the queue a user of a kernel in a grid, or answers false if it has to wait
// for others.
func (q *queue) tryGrid(k kernelBlock, grid gpuexec.Size) bool {
	grids.Lock()
	defer grids.Unlock()
	u := grids.used[k]
	switch held := u != nil && slices.Contains(q.grids, u); {
	case u == nil:
		u = newUsers(k, grid)
	case held && u.grid == grid && !u.several:
		return true
	case held && u.queues == 1:
		u.several = true // it runs them in order
		return true
	case held || u.several || u.grid != grid || len(u.waiting) > 0:
		return false
	default:
		u.queues++
	}
	q.grids = append(q.grids, u)
	return true
}

// waitGrid waits until the queue is a user. It holds nothing that others wait for.
func (q *queue) waitGrid(k kernelBlock, grid gpuexec.Size) {
	grids.Lock()
	u := grids.used[k]
	if u == nil {
		q.grids = append(q.grids, newUsers(k, grid))
		grids.Unlock()
		return
	}
	w := waiter{grid: grid, admitted: make(chan struct{})}
	u.waiting = append(u.waiting, w)
	grids.Unlock()
	<-w.admitted
	q.grids = append(q.grids, u)
}

// newUsers is for the first queue, under grids' lock.
func newUsers(k kernelBlock, grid gpuexec.Size) *users {
	if grids.used == nil {
		grids.used = make(map[kernelBlock]*users)
	}
	u := &users{of: k, grid: grid, queues: 1}
	grids.used[k] = u
	return u
}

// leaveGrids is for a queue that has finished. The last one lets those in that have waited
// longest, as many as agree.
func (q *queue) leaveGrids() {
	if len(q.grids) == 0 {
		return
	}
	grids.Lock()
	defer grids.Unlock()
	for _, u := range q.grids {
		if u.queues--; u.queues > 0 {
			continue
		}
		if len(u.waiting) == 0 {
			delete(grids.used, u.of)
			continue
		}
		u.grid, u.several = u.waiting[0].grid, false
		for len(u.waiting) > 0 && u.waiting[0].grid == u.grid {
			u.queues++
			close(u.waiting[0].admitted)
			u.waiting = u.waiting[1:]
		}
	}
	q.grids = q.grids[:0]
}

var poclVersion = regexp.MustCompile(`\bPoCL (\d+)\.`)

// miscounts tells whether a platform is a PoCL that needs grids.
func miscounts(version string) bool {
	found := poclVersion.FindStringSubmatch(version)
	if found == nil {
		return false
	}
	major, err := strconv.Atoi(found[1])
	return err == nil && major < 6
}
