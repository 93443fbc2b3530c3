//go:build linux && (amd64 || arm64)

package vk

import (
	"testing"
	"unsafe"
)

// The sizes and places are those that a C compiler gives for vulkan_core.h 1.3.239.
func TestLayouts(t *testing.T) {
	for name, pair := range map[string][2]uintptr{
		"application":          {unsafe.Sizeof(applicationInfo{}), 48},
		"instance":             {unsafe.Sizeof(instanceCreate{}), 64},
		"properties":           {unsafe.Sizeof(Properties{}), 824},
		"properties.limits":    {unsafe.Offsetof(Properties{}.Limits), 296},
		"limits":               {unsafe.Sizeof(Limits{}), 504},
		"limits.range":         {unsafe.Offsetof(Limits{}.MaxStorageRange), 28},
		"limits.uniforms":      {unsafe.Offsetof(Limits{}.MaxUniformBuffers), 72},
		"limits.uniform range": {unsafe.Offsetof(Limits{}.MaxUniformRange), 24},
		"limits.uniform align": {unsafe.Offsetof(Limits{}.MinUniformAlignment), 320},
		"limits.allocations":   {unsafe.Offsetof(Limits{}.MaxAllocations), 36},
		"limits.buffers":       {unsafe.Offsetof(Limits{}.MaxStorageBuffers), 76},
		"limits.shared":        {unsafe.Offsetof(Limits{}.MaxShared), 216},
		"limits.groups":        {unsafe.Offsetof(Limits{}.MaxGroups), 220},
		"limits.invocations":   {unsafe.Offsetof(Limits{}.MaxInvocations), 232},
		"limits.size":          {unsafe.Offsetof(Limits{}.MaxGroupSize), 236},
		"limits.alignment":     {unsafe.Offsetof(Limits{}.MinStorageAlignment), 328},
		"properties2":          {unsafe.Sizeof(properties2{}), 840},
		"ids":                  {unsafe.Sizeof(IDs{}), 64},
		"driver":               {unsafe.Sizeof(DriverProperties{}), 536},
		"subgroup sizes":       {unsafe.Sizeof(SubgroupSizes{}), 32},
		"features2":            {unsafe.Sizeof(features2{}), 240},
		"features11":           {unsafe.Sizeof(features11{}), 64},
		"features12":           {unsafe.Sizeof(features12{}), 208},
		"features13":           {unsafe.Sizeof(features13{}), 80},
		"queue family":         {unsafe.Sizeof(QueueFamily{}), 24},
		"memory properties":    {unsafe.Sizeof(memoryProperties{}), 520},
		"queue create":         {unsafe.Sizeof(queueCreate{}), 40},
		"device create":        {unsafe.Sizeof(deviceCreate{}), 72},
		"memory allocate":      {unsafe.Sizeof(memoryAllocate{}), 32},
		"buffer create":        {unsafe.Sizeof(bufferCreate{}), 56},
		"requirements":         {unsafe.Sizeof(Requirements{}), 24},
		"shader module":        {unsafe.Sizeof(shaderModuleCreate{}), 40},
		"binding":              {unsafe.Sizeof(setLayoutBinding{}), 24},
		"set layout":           {unsafe.Sizeof(setLayoutCreate{}), 32},
		"pipeline layout":      {unsafe.Sizeof(pipelineLayoutCreate{}), 48},
		"push range":           {unsafe.Sizeof(pushRange{}), 12},
		"compute pipeline":     {unsafe.Sizeof(computePipelineCreate{}), 96},
		"stage":                {unsafe.Sizeof(shaderStage{}), 48},
		"specialization":       {unsafe.Sizeof(specialization{}), 32},
		"constant":             {unsafe.Sizeof(Constant{}), 16},
		"required subgroup":    {unsafe.Sizeof(requiredSubgroup{}), 24},
		"feedback":             {unsafe.Sizeof(Feedback{}), 16},
		"feedback create":      {unsafe.Sizeof(feedbackCreate{}), 40},
		"pipeline cache":       {unsafe.Sizeof(pipelineCacheCreate{}), 40},
		"descriptor pool":      {unsafe.Sizeof(descriptorPoolCreate{}), 40},
		"pool size":            {unsafe.Sizeof(poolSize{}), 8},
		"set allocate":         {unsafe.Sizeof(setAllocate{}), 40},
		"write set":            {unsafe.Sizeof(writeSet{}), 64},
		"buffer part":          {unsafe.Sizeof(BufferPart{}), 24},
		"command pool":         {unsafe.Sizeof(commandPoolCreate{}), 24},
		"command buffer":       {unsafe.Sizeof(commandBufferAllocate{}), 32},
		"command buffer begin": {unsafe.Sizeof(commandBufferBegin{}), 32},
		"submit":               {unsafe.Sizeof(submit{}), 72},
		"fence":                {unsafe.Sizeof(fenceCreate{}), 24},
		"barrier":              {unsafe.Sizeof(memoryBarrier{}), 24},
		"copy":                 {unsafe.Sizeof(Copy{}), 24},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %d, want %d", name, pair[0], pair[1])
		}
	}
}
