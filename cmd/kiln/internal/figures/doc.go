// Package figures holds Kiln's hot paths against their peers and their gates. It is
// what `kiln bench` prints; package measure says how a figure is taken.
package figures
