// Package gpuexec runs compiled kernels on devices: the Executor, one per
// device, and the contract that a backend fulfils for it. Packages cpu, opencl,
// vulkan, cuda and onednn are backends.
//
// # Who owns what
//
// An Executor owns its device: queues, memory, and the goroutines that call the
// driver. Nothing else calls the driver (SPEC E1). Compiles run on a bounded
// number of compile workers, one flight a key; launches run in sequences, each
// on one run worker, which holds what a driver does not allow to be shared
// between threads (E5). A Kernel or Buffer belongs to the executor that made
// it; a launch checks that, and its arguments, before the driver sees anything
// (E3).
//
// # Ordering
//
// The launches of one Submit run in their order, after everything submitted
// before by the same caller has returned. Two Submits that overlap may run in
// either order or at once. So may two Runs that Start began: a Run is over when its Wait
// has returned. StartAfter begins a Run when others have ended. A copy, made by CopyTo or
// CopyFrom, is one of the launches of a sequence; in a Run of its own it overlaps with
// kernels.
//
// # Kernels of one's own
//
// A Source is made of a Code: a text in a language that the backend compiles, with all
// that goes in by value. Its key covers all of it. A launch gives buffers, numbers,
// structs and local memory, and a grid of blocks in three dimensions.
//
// # Failure
//
// Errors named Err... are those of package fault, found with errors.Is.
//
// A full queue answers ErrOverloaded at once. When the device is lost, what
// runs and what waits, compiles too, is answered with ErrDeviceLost at once. The
// device is opened again, and every live Kernel is rebuilt from its blob, or
// compiled again where the backend gives none. Ready waits for that; a Kernel whose
// compile asks for other kernels follows later. A Kernel that the driver does not make
// again stays lost until the next restart, and it alone. A device that is lost again
// before it has done anything is opened after a pause, which grows to a minute. Buffers
// lose their content: a launch with a buffer from before answers ErrDeviceLost, so
// allocate another one. A device that comes back with another Identity is not taken.
//
// A driver that panics or calls runtime.Goexit fails what called it, and nothing
// else (F3). A driver call that never returns keeps its goroutine and its device;
// after a loss the next device works beside it, and Close waits for it. Nothing
// that belongs to a closed device is called.
//
// # Concurrency
//
// Executor, Kernel and Buffer are safe for concurrent use. A backend's types
// are called as the contract in backend.go says.
//
// # Testing
//
// Package devicetest has the tests of the contract, which every backend passes.
package gpuexec
