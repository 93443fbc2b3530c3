//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/dl"
)

// blasFunction is one of cuBLAS.
type blasFunction int

const (
	blasGetProperty blasFunction = iota
	blasCreate
	blasDestroy
	blasSetStream
	blasSetWorkspace
	blasSetMathMode
	blasProducts
	blasFunctions
)

var blasNames = [blasFunctions]string{"cublasGetProperty", "cublasCreate_v2", "cublasDestroy_v2", "cublasSetStream_v2",
	"cublasSetWorkspace_v2", "cublasSetMathMode", "cublasSgemmStridedBatched"}

// pedantic is the mode in which no product is computed with less than float32: without TF32,
// whatever the environment says.
const pedantic = 2

// cublas is an opened cuBLAS. Safe for concurrent use; it stays loaded for the life of the
// process.
type cublas struct {
	at      [blasFunctions]uintptr
	version string
}

// openedBLAS has by Config.CUBLAS what gives the library, opened once.
var openedBLAS sync.Map // func() *cublas

// cublas is the library that the config names, nil where it names none or none is there:
// that is found once a process, so that keys stay what they are.
func (b backend) cublas() *cublas {
	if b.cfg.CUBLAS == "" {
		return nil
	}
	l, known := openedBLAS.Load(b.cfg.CUBLAS)
	if !known {
		l, _ = openedBLAS.LoadOrStore(b.cfg.CUBLAS, sync.OnceValue(func() *cublas {
			l, _ := openBLAS(b.cfg.CUBLAS)
			return l
		}))
	}
	return l.(func() *cublas)()
}

// openBLAS opens the library of a path, or the one that is installed.
func openBLAS(path string) (l *cublas, err error) {
	if path == installed {
		path = ""
	}
	err = dl.First(path, []string{"libcublas.so.13", "libcublas.so.12"}, func(name string) (err error) {
		l, err = loadBLAS(name)
		return err
	})
	return l, err
}

// loadBLAS opens the library of a name. The loader looks for what it needs in its own folders
// alone, so where it has a path, what lies there is opened first.
func loadBLAS(name string) (*cublas, error) {
	if filepath.IsAbs(name) {
		beside := filepath.Join(filepath.Dir(name), strings.Replace(filepath.Base(name), "libcublas", "libcublasLt", 1))
		if _, err := os.Stat(beside); err == nil {
			if _, err := dl.Open(beside, dl.Local); err != nil {
				return nil, err
			}
		}
	}
	lib, err := dl.Open(name, dl.Local)
	if err != nil {
		return nil, err
	}
	return bindBLAS(func(name string) (uintptr, error) { return purego.Dlsym(lib, name) })
}

// bindBLAS takes its functions from where they are.
func bindBLAS(resolve func(name string) (uintptr, error)) (*cublas, error) {
	l := &cublas{}
	for f, name := range blasNames {
		var err error
		if l.at[f], err = resolve(name); err != nil {
			return nil, err
		}
	}
	var version [3]int32
	for i := range version {
		if err := l.call(blasGetProperty, uintptr(i), uintptr(unsafe.Pointer(&version[i]))); err != nil {
			return nil, err
		}
	}
	l.version = fmt.Sprintf("%d.%d.%d", version[0], version[1], version[2])
	return l, nil
}

// errBLAS is a fault of cuBLAS. Nobody is told: the kernel of this package computes instead.
var errBLAS = errors.New("cuBLAS failed")

//go:uintptrescapes
func (l *cublas) call(f blasFunction, args ...uintptr) error {
	if code, _, _ := purego.SyscallN(l.at[f], args...); int32(code) != 0 {
		return fmt.Errorf("%w: %s: code %d", errBLAS, blasNames[f], int32(code))
	}
	return nil
}

// blasQueue is what a worker has of cuBLAS.
type blasQueue struct {
	handle    handle
	workspace gpuexec.Memory // so that its products have the same bits on all workers
}

// workspace is NVIDIA's advice.
func (d *device) workspace() int64 {
	if d.capability >= 90 {
		return 32 << 20
	}
	return 4 << 20
}

// openBLAS readies cuBLAS for a worker, on its stream.
func (q *queue) openBLAS() (err error) {
	if q.blas.handle != 0 {
		return nil
	}
	l, made := q.d.cublas, new(handle)
	var b blasQueue
	if err := l.call(blasCreate, uintptr(unsafe.Pointer(made))); err != nil {
		return err
	}
	native.Add(1)
	b.handle = *made
	defer func() {
		if err != nil {
			b.close(q.d)
		}
	}()
	if b.workspace, err = q.d.Alloc(q.d.workspace()); err != nil {
		return err
	}
	if err := l.call(blasSetStream, uintptr(b.handle), uintptr(q.stream)); err != nil { // takes a workspace away
		return err
	}
	if err := l.call(blasSetWorkspace, uintptr(b.handle), uintptr(b.workspace.(*memory).at), uintptr(q.d.workspace())); err != nil {
		return err
	}
	if err := l.call(blasSetMathMode, uintptr(b.handle), pedantic); err != nil {
		return err
	}
	q.blas = b
	return nil
}

// close gives it back; in a context that is not to be had, too: it has memory of the host.
func (b *blasQueue) close(d *device) {
	if b.handle != 0 {
		destroy := func() error { return d.cublas.call(blasDestroy, uintptr(b.handle)) }
		if err := d.within("release", destroy); err != nil && !errors.Is(err, errBLAS) {
			_ = destroy()
		}
		native.Add(-1)
	}
	if b.workspace != nil {
		b.workspace.Release()
	}
	*b = blasQueue{}
}

// gemm is some products that cuBLAS computes at once. It counts columns first: what is a row
// here is a column there, so the right-hand side of a product is its first.
type gemm struct {
	turned               uintptr // 1: the right-hand side has a row for each column
	columns, rows, depth int64
	alpha                float32
	right, left, out     uintptr
	ofRight, ofLeft      int64 // numbers from a row to the next
	ofOut                int64
	nextRight, nextLeft  int64 // and from a product to the next
	nextOut              int64
	count                int64
}

func (q *queue) gemm(g gemm) error {
	if g.columns == 0 || g.count == 0 {
		return nil
	}
	alpha, beta := new(float32), new(float32)
	*alpha = g.alpha
	err := q.d.cublas.call(blasProducts, uintptr(q.blas.handle), g.turned, 0, uintptr(g.columns), uintptr(g.rows), uintptr(g.depth),
		uintptr(unsafe.Pointer(alpha)), g.right, uintptr(g.ofRight), uintptr(g.nextRight), g.left, uintptr(g.ofLeft), uintptr(g.nextLeft),
		uintptr(unsafe.Pointer(beta)), g.out, uintptr(g.ofOut), uintptr(g.nextOut), uintptr(g.count))
	runtime.KeepAlive(alpha)
	return err
}
