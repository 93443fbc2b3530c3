package fakedevice

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// Backend is a backend with one device that can be told to be slow, to fail and to
// go away: the faults that a real device does not produce on demand. Its
// programs compute nothing; its memory is host memory. Safe for concurrent use;
// the functions are set before it is opened.
type Backend struct {
	Limits gpuexec.Limits
	// The functions below, if set, run on the executor's goroutines; their error
	// is the driver's.
	OnCompile func(ctx context.Context, src gpuexec.Source) error
	OnLoad    func(ctx context.Context, src gpuexec.Source, blob []byte) error
	OnBlob    func(key string) error
	OnLaunch  func(ctx context.Context, key string, args []gpuexec.DeviceArg, grid int) error
	OnSizes   func(grid, block gpuexec.Size) // of each launch, before OnLaunch
	OnOpen    func() error
	OnCall    func(call string) error // alloc, write, read or finish
	OnRelease func()                  // of memory
	NoBlobs   bool
	Spoils    bool     // Load writes into its blob
	ISA       []string // of its identity; what it compiles needs none of them
	MostBytes int64    // of device memory; 0 = no bound

	mu struct {
		sync.Mutex
		device *fakeDevice
	}
	open     atomic.Int64 // devices and queues not closed yet
	programs atomic.Int64 // built and not released
	memories atomic.Int64
	misuse   atomic.Int64
}

// Name implements gpuexec.Backend.
func (f *Backend) Name() string { return "fake" }

// Devices implements gpuexec.Backend.
func (f *Backend) Devices(context.Context) []gpuexec.DeviceInfo {
	return []gpuexec.DeviceInfo{f.info()}
}

func (f *Backend) info() gpuexec.DeviceInfo {
	return gpuexec.DeviceInfo{Backend: "fake", Name: "fake device", Available: true,
		Identity: gpuexec.Identity{Library: "1", Build: "fake", Device: "fake device", ISA: f.ISA}}
}

// Open implements gpuexec.Backend.
func (f *Backend) Open(_ context.Context, index int) (gpuexec.Device, error) {
	if index != 0 {
		return nil, fault.ErrNotFound
	}
	if f.OnOpen != nil {
		if err := f.OnOpen(); err != nil {
			return nil, err
		}
	}
	d := &fakeDevice{fake: f, lost: make(chan struct{})}
	f.mu.Lock()
	f.mu.device = d
	f.mu.Unlock()
	f.open.Add(1)
	return d, nil
}

// Lose makes the open device go away by itself and reports whether one was there.
func (f *Backend) Lose() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.mu.device
	if d != nil {
		f.mu.device = nil
		close(d.lost)
	}
	return d != nil
}

// Leaked is the number of devices and queues that were opened and not closed.
func (f *Backend) Leaked() int { return int(f.open.Load()) }

// Programs is the number of programs on open devices that were not released.
func (f *Backend) Programs() int { return int(f.programs.Load()) }

// Memories is the same of memory.
func (f *Backend) Memories() int { return int(f.memories.Load()) }

// Misuse counts what an executor must never do: release twice, launch with what
// was released or belongs to another device, or call what belongs to a device
// that was closed.
func (f *Backend) Misuse() int { return int(f.misuse.Load()) }

type fakeDevice struct {
	fake *Backend
	lost chan struct{}
	used atomic.Int64

	closed             atomic.Bool
	programs, memories atomic.Int64 // not released; Close takes them along
}

func (d *fakeDevice) program(key string) (gpuexec.Program, error) {
	if err := d.gone(); err != nil {
		return nil, err
	}
	d.fake.programs.Add(1)
	d.programs.Add(1)
	return &fakeProgram{d: d, key: key}, nil
}

func (d *fakeDevice) Info() gpuexec.DeviceInfo { return d.fake.info() }
func (d *fakeDevice) Limits() gpuexec.Limits   { return d.fake.Limits }
func (d *fakeDevice) Lost() <-chan struct{}    { return d.lost }

func (d *fakeDevice) gone() error {
	select {
	case <-d.lost:
		return fault.ErrDeviceLost
	default:
		return nil
	}
}

func (d *fakeDevice) Compile(ctx context.Context, src gpuexec.Source) (gpuexec.Program, error) {
	if f := d.fake.OnCompile; f != nil {
		if err := f(ctx, src); err != nil {
			return nil, err
		}
	}
	return d.program(src.Key)
}

