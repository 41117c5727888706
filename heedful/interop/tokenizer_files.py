"""Writing tokenizers so that `transformers` reads them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.errors import ModelError
from heedful.interop.hf_files import write_json_file
from heedful.interop.sentencepiece import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    Piece,
    SentencePieceModel,
    write_sentencepiece,
)
from heedful.text.imported import ImportedTokenizer
from heedful.text.pair import TokenizerPair

_ROLES = ("pad", "bos", "eos", "unk", "mask")


def write_tokenizers(
    directory: Path, tokenizers: TokenizerPair, settings: Mapping[str, Any]
) -> None:
    """Write the tokenizer files of a model.

    Args:
        directory: where to.
        tokenizers: of the model.
        settings: the tokenizer_config.json it came with; empty for none.

    Raises:
        ModelError: when theirs cannot do what a tokenizer does.
        OSError: when a file cannot be written.
    """
    source, target = tokenizers.source, tokenizers.target
    if not isinstance(source, ImportedTokenizer) or not isinstance(target, ImportedTokenizer):
        raise ModelError(
            "The tokenizer was trained by Heedful, and no kind of theirs cuts text just so",
            where="tokenizer.json",
            remedy="Only models with an imported tokenizer can be exported",
        )
    if source.vocabulary is not None and target.vocabulary is not None:
        _write_marian(directory, source, target, source.vocabulary, target.vocabulary, settings)
        return
    if not tokenizers.joint:
        raise ModelError(
            "The model has two tokenizers, and theirs only one",
            where="target_tokenizer.json",
            remedy="Only Marian's models may have two",
        )
    state = dict(source.state)
    write_json_file(directory / "tokenizer.json", state)
    names = {
        f"{role}_token": source.token(source.special[role])
        for role in _ROLES
        if role in source.special
    }
    write_json_file(
        directory / "tokenizer_config.json",
        dict(settings) or {"tokenizer_class": "PreTrainedTokenizerFast", **names},
    )


def _write_marian(
    directory: Path,
    source: ImportedTokenizer,
    target: ImportedTokenizer,
    source_ids: Mapping[str, int],
    target_ids: Mapping[str, int],
    settings: Mapping[str, Any],
) -> None:
    separate = source_ids != target_ids
    for side, tokenizer in (("source", source), ("target", target)):
        content = write_sentencepiece(_sentencepiece(tokenizer))
        (directory / f"{side}.spm").write_bytes(content)
    write_json_file(directory / "vocab.json", source_ids)
    if separate:
        write_json_file(directory / "target_vocab.json", target_ids)
    names = {f"{role}_token": source.token(source.special[role]) for role in ("pad", "eos", "unk")}
    write_json_file(
        directory / "tokenizer_config.json",
        dict(settings)
        or {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate, **names},
    )


def _sentencepiece(tokenizer: ImportedTokenizer) -> SentencePieceModel:
    """The model file that a tokenizer of SentencePiece's unigrams came from."""
    model = tokenizer.state["model"]
    control = {token["content"] for token in tokenizer.state["added_tokens"] if token["special"]}
    unk = model["unk_id"]
    pieces = tuple(
        Piece(text, score, UNKNOWN if id == unk else CONTROL if text in control else NORMAL)
        for id, (text, score) in enumerate(model["vocab"])
    )
    ids = {piece.text: id for id, piece in enumerate(pieces)}
    normalizer = tokenizer.state["normalizer"] or {"normalizers": []}
    steps = {step["type"]: step for step in normalizer["normalizers"]}
    charsmap = steps["Precompiled"]["precompiled_charsmap"] if "Precompiled" in steps else ""
    return SentencePieceModel(
        pieces=pieces,
        byte_fallback=model.get("byte_fallback", False),
        unk=unk,
        bos=ids.get("<s>", -1),
        eos=ids.get("</s>", -1),
        pad=ids.get("<pad>", -1),
        charsmap=base64.b64decode(charsmap),
        add_dummy_prefix=tokenizer.state["pre_tokenizer"]["prepend_scheme"] == "always",
        remove_extra_whitespaces="Replace" in steps,
    )
