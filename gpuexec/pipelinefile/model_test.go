//go:build unix

package pipelinefile_test

import (
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
)

// spirvKey and liveKey say what the model keeps.
type spirvKey struct {
	shader, source string
	options        uint64
}

type liveKey struct {
	spirvKey
	subgroup uint32
}

// model is what a cache must do, without any of its means.
type model struct {
	sources map[string]string
	spirv   map[spirvKey]bool
	live    map[liveKey]bool
}

func (m *model) get(shader string, options uint64, subgroup uint32) pipelinefile.Origin {
	k := liveKey{spirvKey{shader, m.sources[shader], options}, subgroup}
	switch {
	case m.live[k]:
		return pipelinefile.Hit
	case m.spirv[k.spirvKey]:
		m.live[k] = true
		return pipelinefile.SPIRV
	}
	m.live[k], m.spirv[k.spirvKey] = true, true
	return pipelinefile.Built
}

func (m *model) register(shader, source string) {
	m.sources[shader] = source
	maps.DeleteFunc(m.spirv, func(k spirvKey, _ bool) bool { return k.shader == shader && k.source != source })
}

func (m *model) unregister(shader string) {
	delete(m.sources, shader)
	maps.DeleteFunc(m.spirv, func(k spirvKey, _ bool) bool { return k.shader == shader })
}

func (m *model) load(file map[spirvKey]bool) (taken, changed int) {
	for k := range file {
		switch source, known := m.sources[k.shader]; {
		case known && source == k.source:
			m.spirv[k] = true
			taken++
		case known:
			changed++
		}
	}
	return taken, changed
}

// SPEC V1, V3, V5, V7: any sequence of operations ends as the model's does.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := open(t)
		defer v.Clear()
		m := &model{map[string]string{}, map[spirvKey]bool{}, map[liveKey]bool{}}
		type saved struct {
			bytes   []byte
			entries map[spirvKey]bool
		}
		var files []saved
		shader := rapid.SampledFrom([]string{"a", "b", "c"})
		source := rapid.SampledFrom([]string{"1", "2"})
		rt.Repeat(map[string]func(*rapid.T){
			"register": func(rt *rapid.T) {
				name, text := shader.Draw(rt, "shader"), source.Draw(rt, "source")
				v.shader(name, text)
				m.register(name, text)
			},
			"unregister": func(rt *rapid.T) {
				name := shader.Draw(rt, "shader")
				_, known := m.sources[name]
				if err := v.Unregister(name); (err == nil) != known {
					rt.Fatal(err)
				}
				m.unregister(name)
			},
			"get": func(rt *rapid.T) {
				r := pipelinefile.Request{Shader: shader.Draw(rt, "shader"), Options: rapid.Uint64Range(0, 1).Draw(rt, "options"), Subgroup: rapid.Uint32Range(0, 1).Draw(rt, "subgroup")}
				l, origin, err := v.Get(t.Context(), r)
				if _, known := m.sources[r.Shader]; !known {
					if err == nil {
						rt.Fatal("a shader that is not registered")
					}
					return
				}
				if want := m.get(r.Shader, r.Options, r.Subgroup); err != nil || origin != want {
					rt.Fatalf("%+v: by %s, %v, want %s", r, origin, err, want)
				}
				want := fmt.Sprint([]uint32{0x07230203, uint32(r.Options), uint32(m.sources[r.Shader][0])})
				if got := fmt.Sprint(l.Pipeline().(*fakePipeline).module.Words); got != want {
					rt.Fatalf("the pipeline is of %s, want %s", got, want)
				}
				l.End()
			},
			"clear": func(*rapid.T) {
				v.Clear()
				clear(m.live)
			},
			"save": func(*rapid.T) { files = append(files, saved{v.bytes(), maps.Clone(m.spirv)}) },
			"load": func(rt *rapid.T) {
				if len(files) == 0 {
					rt.Skip()
				}
				f := rapid.SampledFrom(files).Draw(rt, "file")
				taken, changed := m.load(f.entries)
				l, err := v.LoadBytes(t.Context(), f.bytes)
				if err != nil || l.Reason != "" || l.Entries != taken || l.Changed != changed {
					rt.Fatalf("%+v, %v, want %d taken and %d changed", l, err, taken, changed)
				}
			},
			"": func(rt *rapid.T) {
				if v.Len() != len(m.live) || v.SPIRV() != len(m.spirv) {
					rt.Fatalf("%d live and %d entries, want %d and %d", v.Len(), v.SPIRV(), len(m.live), len(m.spirv))
				}
			},
		})
	})
}
