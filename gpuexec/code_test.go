package gpuexec_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

func fullCode() gpuexec.Code {
	return gpuexec.Code{
		Language: "c", Text: "text", Entry: "main", Options: []string{"-a", "-b"},
		Defines: map[string]string{"N": "1"}, Includes: map[string]string{"x.h": "x"},
		Constants: map[uint32][]byte{7: {1, 0, 0, 0}}, Block: gpuexec.Size{8, 2},
	}
}

// K4, K6: the key of a code covers every field, and every field of its parameters.
func TestKeyOfCode(t *testing.T) {
	params := []gpuexec.Param{{Kind: gpuexec.ParamBuffer, Bytes: 8, Align: 4}, {Kind: gpuexec.ParamU32}}
	keys := map[string]string{}
	add := func(what string, c gpuexec.Code, params []gpuexec.Param) {
		t.Helper()
		src, err := c.Source(params...)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if other := keys[src.Key]; other != "" {
			t.Errorf("%s has the key of %s", what, other)
		}
		keys[src.Key] = what
	}
	add("the code", fullCode(), params)
	for i := range reflect.TypeFor[gpuexec.Code]().NumField() {
		c := fullCode()
		field := reflect.ValueOf(&c).Elem().Field(i)
		name := reflect.TypeFor[gpuexec.Code]().Field(i).Name
		switch field.Kind() {
		case reflect.String:
			field.SetString(field.String() + "+")
		case reflect.Slice:
			slices.Reverse(c.Options)
		case reflect.Map:
			key, value := field.MapKeys()[0], field.MapIndex(field.MapKeys()[0])
			field.SetMapIndex(key, reflect.Zero(value.Type()))
			add("another value in "+name, c, params)
			field.SetMapIndex(key, reflect.Value{})
			add("nothing in "+name, c, params)
			more := reflect.New(key.Type()).Elem()
			field.SetMapIndex(more, value)
		case reflect.Array:
			field.Index(2).SetInt(3)
		default:
			t.Fatalf("no change is known for %s", name)
		}
		add("another "+name, c, params)
	}
	add("fewer parameters", fullCode(), params[:1])
	for i := range reflect.TypeFor[gpuexec.Param]().NumField() {
		p := slices.Clone(params)
		field := reflect.ValueOf(&p[0]).Elem().Field(i)
		switch name := reflect.TypeFor[gpuexec.Param]().Field(i).Name; name {
		case "Kind":
			p[0] = gpuexec.Param{Kind: gpuexec.ParamStruct, Bytes: 8}
		case "Times":
			p[0].Times = []int{1}
		case "Round":
			p[0].Times, p[0].Round = []int{1}, 16
		case "ReadOnly", "WriteOnly":
			field.SetBool(true)
		default:
			field.SetInt(16)
		}
		add(fmt.Sprint("parameter field ", i), fullCode(), p)
	}
	for _, of := range []int{0, 1} {
		two := []gpuexec.Param{params[0], params[0]}
		two[of].ReadOnly = true
		add(fmt.Sprint("only read: buffer ", of), fullCode(), two)
	}
	moved := fullCode()
	moved.Defines, moved.Includes = moved.Includes, moved.Defines
	add("defines and includes exchanged", moved, params)
	joined := fullCode()
	joined.Options = []string{"-a-b"}
	add("options joined", joined, params)
}

// K4: a field that came later leaves the keys of what does not have it.
func TestKeysStay(t *testing.T) {
	src, err := fullCode().Source(gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 8, Align: 4}, gpuexec.Param{Kind: gpuexec.ParamU32})
	if want := "c main e1300b732ae58f19a2396089dce08b849b0600d66b9fdae6489caa32d5c4b45a"; err != nil || src.Key != want {
		t.Errorf("%s, %v; want %s", src.Key, err, want)
	}
}

