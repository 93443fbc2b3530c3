// Package staging copies between the host and a device through stages: memory of the host
// that the device's driver has pinned. While the device copies one, the host fills or empties
// another. It is for backends, which have two for each queue.
package staging

// Bytes is how much a stage holds, and one copy takes at most.
const Bytes = 512 << 10

// Stage is one of a backend's.
type Stage interface{ Bytes() []byte }

// Write returns when the bytes are in stages. next gives a stage that no copy is using, and
// send has its first n bytes go to the device, as those from a place of from on.
func Write[S Stage](from []byte, next func() (S, error), send func(s S, place int64, n int) error) error {
	for place := 0; place < len(from); {
		s, err := next()
		if err != nil {
			return err
		}
		n := copy(s.Bytes(), from[place:])
		if err := send(s, int64(place), n); err != nil {
			return err
		}
		place += n
	}
	return nil
}

// Read returns when the bytes have come. next gives a stage that no copy is using, fetch has n
// bytes come into it, for a place of into, and wait waits until they are there. One part comes
// while the one before is copied out of its stage.
func Read[S Stage](into []byte, next func() (S, error), fetch func(s S, place int64, n int) error, wait func(S) error) error {
	var coming S
	var part []byte // that is for
	for place := 0; len(part) > 0 || place < len(into); {
		var s S
		more := into[place:min(place+Bytes, len(into))]
		if len(more) > 0 {
			var err error
			if s, err = next(); err != nil {
				return err
			}
			if err := fetch(s, int64(place), len(more)); err != nil {
				return err
			}
			place += len(more)
		}
		if len(part) > 0 {
			if err := wait(coming); err != nil {
				return err
			}
			copy(part, coming.Bytes())
		}
		coming, part = s, more
	}
	return nil
}
