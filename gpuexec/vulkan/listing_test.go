//go:build linux && (amd64 || arm64)

package vulkan

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/vk"
)

// named is a device as a driver describes it, with a queue that computes.
func named(name string, kind, api uint32) *vk.Physical {
	p := &vk.Physical{Families: []vk.QueueFamily{{Flags: vk.QueueCompute, Count: 1}}}
	p.Type, p.API = kind, api
	copy(p.Name[:], name)
	return p
}

const new12 = 1<<22 | 2<<12

// B2: devices of the name that is preferred come first; the rest keeps its order.
func TestPreferred(t *testing.T) {
	all := []*vk.Physical{
		named("NVIDIA H100", vk.TypeDiscrete, new12), named("Radeon RX 7900", vk.TypeDiscrete, new12), named("Radeon 780M", vk.TypeIntegrated, new12), named("llvmpipe", vk.TypeCPU, new12),
	}
	for prefer, want := range map[string]string{
		"": "0123", "radeon": "1203", "RADEON 7": "2013", "780": "2013", "llvm": "3012", "Arc": "0123",
	} {
		b, got := New(Config{Prefer: prefer}), ""
		for _, p := range b.ordered(all) {
			got += string('0' + rune(slices.Index(all, p)))
		}
		if got != want {
			t.Errorf("%q: %s, want %s", prefer, got, want)
		}
	}
	b := driven(t, Config{Prefer: "LLVMpipe"})
	if d := b.Devices(t.Context())[0]; !strings.Contains(d.Name, "llvmpipe") {
		t.Skipf("%s is here, want lavapipe", d.Name)
	}
	if d, err := b.Open(t.Context(), 0); err != nil {
		t.Error(err)
	} else if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := New(Config{Prefer: "no such device"}).Open(t.Context(), 0); !errors.Is(err, fault.ErrNotFound) || !strings.Contains(err.Error(), "llvmpipe") {
		t.Errorf("%v, want ErrNotFound that names what there is", err)
	}
}

// B2: devices are listed discrete ones first and processors last, and what cannot be used behind
// all; preferred by its name it comes first all the same.
func TestOrderOfDevices(t *testing.T) {
	mute := named("mute", vk.TypeDiscrete, new12)
	mute.Families = nil
	all := []*vk.Physical{
		named("old", vk.TypeDiscrete, 1<<22), mute, named("processor", vk.TypeCPU, new12), named("shared", vk.TypeIntegrated, new12),
		named("what", 7, new12), named("card", vk.TypeDiscrete, new12), named("second card", vk.TypeDiscrete, new12), named("unknown", 0, new12),
	}
	order(all)
	for prefer, want := range map[string]string{
		"":     "card, second card, shared, unknown, processor, what, old, mute, ",
		"card": "card, second card, shared, unknown, processor, what, old, mute, ",
		"MUTE": "mute, card, second card, shared, unknown, processor, what, old, ",
	} {
		got := ""
		for _, p := range New(Config{Prefer: prefer}).ordered(all) {
			got += vk.Text(p.Name[:]) + ", "
		}
		if got != want {
			t.Errorf("%q: %s, want %s", prefer, got, want)
		}
	}
}

// B2: a device that cannot be used is listed with what is to be done.
func TestUnusable(t *testing.T) {
	mute := named("mute", vk.TypeDiscrete, new12)
	mute.Families[0].Flags = vk.QueueGraphics
	for _, c := range []struct {
		p    *vk.Physical
		want string
	}{
		{named("old", vk.TypeDiscrete, 1<<22|1<<12|275), "1.1.275, want 1.2 or later: install a newer one"},
		{mute, "no compute queue"},
	} {
		if d := describe(3, c.p); d.Available || d.Index != 3 || d.Name == "" || !strings.Contains(d.Reason, c.want) {
			t.Errorf("%+v, want a reason with %q", d, c.want)
		}
	}
	if d := describe(0, named("new", vk.TypeDiscrete, new12)); !d.Available {
		t.Errorf("%+v, want it available", d)
	}
}

var driverless = flag.Bool("driverless", false, "this process is one of TestNoDriver, whose loader knows no driver")

// E2: a loader that knows no driver is an absence that says what to install.
func TestNoDriver(t *testing.T) {
	if !*driverless {
		driven(t, Config{})
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNoDriver$", "-test.v", "-driverless")
		c.Env = append(c.Environ(), "VK_DRIVER_FILES=/dev/null", "VK_ICD_FILENAMES=/dev/null")
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	const driver = "mesa-vulkan-drivers"
	b := New(Config{})
	if list := b.Devices(t.Context()); len(list) != 1 || list[0].Available || !strings.Contains(list[0].Reason, driver) {
		t.Errorf("%+v, want one absence that says what to install", list)
	}
	if _, err := gpuexec.Open(t.Context(), gpuexec.Config{Backend: b}); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), driver) {
		t.Errorf("%v, want ErrUnavailable that says what to install", err)
	}
}
