// Package processor says what the processor of this machine is, and which of its
// features the operating system lets a program use. All that is asked of it is read at
// each call.
package processor
