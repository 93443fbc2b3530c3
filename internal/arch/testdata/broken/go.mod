module github.com/kiln-cache/kiln

go 1.26.0

require (
	example.test/extra v0.0.0
	github.com/asynkron/protoactor-go v0.0.0
)

replace (
	example.test/extra => ./foreign/extra
	github.com/asynkron/protoactor-go => ./foreign/protoactor
)
