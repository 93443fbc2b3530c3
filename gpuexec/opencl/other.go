//go:build !linux || !(amd64 || arm64)

package opencl

import "github.com/kiln-cache/kiln/gpuexec"

const elsewhere = "OpenCL is used on 64-bit Linux only"

func list() ([]gpuexec.DeviceInfo, error) { return nil, unavailable(elsewhere) }

func (backend) open(int) (gpuexec.Device, error) { return nil, unavailable(elsewhere) }

func (b backend) side() int64 { return side(b.other) }

func (backend) units() int { return 1 }
