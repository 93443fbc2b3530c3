// Package wordpiece is the tokenizer of the BERT family: text in, token ids out.
//
// The ids are those of Hugging Face's tokenizers 0.23.3 (BertNormalizer,
// BertPreTokenizer, WordPiece, the added tokens, BertProcessing or
// TemplateProcessing) for every text. That library mixes tables of several versions
// of Unicode; unicode.txt has what it does with each code point, so that neither
// these ids nor their tests change with Go's own tables.
//
// [Open] reads tokenizer.json, or else vocab.txt with the settings of
// tokenizer_config.json. What a file asks for and this package lacks is
// fault.ErrUnsupported and named; a broken file is fault.ErrInvalid. The sections
// truncation and padding of tokenizer.json are not heeded, but for the id of the
// padding token: how many tokens a text may have is the caller's to say.
//
// A byte that is not UTF-8 counts as U+FFFD, which the normalizer drops. A token
// such as "[SEP]" that a user types is that token, as in the reference.
//
// A [Tokenizer] never changes and is safe for concurrent use. The time of a call grows
// with the text and not faster. It also grows with the number of lengths that the
// tokens of a vocabulary have, some twenty for a word.
package wordpiece
