// Package dnnl2 runs float32 matrix products on oneDNN 2.x, the peer that
// package gemm is measured against. The library is opened at run time, without
// cgo; where it is absent Open answers ErrUnavailable and says what to install.
//
// The library runs on the calling thread alone. This is not a backend: package
// gpuexec/onednn is, for 2.x and 3.x.
package dnnl2
