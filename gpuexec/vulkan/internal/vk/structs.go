//go:build linux && (amd64 || arm64)

package vk

import "unsafe"

// head begins most structs.
type head struct {
	Type uint32 // VkStructureType
	_    uint32
	Next unsafe.Pointer
}

// The values of VkStructureType used here.
const (
	typeApplicationInfo       = 0
	typeInstanceCreate        = 1
	typeDeviceQueueCreate     = 2
	typeDeviceCreate          = 3
	typeSubmit                = 4
	typeMemoryAllocate        = 5
	typeFenceCreate           = 8
	typeBufferCreate          = 12
	typeViewCreate            = 13
	typeShaderModuleCreate    = 16
	typePipelineCacheCreate   = 17
	typeShaderStage           = 18
	typeComputePipelineCreate = 29
	typePipelineLayoutCreate  = 30
	typeSetLayoutCreate       = 32
	typeDescriptorPoolCreate  = 33
	typeSetAllocate           = 34
	typeWriteSet              = 35
	typeCommandPoolCreate     = 39
	typeCommandBufferAllocate = 40
	typeCommandBufferBegin    = 42
	typeMemoryBarrier         = 46
	typeFeatures2             = 1000059000
	typeProperties2           = 1000059001
	typeIDProperties          = 1000071004
	typeFeedbackCreate        = 1000192000
	typeDriverProperties      = 1000196000
	typeFeatures11            = 49
	typeFeatures12            = 51
	typeFeatures13            = 53
	typeSubgroupProperties    = 1000225000
	typeRequiredSubgroup      = 1000225001
)

type applicationInfo struct {
	head
	name   *byte
	_      uint32
	_      uint32
	engine *byte
	_      uint32
	api    uint32
}

type instanceCreate struct {
	head
	_          uint64
	app        *applicationInfo
	layers     uint64
	layerNames **byte
	_, _       uint64 // extensions
}

// Limits is VkPhysicalDeviceLimits.
type Limits struct {
	_                   [20]byte
	MaxTexels           uint32 // of a texel buffer
	MaxUniformRange     uint32
	MaxStorageRange     uint32
	MaxPushBytes        uint32
	MaxAllocations      uint32
	_                   [32]byte
	MaxUniformBuffers   uint32 // of a stage
	MaxStorageBuffers   uint32
	MaxImages           uint32 // texel buffers among them
	_                   [132]byte
	MaxShared           uint32
	MaxGroups           [3]uint32
	MaxInvocations      uint32
	MaxGroupSize        [3]uint32
	_                   [64]byte
	MinTexelAlignment   uint64
	MinUniformAlignment uint64
	MinStorageAlignment uint64
	_                   [168]byte
}

// Properties is VkPhysicalDeviceProperties.
type Properties struct {
	API       uint32
	Driver    uint32
	Vendor    uint32
	Device    uint32
	Type      uint32 // VkPhysicalDeviceType
	Name      [256]byte
	CacheUUID [16]byte
	_         uint32
	Limits    Limits
	_         [20]byte // sparse properties
	_         uint32
}

// Values of Properties.Type.
const (
	TypeIntegrated = 1
	TypeDiscrete   = 2
	TypeVirtual    = 3
	TypeCPU        = 4
)

type properties2 struct {
	head
	Properties
}

// IDs is VkPhysicalDeviceIDProperties.
type IDs struct {
	head
	DeviceUUID [16]byte
	DriverUUID [16]byte
	_          [16]byte
}

// DriverProperties is VkPhysicalDeviceDriverProperties.
type DriverProperties struct {
	head
	ID   uint32
	Name [256]byte
	Info [256]byte
	_    uint32
}

// SubgroupSizes is VkPhysicalDeviceSubgroupSizeControlProperties.
type SubgroupSizes struct {
	head
	Min, Max uint32
	_        uint32
	Stages   uint32 // in which a size may be asked for
}

type features2 struct {
	head
	bits [55]uint32
	_    uint32
}

// features11 to features13 are those of the core versions.
type features11 struct {
	head
	_ [48]byte
}

type features12 struct {
	head
	_ [192]byte
}

type features13 struct {
	head
	_ [64]byte
}

// QueueFamily is VkQueueFamilyProperties.
type QueueFamily struct {
	Flags uint32
	Count uint32
	_     [16]byte
}

// Flags of a queue family.
const (
	QueueGraphics = 1
	QueueCompute  = 2
)

