//go:build linux && (amd64 || arm64)

package vulkan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/vk"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/zone"
)

// device is an open device.
type device struct {
	b         *Backend
	info      gpuexec.DeviceInfo
	of        *vk.Physical
	vk        *vk.Device
	family    int
	queues    []*line
	pipelines *pipelinefile.Cache
	file      string // of pipelines; empty = none
	memory    memory
	log       *slog.Logger
	zone      zone.Zone  // the handler of the log, which Close waits for
	saving    sync.Mutex // held while the file is saved

	mu struct {
		sync.Mutex
		opened   int                   // queues so far
		programs map[*program]struct{} // that were not released
		unsaved  int                   // pipelines that were made since the file was saved
		tried    int                   // of these, those that could not be saved
		later    *time.Timer           // saves them, if nothing does before; nil: none is due
	}
}

// line is a queue of the driver, which takes one submission at a time.
type line struct {
	mu    sync.Mutex
	queue vk.Queue
}

// Settings of every device.
const (
	mostLines  = 8           // queues of the driver
	saveEvery  = 32          // pipelines made
	saveWithin = time.Minute // of the first that is not in the file
)

func openDevice(ctx context.Context, b *Backend, info gpuexec.DeviceInfo, of *vk.Physical) (_ gpuexec.Device, err error) {
	d := &device{b: b, info: info, of: of, family: family(of)}
	d.log = guard.Logger(b.cfg.Logger, d.zone.Lend(func(fn func()) { go fn() }))
	d.mu.programs = make(map[*program]struct{})
	lines := min(int(of.Families[d.family].Count), mostLines)
	if d.vk, err = of.Open(d.family, lines); err != nil {
		return nil, unavailable(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	for i := range lines {
		d.queues = append(d.queues, &line{queue: d.vk.Queue(d.family, i)})
	}
	if err := d.memory.init(d); err != nil {
		return nil, err
	}
	d.pipelines, err = pipelinefile.Open(ctx, pipelinefile.Config{Driver: driver{d}, Identity: identity(of), Logger: d.log})
	if err != nil {
		return nil, err
	}
	if b.cfg.PipelineFile != "" {
		ext := filepath.Ext(b.cfg.PipelineFile)
		d.file = fmt.Sprintf("%s-%d%s", strings.TrimSuffix(b.cfg.PipelineFile, ext), info.Index, ext)
		if _, err := d.pipelines.Load(ctx, d.file); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Info implements gpuexec.Device.
func (d *device) Info() gpuexec.DeviceInfo { return d.info }

// Limits implements gpuexec.Device.
func (d *device) Limits() gpuexec.Limits {
	l := &d.of.Limits
	return gpuexec.Limits{
		MaxGrid: size(l.MaxGroups), MaxBlock: size(l.MaxGroupSize), MaxItems: int(l.MaxInvocations), MaxLocal: int64(l.MaxShared),
		Alignment: int(d.memory.align),
	}
}

func size(n [3]uint32) gpuexec.Size { return gpuexec.Size{int(n[0]), int(n[1]), int(n[2])} }

// Lost implements gpuexec.Device: the driver tells by errors.
func (d *device) Lost() <-chan struct{} { return nil }

// made notes one pipeline more.
func (d *device) made() {
	d.b.counts.pipelines.Add(1)
	d.mu.Lock()
	d.mu.unsaved++
	d.mu.Unlock()
}

// saveSoon has what was made be in the file within a minute, if nothing saves it before. The
// handler of the log is then code of whatever the caller is code of.
func (d *device) saveSoon() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file != "" && d.mu.later == nil && d.mu.unsaved > 0 && d.mu.programs != nil {
		zone.Carry(func(save func()) { d.mu.later = time.AfterFunc(d.b.soon(), save) })(func() {
			d.mu.Lock()
			d.mu.later = nil
			d.mu.Unlock()
			d.save(0)
		})
	}
}

// save writes the file of pipelines if so many were made since that was tried last, and there
// are any that are not in it, unless the device is closed. A file that cannot be written is
// logged: the next process compiles again. With a least number, which compiles have, it does not
// wait for a save that is under way, nor its handler of the log: the clock saves what that leaves.
func (d *device) save(least int) {
	if least == 0 {
		d.saving.Lock()
	} else if !d.saving.TryLock() {
		return
	}
	defer d.saving.Unlock()
	d.mu.Lock()
	unsaved := d.mu.unsaved
	due := d.file != "" && d.mu.programs != nil && unsaved > 0 && unsaved-d.mu.tried >= least
	if due {
		d.mu.unsaved, d.mu.tried = 0, 0
	}
	d.mu.Unlock()
	if !due {
		return
	}
	if _, err := d.pipelines.Save(context.Background(), d.file); err != nil {
		d.mu.Lock()
		d.mu.unsaved += unsaved
		d.mu.tried = unsaved
		d.mu.Unlock()
		d.log.Warn("vulkan: the file of pipelines was not saved", "file", d.file, "error", err)
	}
}

// soon is how long a pipeline stays out of the file at most.
func (b *Backend) soon() time.Duration { return cmp.Or(b.within, saveWithin) }

// Close implements gpuexec.Device. Called by the handler of the log it closes nothing, but answers
// ErrCycle.
func (d *device) Close() error {
	if d.zone.Here() {
		return failure("close", fault.ErrCycle, "the handler of the log called it, which it waits for")
	}
	var errs []error
	if d.pipelines != nil {
		d.save(0)
		d.mu.Lock()
		programs := d.mu.programs
		d.mu.programs = nil
		if d.mu.later != nil {
			d.mu.later.Stop()
		}
		d.mu.Unlock()
		for p := range programs {
			p.end()
		}
		errs = append(errs, d.pipelines.Close(context.Background()))
	}
	d.memory.close()
	n := d.vk.Objects()
	d.vk.Close()
	if d.b.counts.leaked.Add(n); n != 0 {
		errs = append(errs, fmt.Errorf("vulkan: close: %d objects of the driver were left", n))
	}
	return errors.Join(errs...)
}
