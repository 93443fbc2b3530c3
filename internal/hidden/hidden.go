// Package hidden sets fields of a public Config, or of another struct that a package is
// given, which only this module may set, and has functions of gpuexec and of blobstore that only
// this module may call.
//
// A public type must not show an internal one, so such a field is unexported. The
// package that has the Config calls Field in an init function; the package that
// opens it calls With.
package hidden

import (
	"context"
	"reflect"
	"time"
)

// Fill has a *gpuexec.Buffer filled, all of it, by write: in place where the host shares its
// memory, else by a copy. No worker waits for write. gpuexec sets it.
var Fill func(ctx context.Context, buffer any, write func(into []byte) error) error

// Weights is the backend of a store under which packed weights of cpu are kept. Their identity
// names the code that lays them out, which no compiler, driver or processor changes.
const Weights = "cpu-weights"

// Adopt makes a buffer of memory that is only read, on an executor whose device can, which is
// that of cpu: else fault.ErrUnsupported. release is called when nobody reads it any more, and
// not if there is an error; it is to be one that may be called again. gpuexec sets it.
var Adopt func(ctx context.Context, executor any, memory []byte, release func()) (buffer any, err error)

// ManyRows gives the ops.Library of the same backend whose programs serve operations of any number
// of rows, which each launch says behind its tensors; nil for a library that has none such.
// cpu sets it.
var ManyRows func(library any) any

// MapBlob gives the data of a key that PutToMap stored, so many bytes of it, mapped from a
// *blobstore.Store; nil is a miss. room is memory that is used, and may be given back larger. blobstore
// sets it.
var MapBlob func(ctx context.Context, store any, backend, key string, bytes int64, room *[]byte) (data []byte, unmap func(), err error)

// PutToMap is Put of data for MapBlob. blobstore sets it.
var PutToMap func(ctx context.Context, store any, backend, key string, data []byte, cost time.Duration, room *[]byte) error

// RoomToMap takes room in a *blobstore.Store for data that is about to be stored by PutToMap and
// mapped by MapBlob, until give is called; nil is none. blobstore sets it.
var RoomToMap func(store any, bytes int64) (give func())

// field names one by the type of its Config and its own.
type field struct{ config, value reflect.Type }

// setters set the fields. Only init functions write to it.
var setters = make(map[field]func(config, value any))

// Field says how a field of type V, which is no interface, is set in a Config of type C. It is
// for init functions only: it is not safe for concurrent use.
func Field[C, V any](set func(*C, V)) {
	setters[field{reflect.TypeFor[C](), reflect.TypeFor[V]()}] = func(config, value any) { set(config.(*C), value.(V)) }
}

// With gives cfg with each value in the field of its type. It panics if Field was not
// called for the two types. Safe for concurrent use.
func With[C any](cfg C, values ...any) C {
	for _, v := range values {
		setters[field{reflect.TypeFor[C](), reflect.TypeOf(v)}](&cfg, v)
	}
	return cfg
}
