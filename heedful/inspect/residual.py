"""What embedding and sub-layers add to the stream, and through it to the score of a token.

The parts of a pass always add up to its stream. A norm on the way is taken to be the linear map
that it was in this pass: its mean and deviation are kept, its bias is a part by itself. With norms
first there is one such norm, the last; with norms last there is one after every sub-layer. So this
accounts for the pass that was; it does not say what would be without a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heedful.errors import ConfigError, ModelError
from heedful.inspect.captures import array, run
from heedful.inspect.reading import Reading, tensors
from heedful.inspect.subject import Subject, looking, stack_of
from heedful.models.block import Block
from heedful.models.causal_lm import CausalLM
from heedful.models.stack import Stack
from heedful.models.translator import Translator
from heedful.nn.capture import Capture
from heedful.nn.norms import RMSNorm

EMBEDDING, NORMS = "embedding", "norms"


@dataclass(frozen=True, eq=False)
class Contributions:
    """Where a stack's states come from.

    Args:
        rows: the tokens read.
        sublayers: such as `0.self`, `0.cross`, `0.feedforward`, in the order of the pass.
        sizes: length of what each adds to the stream, [sublayers, rows] float32.
        stream_sizes: length of the stream it is added to, [sublayers, rows] float32.
        cosines: of the angle between the two, [sublayers, rows] float32.
        parts: `embedding`, the sub-layers, and `norms`: the biases of the norms.
        vectors: [parts, rows, D] float32, what each part is of the stack's output: they add up to
            it.
        tokens: the piece at each row whose score is split up; None where none can be.
        scores: [parts, rows] float32, what each part adds to the score of that token.
        bias: [rows] float32, what the output's own bias adds; the score is the sum of all.
    """

    rows: tuple[str, ...]
    sublayers: tuple[str, ...]
    sizes: np.ndarray
    stream_sizes: np.ndarray
    cosines: np.ndarray
    parts: tuple[str, ...]
    vectors: np.ndarray
    tokens: tuple[str, ...] | None
    scores: np.ndarray | None
    bias: np.ndarray | None

    @property
    def shares(self) -> np.ndarray:
        """[parts, rows]: how much of the output's squared length is each part's.

        They add up to 1 in each row; below 0 are parts that point away from what came out.
        """
        parts = self.vectors.astype(np.float64)
        whole = parts.sum(0)
        shares: np.ndarray = (parts * whole).sum(-1) / np.square(whole).sum(-1)
        return shares

    def plain(self) -> dict[str, Any]:
        """As JSON data, without the vectors."""
        plain: dict[str, Any] = {}
        for name, value in self.__dict__.items():
            if name != "vectors":
                plain[name] = value.tolist() if isinstance(value, np.ndarray) else value
        return plain


def contributions(
    subject: Subject,
    reading: Reading,
    stack: str | None = None,
    *,
    tokens: Sequence[int] | None = None,
) -> Contributions:
    """Split a stack's output, and scores of tokens, into the parts they were added up from.

    Args:
        subject: the model.
        reading: from `read` or `see`.
        stack: `encoder` or `decoder`; the decoder where there is one, if None.
        tokens: for each row the id whose score is split up; what the model finds best if None.

    Raises:
        ModelError: when there is no such stack, or tokens are given where scores are no sums: only
            a translator's decoder and a language model read them off the stream directly.
        ConfigError: when there are not as many tokens as rows.
    """
    model = subject.model
    name = stack or ("encoder" if reading.decoder is None else "decoder")
    found = stack_of(model, name)
    side = reading.encoder if name == "encoder" else reading.decoder
    assert side is not None
    places = list(_sublayers(found))
    kinds = ("output", "residual", "stream")
    wanted = [f"{name}.{place}.{kind}" for place, _ in places for kind in kinds]
    capture = Capture([f"{name}.embedding", f"{name}.output", *wanted])
    run(model, tensors(subject, [reading]), capture)
    seen = {address.removeprefix(f"{name}."): v[0] for address, v in capture.found.items()}
    with looking(model):
        vectors = _split(found, places, seen)
        scored = _scores(model, name, vectors, seen["output"], tokens)
    before = [seen["embedding"], *(seen[f"{place}.stream"] for place, _ in places[:-1])]
    added = torch.stack([seen[f"{place}.output"] for place, _ in places])
    streams = torch.stack(before)
    pieces, scores, bias = None, None, None
    if scored is not None:
        pieces = tuple(subject.target.pieces(scored[0]))
        scores, bias = array(scored[1].float()), array(scored[2])
    return Contributions(
        side.pieces,
        tuple(place for place, _ in places),
        array(added.norm(dim=-1)),
        array(streams.norm(dim=-1)),
        array(torch.cosine_similarity(added, streams, dim=-1)),
        (EMBEDDING, *(place for place, _ in places), NORMS),
        array(vectors.float()),
        pieces,
        scores,
        bias,
    )


def frozen(norm: nn.Module, at: Tensor, parts: Tensor) -> Tensor:
    """A norm as the linear map it is at one stream, applied to parts of that stream.

    Args:
        norm: with mean and deviation of `at`.
        at: [L, D].
        parts: [P, L, D] float64.

    Returns:
        [P, L, D]; their sum is norm(at), less its bias, when the parts' is `at`.
    """
    assert isinstance(norm, RMSNorm | nn.LayerNorm)
    wide, weight = at.double(), norm.weight.double()
    if isinstance(norm, RMSNorm):
        deviation = (wide.square().mean(-1, keepdim=True) + norm.epsilon).sqrt()
        return parts / deviation * weight
    deviation = (wide.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    return (parts - parts.mean(-1, keepdim=True)) / deviation * weight


def _split(
    stack: Stack, places: Sequence[tuple[str, nn.Module]], seen: dict[str, Tensor]
) -> Tensor:
    """[parts, L, D] float64 of the stack's output."""
    first = stack.blocks[0]
    assert isinstance(first, Block)
    last = seen["embedding"]
    # In float64, so that splitting adds no rounding of its own.
    parts = last.new_zeros(len(places) + 2, *last.shape, dtype=torch.float64)
    parts[0] = last
    for number, (place, norm) in enumerate(places, start=1):
        parts[number] = seen[f"{place}.output"]
        last = seen[f"{place}.stream"]
        if not first.norm_first:
            parts = frozen(norm, seen[f"{place}.residual"], parts)
            parts[-1] += _bias_of(norm)
    if stack.final_norm is not None:
        parts = frozen(stack.final_norm, last, parts)
        parts[-1] += _bias_of(stack.final_norm)
    return parts


