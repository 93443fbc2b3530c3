// Package outside fakes what lies outside of the components in a conformance
// case: the machine's identity and environment, the clock, file faults, a
// driver that can be told to fail, files, contexts, gates, and the creators
// that stand for user code.
//
// A World belongs to one case in one process and is safe for concurrent use.
// Components get at it through small hooks (Now, Lookup, Op, Create) when they
// are opened; nothing here knows a component.
package outside
