package gpuexec

// Touched is the most compiles that a turn of the executor's actor gave up.
func Touched(e *Executor) int64 { return e.touched.Most() }