def _sublayers(stack: Stack) -> list[tuple[str, nn.Module]]:
    """Places of a stack's sub-layers, each with its norm."""
    found: list[tuple[str, nn.Module]] = []
    for number, block in enumerate(stack.blocks):
        assert isinstance(block, Block)
        found.append((f"{number}.self", block.self_attention_norm))
        if block.cross_attention_norm is not None:
            found.append((f"{number}.cross", block.cross_attention_norm))
        found.append((f"{number}.feedforward", block.feedforward_norm))
    return found


def _bias_of(norm: nn.Module) -> Tensor | float:
    bias = getattr(norm, "bias", None)
    return 0.0 if bias is None else bias


def _scores(
    model: nn.Module,
    stack: str,
    vectors: Tensor,
    states: Tensor,
    tokens: Sequence[int] | None,
) -> tuple[list[int], Tensor, Tensor] | None:
    """Chosen ids, their scores by part [parts, L], and the output's own bias [L]."""
    if stack != "decoder" or not isinstance(model, Translator | CausalLM):
        if tokens is not None:
            raise ModelError(
                "Scores of this stack are no sums over its parts",
                remedy="Look at a translator's decoder or at a language model",
            )
        return None
    scale = getattr(model.spec, "output_scale", None) or 1.0
    if tokens is None:
        tokens = model.logits(states * scale).argmax(-1).tolist()
    elif len(tokens) != len(states):
        raise ConfigError(f"{len(tokens)} tokens for {len(states)} rows")
    ids = torch.tensor(tokens, device=states.device)
    directions = model.output_weight[ids] * scale
    scores = (vectors * directions).sum(-1)
    bias = model.output_bias
    own = torch.zeros(len(ids)) if bias is None else bias[ids]
    return list(tokens), scores, own
