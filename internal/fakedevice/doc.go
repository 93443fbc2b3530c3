// Package fakedevice is a backend with one device that can be told to be slow,
// to fail and to go away: the faults that a real device does not produce on
// demand, for tests, conformance scripts and measuring the executor alone.
package fakedevice
