//go:build cgo && linux

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const refused = "KILN_SESSION_GROUPS=none" // so that the library has something to warn of

// host runs testdata/host.c with words that say what it does, and gives what it printed.
func host(t *testing.T, path string, words ...string) string {
	t.Helper()
	cmd := exec.Command(path, words...)
	cmd.Env = append(cmd.Environ(), refused, "POCL_CACHE_DIR="+filepath.Join(scratch, "pocl"))
	said, err := cmd.Output()
	if err != nil {
		t.Errorf("%q: %v\n%s", words, err, said)
	}
	return string(said)
}

// E4: a program keeps its signals, whether it has set its handlers before the library was loaded
// or after that, and the library works whatever they are, also once it was closed, and beside a
// second copy of it.
func TestHostKeepsItsSignals(t *testing.T) {
	dir := library(t)
	path := program(t, dir, "host")
	needs(t, "opencl")
	second := t.TempDir()
	run(t, "cp", filepath.Join(dir, "libkiln.so"), filepath.Join(dir, "kiln-child"), second)
	store := "open=" + filepath.Join(t.TempDir(), "store")
	in := strings.NewReplacer("LOAD", "load="+filepath.Join(dir, "libkiln.so"), "AGAIN", "load="+filepath.Join(second, "libkiln.so"), "STORE", store)
	const raise = " raise=2 raise=15 raise=17 raise=13 fault "
	for name, words := range map[string]string{
		"handlers of before": "plain=2 plain=15 plain=17 plain=13 plain=11 LOAD STORE device=opencl compile=1" + raise + "compile=2" + raise + "close" + raise,
		"handlers of later":  "LOAD handle=2 handle=15 handle=17 handle=13 handle=11 STORE device=opencl compile=1" + raise + "compile=2" + raise + "close" + raise,
		"closed":             "plain=11 LOAD STORE device=opencl compile=1 unload fault LOAD STORE device=opencl compile=1 close",
		"two copies":         "plain=11 plain=2 LOAD AGAIN STORE device=opencl compile=1 LOAD STORE device=opencl compile=1 raise=2 fault close",
	} {
		if said := host(t, path, strings.Fields(in.Replace(words))...); !strings.HasSuffix(said, "done\n") {
			t.Errorf("%s: it says %s", name, said)
		}
	}
}

// E4: a program whose standard error nobody reads is not ended by a warning of the library's, but
// where it has asked for that. Its own pipes end it, or do not, as without the library.
func TestWarningsThatNobodyReads(t *testing.T) {
	dir := library(t)
	path := program(t, dir, "host")
	in := strings.NewReplacer("LOAD", "load="+filepath.Join(dir, "libkiln.so"), "STORE", "open="+filepath.Join(t.TempDir(), "store"))
	for _, words := range []string{
		"mute LOAD STORE close", "mute ignore=13 LOAD STORE close", "mute LOAD ignore=13 STORE close", "mute handle=13 LOAD STORE close raise=13",
		"mute LOAD handle=13 STORE close raise=13", "ignore=13 LOAD write STORE write close", "handle=13 LOAD STORE write close",
	} {
		host(t, path, strings.Fields(in.Replace(words))...)
	}
	for _, words := range []string{"LOAD STORE write", "mute LOAD default=13 STORE"} {
		dies := exec.Command(path, strings.Fields(in.Replace(words))...)
		dies.Env = append(dies.Environ(), refused)
		if err := dies.Run(); dies.ProcessState == nil || dies.ProcessState.String() != "signal: broken pipe" {
			t.Errorf("%s: %v, want an end by SIGPIPE", words, err)
		}
	}
}

// E2: the settings are those of the environment that the library was loaded in.
func TestSettingsFromC(t *testing.T) {
	dir := library(t)
	cmd := exec.Command(program(t, dir, "host"), "load="+filepath.Join(dir, "libkiln.so"), "open=", "device=onednn")
	cmd.Env = append(cmd.Environ(), "KILN_STORE_DIR=", "KILN_ONEDNN_LIBRARY=/nowhere/libdnnl.so.3")
	if said, err := cmd.Output(); err == nil || !strings.Contains(string(said), "/nowhere/libdnnl.so.3") {
		t.Errorf("%v, it says %s, want why that library is not opened", err, said)
	}
}
