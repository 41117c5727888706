"""Vocabulary files of before tokenizer.json, as tokenizers of the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from heedful.errors import ModelError
from heedful.interop.fields import Fields
from heedful.interop.hf_files import read_json_file
from heedful.interop.sentencepiece import (
    CONTROL,
    USER_DEFINED,
    SentencePieceModel,
    read_sentencepiece,
)
from heedful.text.words import MARK

_LONGEST_WORD = 100


def from_wordpiece(file: Path, settings: Fields, unk: str) -> tokenizers.Tokenizer:
    """BERT's wordpieces (Devlin 2019) from vocab.txt, a piece a line.

    Args:
        file: the vocabulary.
        settings: tokenizer_config.json; do_lower_case, strip_accents, tokenize_chinese_chars.
        unk: the piece for words that cannot be put together.

    Raises:
        ModelError: when the file cannot be read or lacks the piece for unknown words.
    """
    settings.refuse_unless("do_basic_tokenize", [True], True)
    lines = _read(file).split("\n")
    if lines[-1] == "":
        lines.pop()
    vocabulary = {line: id for id, line in enumerate(lines)}
    if unk not in vocabulary:
        raise ModelError(
            f"The vocabulary has no piece {unk}",
            where=str(file),
            remedy="Check that this is the vocabulary of a BERT model",
        )
    library = tokenizers.Tokenizer(
        models.WordPiece(vocabulary, unk_token=unk, max_input_chars_per_word=_LONGEST_WORD)
    )
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=settings.flag("strip_accents") if settings.has("strip_accents") else None,
        lowercase=settings.flag("do_lower_case", True),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return library


def from_byte_pairs(vocabulary: Path, merges: Path, settings: Fields) -> tokenizers.Tokenizer:
    """GPT-2's pieces of bytes (Radford 2019) from vocab.json and merges.txt.

    Args:
        vocabulary: ids of the pieces.
        merges: a pair a line, best first.
        settings: tokenizer_config.json; add_prefix_space.

    Raises:
        ModelError: when a file cannot be read or they do not belong together.
    """
    ids = read_ids(vocabulary)
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(_read(merges).split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        parts = line.split()
        if len(parts) != 2 or not {*parts, "".join(parts)} <= ids.keys():
            raise ModelError(
                f"Line {number} is no merge of two pieces of {vocabulary.name}: {line[:60]!r}",
                where=str(merges),
                remedy="Use the two files that were saved together",
            )
        pairs.append((parts[0], parts[1]))
    library = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=pairs, continuing_subword_prefix="", end_of_word_suffix="")
    )
    space = settings.flag("add_prefix_space", False)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    library.decoder = decoders.ByteLevel()
    return library


def read_ids(file: Path) -> dict[str, int]:
    """A vocab.json: the id of every piece.

    Raises:
        ModelError: when it is missing or something else.
    """
    content: dict[str, Any] | None = read_json_file(file)
    if content is None:
        raise ModelError(
            f"The directory lacks {file.name}",
            where=str(file.parent),
            remedy="Copy all files of the model",
        )
    if not content or not all(type(id) is int and id >= 0 for id in content.values()):
        raise ModelError(
            "It does not give every piece an id", where=str(file), remedy="Copy the file again"
        )
    return content


def from_sentencepiece(
    file: Path, *, extra: int = 0, legacy: bool = False
) -> tuple[tokenizers.Tokenizer, SentencePieceModel]:
    """The pieces of a SentencePiece model.

    Args:
        file: the model.
        extra: sentinels <extra_id_0> … to add, the last of them first (Raffel 2020).
        legacy: for BPE, a text gets its space also after a special token inside it.

    Raises:
        ModelError: when the file cannot be read.
    """
    model = read_sentencepiece(file)
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(extra))]
    try:
        # The library raises bare exceptions of its own for content it does not understand.
        unigram = model.model_type == "unigram"
        library = _unigram(model, sentinels) if unigram else _bpe(model, legacy)
    except Exception as error:
        raise ModelError(
            f"The pieces and rules cannot be used: {error}",
            where=str(file),
            remedy="The file is damaged; copy it again",
        ) from None
    added = [
        AddedToken(piece.text, normalized=False, special=piece.type == CONTROL)
        for piece in model.pieces
        if piece.type in (CONTROL, USER_DEFINED)
    ]
    added += [AddedToken(name, normalized=False, special=True) for name in sentinels]
    library.add_tokens(added)
    return library, model


def _unigram(model: SentencePieceModel, sentinels: list[str]) -> tokenizers.Tokenizer:
    scored = [(piece.text, piece.score) for piece in model.pieces]
    scored += [(name, 0.0) for name in sentinels]
    library = tokenizers.Tokenizer(
        models.Unigram(scored, unk_id=model.unk, byte_fallback=model.byte_fallback)
    )
    steps = _normalizers(model)
    if steps:
        library.normalizer = normalizers.Sequence(steps)
    prefix = "always" if model.add_dummy_prefix else "never"
    library.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme=prefix, split=True)
    library.decoder = decoders.Metaspace(MARK, prepend_scheme=prefix, split=True)
    return library


def _bpe(model: SentencePieceModel, legacy: bool) -> tokenizers.Tokenizer:
    ids = {piece.text: id for id, piece in enumerate(model.pieces)}
    library = tokenizers.Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges(ids),
            unk_token=model.pieces[model.unk].text,
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
        )
    )
    steps = _normalizers(model)
    if steps:
        library.normalizer = normalizers.Sequence(steps)
    prefix = ("always" if legacy else "first") if model.add_dummy_prefix else "never"
    library.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme=prefix, split=False)
    back = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix:
        back.append(decoders.Strip(content=" ", left=1))
    library.decoder = decoders.Sequence(back)
    return library


def _normalizers(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), "")]
        steps += [normalizers.Replace(Regex(" {2,}"), " ")]
    return steps


def _merges(ids: Collection[str]) -> list[tuple[str, str]]:
    """The merges behind a BPE vocabulary, which has its pieces in the order they were merged.

    A piece may come from several pairs. All are listed, that of the shortest left part first.
    """
    merges: list[tuple[str, str]] = []
    for piece in ids:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                merges.append((left, right))
    return merges


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"Cannot be read: {error}", where=str(file), remedy="Copy the file again"
        ) from None
