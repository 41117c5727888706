"""One text, or two that belong together, with a tokenizer's special tokens around them."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.errors import ModelError
from heedful.text.protocol import TextTokenizer


def framed(
    tokenizer: TextTokenizer, ids: Sequence[int], second: Sequence[int] | None = None
) -> list[int]:
    """A model's input.

    Args:
        tokenizer: which knows the special tokens.
        ids: of the text, as its `encode` gives them.
        second: of another text.

    Raises:
        ModelError: when there are two texts and the model takes no pairs.
    """
    if second is None:
        return [*tokenizer.first, *ids, *tokenizer.last]
    if tokenizer.between is None:
        raise ModelError(
            "This model's tokenizer does not say how two texts are put together",
            remedy="Give one text at a time",
        )
    return [*tokenizer.first, *ids, *tokenizer.between, *second, *tokenizer.last]
