//go:build !linux || !(amd64 || arm64)

package onednn

import "errors"

var errElsewhere = errors.New("oneDNN is used on 64-bit Linux only")

func dlopen(string) (uintptr, error) { return 0, errElsewhere }

func dlsym(uintptr, string) (uintptr, error) { return 0, errElsewhere }

func register(any, uintptr) {}

func calls(uintptr, ...uintptr) uintptr { return 0 }

func available(int64) bool { return false }
