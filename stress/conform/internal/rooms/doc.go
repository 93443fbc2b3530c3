// Package rooms binds each kind of component that a script can open to the room
// it is tested in: verbs become calls of the room's public surface, answers
// become words. It decides nothing and models nothing; what it puts in place of
// the outside (creators, devices, drivers, clock, faults) comes from package
// outside or from the rooms' own test devices.
//
// One kind lives in one file, a large one with a second file for part of its
// verbs; kinds.go lists them. See engine.Kind for what a kind is made of.
package rooms
