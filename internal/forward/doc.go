// Package forward runs the forward pass of encoders of the BERT family: the
// session finds the prepared artefact of every operation, the constant cache
// prepares each weight once, and the executor runs the operations in their order.
// `kiln run` drives it with a trace, and package encoder with texts.
//
// # Use
//
// A List says which operations a model consists of; [Parse] and [ReadList] make
// one. A [Weights] has the numbers of its tensors, out of a file or out of a seed.
// [New] puts both behind a session and an executor, and [Model.Run] computes a
// batch of requests:
//
//	list, err := forward.ReadList("minilm.jsonl")
//	weights, err := forward.OpenWeights(list, 1)
//	model := forward.New(forward.Config{Session: session, Executor: executor, Library: library, Engine: engine, Weights: weights})
//	answer, err := model.Run(ctx, [][]int32{ids})
//
// With Config.Packed the tokens of a batch lie one behind another, without padding
// between requests, where the device has ops.Attention and the list a row for each
// token: one attention is in the place of the products, softmax and reorders of a layer,
// and a shape is a number of tokens, whoever they are of.
//
// [Weights.Reference] computes the same in float64, slowly and without a cache, to
// check outputs against.
//
// # Who owns what
//
// The caller owns the session, the executor, the constants' engine and the
// Weights, and closes them after the models that use them. A Model belongs to one
// session. It keeps the plan of the shape that ran last, with held references to
// the artefacts of that shape (of any, where a packed batch has the same programs whatever its
// number of tokens, as on all devices but onednn), the prepared weights, and one arena of device
// memory for activations. Models share prepared weights through the constant
// cache, unless that bypasses them.
//
// # Concurrency
//
// A Model is owned by one goroutine; different Models run side by side. A List
// and a Weights are safe for concurrent use, a Weights until Close.
//
// # Failure
//
// Bad input is an error that matches fault.ErrInvalid; an operation that the
// device has no kernel for matches fault.ErrUnsupported. A run that fails or is
// cancelled leaves a model that computes the same as before. A device that was lost
// (fault.ErrDeviceLost) gets its weights again at the first request after it is back.
package forward
