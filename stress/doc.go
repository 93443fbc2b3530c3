// Package stress puts Kiln's rooms under random concurrent use and checks what must
// hold at every moment: no key gives another key's value, no value is freed while
// it is used, everything is freed exactly once, no sample finds a capacity exceeded,
// and neither goroutines nor the heap grow. The command `kiln stress` runs it.
//
// A scenario tries one room, but for three. Churn has ever new things come and go, and
// leave nothing behind. The storm drives all rooms at once, through
// the door and below it, while sessions, executors and runtimes are closed in the
// middle. The scenario deadlines asks what must be answered in bounded time beside
// a heavy load (SPEC F6).
//
// A run is repeatable as far as concurrency allows: the seed fixes what every
// goroutine asks for, not how they interleave.
package stress
