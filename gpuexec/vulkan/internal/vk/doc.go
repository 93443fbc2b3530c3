// Package vk calls Vulkan's loader, without cgo: the calls and structs that compute
// work needs, under Go names. A struct has the layout of its C namesake
// (TestLayouts), so a pointer to it is what the driver reads.
//
// Every object that is made is counted until it is destroyed (Device.Objects).
// Calls are as safe for concurrent use as Vulkan says: what it calls externally
// synchronised is the caller's to guard.
package vk
