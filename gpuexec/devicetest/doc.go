// Package devicetest has Contract and Operations, the tests that every backend
// must pass.
package devicetest
