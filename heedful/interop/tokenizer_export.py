"""Export of tokenizers and generation settings to files that `transformers` reads.

Our own tokenizers convert to lower case, replace spaces by U+2581, and put a space before a line.
The written tokenizer.json does the same by steps of the `tokenizers` library, for any text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers as tokenizers_library
from tokenizers import AddedToken, decoders, normalizers, processors

from heedful.errors import ModelError
from heedful.interop.hf_files import write_json_file
from heedful.interop.hf_tokenizers import TARGET_DIRECTORY
from heedful.interop.sentencepiece_files import to_sentencepiece, write_sentencepiece
from heedful.interop.vocabulary_files import lowercase_steps
from heedful.models.model_spec import CommonSpec
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.imported_tokenizer import ImportedTokenizer
from heedful.text.normalization import TextNormalizer
from heedful.text.pretokenization import MARK
from heedful.text.tokenizer import MASK, SPECIALS, TextTokenizer, Tokenizer, special_piece
from heedful.text.tokenizer_pair import CHAT_FILE, TokenizerPair

GENERATION_FILE = "generation_config.json"

_BEAM = 4
# Exponent a of the length penalty: theirs divides by length^a, Wu (2016) by ((5 + length) / 6)^a.
_LENGTH_PENALTY = 0.6
_ROLES = ("pad", "bos", "eos", "unk", "mask")
# Placeholder while replacements exchange two characters. U+FDD0 is a noncharacter; a text that has
# it anyway loses nothing, because it is escaped as two characters first.
_PLACEHOLDER = "\ufdd0"
_EXCHANGE = (
    (_PLACEHOLDER, _PLACEHOLDER + "0"),
    (" ", _PLACEHOLDER + "1"),
    (MARK, " "),
    (_PLACEHOLDER + "1", MARK),
    (_PLACEHOLDER + "0", _PLACEHOLDER),
)


def write_tokenizers(
    directory: Path,
    tokenizers: TokenizerPair,
    settings: Mapping[str, Any],
    *,
    continues: bool = False,
) -> None:
    """Write the tokenizer files of a model.

    Two separate tokenizers are written to two directories, since transformers knows one per model.

    Args:
        directory: directory to write.
        tokenizers: tokenizers of the model.
        settings: tokenizer_config.json that the model was imported with; empty for none.
        continues: flag of a model that continues a prompt, which gets BOS and no EOS.

    Raises:
        ModelError: when the `tokenizers` library cannot express a tokenizer.
        OSError: when a file cannot be written.
    """
    refuse_records(tokenizers)
    if tokenizers.chat is not None:
        (directory / CHAT_FILE).write_text(tokenizers.chat, encoding="utf-8")
    source, target = tokenizers.source, tokenizers.target
    # Trained by Heedful; imported tokenizers hold their state in their own format already.
    if isinstance(source, Tokenizer) and isinstance(target, Tokenizer):
        _write_own(directory, source, continues)
        if not tokenizers.joint:
            (directory / TARGET_DIRECTORY).mkdir()
            _write_own(directory / TARGET_DIRECTORY, target, continues)
        return
    if not isinstance(source, ImportedTokenizer) or not isinstance(target, ImportedTokenizer):
        raise ModelError(
            "A tokenizer from outside the package has no form there",
            where=str(directory),
            remedy="Export a model whose tokenizer has a kind of the package's own",
        )
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
    # MarianTokenizer reads target_vocab.json only if `separate_vocabs` is set.
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
        # `added_tokens_decoder` has ids as keys, which are strings in JSON.
        str(source_ids[token["content"]]): {key: token[key] for key in token if key != "id"}
        for token in source.state["added_tokens"]
        if not token["special"]
    }
    written: dict[str, Any] = dict(settings) or usual
    # No SentencePiece model contains the added tokens.
    if added:
        written["added_tokens_decoder"] = {**written.get("added_tokens_decoder", {}), **added}
    write_json_file(directory / "tokenizer_config.json", written)


def library_state(tokenizer: Tokenizer, *, begins: bool, ends: bool) -> dict[str, Any]:
    """Return the tokenizer.json of a tokenizer of ours, with BOS and EOS around texts or not.

    Raises:
        ModelError: when tokens were added after the training.
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
    in_bytes, space = tokenizer.marking.in_bytes, tokenizer.marking.prefix
    # Byte-level BPE maps the space to a letter of its own (Ġ), so nothing needs to be exchanged.
    exchange = () if in_bytes else _EXCHANGE
    steps = TextNormalizer(tokenizer.normalization).steps
    if tokenizer.lowercase:
        steps += lowercase_steps()
    steps += [normalizers.Replace(old, new) for old, new in exchange]
    back: list[decoders.Decoder] = [decoders.ByteLevel() if in_bytes else decoders.Fuse()]
    back += [decoders.Replace(old, new) for old, new in exchange]
    if space:
        # Prepended after the exchange, so that the prefix is the mark itself and not a space to be
        # exchanged.
        steps.append(normalizers.Prepend(space))
        back.append(decoders.Strip(content=" ", left=1, right=0))
    library.normalizer = normalizers.Sequence(steps)
    library.decoder = decoders.Sequence(back)
    library.post_processor = _frame(tokenizer, begins, ends)
    if tokenizer.mask is not None:
        # `normalized`: matched after the steps above, together with the space before it, which is
        # how masks were encoded in training.
        mask = AddedToken(special_piece(MASK), special=True, normalized=True)
        library.add_special_tokens([mask])
    state: dict[str, Any] = json.loads(library.to_str())
    return state


def own_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of tokenizer_config.json for a tokenizer that Heedful trained."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # The clean-up joins punctuation as in English, which would change decoded text.
        "clean_up_tokenization_spaces": False,
        # A text that contains the name of a special token stays a text; only [MASK] must be found.
        "split_special_tokens": tokenizer.mask is None,
        **special_names(tokenizer),
    }


def special_names(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the content of special_tokens_map.json for a tokenizer that Heedful trained."""
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


def refuse_records(tokenizers: TokenizerPair) -> None:
    """Refuse the vocabularies of records, which no other library has.

    Raises:
        ModelError: when the model is one of token sequences.
    """
    if any(isinstance(each, FieldTokenizer) for each in (tokenizers.source, tokenizers.target)):
        raise ModelError(
            "No other library has a vocabulary of records, with ranges for fields",
            where="tokenizer.json",
            remedy="Keep the model in Heedful's format, which --quantization makes smaller",
        )


def token_ids(spec: CommonSpec, tokenizer: TextTokenizer) -> dict[str, int]:
    """Return the fields of their config.json with the special ids of the target's tokenizer."""
    ids = {
        "pad_token_id": tokenizer.pad,
        "eos_token_id": tokenizer.eos,
        "bos_token_id": tokenizer.bos,
    }
    if spec.reads == "pairs":
        # `generate` starts the decoder of a translator from this id, not from `bos_token_id`.
        ids["decoder_start_token_id"] = tokenizer.bos
    return ids


def generation_settings(spec: CommonSpec, ids: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of generation_config.json; empty for a model that generates no text."""
    if not spec.generates:
        return {}
    settings: dict[str, Any] = {
        **ids,
        # Our searches never choose padding or BOS; `generate` needs this setting for it.
        "suppress_tokens": sorted({ids["pad_token_id"], ids["bos_token_id"]}),
    }
    max_length = getattr(spec, "max_length", None)
    if max_length is not None:
        settings["max_length"] = max_length
    if spec.reads == "pairs":
        settings |= {"num_beams": _BEAM, "length_penalty": _LENGTH_PENALTY}
    return settings