// K6: a key that was made up, or a code that was changed after its key was made, is
// not compiled.
func TestKeyOfAnotherCode(t *testing.T) {
	e := open(t, &fakedevice.Backend{}, gpuexec.Config{})
	right, err := fullCode().Source()
	if err != nil {
		t.Fatal(err)
	}
	madeUp, changed, params := right, right, right
	madeUp.Key = "mine"
	c := fullCode()
	c.Text = "another"
	changed.Spec = c
	params.Params = []gpuexec.Param{number}
	for what, src := range map[string]gpuexec.Source{"a key made up": madeUp, "another text": changed, "another parameter": params} {
		if _, err := e.Compile(bg, src); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	compile(t, e, right)
}

// K6: what a source has is its own: its maker may go on with the maps and lists.
func TestCodeIsCopied(t *testing.T) {
	e := open(t, &fakedevice.Backend{}, gpuexec.Config{})
	c := fullCode()
	params := []gpuexec.Param{number, {Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{0}}}
	src, err := c.Source(params...)
	if err != nil {
		t.Fatal(err)
	}
	c.Options[0], c.Defines["N"], c.Includes["x.h"], c.Constants[7][0] = "-c", "2", "y", 9
	params[0].Kind, params[1].Times[0] = gpuexec.ParamI8, 1
	compile(t, e, src)
}

func TestCodeIsChecked(t *testing.T) {
	e := open(t, &fakedevice.Backend{}, gpuexec.Config{})
	spoil := func(fn func(*gpuexec.Code)) gpuexec.Code {
		c := fullCode()
		fn(&c)
		return c
	}
	for what, c := range map[string]gpuexec.Code{
		"no language":      spoil(func(c *gpuexec.Code) { c.Language = "" }),
		"no text":          spoil(func(c *gpuexec.Code) { c.Text = "" }),
		"no entry":         spoil(func(c *gpuexec.Code) { c.Entry = "" }),
		"a negative block": spoil(func(c *gpuexec.Code) { c.Block[1] = -1 }),
		"no width":         spoil(func(c *gpuexec.Code) { c.Block = gpuexec.Size{0, 4} }),
	} {
		if _, err := c.Source(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	for what, p := range map[string]gpuexec.Param{
		"no kind": {}, "unknown kind": {Kind: 200}, "a negative size": {Kind: gpuexec.ParamBuffer, Bytes: -1},
		"a struct of nothing": {Kind: gpuexec.ParamStruct}, "a number with a size": {Kind: gpuexec.ParamF64, Bytes: 8},
		"an aligned number": {Kind: gpuexec.ParamU8, Align: 4}, "a negative alignment": {Kind: gpuexec.ParamBuffer, Align: -4},
		"an alignment of 3": {Kind: gpuexec.ParamBuffer, Align: 3}, "an alignment of 24": {Kind: gpuexec.ParamBuffer, Align: 24},
		"more than there is": {Kind: gpuexec.ParamBuffer, Bytes: math.MaxInt64}, "a struct of 1 TiB": {Kind: gpuexec.ParamStruct, Bytes: 1 << 40},
		"a byte more than a buffer has": {Kind: gpuexec.ParamBuffer, Bytes: 1<<48 + 1}, "a byte more than a struct has": {Kind: gpuexec.ParamStruct, Bytes: 64<<10 + 1},
		"only read and only written": {Kind: gpuexec.ParamBuffer, ReadOnly: true, WriteOnly: true}, "a number that is only read": {Kind: gpuexec.ParamU8, ReadOnly: true},
		"times what is not there": {Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{3}}, "times a place below 0": {Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{-1}},
		"times itself": {Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{0}}, "times a float": {Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{1}},
		"nothing times": {Kind: gpuexec.ParamBuffer, Times: []int{2}}, "local memory times": {Kind: gpuexec.ParamLocal, Bytes: 4, Times: []int{2}},
		"rounded, and no times": {Kind: gpuexec.ParamBuffer, Bytes: 4, Round: 8}, "rounded below 0": {Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{2}, Round: -8},
	} {
		params := []gpuexec.Param{p, {Kind: gpuexec.ParamF32}, number}
		if _, err := fullCode().Source(params...); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
		if _, err := e.Compile(bg, source(what, params...)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s, in a source of another kind: %v, want ErrInvalid", what, err)
		}
	}
	most := []gpuexec.Param{{Kind: gpuexec.ParamBuffer, Bytes: 1 << 48, Align: 1 << 12}, {Kind: gpuexec.ParamStruct, Bytes: 64 << 10}}
	if _, err := fullCode().Source(most...); err != nil {
		t.Errorf("the most that there may be: %v", err)
	}
}

// E3: where a launch's numbers say how large a buffer must be, a smaller one is refused;
// so is every buffer for numbers below 0 and for products beyond an int64.
func TestBytesTimesNumbers(t *testing.T) {
	e := open(t, &fakedevice.Backend{}, gpuexec.Config{Workers: 1})
	u32, i16, u64 := number, gpuexec.Param{Kind: gpuexec.ParamI16}, gpuexec.Param{Kind: gpuexec.ParamU64}
	k := compile(t, e, source("k", gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{1, 2, 3}, Round: 8}, u32, i16, u64))
	b := alloc(t, e, 1024)
	for _, c := range []struct {
		a     uint32
		b     int16
		c     uint64
		least int64 // 0 = no buffer is enough
	}{
		{2, 3, 8, 192}, {2, 3, 7, 192}, {2, 3, 9, 384}, {0, 3, 9, 4}, {1, 1, 0, 4}, {3, 1, 1, 96},
		{2, -1, 8, 0}, {0, -1, 8, 0}, {2, 3, math.MaxUint64, 0}, {2, 3, math.MaxInt64, 0}, {math.MaxUint32, math.MaxInt16, 1 << 40, 0},
	} {
		launch := func(bytes int64) error {
			return e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{
				gpuexec.PartArg(b, 0, bytes), gpuexec.ValueArg(c.a), gpuexec.ValueArg(c.b), gpuexec.ValueArg(c.c)}})
		}
		if err := launch(c.least); c.least > 0 && err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		short, want := c.least-1, fmt.Sprintf("argument 0 has %d bytes, want at least %d", c.least-1, c.least)
		if c.least == 0 {
			short, want = b.Bytes(), "argument 0 has 1024 bytes"
		}
		if err := launch(short); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want ErrInvalid: %s", c, err, want)
		}
	}
}

