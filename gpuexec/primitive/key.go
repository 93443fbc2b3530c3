package primitive

// Key is the key of the primitive that the Spec asks for: its canonical encoding,
// which is binary. Equal keys mean that one primitive serves both. Errors:
// fault.ErrInvalid for a spec without a kind or with two settings for one argument; a
// *fault.Error with fault.ErrRefused and the reason key_refused, naming the input, if
// an input has no digest.
func (s *Spec) Key() (string, error) {
	var buf [512]byte
	enc, err := s.append(buf[:0], true)
	return string(enc), err
}
