"""`heedful embed`: a vector for each text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from heedful.cli.encoder_verbs import EncoderVerb, Items, run
from heedful.cli.flags import ModelPath
from heedful.cli.text_io import OneText, Output

if TYPE_CHECKING:
    import numpy as np


def embed(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    pooling: Literal["first", "mean", "max"] | None = None,
    normalize: bool | None = None,
    items: Items = Items(),
    output: Output = Output(),
) -> None:
    """Turn texts into vectors.

    Each input line gets one output line of numbers separated by spaces. With --json, `vector` is a
    list of numbers. An empty line gets zeros.

    For example:

        heedful embed minilm "The cat sat on the mat."
        heedful embed minilm -i texts.txt -o vectors.txt

    Args:
        pooling: Vector of a text: that of its first token, or the mean or maximum over its tokens;
            as the model was published with if unset, else the mean.
        normalize: Divide each vector by its length; as the model was published with if unset.
    """
    verb: EncoderVerb[np.ndarray] = EncoderVerb(
        "embed",
        None,
        lambda pipeline, lines, options: list(
            pipeline.embed(lines, pooling=pooling, normalize=normalize, **options)
        ),
        lambda vector: " ".join(map(str, vector)),
        _fields,
    )
    run(verb, model, text, items, output, {"pooling": pooling, "normalize": normalize})


def _fields(vector: np.ndarray) -> dict[str, Any]:
    # The shortest decimals of float32, not the long ones of the same numbers in float64.
    return {"vector": [float(text) for text in vector.astype(str)]}
