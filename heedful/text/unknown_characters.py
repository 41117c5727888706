"""Characters without a token, which a model cannot tell from each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from heedful.text.tokenizer import TextTokenizer

_NAMED = 10


def describe_unknown(
    tokenizer: TextTokenizer, texts: Sequence[str], *, signs: bool = True
) -> str | None:
    """Return a sentence on the unknown characters of texts; None if there are none.

    Args:
        tokenizer: tokenizer of the texts.
        texts: valid Unicode.
        signs: True for all characters but spaces, False for letters and digits.
    """
    # Imported tokenizers that know all bytes have no unknown token; another one stands in for it.
    if tokenizer.unk in (tokenizer.pad, tokenizer.bos, tokenizer.eos):
        return None
    unknown: Counter[str] = Counter()
    rows = zip(texts, tokenizer.encode_batch(texts), strict=True)
    for text in [text for text, ids in rows if tokenizer.unk in ids]:
        spans = zip(*tokenizer.encode_spans(text), strict=True)
        found = "".join(text[slice(*span)] for id, span in spans if id == tokenizer.unk)
        unknown.update(c for c in found if c.isalnum() or (signs and not c.isspace()))
    if not unknown:
        return None
    named = " ".join(character for character, _ in unknown.most_common(_NAMED))
    more = " …" if len(unknown) > _NAMED else ""
    count = f"{unknown.total():,} character{'s' * (unknown.total() > 1)}"
    return f"{count} unknown to the model, which reads them all alike: {named}{more}"
