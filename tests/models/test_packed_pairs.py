"""Several pairs in a row: loss and gradients are those of the same pairs, each in its own row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.nn.attention.masks import Causal, Everything, SameSegment, Window
from heedful.nn.capture import Capture
from heedful.nn.positions import Positions

from ..on_processor import either_way, on_processor

ROWS = [[(3, 5), (7, 2), (1, 1)], [(6, 6)], [(2, 9), (4, 1), (5, 3), (1, 2)], []]
"""Tokens of source and target of the pairs of each row; the last has none."""
VOCABULARY = 40

Sides = tuple[Tensor, Tensor, Tensor, Tensor]
"""Source and its positions, target and its positions."""


def pairs() -> list[tuple[list[int], list[int]]]:
    torch.manual_seed(1)
    return [
        (torch.randint(VOCABULARY, (s,)).tolist(), torch.randint(VOCABULARY, (t,)).tolist())
        for row in ROWS
        for s, t in row
    ]


def filled(rows: list[list[int]], filler: int, length: int) -> Tensor:
    return torch.tensor([row + [filler] * (length - len(row)) for row in rows])


def unpacked() -> Sides:
    found = []
    for side in zip(*pairs(), strict=True):
        length = max(map(len, side))
        found.append(filled([list(each) for each in side], 0, length))
        found.append(filled([list(range(len(each))) for each in side], -1, length))
    return tuple(found)


def packed(length: int = 24) -> tuple[Sides, tuple[Tensor, Tensor]]:
    """The rows, and their segments; nothing here is shared with the batch maker."""
    ids: list[list[list[int]]] = [[], []]
    positions: list[list[list[int]]] = [[], []]
    segments: list[list[list[int]]] = [[], []]
    waiting = iter(pairs())
    for row in ROWS:
        whole = [next(waiting) for _ in row]
        for side in (0, 1):
            ids[side].append([token for pair in whole for token in pair[side]])
            positions[side].append([at for pair in whole for at in range(len(pair[side]))])
            numbers = [n for n, pair in enumerate(whole) for _ in pair[side]]
            segments[side].append(numbers)
    tables = [(filled(ids[s], 0, length), filled(positions[s], -1, length)) for s in (0, 1)]
    named = tuple(filled(segments[s], -1, length) for s in (0, 1))
    return (*tables[0], *tables[1]), named


def model_of(dtype: torch.dtype, **options: Any) -> Translator:
    sizes = {"width": 32, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4}
    torch.manual_seed(0)
    shape = TranslatorShape(**(sizes | {"feedforward": 24, "dropout": 0.0} | options))
    model = Translator(translator_spec(shape, VOCABULARY, VOCABULARY)).to(dtype)
    with torch.no_grad():  # tables of distances begin at zero, which would hide them
        for weight in model.parameters():
            weight += 0.05 * torch.randn_like(weight)
    return model.train()


def loss_and_gradients(
    model: Translator, sides: Sides, segments: tuple[Tensor, Tensor] | tuple[()] = ()
) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss of all real target positions, weighed apart, in the order of the pairs."""
    named = dict(zip(("source_segments", "target_segments"), segments, strict=False))
    states = model(*sides, **named)
    logits = model.logits(states[sides[3] >= 0])
    targets = torch.arange(len(logits)) % VOCABULARY
    weights = torch.linspace(0.5, 1.5, len(logits), dtype=logits.dtype)
    each = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    model.zero_grad()
    loss = (weights * each).sum()
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), {name: each.clone() for name, each in gradients.items()}


