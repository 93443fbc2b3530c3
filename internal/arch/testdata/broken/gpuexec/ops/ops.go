// Package ops is what every backend may import.
package ops