func (d *fakeDevice) Load(ctx context.Context, src gpuexec.Source, blob []byte) (gpuexec.Program, error) {
	if f := d.fake.OnLoad; f != nil {
		if err := f(ctx, src, blob); err != nil {
			return nil, err
		}
	}
	if string(blob) != src.Key {
		return nil, fault.ErrRefused
	}
	if d.fake.Spoils {
		clear(blob)
	}
	return d.program(src.Key)
}

// called notes a call on behalf of what belongs to the device.
func (d *fakeDevice) called() {
	if d.closed.Load() {
		d.fake.misuse.Add(1)
	}
}

// release notes the release of a thing and reports whether it was the first.
func (d *fakeDevice) release(released *atomic.Bool) (first bool) {
	d.called()
	if first = !released.Swap(true); !first {
		d.fake.misuse.Add(1)
	}
	return first
}

func (d *fakeDevice) call(what string) error {
	d.called()
	if f := d.fake.OnCall; f != nil {
		if err := f(what); err != nil {
			return err
		}
	}
	return d.gone()
}

func (d *fakeDevice) Alloc(bytes int64) (gpuexec.Memory, error) {
	if err := d.call("alloc"); err != nil {
		return nil, err
	}
	if most := d.fake.MostBytes; most > 0 && d.used.Add(bytes) > most {
		d.used.Add(-bytes)
		return nil, fault.ErrTooLarge
	}
	d.fake.memories.Add(1)
	d.memories.Add(1)
	return &fakeMemory{d: d, bytes: make([]byte, bytes)}, nil
}

func (d *fakeDevice) OpenQueue() (gpuexec.Queue, error) {
	d.fake.open.Add(1)
	return &fakeQueue{d: d}, nil
}

func (d *fakeDevice) Close() error {
	d.called()
	d.closed.Store(true)
	d.fake.open.Add(-1)
	d.fake.programs.Add(-d.programs.Swap(0))
	d.fake.memories.Add(-d.memories.Swap(0))
	return nil
}

type fakeProgram struct {
	d        *fakeDevice
	key      string
	released atomic.Bool
}

func (p *fakeProgram) Bytes() int64 {
	p.d.called()
	return int64(len(p.key))
}

func (p *fakeProgram) Release() {
	if !p.d.release(&p.released) {
		return
	}
	p.d.programs.Add(-1)
	p.d.fake.programs.Add(-1)
}

func (p *fakeProgram) Requires() []string {
	p.d.called()
	return []string{}
}

func (p *fakeProgram) Blob(context.Context) ([]byte, error) {
	p.d.called()
	if p.d.fake.NoBlobs {
		return nil, fault.ErrUnsupported
	}
	if f := p.d.fake.OnBlob; f != nil {
		if err := f(p.key); err != nil {
			return nil, err
		}
	}
	return []byte(p.key), nil
}

type fakeMemory struct {
	d        *fakeDevice
	bytes    []byte
	released atomic.Bool
}

func (m *fakeMemory) Mapped() []byte {
	m.d.called()
	return nil
}

func (m *fakeMemory) Release() {
	if !m.d.release(&m.released) {
		return
	}
	if on := m.d.fake.OnRelease; on != nil {
		on()
	}
	m.d.memories.Add(-1)
	m.d.fake.memories.Add(-1)
	m.d.used.Add(-int64(len(m.bytes)))
}

type fakeQueue struct{ d *fakeDevice }

func (q *fakeQueue) Launch(ctx context.Context, p gpuexec.Program, args []gpuexec.DeviceArg, grid, block gpuexec.Size) error {
	program := p.(*fakeProgram)
	if program.released.Load() || program.d != q.d {
		q.d.fake.misuse.Add(1)
	}
	for _, a := range args {
		if m, ok := a.Memory.(*fakeMemory); ok && (m.released.Load() || m.d != q.d) {
			q.d.fake.misuse.Add(1)
		}
	}
	if f := q.d.fake.OnSizes; f != nil {
		f(grid, block)
	}
	if f := q.d.fake.OnLaunch; f != nil {
		if err := f(ctx, program.key, args, grid[0]); err != nil {
			return err
		}
	}
	return q.d.gone()
}

func (q *fakeQueue) Write(m gpuexec.Memory, offset int64, from []byte) error {
	copy(m.(*fakeMemory).bytes[offset:], from)
	return q.d.call("write")
}

func (q *fakeQueue) Read(m gpuexec.Memory, offset int64, into []byte) error {
	copy(into, m.(*fakeMemory).bytes[offset:])
	return q.d.call("read")
}

func (q *fakeQueue) Finish(context.Context) error { return q.d.call("finish") }

func (q *fakeQueue) Close() error {
	q.d.fake.open.Add(-1)
	return nil
}
