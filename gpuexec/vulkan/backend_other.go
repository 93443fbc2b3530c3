//go:build !(linux && (amd64 || arm64))

package vulkan

import (
	"context"
	"fmt"
	"runtime"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

var errSystem = fmt.Errorf("%w: on %s/%s Vulkan is not driven", fault.ErrUnavailable, runtime.GOOS, runtime.GOARCH)

func (*Backend) processor() bool { return false }

func (*Backend) devices() []gpuexec.DeviceInfo { return absent(errSystem) }

func (b *Backend) open(context.Context, int) (gpuexec.Device, error) {
	return nil, unavailable(errSystem)
}
