package report

import (
	"encoding/json"
	"io"

	"github.com/kiln-cache/kiln/limit"
)

// Run is the JSON object of `kiln run --json`. Times are seconds and sizes
// bytes unless the name says otherwise.
type Run struct {
	Version  string      `json:"version"`
	Device   string      `json:"device"`
	Model    string      `json:"model"`
	Policy   string      `json:"policy"`
	Bucket   string      `json:"bucket"`
	Groups   limit.Limit `json:"groups"` // shape groups a session may hold
	Sessions int         `json:"sessions"`
	Rounds   bool        `json:"rounds,omitempty"` // the device's forms of an operation may round differently
	Passes   []Pass      `json:"passes"`
}

// Pass is one replay of the whole trace.
type Pass struct {
	Name           string    `json:"name"`                  // cold, warm, ...
	Interrupted    bool      `json:"interrupted,omitempty"` // the rest is of the requests until then; their outputs were not checked
	Requests       int       `json:"requests"`
	Truncated      int       `json:"truncated"` // cut to the model's limit
	Errors         int       `json:"errors"`
	Seconds        float64   `json:"seconds"` // wall time, opening and preparing weights left out
	Latency        Latency   `json:"latency_ms"`
	Hits           Hits      `json:"hits"`
	Joined         int64     `json:"joined"`   // lookups that waited for a computation of another caller
	Compiles       int64     `json:"compiles"` // artefacts built in this pass
	CompileSeconds float64   `json:"compile_seconds"`
	SecondsSaved   float64   `json:"seconds_saved"` // the compile time of what was found, counted at each hit
	GroupsEvicted  int64     `json:"groups_evicted"`
	Thrash         int64     `json:"thrash"` // warnings of sessions, each once until its thrashing ends, be it in a later pass
	GroupsResident int64     `json:"groups_resident"`
	ResidentBytes  int64     `json:"resident_bytes"`
	Constants      Constants `json:"constants"`
	Padding        Padding   `json:"padding"`
	PeakRSSBytes   int64     `json:"peak_rss_bytes"`
	OutputSHA256   string    `json:"output_sha256"`
	MaxAbsError    float64   `json:"max_abs_error"` // of the sampled outputs against the reference
}

// Latency is in milliseconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Hits counts lookups by the level that answered, the quickest first.
type Hits struct {
	Held     int64 `json:"held"`     // a reference kept from before
	Group    int64 `json:"group"`    // a name in a shape group that the request holds already
	Session  int64 `json:"session"`  // session, shape and name: a request's first in its group
	Artefact int64 `json:"artefact"` // the artefact cache
	Disk     int64 `json:"disk"`     // the store
	Fleet    int64 `json:"fleet"`    // another process
}

// Add is the sum of both, level by level.
func (h Hits) Add(o Hits) Hits {
	return Hits{h.Held + o.Held, h.Group + o.Group, h.Session + o.Session, h.Artefact + o.Artefact, h.Disk + o.Disk, h.Fleet + o.Fleet}
}

// Total is the number of lookups that any level answered.
func (h Hits) Total() int64 { return h.Held + h.Group + h.Session + h.Artefact + h.Disk + h.Fleet }

// Constants is the state and the outcomes of the constant-tensor cache.
type Constants struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
	Hits    int64 `json:"hits"`
	Owners  int64 `json:"owners"`
	Bypass  int64 `json:"bypass"`
}

// Padding is counted in elements.
type Padding struct {
	Useful int64 `json:"useful"` // of the shapes asked for
	Padded int64 `json:"padded"` // of the shapes compiled, filling included
}

// WriteJSON writes the run as one line.
func (r *Run) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }
