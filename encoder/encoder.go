package encoder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/encoder/internal/folder"
	"github.com/kiln-cache/kiln/encoder/internal/wordpiece"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/devicename"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Config of an Encoder. The zero value is usable: it does what the folder says.
type Config struct {
	// Device is the backend that computes, with the number of its device or its first, as
	// opencl:1; default cpu. Others run where the package that registers them is
	// imported, such as gpuexec/opencl.
	Device string
	// Workers is how many batches are computed side by side, at most 256; default the
	// runtime's workers, one a core. On cpu, a long text or batch has the cores of those
	// workers of the runtime that have nothing to do as well: kiln.Config.Workers bounds
	// the cores of all.
	Workers int
	// MaxTokens is how many tokens a text may have, [CLS] and [SEP] among them; a longer
	// one is cut. The default, and the most, is the number of positions of the model.
	MaxTokens int
	// Pooling is mean, cls or max; default the folder's, and mean where it has none.
	Pooling string
	// Normalize divides each embedding by its length, also where the folder does not.
	Normalize bool
	// Weights is float32 or bfloat16; default float32. Rounded to bfloat16, the weights of
	// matrix products take half of the memory, short texts are computed faster, and
	// embeddings are less exact: docs/encoder.md has figures. All else is float32.
	Weights string
	// Prompt names the prompt of the folder that stands before each text; default the
	// folder's default, if it has one. The word none means no prompt, unless the folder
	// has a prompt of that name.
	Prompt string
	// Prefix is a text that stands before each text in place of a prompt of the folder, as in
	// "query: ". Many models want one and have no prompts in their folder.
	Prefix string
}

// Info is what an Encoder computes.
type Info struct {
	Dimensions int    // numbers of an embedding
	MaxTokens  int    // of a text, [CLS] and [SEP] among them: a longer one is cut
	Pooling    string // mean, cls or max
	Normalized bool   // embeddings have the length 1
	Scores     bool   // the model is a cross-encoder: Score gives one score a pair
	// SentenceLimit is the folder's max_seq_length, 0 if it has none: where
	// sentence-transformers cuts. Give it as Config.MaxTokens for the same cuts.
	SentenceLimit int
	Prompts       map[string]string // of the folder, by name
}

// Encoder computes embeddings of texts. Safe for concurrent use. One that Open did not give,
// nil or zero, answers like one that was closed.
type Encoder struct {
	info    Info
	folder  *folder.Folder
	tokens  *wordpiece.Tokenizer
	prompt  string // before each text
	omitted int    // tokens of the prompt, and the [CLS] before it, that pooling leaves out
	session *kiln.Session

	mu struct {
		sync.Mutex
		queue     queue
		idle      []*forward.Model // one a worker: those that nobody uses
		stale     []*forward.Model // those that hold weights which were replaced; see renew
		running   []*batch         // at most one a worker
		announced kiln.Shape
		closing   bool
	}
	left   atomic.Int64  // models that are not closed, and the storing of their weights
	closed chan struct{} // nil where Open did not give the encoder
	err    error         // of closing; read once closed is closed
}

// none says that Open did not give the encoder.
func (e *Encoder) none() bool { return e == nil || e.closed == nil }

// errClosed is what calls of an encoder that was closed get, errOver those of one whose runtime
// was, errNone those of one that is nil or zero.
var (
	errNone   error = &fault.Error{Op: "encoder", Err: fmt.Errorf("the encoder is nil or zero, and so %w: want one that Open gave", fault.ErrClosed)}
	errClosed error = &fault.Error{Op: "encoder", Err: fmt.Errorf("the encoder is %w: open another one", fault.ErrClosed)}
	errOver         = fmt.Errorf("the encoder's runtime is %w: open both anew, and close an encoder before its runtime", fault.ErrClosed)
)

// What Config.Weights may be.
const (
	float32s  = "float32"
	bfloat16s = "bfloat16"
)

// noPrompt is the Config.Prompt that turns a folder's default off. The name of a prompt of
// the folder comes first, so that each of its prompts can be named.
const noPrompt = "none"

// lengths is the bucketing of tokens where KILN_BUCKET says nothing: at most an eighth
// of a text is padding, and all lengths of a model need some fifty shapes.
const lengths = "geometric:8"

// Open reads the folder of a model and prepares its weights on a device of the runtime.
// The caller closes the Encoder, and after it the runtime. The end of ctx ends the opening;
// the weights that were prepared until then are kept for the next one.
//
// A folder that is broken or incomplete, and a Config that is wrong, match ErrInvalid. A
// model that Kiln cannot compute matches ErrUnsupported. A device that is not on this
// machine matches ErrUnavailable, and a number that no device has ErrNotFound. The
// *fault.Error about a config has the file as its Key and the field as its Field.
func Open(ctx context.Context, rt *kiln.Runtime, dir string, cfg Config) (*Encoder, error) {
	library, index, err := device(cfg.Device, rt)
	if err != nil {
		return nil, err
	}
	f, err := folder.Open(dir)
	if err != nil {
		return nil, err
	}
	e := &Encoder{folder: f, closed: make(chan struct{})}
	if err = e.configure(cfg); err == nil {
		err = e.start(ctx, rt, library, index, cfg, filepath.Base(dir))
	}
	if err != nil {
		return nil, errors.Join(err, f.Weights.Close())
	}
	return e, nil
}

// device gives the backend of that name, and the number of its device. All encoders of a
// process share it, and so the weights on it.
func device(name string, rt *kiln.Runtime) (ops.Library, int, error) {
	backend, index, ok := devicename.Parse(cmp.Or(name, cpu.Name))
	if !ok {
		return nil, 0, fault.Invalidf("encoder: open", "Device is %.40q, want a name, or a name with a number such as opencl:1", name)
	}
	if library, err := forward.Library(backend, index, rt.Settings()); library != nil || err != nil {
		return library, index, err
	}
	return nil, 0, fault.Invalidf("encoder: open", "Device is %.40q, want one of %s, or that of a package to import, such as gpuexec/opencl", name, strings.Join(ops.Names(), ", "))
}

// setting is a row of the runtime's environment.
func setting(rt *kiln.Runtime, name string) env.Row {
	rows := rt.Settings()
	if i := slices.IndexFunc(rows, func(r env.Row) bool { return r.Name == name }); i >= 0 {
		return rows[i]
	}
	return env.Row{Source: env.Default}
}

// wrong is about a field of Config or of a folder's file.
func wrong(field, format string, args ...any) error {
	return &fault.Error{Op: "encoder: open", Field: field, Err: fmt.Errorf("%w: %s is %.1000s", fault.ErrInvalid, field, fmt.Sprintf(format, args...))}
}

// configure puts the config over the folder.
func (e *Encoder) configure(c Config) error {
	f := e.folder
	e.info = Info{Dimensions: f.Width, MaxTokens: cmp.Or(c.MaxTokens, f.Positions), Pooling: cmp.Or(c.Pooling, string(f.Pooling)),
		Normalized: c.Normalize || f.Normalize, SentenceLimit: f.SentenceLimit, Prompts: f.Prompts, Scores: f.Head != nil}
	switch {
	case e.info.MaxTokens < least || e.info.MaxTokens > f.Positions:
		return wrong("MaxTokens", "%d, want %d to %d", e.info.MaxTokens, least, f.Positions)
	case !slices.Contains(folder.Poolings(), folder.Pooling(e.info.Pooling)):
		return wrong("Pooling", "%.40q, want one of %q", e.info.Pooling, folder.Poolings())
	case c.Weights != "" && c.Weights != float32s && c.Weights != bfloat16s:
		return wrong("Weights", "%.40q, want %s or %s", c.Weights, float32s, bfloat16s)
	case c.Workers < 0 || c.Workers > mostWorkers:
		return wrong("Workers", "%d, want 0 to %d", c.Workers, mostWorkers)
	}
	switch name := cmp.Or(c.Prompt, f.DefaultPrompt); {
	case c.Prefix != "" && c.Prompt != "":
		return wrong("Prefix", "%.40q beside the Prompt %.40q, want one of them", c.Prefix, c.Prompt)
	case c.Prefix != "":
		e.prompt = c.Prefix
	case name != "":
		var ok bool
		if e.prompt, ok = f.Prompts[name]; !ok && name != noPrompt {
			if len(f.Prompts) == 0 {
				return wrong("Prompt", "%.40q, but the folder has no prompts", name)
			}
			return wrong("Prompt", "%.40q, want %s or one of the folder's: %q", name, noPrompt, slices.Sorted(maps.Keys(f.Prompts)))
		}
	}
	return nil
}