// E3: sizes, structs and local memory are checked, and what the driver gets is what
// was given.
func TestSizesAndValues(t *testing.T) {
	type sizes struct{ grid, block gpuexec.Size }
	var got sizes
	var args []gpuexec.DeviceArg
	f := &fakedevice.Backend{
		Limits:  gpuexec.Limits{MaxGrid: gpuexec.Size{0, 4}, MaxBlock: gpuexec.Size{64, 8}, MaxItems: 128, MaxLocal: 1024, Alignment: 1},
		OnSizes: func(grid, block gpuexec.Size) { got = sizes{grid, block} },
		OnLaunch: func(_ context.Context, _ string, a []gpuexec.DeviceArg, _ int) error {
			args = slices.Clone(a)
			return nil
		}}
	e := open(t, f, gpuexec.Config{Workers: 1})
	src, err := gpuexec.Code{Language: "c", Text: "t", Entry: "k", Block: gpuexec.Size{16}}.Source(
		gpuexec.Param{Kind: gpuexec.ParamStruct, Bytes: 3}, gpuexec.Param{Kind: gpuexec.ParamLocal, Bytes: 8}, gpuexec.Param{Kind: gpuexec.ParamI16})
	if err != nil {
		t.Fatal(err)
	}
	k := compile(t, e, src)
	launch := func(grid, block gpuexec.Size, a ...gpuexec.Arg) error {
		return e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: grid, Block: block, Args: a})
	}
	three, local, short := gpuexec.StructArg([]byte{1, 2, 3}), gpuexec.LocalArg(8), gpuexec.ValueArg(int16(-2))
	for what, c := range map[string]struct {
		grid, block, wantGrid, wantBlock gpuexec.Size
	}{
		"the code's block": {gpuexec.Size{5}, gpuexec.Size{}, gpuexec.Size{5, 1, 1}, gpuexec.Size{16, 1, 1}},
		"a block":          {gpuexec.Size{1, 4, 9}, gpuexec.Size{2, 8}, gpuexec.Size{1, 4, 9}, gpuexec.Size{2, 8, 1}},
	} {
		if err := launch(c.grid, c.block, three, local, short); err != nil || got != (sizes{c.wantGrid, c.wantBlock}) {
			t.Errorf("%s: %v, the driver got %v", what, err, got)
		}
	}
	want := []gpuexec.DeviceArg{
		{Kind: gpuexec.ParamStruct, Bytes: 3, Struct: []byte{1, 2, 3}}, {Kind: gpuexec.ParamLocal, Bytes: 8},
		{Kind: gpuexec.ParamI16, Bytes: 2, Value: 0xfffe},
	}
	if !reflect.DeepEqual(args, want) {
		t.Errorf("the driver got %+v, want %+v", args, want)
	}
	before := e.Stats().Launches
	one := gpuexec.Size{1}
	for what, err := range map[string]error{
		"too many blocks in y": launch(gpuexec.Size{1, 5}, one, three, local, short),
		"a negative grid":      launch(gpuexec.Size{1, -1}, one, three, local, short),
		"too many items in x":  launch(one, gpuexec.Size{65}, three, local, short),
		"too many items":       launch(one, gpuexec.Size{64, 4}, three, local, short),
		"items that overflow":  launch(one, gpuexec.Size{64, 8, 1 << 30}, three, local, short),
		"a negative block":     launch(one, gpuexec.Size{1, 1, -1}, three, local, short),
		"a short struct":       launch(one, one, gpuexec.StructArg([]byte{1, 2}), local, short),
		"too little local":     launch(one, one, three, gpuexec.LocalArg(7), short),
		"too much local":       launch(one, one, three, gpuexec.LocalArg(1025), short),
		"another type":         launch(one, one, three, local, gpuexec.ValueArg(uint16(1))),
		"local for a struct":   launch(one, one, local, local, short),
	} {
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	if e.Stats().Launches != before {
		t.Error("a wrong launch reached the driver")
	}
	before = e.Stats().Compiles
	of := func(bytes int64) gpuexec.Param { return gpuexec.Param{Kind: gpuexec.ParamLocal, Bytes: bytes} }
	for what, params := range map[string][]gpuexec.Param{"a byte too much": {of(512), of(513)}, "a sum that overflows": slices.Repeat([]gpuexec.Param{of(1 << 48)}, 1<<16)} {
		if _, err := e.Compile(bg, source(what, params...)); !errors.Is(err, fault.ErrInvalid) || e.Stats().Compiles != before {
			t.Errorf("a kernel whose every launch wants too much local memory, %s: %v", what, err)
		}
	}
	compile(t, e, source("all", of(512), of(512)))
	if err := launch(one, one, three, local, gpuexec.ValueArg(uint16(1))); err == nil || !strings.Contains(err.Error(), "u16, want a i16") {
		t.Errorf("%v, want both kinds named", err)
	}
}

