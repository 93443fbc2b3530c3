package artefacts

// stalling is a turn that lasts until gate is closed.
type stalling struct{ began, gate chan struct{} }

func (m stalling) handle(*shell) {
	close(m.began)
	<-m.gate
}

// Stall has a turn of the cache last until the result is called.
func Stall(c *Cache) (goOn func()) {
	m := stalling{make(chan struct{}), make(chan struct{})}
	c.ref.Tell(m)
	<-m.began
	return func() { close(m.gate) }
}
