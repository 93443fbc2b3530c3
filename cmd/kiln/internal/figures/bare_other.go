//go:build !unix

package figures

import "github.com/kiln-cache/kiln/fault"

func bare(dir, bucket, place string) (get func() error, done func() error, err error) {
	return nil, nil, fault.ErrUnsupported
}
