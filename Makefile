# Every target is one command that also works by hand; `make help` lists them.
GO         ?= go
TEST_FLAGS ?=
BENCH      ?= all
GATES      ?= hits scaling misses evictions launches stores loads primitives
FUZZTIME   ?= 20s
SYSTEMS    ?= linux/amd64 linux/arm64 linux/386 darwin/arm64 windows/amd64
SOAK       ?= 10m
BIN        ?= bin

.DEFAULT_GOAL := help
.PHONY: help build run libkiln test test-race cross check bench bench-gate clean conform rules mutants soak fuzz shaders deps-drivers model fetch-onednn fetch-onnxruntime fetch-nvrtc test-gpu bench-gpu test-bench FORCE

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: bin/kiln ## bin/kiln, with the commit that it was built from

libkiln: FORCE ## libkiln.so, kiln.h and kiln-child, for programs in C, into BIN (bin); Linux, needs a C compiler
	@CGO_ENABLED=1 $(GO) build -trimpath -buildmode=c-shared -ldflags='-extldflags=-Wl,-soname,libkiln.so' -o "$(BIN)/libkiln.so" ./cmd/libkiln
	@CGO_ENABLED=0 $(GO) build -trimpath -o "$(BIN)/kiln-child" ./cmd/libkiln/child
	@rm -f "$(BIN)/libkiln.h" && cp cmd/libkiln/kiln.h "$(BIN)/"

run: bin/kiln out ## drive a transformer's operations with a real trace; report, and a picture in out/run.png
	bin/kiln run --plot out/run.png

test: deps-drivers model test-race cross test-bench ## the whole test suite under the race detector, and the builds for all systems

# Under the race detector cmd/kiln and gpuexec/blobstore take minutes, and on a machine with
# other work more than the ten of go test.
test-race:
	CGO_ENABLED=1 $(GO) test -race -shuffle=on -timeout 25m $(TEST_FLAGS) ./...

cross: ## build and vet for every system and architecture of README's table, without C
	@for target in $(SYSTEMS); do \
		export CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/}; echo "build and vet for $$target"; \
		$(GO) build ./... && $(GO) vet ./... || exit 1; \
	done

check: rules ## format, vet, staticcheck, the architecture of the module, rules without a test
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt -w these:" $$unformatted; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) test -count=1 ./internal/arch

bench: bin/kiln out fetch-onednn ## Kiln beside other caches and oneDNN: a table, out/bench.jsonl, out/bench.png; then kiln bench BENCH
	cd stress/bench && $(GO) run . --json --plot ../../out/bench.png >../../out/bench.jsonl
	bin/kiln bench $(BENCH)

fetch-onednn: ## oneDNN 3.2, for that comparison, and 3.13, for tests, into .cache; does nothing if they are there
	@stress/bench/onednn/fetch .cache/onednn-3.2 3.2
	@stress/bench/onednn/fetch .cache/onednn-3.13 3.13

fetch-nvrtc: ## NVIDIA's run-time compiler (58 MB), for tests, into .cache/nvrtc; does nothing if it is there
	@.ci/nvrtc .cache/nvrtc

test-bench: fetch-onednn
	cd stress/bench && $(GO) vet ./... && $(GO) test -race -shuffle=on $(TEST_FLAGS) ./...

# GATES leaves out restart and forward, which take minutes on a busy machine, and
# matmul, which needs a oneDNN to measure against; `kiln bench NAME --gate` runs
# them. A figure that needs two cores and finds only one is not measured: it says
# n=0 and fails nothing.
bench-gate: bin/kiln fetch-onednn ## the benchmarks in GATES, each held to its gate; memory of a name; first results from a store; launches beside the driver's; 64 processes that want one key
	@failed=0; for b in $(GATES); do bin/kiln bench $$b --gate || failed=1; done; \
	$(GO) test -count=1 -run TestMemoryPerName ./sessioncache || failed=1; \
	$(GO) test -count=1 -run TestFirstResult ./gpuexec/opencl -rounds=3 || failed=1; \
	$(GO) test -count=1 -run 'TestLaunchCost|TestPauseCost' ./gpuexec/opencl -held || failed=1; \
	$(GO) test -count=1 -run TestOneBuildOnTheHost ./gpuexec/blobstore -processes=64 -build=2s -within=1s || failed=1; \
	exit $$failed

conform: bin/kiln ## the conformance scripts against the real components
	bin/kiln conform stress/conform/testdata

rules: ## rules of docs/SPEC.md that no test cites, and citations of rules that do not exist
	$(GO) run ./internal/rules

mutants: ## deliberate bugs, each of which a named test must catch
	.ci/mutants

test-gpu: fetch-nvrtc ## the tests of gpuexec/cuda on the driver and the GPU of this machine: docs/gpu.md
	$(GO) test -count=1 -timeout 30m ./gpuexec/cuda -real

bench-gpu: fetch-nvrtc bin/kiln ## the figures that docs/gpu.md asks for; fails where there is no driver or no GPU
	@$(GO) test -count=1 -timeout 30m -v -run 'TestFigures$$' ./gpuexec/cuda -real -cublas=$${KILN_CUBLAS:-installed}
	@KILN_NVRTC=$${KILN_NVRTC:-$(CURDIR)/.cache/nvrtc/libnvrtc.so.13} bin/kiln bench device --device cuda

soak: bin/kiln ## invariants under concurrent use, for SOAK (10m)
	bin/kiln stress --duration $(SOAK)

fuzz: ## every fuzz target, each for FUZZTIME (20s)
	.ci/fuzz $(FUZZTIME)

clean: ## remove what was built
	rm -rf bin out

shaders: ## the SPIR-V modules that are committed beside their shaders in GLSL; needs glslc
	@for shader in gpuexec/vulkan/*/*.comp; do \
		glslc -O --target-env=vulkan1.2 -I gpuexec/vulkan/shaders -o "$${shader%comp}spv" "$$shader" || exit 1; \
	done

model: ## the sentence encoder MiniLM (87 MB), into .cache/minilm; does nothing if it is there
	@.ci/model .cache/minilm

fetch-onnxruntime: model ## onnxruntime and the model as ONNX (230 MB), for kiln bench model, into .cache; does nothing if they are there
	@.ci/onnxruntime .cache/onnxruntime

deps-drivers:
	@.ci/drivers

bin/kiln: FORCE
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=auto -ldflags=-funcalign=64 -o $@ ./cmd/kiln # at a cache line: else a hit costs up to half more by where the linker puts it

out:
	@mkdir -p $@
