// Package encoder computes embeddings of texts, and scores of pairs, with models of the BERT
// family, on the processor in pure Go or on a GPU.
//
// # Use
//
//	rt, err := kiln.Open(kiln.Config{})
//	e, err := encoder.Open(ctx, rt, "all-MiniLM-L6-v2", encoder.Config{})
//	embeddings, err := e.Encode(ctx, []string{"a text", "another"})
//
// # Folders
//
// A model is a folder as Hugging Face and sentence-transformers write it: config.json,
// model.safetensors or model.onnx in F32, F16 or BF16 (computed in float32), the
// tokenizer's files, and where they are there modules.json with the config of the pooling,
// the limit and the prompts. What a folder says is done; docs/encoder.md lists every field that is read. A
// model that nothing here computes is refused with the field that says so.
//
// # Pairs
//
// A folder with a classifier of one label is a cross-encoder: Score gives its score of
// each pair of texts.
//
// # Who owns what
//
// The caller owns the runtime and closes it after its encoders. An Encoder has one
// session and, for each worker, a model in it. Prepared weights are constants of the
// runtime: encoders of the same file of weights share them. If the runtime has a store, the
// packed weights of products on cpu are kept in it, and processes map them from there and
// share their memory, unless they would take more than half of its capacity.
//
// # Concurrency
//
// An Encoder is safe for concurrent use. Texts of all calls wait in one line, in which
// calls take turns, and each worker computes a batch of them at a time.
//
// # Failure
//
// Errors match the sentinels of package fault. Calls fail as a whole; an Encoder whose
// call failed goes on, and gives the same embeddings as before.
package encoder
