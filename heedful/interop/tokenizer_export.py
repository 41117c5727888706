"""Tokenizer files and settings of generation that `transformers` reads.

Our own tokenizers fold case, exchange the space and its mark, and put a space before a line. The
written tokenizer.json does the same with steps of the `tokenizers` library, for any text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers as tokenizers_library
from tokenizers import AddedToken, Regex, decoders, normalizers, processors

from heedful.errors import ModelError
from heedful.interop.hf_files import write_json_file
from heedful.interop.hf_tokenizers import TARGET_DIRECTORY
from heedful.interop.sentencepiece_files import to_sentencepiece, write_sentencepiece
from heedful.models.model_spec import CommonSpec
from heedful.text.imported_tokenizer import ImportedTokenizer
from heedful.text.pretokenization import MARK
from heedful.text.tokenizer import MASK, SPECIALS, TextTokenizer, Tokenizer, special_piece
from heedful.text.tokenizer_pair import TokenizerPair

GENERATION_FILE = "generation_config.json"

_BEAM = 4
_LENGTH_PENALTY = 0.6  # the exponent of a length; theirs lacks the paper's added constant
_ROLES = ("pad", "bos", "eos", "unk", "mask")
# Stands for an exchanged character for a moment. It is no character, and a text that holds it
# nevertheless loses nothing: it is written as two characters then, so that no step mistakes it.
_ASIDE = "\ufdd0"
_EXCHANGE = (
    (_ASIDE, _ASIDE + "0"),
    (" ", _ASIDE + "1"),
    (MARK, " "),
    (_ASIDE + "1", MARK),
    (_ASIDE + "0", _ASIDE),
)
_LETTER = r"[\p{Cased}&&[^\p{Case_Ignorable}]]"
# The library folds letter by letter; at the end of a word this one becomes another.
_LAST_SIGMA = rf"{_LETTER}\p{{Case_Ignorable}}*\K\u03a3(?!\p{{Case_Ignorable}}*{_LETTER})"


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
        file = directory / f"{side}.spm"
        file.write_bytes(write_sentencepiece(to_sentencepiece(tokenizer.state), str(file)))
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
    written: dict[str, Any] = dict(settings) or usual
    if added:  # no SentencePiece model has them
        written["added_tokens_decoder"] = {**written.get("added_tokens_decoder", {}), **added}
    write_json_file(directory / "tokenizer_config.json", written)


def library_state(tokenizer: Tokenizer, *, begins: bool, ends: bool) -> dict[str, Any]:
    """Return the content of a tokenizer.json for a tokenizer that Heedful trained.

    Args:
        tokenizer: of ours.
        begins: whether the token for the beginning stands before a text.
        ends: whether the token for the end stands after it.

    Raises:
        ModelError: when tokens were added to the trained ones.
    """
    content = json.loads(tokenizer.to_json())
    if content["tokenizer"]["added_tokens"]:
        raise ModelError(
            "The tokenizer got whole tokens after it was trained; theirs, which puts a space "
            "before a text by itself, would put one after each of them too",
            where="tokenizer.json",
            remedy="Only imported tokenizers can be exported with added tokens",
        )
    library = tokenizers_library.Tokenizer.from_str(json.dumps(content["tokenizer"]))
    in_bytes = tokenizer.kind == "byte-bpe"
    exchange = () if in_bytes else _EXCHANGE
    space = "" if tokenizer.kind == "characters" else " " if in_bytes else MARK
    steps: list[normalizers.Normalizer] = []
    if tokenizer.lowercase:
        steps += [normalizers.Replace(Regex(_LAST_SIGMA), "\u03c2"), normalizers.Lowercase()]
    steps += [normalizers.Replace(old, new) for old, new in exchange]
    back: list[decoders.Decoder] = [decoders.ByteLevel() if in_bytes else decoders.Fuse()]
    back += [decoders.Replace(old, new) for old, new in exchange]
    if space:
        steps.append(normalizers.Prepend(space))
        back.append(decoders.Strip(content=" ", left=1, right=0))
    library.normalizer = normalizers.Sequence(steps)
    library.decoder = decoders.Sequence(back)
    library.post_processor = _frame(tokenizer, begins, ends)
    if tokenizer.mask is not None:
        # Looked for in the text as the steps above leave it, so that it takes the space before it
        # with it, as in our own texts.
        mask = AddedToken(special_piece(MASK), special=True, normalized=True)
        library.add_special_tokens([mask])
    state: dict[str, Any] = json.loads(library.to_str())
    return state


def own_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of its tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        # A text that spells a special token is a text; but a mask can only be spelled.
        "split_special_tokens": tokenizer.mask is None,
        **special_names(tokenizer),
    }


def special_names(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the content of its special_tokens_map.json."""
    roles = SPECIALS if tokenizer.mask is None else (*SPECIALS, MASK)
    return {f"{role}_token": special_piece(role) for role in roles}


def _frame(tokenizer: Tokenizer, begins: bool, ends: bool) -> processors.TemplateProcessing:
    bos, eos = special_piece("bos"), special_piece("eos")
    first, last = [bos] if begins else [], [eos] if ends else []
    return processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, "$B", *last],
        special_tokens=[(bos, tokenizer.bos), (eos, tokenizer.eos)],
    )


def token_ids(spec: CommonSpec, tokenizer: TextTokenizer) -> dict[str, int]:
    """Return the ids of special tokens that their config.json names.

    Args:
        spec: of the model.
        tokenizer: of its targets.
    """
    ids = {
        "pad_token_id": tokenizer.pad,
        "eos_token_id": tokenizer.eos,
        "bos_token_id": tokenizer.bos,
    }
    if spec.reads == "pairs":
        ids["decoder_start_token_id"] = tokenizer.bos
    return ids


def generation_settings(spec: CommonSpec, ids: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of generation_config.json; empty for a model that generates no text.

    Args:
        spec: of the model.
        ids: what `token_ids` gives.
    """
    if not spec.generates:
        return {}
    settings: dict[str, Any] = {
        **ids,
        "suppress_tokens": sorted({ids["pad_token_id"], ids["bos_token_id"]}),
    }
    max_length = getattr(spec, "max_length", None)
    if max_length is not None:
        settings["max_length"] = max_length
    if spec.reads == "pairs":
        settings |= {"num_beams": _BEAM, "length_penalty": _LENGTH_PENALTY}
    return settings
