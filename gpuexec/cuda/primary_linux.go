//go:build linux && (amd64 || arm64)

package cuda

import (
	"context"
	"sync"
)

// primary is the primary context of a device, which all that is opened on it in this
// process shares. It is lost for all of them, and comes back when all have left it.
type primary struct {
	l       *library
	ordinal int32
	context handle

	users int           // under primaries
	lost  chan struct{} // closed when a call has said so
	once  sync.Once
	free  chan struct{} // closed when the last user has left one that is lost

	measuring chan struct{} // has whoever measures: two would disturb each other
}

// primaries has those in use.
var primaries struct {
	sync.Mutex
	of map[int32]*primary
}

// retain gives the primary context of a device. It waits while others still hold one that
// is lost.
func (l *library) retain(ctx context.Context, ordinal int32) (*primary, error) {
	for {
		primaries.Lock()
		p := primaries.of[ordinal]
		if p == nil {
			p, err := l.begin(ordinal)
			primaries.Unlock()
			return p, err
		}
		if !p.isLost() {
			p.users++
			primaries.Unlock()
			return p, nil
		}
		primaries.Unlock()
		select {
		case <-p.free:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// begin is for the first user, under primaries.
func (l *library) begin(ordinal int32) (*primary, error) {
	p := &primary{l: l, ordinal: ordinal, users: 1, lost: make(chan struct{}), free: make(chan struct{}), measuring: make(chan struct{}, 1)}
	var code int32
	if p.context, code = l.create(cuDevicePrimaryCtxRetain, uintptr(uint32(ordinal))); code != success {
		return nil, l.failed("open", cuDevicePrimaryCtxRetain, code)
	}
	if primaries.of == nil {
		primaries.of = make(map[int32]*primary)
	}
	primaries.of[ordinal] = p
	return p, nil
}

func (p *primary) lose() { p.once.Do(func() { close(p.lost) }) }

func (p *primary) isLost() bool {
	select {
	case <-p.lost:
		return true
	default:
		return false
	}
}

// leave gives it up. The last user resets one that is lost: it would be as lost for whoever
// retains it next.
func (p *primary) leave() {
	primaries.Lock()
	defer primaries.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	if p.isLost() {
		p.l.quietly(cuDevicePrimaryCtxReset, uintptr(uint32(p.ordinal)))
	}
	p.l.quietly(cuDevicePrimaryCtxRelease, uintptr(uint32(p.ordinal)))
	native.Add(-1)
	delete(primaries.of, p.ordinal)
	close(p.free)
}
