//go:build !linux || !(amd64 || arm64)

package cuda

import (
	"context"

	"github.com/kiln-cache/kiln/gpuexec"
)

// cublas is not to be had.
type cublas struct{}

func (backend) cublas() *cublas { return nil }

const elsewhere = "CUDA is used on 64-bit Linux only"

func (backend) list() ([]gpuexec.DeviceInfo, error) { return nil, unavailable(elsewhere) }

func (backend) open(context.Context, int) (gpuexec.Device, error) { return nil, unavailable(elsewhere) }
