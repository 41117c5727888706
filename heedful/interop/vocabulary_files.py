"""Tokenizers of the `tokenizers` library from vocabulary files older than tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from heedful.errors import ModelError
from heedful.interop.config_fields import Fields
from heedful.interop.hf_files import read_bytes, read_json_file

# Longer words become the unknown token, as in transformers.
_LONGEST_WORD = 100

_LETTER = r"[\p{Cased}&&[^\p{Case_Ignorable}]]"
# The library lower-cases letter by letter, but a capital sigma at the end of a word becomes ς, not
# σ (Unicode's Final_Sigma).
_LAST_SIGMA = rf"{_LETTER}\p{{Case_Ignorable}}*\K\u03a3(?!\p{{Case_Ignorable}}*{_LETTER})"
WORD_END = "</w>"
"""End of the pieces that end a word, in BPE as Sennrich (2016) has it."""
_CLIP_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)


def from_wordpiece(file: Path, settings: Fields, unk: str) -> tokenizers.Tokenizer:
    """Return BERT's WordPiece tokenizer (Devlin 2019) from vocab.txt, with a token per line.

    Args:
        file: vocabulary file.
        settings: fields of tokenizer_config.json: `do_lower_case`, `strip_accents`,
            `tokenize_chinese_chars`.
        unk: unknown token, for words that the vocabulary cannot compose.

    Raises:
        ModelError: when the file cannot be read or lacks the unknown token.
    """
    settings.refuse_unless("do_basic_tokenize", [True], True)
    # `splitlines` would also split at other separators, which may be tokens, and shift all later
    # ids.
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
        # None follows `lowercase`, as in the original: uncased models drop accents.
        strip_accents=settings.flag("strip_accents") if settings.has("strip_accents") else None,
        lowercase=settings.flag("do_lower_case", True),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return library


def from_byte_pairs(vocabulary: Path, merges: Path, settings: Fields) -> tokenizers.Tokenizer:
    """Return GPT-2's byte-level BPE tokenizer (Radford 2019) from vocab.json and merges.txt.

    Args:
        vocabulary: file with the ids of tokens.
        merges: file with a merge per line, in the order they are applied.
        settings: fields of tokenizer_config.json: `add_prefix_space`.

    Raises:
        ModelError: when a file cannot be read or the two do not belong together.
    """
    ids = read_ids(vocabulary)
    pairs = _read_merges(merges, ids, vocabulary.name)
    library = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=pairs, continuing_subword_prefix="", end_of_word_suffix="")
    )
    space = settings.flag("add_prefix_space", False)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    library.decoder = decoders.ByteLevel()
    return library


def from_clip_pairs(vocabulary: Path, merges: Path) -> tokenizers.Tokenizer:
    """Return CLIP's tokenizer: lower case, and byte-level BPE whose words end in </w>.

    Args:
        vocabulary, merges: as for `from_byte_pairs`.

    Raises:
        ModelError: as `from_byte_pairs`.
    """
    ids = read_ids(vocabulary)
    pairs = _read_merges(merges, ids, vocabulary.name)
    settings = {"continuing_subword_prefix": "", "end_of_word_suffix": WORD_END}
    library = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=pairs, **settings))
    library.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    return library


def separate_words(library: tokenizers.Tokenizer) -> None:
    """Let a tokenizer whose pieces mark the ends of words decode them as spaces."""
    # In their files bytes are decoded and the marks left; their classes replace them afterwards.
    if getattr(library.model, "end_of_word_suffix", None) == WORD_END:
        # No decoder that strips: that of the library fails on an empty text.
        last = decoders.Replace(Regex(f"{WORD_END}$"), "")
        ends = [last, decoders.Replace(WORD_END, " ")]
        library.decoder = decoders.Sequence([decoders.ByteLevel(), *ends])


def lowercase_steps() -> list[normalizers.Normalizer]:
    """Return the steps that write a text in lower case as Python does."""
    return [normalizers.Replace(Regex(_LAST_SIGMA), "\u03c2"), normalizers.Lowercase()]


def _read_merges(merges: Path, ids: Mapping[str, int], vocabulary: str) -> list[tuple[str, str]]:
    """Read the merges of BPE, whose pieces have ids in the file `vocabulary`."""
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(_read_text(merges).split("\n"), start=1):
        # A merge may begin with # as well, so only the first line can be a comment.
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        parts = line.split()
        if len(parts) != 2 or not {*parts, "".join(parts)} <= ids.keys():
            raise ModelError(
                f"Line {number} is no merge of two pieces of {vocabulary}: {line[:60]!r}",
                where=str(merges),
                remedy="Use the two files that were saved together",
            )
        pairs.append((parts[0], parts[1]))
    return pairs


def read_ids(file: Path) -> dict[str, int]:
    """Read a vocab.json, the id of every token, or raise a `ModelError` about the file."""
    content: dict[str, Any] | None = read_json_file(file)
    if content is None:
        raise ModelError(
            f"The directory lacks {file.name}",
            where=str(file.parent),
            remedy="Copy all files of the model",
        )
    # `type`, since JSON's true would pass for the id 1.
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
