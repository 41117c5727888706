"""Writing tokenizers so that `transformers` reads them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.interop.hf_files import write_json_file
from heedful.interop.own_tokenizers import library_state, own_settings, special_names
from heedful.interop.sentencepiece import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    Piece,
    SentencePieceModel,
    write_sentencepiece,
)
from heedful.interop.tokenizers import TARGET_DIRECTORY
from heedful.text.imported import ImportedTokenizer
from heedful.text.pair import TokenizerPair
from heedful.text.tokenizer import Tokenizer

_ROLES = ("pad", "bos", "eos", "unk", "mask")


def write_tokenizers(
    directory: Path,
    tokenizers: TokenizerPair,
    settings: Mapping[str, Any],
    *,
    continues: bool = False,
) -> None:
    """Write the tokenizer files of a model.

    Of two tokenizers that Heedful trained, the target's stands in a directory of its own.

    Args:
        directory: where to.
        tokenizers: of the model.
        settings: the tokenizer_config.json it came with; empty for none.
        continues: whether the model goes on with a text, which then begins and does not end.

    Raises:
        ModelError: when theirs cannot do what a tokenizer does.
        OSError: when a file cannot be written.
    """
    source, target = tokenizers.source, tokenizers.target
    if isinstance(source, Tokenizer) and isinstance(target, Tokenizer):
        _write_own(directory, source, continues)
        if not tokenizers.joint:
            (directory / TARGET_DIRECTORY).mkdir()
            _write_own(directory / TARGET_DIRECTORY, target, continues)
        return
    assert isinstance(source, ImportedTokenizer) and isinstance(target, ImportedTokenizer)
    if source.vocabulary is not None and target.vocabulary is not None:
        _write_marian(directory, source, target, source.vocabulary, target.vocabulary, settings)
        return
    _write_fast(directory, source, settings)
    if not tokenizers.joint:
        (directory / TARGET_DIRECTORY).mkdir()
        _write_fast(directory / TARGET_DIRECTORY, target, settings)


def _write_own(directory: Path, tokenizer: Tokenizer, continues: bool) -> None:
    state = library_state(tokenizer, begins=continues or bool(tokenizer.first), ends=not continues)
    write_json_file(directory / "tokenizer.json", state)
    write_json_file(directory / "tokenizer_config.json", own_settings(tokenizer))
    write_json_file(directory / "special_tokens_map.json", special_names(tokenizer))


def _write_fast(directory: Path, tokenizer: ImportedTokenizer, settings: Mapping[str, Any]) -> None:
    write_json_file(directory / "tokenizer.json", dict(tokenizer.state))
    names = {
        f"{role}_token": tokenizer.token(tokenizer.special[role])
        for role in _ROLES
        if role in tokenizer.special
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
    usual = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate, **names}
    added = {
        str(source_ids[token["content"]]): {key: token[key] for key in token if key != "id"}
        for token in source.state["added_tokens"]
        if not token["special"]
    }
    wanted: dict[str, Any] = dict(settings) or usual
    if added:  # no SentencePiece model has them
        wanted["added_tokens_decoder"] = {**wanted.get("added_tokens_decoder", {}), **added}
    write_json_file(directory / "tokenizer_config.json", wanted)


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