def largest_difference(found: Any, expected: Any) -> float:
    """Of losses and of gradients as wholes, relative to the expected."""
    (loss, gradients), (other, others) = found, expected
    assert gradients.keys() == others.keys()
    apart = torch.cat([(gradients[n] - others[n]).flatten() for n in others]).norm()
    whole = torch.cat([each.flatten() for each in others.values()]).norm()
    return max(float((loss - other).abs() / other.abs()), float(apart / whole))


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "learned": {"positions": "learned"},
    "rotary": {"positions": "rotary", "norm_placement": "pre", "norm": "rms", "bias": False},
    "alibi": {"positions": "alibi"},
    "t5": {"positions": "t5"},
    "transformer_xl": {"positions": "transformer_xl"},
    "disentangled": {"positions": "disentangled"},
    "grouped heads": {"num_kv_heads": 2},
    "window": {"window": 2},
    "relative values": {"relative_values": 3},
    "global tokens": {"mask": "window(2) | global(1)", "global_tokens": 1},
    "strided": {"mask": "strided(2)"},
    "experts": {"num_experts": 3, "experts_per_token": 1},
    "ssru": {"mixer": "ssru"},
    "average attention": {"mixer": "average_attention"},
    "linear attention": {"mixer": "linear_attention"},
    "mamba": {"mixer": "mamba"},
    "mamba2": {"mixer": "mamba2"},
    "s4d": {"mixer": "s4d"},
    "rwkv": {"mixer": "rwkv", "network": "channel_mix"},
}


@either_way
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_pairs_learn_what_they_learn_alone(name: str, trained: Any) -> None:
    model = model_of(torch.float64, **ARCHITECTURES[name])
    sides, segments = packed()
    with trained(model):
        found = loss_and_gradients(model, sides, segments)
        mixed = loss_and_gradients(model, sides)
    expected = loss_and_gradients(model, unpacked())
    in_float32 = name == "linear attention"  # its sums, whatever the model is in
    assert largest_difference(found, expected) < (1e-6 if in_float32 else 1e-12)
    assert largest_difference(mixed, expected) > 1e-3  # pairs that see each other


@pytest.mark.parametrize("width", [32, 64])
def test_kernels_in_c_learn_the_same_from_packed_pairs(width: int) -> None:
    model = model_of(torch.float32, width=width, num_kv_heads=2)
    sides, segments = packed()
    with on_processor(model):
        found, alone = (
            loss_and_gradients(model, *given) for given in ((sides, segments), (unpacked(),))
        )
    assert largest_difference(found, alone) < 1e-6
    assert largest_difference(found, loss_and_gradients(model, unpacked())) < 1e-6


def test_a_capture_shows_what_a_pair_sees() -> None:
    model = model_of(torch.float32).eval()
    sides, (source, target) = packed()
    capture = Capture(["decoder.0.cross.weights", "encoder.1.self.weights"])
    model(*sides, capture=capture, source_segments=source, target_segments=target)
    for address, queries in (("decoder.0.cross", target), ("encoder.1.self", source)):
        weights = capture.found[f"{address}.weights"]
        same = (queries[:, :, None] == source[:, None]) & (queries[:, :, None] >= 0)
        seen = weights.sum(1)
        assert bool((seen[~same] == 0).all())
        assert bool((seen[same] > 0).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_mixer": "linformer"}, "Linformer cannot tell packed texts apart"),
        ({"encoder_mixer": "linear_attention"}, "Linear attention that sees later tokens"),
        ({"recurrent": {"attention": "additive", "feeding": "context"}}, "packed sources apart"),
        ({"recurrent": {"attention": "none"}}, "packed sources apart"),
        ({"convolution": {}}, "packed sources apart"),
    ],
)
def test_parts_that_cannot_tell_pairs_apart_say_so(options: dict[str, Any], message: str) -> None:
    if {"recurrent", "convolution"} & options.keys():
        shape = TranslatorShape(width=32, encoder_layers=1, decoder_layers=1, **options)
        model = Translator(translator_spec(shape, VOCABULARY, VOCABULARY))
    else:
        model = model_of(torch.float32, **options)
    sides, (source, target) = packed()
    with pytest.raises(ModelError, match=message):
        model(*sides, source_segments=source, target_segments=target)


def test_segments_of_one_side_are_a_mistake() -> None:
    model = model_of(torch.float32)
    sides, (source, _) = packed()
    with pytest.raises(ModelError, match="both queries and keys"):
        model(*sides, source_segments=source)


def test_a_mask_is_narrowed_where_there_are_segments_only() -> None:
    places = torch.arange(4)[None]
    alone, together = Positions.of_self(places), Positions.of_self(places, torch.zeros(1, 4))
    for mask in (Everything(), Causal(), Causal() & Window(2)):
        assert alone.within_segments(mask) is mask
        assert together.within_segments(mask) == mask & SameSegment()
    already = Causal() & SameSegment()
    assert together.within_segments(already) is already
