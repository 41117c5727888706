"""Vocabulary files of before tokenizer.json, as tokenizers of the `tokenizers` library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from heedful.errors import ModelError
from heedful.interop.config_fields import Fields
from heedful.interop.hf_files import read_bytes, read_json_file

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
    lines = _read_text(file).split("\n")
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
    for number, line in enumerate(_read_text(merges).split("\n"), start=1):
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


def _read_text(file: Path) -> str:
    try:
        return read_bytes(file).decode()
    except UnicodeDecodeError as error:
        raise ModelError(
            f"Cannot be read: {error}", where=str(file), remedy="Copy the file again"
        ) from None
