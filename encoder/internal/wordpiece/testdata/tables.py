"""Writes unicode.txt: what the reference does with each code point.

    pip install tokenizers==0.23.3 && python tables.py > ../unicode.txt
"""
import unicodedata
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def bert(clean=False, ideographs=False, accents=False, lower=False):
    return normalizers.BertNormalizer(clean, ideographs, accents, lower).normalize_str


clean, ideographs, strip, lower = bert(clean=True), bert(ideographs=True), bert(accents=True), bert(lower=True)
nfd, split = normalizers.NFD().normalize_str, pre_tokenizers.BertPreTokenizer().pre_tokenize_str
single = Tokenizer(models.WordLevel({"U": 0}, unk_token="U"))
single.add_tokens([AddedToken("Q", single_word=True, normalized=False)])
parts = {chr(c): [piece for piece, _ in split("a%cb" % c)] for c in points}


def mark(s):  # a character that NFD moves: its combining class is not 0
    return nfd("\u0345" + s) != "\u0345" + s or nfd(s + "\u0334") != s + "\u0334"


def ranges(name, chosen):
    runs = []
    for c in points:
        if chosen(chr(c)):
            if runs and runs[-1][1] == c - 1:
                runs[-1][1] = c
            else:
                runs.append([c, c])
    for first, last in runs:
        print(name, "%x" % first, "%x" % last)


def mappings(name, to):
    for c in points:
        s = to(chr(c))
        if s not in ("", chr(c)) and not 0xAC00 <= c <= 0xD7A3:
            print(name, "%x" % c, *("%x" % ord(r) for r in s))


print("# Made by testdata/tables.py from tokenizers 0.23.3, for every code point. Hangul syllables are left out of strip.")
ranges("clean", lambda s: clean(s) == "")
ranges("space", lambda s: parts[s] == ["a", "b"])
ranges("ideograph", lambda s: ideographs(s) != s)
ranges("punctuation", lambda s: len(parts[s]) == 3)
ranges("word", lambda s: s == "Q" or len(single.encode(s + "Q").ids) == 1)
ranges("accent", lambda s: strip(s) == "")
ranges("starter", lambda s: strip(s) == "" and not mark(nfd(s)[0]))
for k in sorted({unicodedata.combining(chr(c)) for c in points if strip(chr(c)) == chr(c)} - {0}):
    ranges("class.%d" % k, lambda s: strip(s) == s and unicodedata.combining(s) == k and mark(s))
mappings("strip", strip)
mappings("lower", lower)