// readTokenizer reads the folder's tokenizer, which may have no id that the model has no
// row for.
func (e *Encoder) readTokenizer(ctx context.Context) (err error) {
	f := e.folder
	if e.tokens, err = wordpiece.Open(ctx, f.Tokenizer); err != nil {
		return err
	}
	ids, _ := e.Tokenize("")
	if most := max(e.tokens.Unknown(), slices.Max(ids)); int(most) >= f.Vocabulary {
		return wrong("vocab_size", "%d, though the tokenizer puts the id %d around texts or in the place of words that it does not know", f.Vocabulary, most)
	}
	if _, types, _ := e.tokens.EncodePair(nil, "", "", e.info.MaxTokens); f.Head != nil && int(slices.Max(types)) >= f.Types {
		return wrong("type_vocab_size", "%d, though the tokenizer gives pairs the type %d", f.Types, slices.Max(types))
	}
	if f.OmitPrompt && e.prompt != "" && e.info.Pooling != string(folder.Class) {
		e.omitted = len(ids) - 1 // not its [SEP]
	}
	return nil
}

const (
	least       = 2   // tokens of a text: [CLS] and [SEP]
	mostWorkers = 256 // as many requests as an executor lets wait
)

// start makes the models, and prepares the weights while it reads the tokenizer.
func (e *Encoder) start(ctx context.Context, rt *kiln.Runtime, library ops.Library, index int, c Config, name string) (err error) {
	exec, err := rt.Executor(ctx, library, index)
	if err != nil {
		return err
	}
	engine, err := rt.Constants().Engine(constants.CPU, 0, "")
	if err != nil {
		return err
	}
	cfg := kiln.SessionConfig{Name: "encoder " + name}
	if setting(rt, "KILN_BUCKET").Source == env.Default {
		if cfg.Bucket, err = kiln.ParseBucketing(lengths); err != nil {
			return err
		}
	}
	if e.session, err = rt.Session(cfg); err != nil {
		return err
	}
	workers := cmp.Or(c.Workers, workersOf(rt, exec))
	e.left.Store(int64(workers))
	for range workers {
		e.mu.idle = append(e.mu.idle, forward.New(forward.Config{Session: e.session, Executor: exec, Library: library, Engine: engine, Weights: e.folder.Weights, Store: rt.Store(), Packed: true, BFloat16: c.Weights == bfloat16s}))
	}
	read := make(chan error, 1)
	go func() { read <- e.readTokenizer(ctx) }()
	err = unprepared(c.Weights, prepare(ctx, e.mu.idle))
	err = cmp.Or(<-read, err)
	e.mu.queue = queue{line: shapegroups.Queue[*call]{Ahead: ahead}, workers: workers, packs: e.mu.idle[0].Packed(), shape: e.mu.idle[0].PackedShape}
	if err != nil { // what was prepared goes
		for _, m := range e.mu.idle {
			m.Close()
		}
		return errors.Join(err, e.session.Close(context.WithoutCancel(ctx)))
	}
	e.keep()
	return nil
}