// Each type of number goes with its own kind and bits.
func TestValueArg(t *testing.T) {
	var args []gpuexec.DeviceArg
	f := &fakedevice.Backend{OnLaunch: func(_ context.Context, _ string, a []gpuexec.DeviceArg, _ int) error {
		args = slices.Clone(a)
		return nil
	}}
	e := open(t, f, gpuexec.Config{})
	want := []gpuexec.DeviceArg{
		{Kind: gpuexec.ParamI8, Bytes: 1, Value: 0xff}, {Kind: gpuexec.ParamU8, Bytes: 1, Value: 200},
		{Kind: gpuexec.ParamI16, Bytes: 2, Value: 0xffff}, {Kind: gpuexec.ParamU16, Bytes: 2, Value: 60000},
		{Kind: gpuexec.ParamI32, Bytes: 4, Value: 0xffffffff}, {Kind: gpuexec.ParamU32, Bytes: 4, Value: 4000000000},
		{Kind: gpuexec.ParamF32, Bytes: 4, Value: 0x3f800000}, {Kind: gpuexec.ParamI64, Bytes: 8, Value: 1<<64 - 1},
		{Kind: gpuexec.ParamU64, Bytes: 8, Value: 1 << 63}, {Kind: gpuexec.ParamF64, Bytes: 8, Value: 0x3ff0000000000000},
	}
	given := []gpuexec.Arg{
		gpuexec.ValueArg(int8(-1)), gpuexec.ValueArg(uint8(200)), gpuexec.ValueArg(int16(-1)), gpuexec.ValueArg(uint16(60000)),
		gpuexec.ValueArg(int32(-1)), gpuexec.ValueArg(uint32(4000000000)), gpuexec.ValueArg(float32(1)),
		gpuexec.ValueArg(int64(-1)), gpuexec.ValueArg(uint64(1 << 63)), gpuexec.ValueArg(1.0),
	}
	var params []gpuexec.Param
	for _, a := range want {
		params = append(params, gpuexec.Param{Kind: a.Kind})
	}
	k := compile(t, e, source("k", params...))
	if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Args: given, Grid: gpuexec.Size{1}}); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(args, want) {
		t.Errorf("the driver got %+v, want %+v", args, want)
	}
}
