//go:build linux && (amd64 || arm64)

package fakecuda

func (d *Driver) eventCreate(into *uintptr, flags uint32) int32 {
	return d.make(into, func(p *primary) any { return &event{of: p, timed: flags&2 == 0} })
}

func (d *Driver) eventRecord(handle, on uintptr) int32 {
	e, _, code := object[*event](d, handle)
	if code != success {
		return code
	}
	s, _, code := object[*stream](d, on)
	if code == success {
		e.stream = s
	}
	if code == success && e.timed {
		s.add(func() int32 { e.at = s.clock; return success })
	}
	return code
}

// elapsed is a millisecond for each launch between two events that have come, and for each
// KiB of shared memory that it had.
func (d *Driver) elapsed(into *float32, from, to uintptr) int32 {
	a, _, code := object[*event](d, from)
	if code != success {
		return code
	}
	b, _, code := object[*event](d, to)
	switch {
	case code != success:
		return code
	case !a.timed || !b.timed || a.stream == nil || b.stream == nil:
		return invalidHandle
	}
	*into = b.at - a.at
	return success
}

func (d *Driver) eventSynchronize(handle uintptr) int32 {
	e, p, code := object[*event](d, handle)
	switch {
	case code != success:
		return code
	case e.stream == nil:
		return p.sticky
	}
	return d.drain(e.stream)
}
