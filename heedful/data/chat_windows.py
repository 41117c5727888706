"""Windows of whole conversations."""

from __future__ import annotations

import itertools

import numpy as np

from heedful.data.batch_plan import Indices
from heedful.data.encoded_texts import EncodedTexts
from heedful.errors import DataError


def whole_windows(texts: EncodedTexts, length: int) -> tuple[Indices, Indices]:
    """Return the first tokens of windows of whole texts [N], and the token after each [N].

    As many texts as fit follow each other in a window, so none is cut.

    Args:
        texts: stream of texts.
        length: most tokens that a window reads.

    Raises:
        DataError: when a text is longer, with its line.
    """
    bounds = texts.bounds
    starts: list[int] = []
    ends: list[int] = []
    for start, end in itertools.pairwise(bounds.tolist()):
        # The end token of the last text is predicted, and not read.
        if end - start - 1 > length:
            raise DataError(
                f"The conversation has {end - start - 1:,} tokens, more than {length:,}",
                where=texts.line_of(start),
                remedy=f"Set data.max_length to {end - start - 1}, or shorten the conversation",
            )
        if starts and end - starts[-1] - 1 <= length:
            ends[-1] = end
        else:
            starts.append(start)
            ends.append(end)
    return np.array(starts, np.int64), np.array(ends, np.int64)
