"""Imported tokenizers against those of `transformers`, on text that trips converters."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from heedful.errors import ModelError
from heedful.interop.hf_tokenizers import read_tokenizers
from heedful.interop.sentencepiece_files import (
    BYTE,
    CONTROL,
    UNKNOWN,
    Piece,
    SentencePieceModel,
    write_sentencepiece,
)
from heedful.interop.tokenizer_export import write_tokenizers
from heedful.text.imported_tokenizer import ImportedTokenizer
from heedful.text.tokenizer import framed
from heedful.text.tokenizer_pair import TokenizerPair, read_tokenizer

CORPUS = [
    "The old house stands by the river, and the river runs to the sea.",
    "Ein Café in München: naïve, déjà vu! Größe 12.5 €",
    "low lower lowest; new newer newest; wide wider widest",
    "don't can't won't I'll we've it's",
    "机器学习 很 有趣 日本語 テキスト",
    "1 2 3 10 20 30 1999 2024",
]

NASTY = [
    "",
    " ",
    "   ",
    "hello",
    " leading",
    "trailing ",
    "  twice  as  much  ",
    "tab\tand\nnewline\r\nand both \n\n",
    "caf\u00e9 cafe\u0301 CAF\u00c9 \u00c5ngstr\u00f6m A\u030angstro\u0308m",
    "机器学习很有趣。日本語テキスト、한국어",
    "mixed中文and English日本",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea ok",
    "zero\u200bwidth\ufeff no\u00a0break soft\u00adhyphen",
    "bell\x07 null\x00 escape\x1b[0m delete\x7f \x85 next",
    "don't I'll we've 'quoted' \u201ccurly\u201d",
    "1999 3.14 1,000,000 10%",
    "the<s>river</s> [CLS] the [SEP] [MASK] <mask> <pad> <unk> <|endoftext|> <extra_id_0>",
    "\u2581already\u2581marked \u2047",
    "x" * 120 + " lower",
    "ﬁne ² ½ ﷺ İstanbul ẞ ςσ",
    "\U0010ffff \ue000 \u0378",
    "a\u0315\u0300\u05ae\u0062",
    "the river\u3000the\u2003sea\u2028line",
]


def compare(directory: Path, theirs, *, config: dict | None = None) -> ImportedTokenizer:
    """Same ids with and without special tokens, same text back; also after saving ours."""
    pair = read_tokenizers(directory, config or {"model_type": "any"})
    assert pair.joint
    ours = pair.source
    assert isinstance(ours, ImportedTokenizer)
    pair.save(directory)
    again = read_tokenizer(directory / "tokenizer.json")
    assert isinstance(again, ImportedTokenizer)
    assert again.fingerprint == ours.fingerprint
    assert again.to_json() == ours.to_json()
    silent = set(theirs.all_special_ids)
    if theirs.unk_token_id not in (theirs.eos_token_id, theirs.bos_token_id):
        silent.discard(theirs.unk_token_id)
    for text in NASTY:
        plain = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text) == plain, repr(text)
        assert again.encode(text) == plain, repr(text)
        assert framed(ours, plain) == theirs(text)["input_ids"], repr(text)
        spoken = [id for id in plain if id not in silent]
        expected = theirs.decode(spoken, clean_up_tokenization_spaces=False)
        if theirs.unk_token_id in spoken:
            expected = expected.replace(theirs.unk_token, "\u2047")
        assert ours.decode(theirs(text)["input_ids"]) == expected, repr(text)
    assert ours.encode_batch(NASTY) == [ours.encode(text) for text in NASTY]
    return ours


def names_as_ids(ours: ImportedTokenizer, theirs) -> None:
    for role in ("pad", "eos", "unk", "mask"):
        id = getattr(theirs, f"{role}_token_id")
        if id is not None:
            assert getattr(ours, role) == id, role


def pairs_match(ours: ImportedTokenizer, theirs) -> None:
    one, two = ours.encode("the river"), ours.encode("low newer")
    assert framed(ours, one, two) == theirs("the river", "low newer")["input_ids"]


WORDPIECE_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train_wordpiece(lowercase: bool) -> list[str]:
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=220, special_tokens=WORDPIECE_SPECIALS, show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    return sorted(library.get_vocab(), key=library.get_vocab().__getitem__)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
    ],
)
def test_wordpiece_from_vocab_txt(tmp_path, settings):
    from transformers import BertTokenizer

    vocabulary = train_wordpiece(settings.get("do_lower_case", True))
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = BertTokenizer(
        {piece: id for id, piece in enumerate(vocabulary)}, **({"do_lower_case": True} | settings)
    )
    ours = compare(tmp_path, theirs)
    names_as_ids(ours, theirs)
    pairs_match(ours, theirs)
    assert (ours.first, ours.last) == ((theirs.cls_token_id,), (theirs.sep_token_id,))
    assert ours.eos == theirs.sep_token_id


def test_wordpiece_from_tokenizer_json(tmp_path):
    from transformers import BertTokenizer

    vocabulary = train_wordpiece(True)
    theirs = BertTokenizer({piece: id for id, piece in enumerate(vocabulary)})
    theirs.save_pretrained(tmp_path)
    ours = compare(tmp_path, theirs)
    names_as_ids(ours, theirs)
    pairs_match(ours, theirs)


def train_byte_pairs(specials: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    model = json.loads(library.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def write_byte_pairs(directory: Path, vocabulary: dict[str, int], merges: list) -> None:
    (directory / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges), ""]
    (directory / "merges.txt").write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize("space", [False, True])
def test_gpt2_from_vocab_and_merges(tmp_path, space):
    from transformers import GPT2Tokenizer

    vocabulary, merges = train_byte_pairs(["<|endoftext|>"])
    write_byte_pairs(tmp_path, vocabulary, merges)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": space}))
    theirs = GPT2Tokenizer(vocabulary, merges, add_prefix_space=space)
    ours = compare(tmp_path, theirs)
    assert (ours.first, ours.last) == ((), ())
    assert ours.eos == ours.bos == theirs.eos_token_id
    text = "  Any byte\x00 at all: \u00e9 \U0001f44d\n"
    assert ours.decode(ours.encode(text)) == (" " * (space and text[0] != " ") + text)


def test_added_tokens_beside_older_files(tmp_path):
    from transformers import AddedToken, GPT2Tokenizer

    vocabulary, merges = train_byte_pairs(["<|endoftext|>"])
    write_byte_pairs(tmp_path, vocabulary, merges)
    size = len(vocabulary)
    added = {"content": "lower", "lstrip": True, "special": False, "normalized": True}
    decoder = {str(size): {**added, "rstrip": False, "single_word": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"naïve": size + 1}))
    theirs = GPT2Tokenizer(vocabulary, merges)
    theirs.add_tokens(
        [
            AddedToken("lower", lstrip=True, single_word=True, normalized=True),
            AddedToken("naïve", normalized=False),
        ]
    )
    ours = compare(tmp_path, theirs)
    assert ours.size == size + 2
    assert ours.encode("  lower naïve")[0] == size
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"naïve": size + 5}))
    with pytest.raises(ModelError, match=f"{size + 5}.*{size + 1} pieces"):
        read_tokenizers(tmp_path, {"model_type": "gpt2"})


ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@pytest.mark.parametrize("saved", [False, True])
def test_roberta_and_bart(tmp_path, saved):
    from transformers import RobertaTokenizer

    vocabulary, merges = train_byte_pairs(ROBERTA_SPECIALS)
    theirs = RobertaTokenizer(vocabulary, merges)
    if saved:
        theirs.save_pretrained(tmp_path)
    else:
        write_byte_pairs(tmp_path, vocabulary, merges)
    config = {"model_type": "bart", "decoder_start_token_id": 2}
    ours = compare(tmp_path, theirs, config=config)
    names_as_ids(ours, theirs)
    pairs_match(ours, theirs)
    assert ours.bos == 2  # what BART's decoder starts with
    assert ours.between == (2, 2)


def unigram(specials: list[Piece], *, charsmap: bytes = b"") -> SentencePieceModel:
    library = tokenizers.Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=200, show_progress=False, unk_token="<unk>")
    )
    scored = json.loads(library.to_str())["model"]["vocab"]
    known = {piece.text for piece in specials}
    # Files hold scores in single precision; that decides between ways that are as probable.
    single = [(text, struct.unpack("<f", struct.pack("<f", score))[0]) for text, score in scored]
    pieces = specials + [Piece(text, score) for text, score in single if text not in known]
    ids = {piece.text: id for id, piece in enumerate(pieces)}
    return SentencePieceModel(
        pieces=tuple(pieces),
        unk=ids["<unk>"],
        bos=ids.get("<s>", -1),
        eos=ids["</s>"],
        pad=ids.get("<pad>", -1),
        charsmap=charsmap,
    )


def trie(rules: dict[str, str]) -> bytes:
    """A charsmap that replaces single ASCII characters, as SentencePiece compiles it.

    A double array of 32-bit units: byte c leads from a unit of offset o at place p to p ^ o ^ c,
    whose label must be c; a leaf's unit lies at offset ^ 0 and holds the place of its replacement.
    """
    units = [0] * 1024
    texts = b""
    root_offset = 256  # places 256 … 511 are the children of the root at place 0
    units[0] = (root_offset << 10) | 0
    for number, (old, new) in enumerate(rules.items()):
        (label,) = old.encode()
        child = root_offset ^ label
        leaf = 512 + number
        units[child] = ((child ^ leaf) << 10) | (1 << 8) | label
        units[leaf] = (1 << 31) | len(texts)
        texts += new.encode() + b"\0"
    array = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(array).to_bytes(4, "little") + array + texts


# As the usual rules of SentencePiece do: white space is a space, control characters are nothing.
CHARSMAP = trie({"\t": " ", "\n": " ", "\r": " ", "\x07": "", "\x1b": ""})

T5_SPECIALS = [
    Piece("<pad>", 0.0, CONTROL),
    Piece("</s>", 0.0, CONTROL),
    Piece("<unk>", 0.0, UNKNOWN),
]


def test_t5_from_spiece_model(tmp_path):
    from transformers import T5Tokenizer

    model = unigram(T5_SPECIALS, charsmap=CHARSMAP)
    (tmp_path / "spiece.model").write_bytes(write_sentencepiece(model))
    theirs = T5Tokenizer(
        [(piece.text, piece.score) for piece in model.pieces]
        + [(f"<extra_id_{i}>", 0.0) for i in reversed(range(100))],
        _spm_precompiled_charsmap=CHARSMAP,
    )
    # Theirs splits at all white space there is, and SentencePiece at spaces alone; the published
    # rules make spaces of all but these.
    config = {"model_type": "t5", "decoder_start_token_id": 0}
    rare = [text for text in NASTY if any(c in text for c in "\x85\u00a0\u2028\u3000")]
    assert len(rare) == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.NASTY", [text for text in NASTY if text not in rare])
        ours = compare(tmp_path, theirs, config=config)
    names_as_ids(ours, theirs)
    assert (ours.first, ours.last, ours.bos) == ((), (1,), 0)
    assert ours.size == len(model.pieces) + 100


def llama_model() -> SentencePieceModel:
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    library.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    vocabulary = library.get_vocab()
    learned = sorted(vocabulary, key=vocabulary.__getitem__)
    merged = [piece for piece in learned if len(piece) > 1]
    letters = [piece for piece in learned if len(piece) == 1]
    pieces = [Piece("<unk>", 0.0, UNKNOWN), Piece("<s>", 0.0, CONTROL), Piece("</s>", 0.0, CONTROL)]
    pieces += [Piece(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    pieces += [Piece(text, -float(rank)) for rank, text in enumerate([*merged, *letters])]
    return SentencePieceModel(
        pieces=tuple(pieces),
        model_type="bpe",
        byte_fallback=True,
        remove_extra_whitespaces=False,
    )


@pytest.mark.parametrize("legacy", [False, True])
def test_llama_from_tokenizer_model(tmp_path, legacy):
    from transformers import LlamaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    model = llama_model()
    (tmp_path / "tokenizer.model").write_bytes(write_sentencepiece(model))
    settings = {"add_bos_token": True, "add_eos_token": False, "legacy": legacy}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ids = {piece.text: id for id, piece in enumerate(model.pieces)}
    theirs = LlamaTokenizer(ids, generate_merges(ids), **settings)
    ours = compare(tmp_path, theirs)
    assert (ours.first, ours.last) == ((1,), ())
    assert (ours.bos, ours.eos, ours.unk) == (1, 2, 0)
    text = "any text: \U0001f44d é 机  with   spaces\n"
    assert ours.decode(ours.encode(text)) == text


def test_llama_from_tokenizer_json(tmp_path):
    from transformers import LlamaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    ids = {piece.text: id for id, piece in enumerate(llama_model().pieces)}
    theirs = LlamaTokenizer(ids, generate_merges(ids), add_bos_token=True)
    theirs.save_pretrained(tmp_path)
    ours = compare(tmp_path, theirs)
    assert ours.first == (1,)


def test_an_export_is_read_by_transformers(tmp_path):
    """Written from ours alone, without a file of theirs."""
    from transformers import AutoTokenizer, RobertaTokenizer

    vocabulary, merges = train_byte_pairs(ROBERTA_SPECIALS)
    theirs = RobertaTokenizer(vocabulary, merges)
    write_byte_pairs(tmp_path, vocabulary, merges)
    ours = read_tokenizers(tmp_path, {"model_type": "roberta"}).source
    out = tmp_path / "out"
    out.mkdir()
    write_tokenizers(out, TokenizerPair(ours, ours), {})
    again = AutoTokenizer.from_pretrained(out)
    for text in NASTY:
        assert again(text)["input_ids"] == theirs(text)["input_ids"], repr(text)
    assert again.pad_token_id == theirs.pad_token_id
    assert again.mask_token_id == theirs.mask_token_id
