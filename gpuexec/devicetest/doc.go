// Package devicetest has what tests of executors and backends share: a Fake
// device for faults, and Contract, the tests that every backend must pass.
package devicetest
