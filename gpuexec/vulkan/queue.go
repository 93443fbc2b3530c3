//go:build linux && (amd64 || arm64)

package vulkan

import (
	"context"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/vk"
)

// queue records the launches of one worker and hands them to the driver together:
// when Finish is called, or when a recording is full.
type queue struct {
	d         *device
	line      *line
	commands  *vk.Commands
	recording bool
	launches  int // of this recording
	buffers   int
	staging   *block // for copies, made for the first
	parts     []vk.BufferPart
	push      []byte
	hazards   hazards
}

// texelBytes is what a texel has: 4 float32.
const texelBytes = 16

// stagingBytes is how much one copy takes at a time.
const stagingBytes = 4 << 20

// OpenQueue implements gpuexec.Device.
func (d *device) OpenQueue() (gpuexec.Queue, error) {
	c, err := d.vk.Commands(d.family)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.opened++
	return &queue{d: d, line: d.queues[d.mu.opened%len(d.queues)], commands: c}, nil
}

// Launch implements gpuexec.Queue.
func (q *queue) Launch(ctx context.Context, p gpuexec.Program, args []gpuexec.DeviceArg, grid, block gpuexec.Size) error {
	of, err := p.(*program).sized(ctx, block)
	if err != nil {
		return err
	}
	if err := q.arguments(of, args); err != nil {
		return err
	}
	if q.launches == vk.MostSets || q.buffers+len(q.parts) > vk.MostBuffers {
		if err := q.flush(); err != nil {
			return err
		}
	}
	if err := q.begin(); err != nil {
		return err
	}
	if q.hazards.next(q.parts, p.(*program).writes) {
		q.d.b.counts.barriers.Add(1)
		q.commands.Barrier()
	}
	q.launches++
	q.buffers += len(q.parts)
	return q.commands.Launch(of.handle, of.layout, of.bindings, q.parts, q.push, [3]uint32{uint32(grid[0]), uint32(max(grid[1], 1)), uint32(max(grid[2], 1))})
}

// arguments sorts those of a launch into buffers and push constants.
func (q *queue) arguments(of *pipeline, args []gpuexec.DeviceArg) error {
	q.parts, q.push = q.parts[:0], q.push[:0]
	for i, a := range args {
		if a.Kind == gpuexec.ParamBuffer {
			most := int64(q.d.of.Limits.MaxStorageRange)
			switch of.bindings[len(q.parts)].Kind {
			case vk.UniformBuffer:
				most = int64(q.d.of.Limits.MaxUniformRange)
			case vk.TexelBuffer:
				most = texelBytes * int64(q.d.of.Limits.MaxTexels)
				if a.Bytes -= a.Bytes % texelBytes; a.Bytes == 0 {
					return fault.Invalidf("vulkan: launch", "argument %d has no %d bytes for a texel", i, texelBytes)
				}
			}
			if a.Bytes > most {
				return fault.Invalidf("vulkan: launch", "argument %d has %d bytes, the device takes %d of a buffer: pass parts", i, a.Bytes, most)
			}
			m := a.Memory.(*part)
			if a.Bytes == 0 { // drivers want some: nothing of it is touched
				a.Offset, a.Bytes = 0, 4
			}
			q.parts = append(q.parts, vk.BufferPart{Buffer: m.of.buffer, Offset: uint64(m.offset + a.Offset), Bytes: uint64(a.Bytes)})
			continue
		}
		q.push = appendPush(q.push, a)
	}
	for len(q.push)%4 != 0 { // the driver takes words
		q.push = append(q.push, 0)
	}
	return nil
}

// appendPush lays a number or a struct behind what is there.
func appendPush(push []byte, a gpuexec.DeviceArg) []byte {
	for int64(len(push))%pushAlign(a.Kind, a.Bytes) != 0 {
		push = append(push, 0)
	}
	if a.Kind == gpuexec.ParamStruct {
		return append(push, a.Struct...)
	}
	for i := range a.Bytes {
		push = append(push, byte(a.Value>>(8*i)))
	}
	return push
}

// pushAlign is where a number or a struct of so many bytes may begin.
func pushAlign(kind gpuexec.ParamKind, bytes int64) int64 {
	if kind == gpuexec.ParamStruct {
		return 16
	}
	return bytes
}

func (q *queue) begin() error {
	if q.recording {
		return nil
	}
	if err := q.commands.Begin(); err != nil {
		return err
	}
	q.recording = true
	return nil
}

// flush runs what was recorded.
func (q *queue) flush() error {
	if !q.recording {
		return nil
	}
	q.recording, q.launches, q.buffers = false, 0, 0
	q.hazards.clear()
	q.commands.Barrier()
	return q.line.run(q.commands)
}

// run submits a recording and waits for its end.
func (l *line) run(c *vk.Commands) error {
	l.mu.Lock()
	err := c.Submit(l.queue)
	l.mu.Unlock()
	for done := false; !done && err == nil; {
		done, err = c.Wait(time.Second)
	}
	return err
}

// Write implements gpuexec.Queue.
func (q *queue) Write(m gpuexec.Memory, offset int64, from []byte) error {
	return q.copy(m.(*part), offset, from, true)
}

// Read implements gpuexec.Queue.
func (q *queue) Read(m gpuexec.Memory, offset int64, into []byte) error {
	return q.copy(m.(*part), offset, into, false)
}

// copy moves bytes when what was launched before has run.
func (q *queue) copy(p *part, offset int64, host []byte, write bool) error {
	if err := q.flush(); err != nil {
		return err
	}
	if seen := p.Mapped(); seen != nil {
		move(seen[offset:][:len(host)], host, write)
		return nil
	}
	if q.staging == nil {
		b, err := q.d.block(stagingBytes, q.d.memory.host, true)
		if err != nil {
			return err
		}
		q.staging = b
	}
	for at := 0; at < len(host); at += stagingBytes {
		some := host[at:min(at+stagingBytes, len(host))]
		from, to := q.staging, p.of
		part := vk.Copy{To: uint64(p.offset + offset + int64(at)), Bytes: uint64(len(some))}
		if write {
			copy(q.staging.mapped, some)
		} else {
			from, to, part.From, part.To = to, from, part.To, 0
		}
		if err := q.begin(); err != nil {
			return err
		}
		q.commands.Copy(from.buffer, to.buffer, part)
		if err := q.flush(); err != nil {
			return err
		}
		if !write {
			copy(some, q.staging.mapped)
		}
	}
	return nil
}

func move(device, host []byte, write bool) {
	if write {
		copy(device, host)
	} else {
		copy(host, device)
	}
}

// Finish implements gpuexec.Queue. It waits to the end whatever becomes of the
// context: memory in use must not be given back.
func (q *queue) Finish(context.Context) error { return q.flush() }

// Close implements gpuexec.Queue.
func (q *queue) Close() error {
	err := q.flush()
	q.commands.Close()
	if q.staging != nil {
		q.d.drop(q.staging)
	}
	return err
}
