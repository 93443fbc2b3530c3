package main

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
)

// A second process compiles nothing: its first pass takes every kernel from the
// store, its second from memory, and its outputs are the first process's.
func TestRestart(t *testing.T) {
	job := []string{"--model", "bert_tiny_l2_h128", "--requests", "12", "--store", filepath.Join(t.TempDir(), "store")}
	cold, err := runProcess(t.Context(), job...)
	if err != nil {
		t.Fatal(err)
	}
	warm, err := runProcess(t.Context(), job...)
	if err != nil {
		t.Fatal(err)
	}
	if n := cold[0].Compiles; n == 0 || warm[0].Compiles != 0 || warm[0].Hits.Disk != n || warm[1].Hits.Disk != 0 || warm[1].Hits.Artefact != 0 {
		t.Errorf("cold %+v\nthen %+v", cold, warm)
	}
	for _, p := range warm {
		if p.OutputSHA256 != cold[0].OutputSHA256 {
			t.Errorf("pass %s: other outputs", p.Name)
		}
	}
	if _, err := runProcess(t.Context(), "--requests", "none"); err == nil {
		t.Error("a process that was refused gave passes")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := runProcess(ctx, job...); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
