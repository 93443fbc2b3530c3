package policy

// Save is a snapshot that is taken at once.
func (p *Policy) Save() []byte {
	always := func() bool { return true }
	s := p.Snapshot(always)
	s.Copy(always)
	return s.Encode()
}
