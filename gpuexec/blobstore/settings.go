package blobstore

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// settings are the capacity and the policy of a directory (SPEC P7). They lie in it:
// what a process gives replaces them, and every process follows. The zero value of a
// field says that nobody has given it.
type settings struct {
	capacity limit.Limit // bytes
	policy   Policy
}

// settingsIn gives the settings that a folder has; zero where they cannot be read.
func settingsIn(f folder) (have settings) {
	text, err := vfs.ReadFile(f, settingsFile, 256)
	if err != nil {
		return settings{}
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch name {
		case "capacity":
			if n, err := limit.Parse(value); err == nil {
				have.capacity = n
			}
		case "policy":
			if p := Policy(value); slices.Contains(policies, p) {
				have.policy = p
			}
		}
	}
	return have
}

// given is what this process was given for the directory.
func (c *Config) given() settings {
	g := settings{c.Capacity, c.Policy}
	if c.DefaultCapacity {
		g.capacity = limit.Limit{}
	}
	if c.DefaultPolicy {
		g.policy = ""
	}
	return g
}

// follow goes by what the directory says now. It is part of a change, after the index
// was read.
func (d *directory) follow() {
	have := settingsIn(d.s.main)
	if d.unwritten { // this process could not say what it was given
		have = d.s.cfg.given()
	}
	d.s.obey(have, d.idx.disk)
	if p := d.s.policy(); d.idx.policy != p {
		d.idx.policy, d.idx.order = p, nil
	}
}

// settle writes what this process was given, if the directory says something else,
// and goes by the result. It is part of a change.
func (d *directory) settle() error {
	was, given := settingsIn(d.s.main), d.s.cfg.given()
	have := was
	if given.capacity.Given() && !d.settled {
		have.capacity = given.capacity
	}
	if given.policy != "" && !d.settled {
		have.policy = given.policy
	}
	d.unwritten = false
	if have != was {
		if err := d.change(); err != nil { // so that others look again
			return err
		}
		if err := d.writeSettings(have); err != nil {
			d.s.logOnce("write settings", err)
			d.unwritten = true
		}
	}
	d.settled = true
	d.follow()
	return nil
}

func (d *directory) writeSettings(have settings) error {
	text := ""
	if have.capacity.Given() {
		text = fmt.Sprintf("capacity %v\n", have.capacity)
	}
	if have.policy != "" {
		text += fmt.Sprintf("policy %s\n", have.policy)
	}
	return rewrite(d.s.main, settingsFile, []byte(text))
}

// obey goes by the settings of a directory with that many bytes in use. Where it has
// none, a capacity that is only a default does not evict what is there.
func (s *Store) obey(have settings, disk int64) {
	if !have.capacity.Given() {
		have.capacity = s.cfg.Capacity
		if n, counted := have.capacity.Value(); s.cfg.DefaultCapacity && counted && n < disk {
			have.capacity = limit.Of(disk)
		}
	}
	have.policy = cmp.Or(have.policy, s.cfg.Policy, FIFO)
	s.settings.Store(&have)
}

// capacity in bytes.
func (s *Store) capacity() int64 {
	if n, counted := s.settings.Load().capacity.Value(); counted {
		return n
	}
	return math.MaxInt64
}

func (s *Store) policy() Policy { return s.settings.Load().policy }

// errFull is the error of a store for which nothing could be evicted that is enough.
var errFull = errors.New("others fill the disk beyond what is to be kept free")

// room is how many bytes entries may take now: the capacity, or less where the file
// system is fuller than Config.KeepFree allows; below 0 if others fill it. It is part of
// a change.
func (d *directory) room() int64 {
	s, capacity := d.s, d.s.capacity()
	if s.cfg.KeepFree == 0 {
		return capacity
	}
	free, total, err := s.main.Free()
	if err != nil {
		s.logOnce("look for free space", err)
		return capacity
	}
	return min(capacity, d.idx.disk+free-int64(s.cfg.KeepFree*float64(total)))
}
