// Package folder reads the folder of a sentence encoder as Hugging Face and
// sentence-transformers write it: what the model computes, its weights, and what is
// done with its outputs.
//
// Every field that changes an output is read. A value that Kiln has no code for is an
// error that matches fault.ErrUnsupported; what is missing, broken or at odds with
// another file matches fault.ErrInvalid. Both are a *fault.Error with the file as its
// Key and the field as its Field. Fields that are not known are passed over, as the
// libraries that write these files do; a folder that brings code of its own is refused.
package folder
