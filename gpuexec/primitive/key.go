package primitive

import "github.com/kiln-cache/kiln/internal/canon"

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

// Factors takes apart a key, or the form of one that a store keeps, into its fields
// by name (SPEC R2), as in "op.tensors[0].dims": "[8,16]". What is no key gives nil. It
// has the form of blobstore.Config.Factors.
func Factors(_, key string) map[string]string {
	fields, err := canon.Fields([]byte(key), schema)
	if err != nil || key == "" {
		return nil
	}
	factors := make(map[string]string, len(fields))
	for _, f := range fields {
		factors[f.Path] = f.Value
	}
	return factors
}
