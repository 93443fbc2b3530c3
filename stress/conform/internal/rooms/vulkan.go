package rooms

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/internal/layout"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
)

// vulkanOf is the script's machine and build, as a Vulkan driver tells them.
func vulkanOf(w *outside.World) pipelinefile.Identity {
	var id pipelinefile.Identity
	for _, f := range []struct{ name, byDefault string }{
		{"library", "1.0"}, {"vendor", "0x10de"}, {"device", "0x2204"}, {"api", "1.3.0"}, {"driver", "535"}, {"driver_id", "4"}, {"driver_name", "driver"},
		{"driver_info", "535.1"}, {"device_name", "card"}, {"uuid", "cache"}, {"device_uuid", "device"}, {"driver_uuid", "driver"},
	} {
		text := w.Identity(f.name, f.byDefault)
		if text == "unknown" {
			id.Unknown = append(id.Unknown, f.name)
			continue
		}
		identify(&id, f.name, text)
	}
	return id
}

// identify sets a field to what a text stands for and reports whether there is
// one of that name.
func identify(id *pipelinefile.Identity, field, text string) bool {
	numbers := map[string]*uint32{"vendor": &id.Vendor, "device": &id.Device, "api": &id.API, "driver": &id.Driver, "driver_id": &id.DriverID}
	texts := map[string]*string{"library": &id.Library, "driver_name": &id.DriverName, "driver_info": &id.DriverInfo, "device_name": &id.DeviceName}
	uuids := map[string]*pipelinefile.UUID{"uuid": &id.UUID, "device_uuid": &id.DeviceUUID, "driver_uuid": &id.DriverUUID}
	switch {
	case numbers[field] != nil:
		*numbers[field] = uint32(numberOf(text))
	case texts[field] != nil:
		*texts[field] = text
	case uuids[field] != nil:
		*uuids[field] = uuidOf(text)
	default:
		return false
	}
	return true
}

// numberOf reads a number or a version such as 1.0.66, packed as Vulkan does.
// Any other text stands for a number of its own, the same in every process.
func numberOf(text string) uint64 {
	if n, err := strconv.ParseUint(text, 0, 64); err == nil {
		return n
	}
	parts := strings.Split(text, ".")
	var version [3]uint64
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 10)
		if err != nil || len(parts) != len(version) {
			h := fnv.New32a()
			h.Write([]byte(text))
			return uint64(h.Sum32())
		}
		version[i] = n
	}
	return version[0]<<22 | version[1]<<12 | version[2]
}

func uuidOf(text string) (u pipelinefile.UUID) {
	if raw, err := hex.DecodeString(text); err == nil && len(raw) == len(u) {
		return pipelinefile.UUID(raw)
	}
	sum := sha256.Sum256([]byte(text))
	return pipelinefile.UUID(sum[:len(u)])
}

// frontEnd makes words of a source that depend on nothing else.
type frontEnd struct{}

func (frontEnd) Compile(_ context.Context, _ string, source []byte, options uint64) ([]uint32, error) {
	const magic = 0x07230203
	words := []uint32{magic, uint32(options), uint32(options >> 32)}
	for _, b := range source {
		words = append(words, uint32(b))
	}
	return words, nil
}

// vulkan is the fake driver, which does what the script tells it.
type vulkan struct {
	told *outside.Driver
	id   *pipelinefile.Identity
}

// pipeline is one that the fake driver built.
type pipeline struct {
	module pipelinefile.Module
	value  *outside.Value
}

func (p pipeline) Destroy() { p.value.Release() }

// contents is the fake driver's cache: what was built, a line each.
type contents struct {
	driver vulkan
	lines  *outside.Register[string, bool]
}

func (v vulkan) OpenCache(_ context.Context, blob []byte) (pipelinefile.DriverCache, error) {
	c := contents{v, &outside.Register[string, bool]{}}
	if blob == nil {
		return c, nil
	}
	if v.told.Call("create") {
		return nil, refusal("pipeline cache", fault.DriverRefused)
	}
	for line := range strings.Lines(string(blob[layout.BlobHeader:])) {
		c.lines.Set(line, true)
	}
	return c, nil
}

// Build runs the creator of the call that asked.
func (v vulkan) Build(ctx context.Context, m pipelinefile.Module, cache pipelinefile.DriverCache) (pipelinefile.Pipeline, error) {
	making := ctx.Value(makingKey{}).(making)
	c := making.call
	hooks := outside.Hooks{Begun: c.Begun}
	value, err := c.World.Create(ctx, making.creator, m.Shader, hooks, c.Tally())
	if err != nil {
		return nil, err
	}
	if held, ok := cache.(contents); ok {
		words := binary.LittleEndian.AppendUint64(nil, m.Options)
		for _, w := range m.Words {
			words = binary.LittleEndian.AppendUint32(words, w)
		}
		sum := sha256.Sum256(words)
		held.lines.Set(hex.EncodeToString(sum[:])+"\n", true)
	}
	return pipeline{m, value}, nil
}

func (c contents) Merge(_ context.Context, from pipelinefile.DriverCache) error {
	if c.driver.told.Call("merge") {
		return refusal("pipeline cache", fault.DriverRefused)
	}
	for line := range from.(contents).lines.All() {
		c.lines.Set(line, true)
	}
	return nil
}

func (c contents) Blob(context.Context) ([]byte, error) {
	if c.driver.told.Call("deliver") {
		return nil, refusal("pipeline cache", fault.DriverRefused)
	}
	blob := layout.AppendBlobHeader(nil, &layout.Identity{Machine: layout.Machine(*c.driver.id)})
	if text, set := c.driver.told.Blob(); set {
		return append(blob, text...), nil
	}
	lines := slices.Sorted(maps.Keys(c.lines.All()))
	return append(blob, strings.Join(lines, "")...), nil
}

func (contents) Destroy() {}
