package gpuexec

// Executor is the executor that the kernel was made by and may be launched on.
func (k *Kernel) Executor() *Executor { return k.exec }
