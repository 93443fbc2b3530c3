// Package data holds what the command runs on when it is given no files: a
// sample of a real request trace, lengths of real texts and the op lists of three
// encoders. Where each comes from, its licence and what was cut is in README.md, which is embedded
// beside them so that the attribution travels with every binary.
//
// All functions are safe for concurrent use. The bytes they return are copies.
package data

import (
	"embed"
	"strconv"
	"strings"
)

//go:embed README.md models/*.jsonl traces/irc_ubuntu_sample.csv lengths/*.txt
var files embed.FS

const (
	modelFolder = "models/"
	modelSuffix = ".jsonl"
	sampleFile  = "traces/irc_ubuntu_sample.csv"
)

// Sample is the built-in trace and the name to show for it: CSV with the
// columns t_ms, len, out and session, in order of arrival.
func Sample() (name string, csv []byte) {
	return sampleFile[strings.LastIndexByte(sampleFile, '/')+1:], read(sampleFile)
}

// Model is the op list of the built-in model of this name; ok is false when
// there is none.
func Model(name string) (jsonl []byte, ok bool) {
	for _, known := range Models() {
		if name == known {
			return read(modelFolder + name + modelSuffix), true
		}
	}
	return nil, false
}

// Models lists the names of the built-in models in alphabetical order.
func Models() []string {
	entries, err := files.ReadDir(strings.TrimSuffix(modelFolder, "/"))
	if err != nil {
		panic("data: the embedded models are gone: " + err.Error()) // the build embeds them
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimSuffix(e.Name(), modelSuffix)
	}
	return names
}

// Questions and Sentences are how many tokens 300 real texts have, in their order.
func Questions() []int { return lengths("questions") }

// Sentences are less alike than Questions: see there.
func Sentences() []int { return lengths("sentences") }

func lengths(name string) (all []int) {
	for _, word := range strings.Fields(string(read("lengths/" + name + ".txt"))) {
		n, err := strconv.Atoi(word)
		if err != nil {
			panic("data: an embedded file is broken: " + err.Error())
		}
		all = append(all, n)
	}
	return all
}

func read(path string) []byte {
	b, err := files.ReadFile(path)
	if err != nil {
		panic("data: an embedded file is gone: " + err.Error()) // the build embeds them
	}
	return b
}