// MemoryType is VkMemoryType.
type MemoryType struct{ Flags, Heap uint32 }

// Flags of a memory type.
const (
	MemoryDeviceLocal  = 1
	MemoryHostVisible  = 2
	MemoryHostCoherent = 4
	MemoryHostCached   = 8
)

// MemoryHeap is VkMemoryHeap.
type MemoryHeap struct {
	Bytes uint64
	Flags uint32
	_     uint32
}

type memoryProperties struct {
	types    uint32
	typeList [32]MemoryType
	heaps    uint32
	heapList [16]MemoryHeap
}

type queueCreate struct {
	head
	_        uint32
	family   uint32
	count    uint32
	_        uint32
	priority *float32
}

type deviceCreate struct {
	head
	_          uint32
	queues     uint32
	queueInfos *queueCreate
	_, _       uint64 // layers
	extensions uint64
	names      **byte
	_          uint64 // features, which are in the chain
}

type memoryAllocate struct {
	head
	bytes uint64
	kind  uint32
	_     uint32
}

type bufferCreate struct {
	head
	_     uint64
	bytes uint64
	usage uint32
	_     uint32
	_, _  uint64 // queue families
}

// Requirements is VkMemoryRequirements.
type Requirements struct {
	Bytes, Alignment uint64
	Types            uint32
	_                uint32
}

type shaderModuleCreate struct {
	head
	_     uint64
	bytes uint64
	words *uint32
}

type setLayoutBinding struct {
	binding, kind, count, stages uint32
	_                            uint64
}

type setLayoutCreate struct {
	head
	_        uint32
	count    uint32
	bindings *setLayoutBinding
}

type pushRange struct{ stages, offset, bytes uint32 }

type pipelineLayoutCreate struct {
	head
	_      uint32
	sets   uint32
	layout *uint64
	ranges uint32
	_      uint32
	push   *pushRange
}

// Constant is VkSpecializationMapEntry.
type Constant struct {
	ID, Offset uint32
	Bytes      uint64
}

type specialization struct {
	count     uint32
	_         uint32
	constants *Constant
	bytes     uint64
	data      *byte
}

type requiredSubgroup struct {
	head
	size uint32
	_    uint32
}

type shaderStage struct {
	head
	flags, stage uint32
	module       uint64
	entry        *byte
	special      *specialization
}

type computePipelineCreate struct {
	head
	_      uint64
	stage  shaderStage
	layout uint64
	_      uint64
	base   int64
}

// Feedback is VkPipelineCreationFeedback.
type Feedback struct {
	Flags       uint32
	_           uint32
	Nanoseconds uint64
}

type feedbackCreate struct {
	head
	whole  *Feedback
	stages uint64
	stage  *Feedback
}

// Flags of Feedback.
const (
	FeedbackValid    = 1
	FeedbackCacheHit = 2
)

type pipelineCacheCreate struct {
	head
	_     uint64
	bytes uint64
	data  *byte
}

type poolSize struct{ kind, count uint32 }

type descriptorPoolCreate struct {
	head
	_     uint32
	sets  uint32
	sizes uint32
	_     uint32
	size  *poolSize
}

type setAllocate struct {
	head
	pool   uint64
	count  uint32
	_      uint32
	layout *uint64
}

// BufferPart is VkDescriptorBufferInfo.
type BufferPart struct {
	Buffer        uint64
	Offset, Bytes uint64
}

type viewCreate struct {
	head
	_             uint64
	buffer        uint64
	format        uint32
	_             uint32
	offset, bytes uint64
}

type writeSet struct {
	head
	set            uint64
	binding, array uint32
	count, kind    uint32
	_              uint64
	buffer         *BufferPart
	view           *uint64
}

type commandPoolCreate struct {
	head
	_, family uint32
}

type commandBufferAllocate struct {
	head
	pool         uint64
	level, count uint32
}

type commandBufferBegin struct {
	head
	flags uint32
	_     uint32
	_     uint64
}

type submit struct {
	head
	_              uint32
	_              uint32
	_, _           uint64
	buffers        uint32
	_              uint32
	commandBuffers *uintptr
	_, _           uint64
}

type fenceCreate struct {
	head
	_ uint64
}

type memoryBarrier struct {
	head
	from, to uint32
}

// Copy is VkBufferCopy.
type Copy struct{ From, To, Bytes uint64 }
