"""Writes cases.jsonl: small tokenizers, texts, and what the reference makes of them.

    pip install tokenizers==0.23.3 && python cases.py > cases.jsonl
"""
import hashlib
import json
from tokenizers import Tokenizer, normalizers, pre_tokenizers

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c ab ##a ##b ##c ##bc abc A É é e i # ; - ` ##d ## ñ ß σ ς ##ς ##σ ##e 你 好 中 丽 你好 𫠠 ##𫠠 ᄀ ##ᅡ ##ᆨ 가 \u0307 ##\u0307 ##\U0001d165 ##\u302e x ##x xx ##xx xxxx un ##aff ##able".split()
FLAGS = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
cases = []


def case(name, *texts, words=WORDS, normalizer={}, added={}, model={}, post=None, maxima=(None,)):
    vocabulary = {w: i for i, w in enumerate(words)}
    specials = {t: dict(FLAGS, special=True) for t in WORDS[:5]}
    tokens, free = [], len(vocabulary)
    for content, flags in {**specials, **added}.items():
        if content not in vocabulary:
            vocabulary_id, free = free, free + 1
        else:
            vocabulary_id = vocabulary[content]
        tokens.append({"id": vocabulary_id, "content": content, **FLAGS, **flags})
    file = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True, **normalizer},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": post or {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": None,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocabulary, **model},
    }
    tokenizer, runs = Tokenizer.from_str(json.dumps(file)), []
    for text in texts:
        a, b = text if isinstance(text, tuple) else (text, None)
        tokenizer.no_truncation()
        full = tokenizer.encode(a, b)
        for most in maxima:
            tokenizer.no_truncation()
            if most:
                tokenizer.enable_truncation(most)
            e = tokenizer.encode(a, b)
            runs.append({"a": a, "b": b, "max": most or 1 << 20, "ids": e.ids, "types": e.type_ids, "cut": len(e.ids) < len(full.ids)})
    cases.append({"name": name, "file": file, "runs": runs})


def template(single, pair):
    def piece(p):
        name, kind = p.split(":")
        return {"Sequence": {"id": name, "type_id": int(kind)}} if name in "AB" else {"SpecialToken": {"id": name, "type_id": int(kind)}}
    special = {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}, "two": {"id": "two", "ids": [3, 4], "tokens": ["[SEP]", "[MASK]"]}}
    return {"type": "TemplateProcessing", "single": [piece(p) for p in single.split()], "pair": [piece(p) for p in pair.split()], "special_tokens": special}


case("greedy", "unaffable", "abcd", "abcb", "abbc", "xxxxxxx", "xxxxz ab", "ab##a", "#a", "a`b-c;")
case("spaces and nothing", "", " ", "\t\r\n", "\0", "\u200b\u200b", "a\x0bb", "a\x85b", "a\u2028b", "a\u00a0b", "a\u3000b", "a\ufffdb", "a\u00adb", "a\ufeffb", "a\u180eb")
case("what is not cleaned", "a\x0bb", "a\x85b", "a\ufffdb", "a\x1cb", "a\u200bb", "\0", normalizer={"clean_text": False})
case("unassigned and young code points", "a\u0378b", "\U0003fffeab", "\U0010ffffab", "a\U000e0001b", "a\U0001e000b")
case("accents", "É", "e\u0301", "ab\u0301c", "ñ", "ß", "\u0344a", "a\u0f73b", "\u037e", "\u1fef")
case("accents stay", "É", "e\u0301", "ñ", "İ", normalizer={"strip_accents": False})
case("accents without lower case", "É", "İ", "Ñ", normalizer={"strip_accents": True, "lowercase": False})
case("cased", "É A a", "e\u0301", normalizer={"lowercase": False})
case("no final sigma", "ΣΣ", "ς")
case("ideographs", "a你好b", "\U0002b820", "\U0002b920", "\uf900", "\U0002f800", "a\u3007b")
case("ideographs in words", "你好", "a你", normalizer={"handle_chinese_chars": False})
case("Hangul", "가", "각", "\ud7a3")
case("marks in order", "a\U0001d165\u302e", "a\u302e\U0001d165", "a\u302e\u0301\U0001d165", "a\u302e\u0f78\U0001d165", "a\u302e\u0344\U0001d165", "a\u302e\u200b\U0001d165", "a\u302e b\U0001d165", "\U0001d160")
case("words of 100 and 101", "x" * 100, "x" * 101, "x" + "\u0301" * 101, "中" * 101, "σ" * 100, "σ" * 101)
case("short words", "abcb abc ab a", model={"max_input_chars_per_word": 3})
case("no word", "a b -", model={"max_input_chars_per_word": 0})
case("another prefix", "abcb", "unaffable", model={"continuing_subword_prefix": ""})
case("special tokens in texts", "a [SEP] b", "[MASK]a[mask]", "[SEP", "[[SEP]]", "[SE\u0301P]", "[CLS][CLS]")
case("added tokens", "foo bar", "Foofoo", "a foobar", "FOO", "<x>a", "<xa", "a<X>", "fo\u0301o", "foo foo",
     added={"foo": {"normalized": True}, "foob": {"normalized": True}, "<x>": {}, "Bar": {"normalized": True, "single_word": True}})
case("single words", "foo", "afoo", "foo_", "foo\u0301", "(foo)", "foo\u200d", "foofoo foo", "foo1", "你foo", added={"foo": {"single_word": True}, "oo": {}})
case("stripping", "a  foo  b", "foo \t foo", " foo", "a \u3000foo\u2028b", "foo  bar  foo", added={"foo": {"lstrip": True, "rstrip": True}, "bar": {"rstrip": True}})
case("stripping spaces", "a   b", "foo   b", "a   foo", added={" ": {"lstrip": True, "rstrip": True}, "foo": {"rstrip": True}})
pairs = [("a a a", "b"), ("a", "b b b b"), ("a b c a b c", "c b a c"), ("a b c a", "b c b c b c"), ("", ""), ("a", ""), ("", "b b b"), ("abcb", "abcb")]
case("pairs", *pairs, maxima=(None, 3, 4, 5, 6, 7, 8, 9, 10))
case("one text, cut", "a b c a b c", "abcb abcb", "a abcd b", "", maxima=(None, 2, 3, 4, 5, 6, 7, 8))
case("templates", *pairs, "a b", post=template("[CLS]:0 A:0 two:0", "two:1 A:2 [CLS]:3 B:0 two:4"), maxima=(None, 8, 9))

points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
digests = {}
for options in ("1111", "1100", "1101"):
    normalize = normalizers.BertNormalizer(*(o == "1" for o in options)).normalize_str
    digests[options] = hashlib.sha256("\n".join(normalize("a%cb" % c) for c in points).encode()).hexdigest()
split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
digests["words"] = hashlib.sha256("\n".join(" ".join(p for p, _ in split("a%cb" % c)) for c in points).encode()).hexdigest()
for line in [digests, *cases]:
    print(json.dumps(line))