// keep stores weights that were packed, off the path of requests. Close waits for it. Models let go
// of weights that are replaced by mapped ones, by whatever encoder.
func (e *Encoder) keep() {
	e.mu.Lock()
	defer e.mu.Unlock()
	models := slices.Clone(e.mu.idle)
	models[0].Watch(func(weight string) { e.renew(models, weight) }) // the others hold the same
	var all []func(context.Context)
	for _, m := range models {
		m.LetGo() // what was replaced before
		all = append(all, m.Keep())
	}
	e.left.Add(1)
	go func() {
		defer e.done()
		for _, store := range all {
			store(context.Background())
		}
	}()
}

// renew has models let go of a weight that was replaced: idle ones at once, the others when
// they run again or become idle. It looks at no other weight: calls wait meanwhile.
func (e *Encoder) renew(models []*forward.Model, weight string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.mu.idle {
		m.LetGoOf(weight)
	}
	e.mu.stale = slices.DeleteFunc(slices.Clone(models), func(m *forward.Model) bool { return slices.Contains(e.mu.idle, m) })
}

// rest makes a model idle. The lock is held.
func (e *Encoder) rest(m *forward.Model) {
	if at := slices.Index(e.mu.stale, m); at >= 0 {
		e.mu.stale = slices.Delete(e.mu.stale, at, at+1)
		m.LetGo()
	}
	e.mu.idle = append(e.mu.idle, m)
}

// prepare has all models prepare the weights, which they share.
func prepare(ctx context.Context, models []*forward.Model) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, len(models))
	for i, m := range models {
		wg.Go(func() { errs[i] = m.PrepareBeside(ctx, &next) })
	}
	wg.Wait()
	at := max(slices.IndexFunc(errs, func(err error) bool { return err != nil }), 0)
	return errs[at] // the others say the same
}

// unprepared is the error of preparing weights as who wrote the Config knows it: a device that
// refuses to round them names a kernel.
func unprepared(weights string, err error) error {
	if weights != bfloat16s || !errors.Is(err, fault.ErrUnsupported) {
		return err
	}
	return &fault.Error{Op: "encoder: open", Field: "Weights", Err: fmt.Errorf("%s is %q: %w: want %s there", "Weights", weights, err, float32s)}
}

// workersOf is how many requests the device runs side by side.
func workersOf(rt *kiln.Runtime, exec *gpuexec.Executor) int {
	n, err := strconv.Atoi(setting(rt, "KILN_WORKERS").Value)
	if err != nil { // auto
		n = runtime.GOMAXPROCS(0)
	}
	if most := exec.Limits().RunWorkers; most > 0 {
		n = min(n, most)
	}
	return n
}

// Info says what the encoder computes.
func (e *Encoder) Info() Info {
	if e.none() {
		return Info{}
	}
	i := e.info
	i.Prompts = maps.Clone(i.Prompts)
	return i
}

// Close ends the encoder: calls that wait get ErrClosed, and each text that is being
// computed is finished. Then the weights go back, and are stored if the runtime's store has
// them not. It waits for that; ctx ends the waiting only. Closing again waits again. The runtime stays open.
func (e *Encoder) Close(ctx context.Context) error {
	if e.none() {
		return nil
	}
	e.mu.Lock()
	e.mu.closing = true
	e.mu.queue.clear(errClosed)
	idle := e.mu.idle
	e.mu.idle = nil
	e.mu.Unlock()
	go func() {
		for _, m := range idle {
			e.retire(m)
		}
	}()
	select {
	case <-e.closed:
		return e.err
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}

// retire closes a model that nobody uses any more, and with the last one what they share.
func (e *Encoder) retire(m *forward.Model) {
	m.Close()
	e.done()
}

func (e *Encoder) done() {
	if e.left.Add(-1) == 0 {
		e.err = errors.Join(e.session.Close(context.Background()), e.folder.Weights.Close())
		close(e.closed)
	}
}
