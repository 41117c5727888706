"""Tokenizers that Heedful trained, as a tokenizer.json that does all they do around the pieces.

Ours folds case, lets the space and its mark trade places, and puts a space before a line. Theirs
does the same with steps of the `tokenizers` library, for any text.
"""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, processors

from heedful.errors import ModelError
from heedful.text.tokenizer import MASK, SPECIALS, Tokenizer, special_piece
from heedful.text.words import MARK

# What stands for an exchanged character for a moment. It is no character, and a text that holds it
# nevertheless loses nothing: it is written as two characters then, so that no step mistakes it.
_ASIDE = "\ufdd0"
_TRADE = (
    (_ASIDE, _ASIDE + "0"),
    (" ", _ASIDE + "1"),
    (MARK, " "),
    (_ASIDE + "1", MARK),
    (_ASIDE + "0", _ASIDE),
)
_LETTER = r"[\p{Cased}&&[^\p{Case_Ignorable}]]"
# The library folds letter by letter; at the end of a word this one becomes another.
_LAST_SIGMA = rf"{_LETTER}\p{{Case_Ignorable}}*\K\u03a3(?!\p{{Case_Ignorable}}*{_LETTER})"


def library_state(tokenizer: Tokenizer, *, begins: bool, ends: bool) -> dict[str, Any]:
    """The content of a tokenizer.json.

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
    library = tokenizers.Tokenizer.from_str(json.dumps(content["tokenizer"]))
    in_bytes = tokenizer.kind == "byte-bpe"
    trade = () if in_bytes else _TRADE
    space = "" if tokenizer.kind == "characters" else " " if in_bytes else MARK
    steps: list[normalizers.Normalizer] = []
    if tokenizer.lowercase:
        steps += [normalizers.Replace(Regex(_LAST_SIGMA), "\u03c2"), normalizers.Lowercase()]
    steps += [normalizers.Replace(old, new) for old, new in trade]
    back: list[decoders.Decoder] = [decoders.ByteLevel() if in_bytes else decoders.Fuse()]
    back += [decoders.Replace(old, new) for old, new in trade]
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
    """The content of a tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        # A text that spells a special token is a text; but a mask can only be spelled.
        "split_special_tokens": tokenizer.mask is None,
        **special_names(tokenizer),
    }


def special_names(tokenizer: Tokenizer) -> dict[str, str]:
    """The content of a special_tokens_map.json."""
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
