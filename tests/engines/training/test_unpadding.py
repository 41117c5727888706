"""A batch without its padding: what comes of the real tokens, and what they learn, is the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heedful.engines.training import processor
from heedful.engines.unpadding import real_rows
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator

from ...on_processor import on_processor

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any)

SHAPES = {
    "2017": {},
    "rotary, grouped, gated": {"positions": "rotary", "num_kv_heads": 2, "activation": "swiglu"},
    "t5, pre-norm": {"positions": "t5", "norm_placement": "pre"},
    "alibi, window": {"positions": "alibi", "window": 3},
}


def placed(lengths: list[int], side: str) -> torch.Tensor:
    """Positions [B, 10 or more], padded on either side."""
    size = max(10, 2 * max(lengths))
    rows = []
    for length in lengths:
        real, padding = list(range(length)), [-1] * (size - length)
        rows.append(padding + real if side == "left" else real + padding)
    return torch.tensor(rows)


@given(LENGTHS, st.sampled_from(["left", "right"]), st.booleans())
def test_rows_are_the_real_tokens_and_come_back(lengths, side, exact_count):
    positions = placed(lengths, side)
    rows = real_rows(positions, exact_count=exact_count)
    assert rows is not None
    assert rows.count == sum(lengths)
    assert not exact_count or len(rows.index) == rows.count
    x = torch.randn(*positions.shape, 3)
    packed = rows.pack(x)
    real = positions >= 0
    assert torch.equal(packed[0, : rows.count], x[real])
    assert torch.equal(rows.positions[0, : rows.count], positions[real])
    assert (rows.positions[0, rows.count :] == -1).all()
    assert torch.equal(rows.unpack(packed)[real], x[real])


@given(LENGTHS, st.sampled_from(["left", "right"]))
@example([9] * 11, "right")  # 99 tokens are rounded up to 100 rows
def test_padding_and_repeated_rows_get_no_gradient(lengths, side):
    positions = placed(lengths, side)
    rows = real_rows(positions)
    x = torch.randn(*positions.shape, 2, requires_grad=True)
    packed = rows.pack(x)
    packed.retain_grad()
    (
        rows.unpack(packed) * torch.arange(positions.numel()).view(*positions.shape, 1)
    ).sum().backward()
    real = (positions >= 0)[..., None]
    place = torch.arange(positions.numel(), dtype=x.dtype).view(*positions.shape, 1)
    assert torch.equal(x.grad, (place * real).expand_as(x))
    assert not packed.grad[0, rows.count :].any()


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=10)
@given(sources=LENGTHS, seed=st.integers(0, 99), side=st.sampled_from(["left", "right"]))
def test_training_is_the_same_with_padding(name, sources, seed, side):
    torch.manual_seed(seed)
    sizes = {"width": 16, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4, "dropout": 0.0}
    shape = TranslatorShape(**sizes, feedforward=24, **SHAPES[name])
    model = Translator(translator_spec(shape, 30, 30)).double().train()
    targets = [(length * 7) % 10 for length in sources] if len(sources) > 1 else [5]
    at, to = placed(sources, side), placed(targets, side)
    source, target = torch.randint(4, 30, at.shape), torch.randint(4, 30, to.shape)
    direction = torch.randn(*to.shape, 16, dtype=torch.float64)

    def learn(model: Translator) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model.zero_grad()
        hidden = model(source, at, target, to)[to >= 0]
        (hidden * direction[to >= 0]).sum().backward()
        return hidden.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    counted = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            processor,
            "real_rows",
            lambda p, **how: counted.append(real_rows(p, **how)) or counted[-1],
        )
        with on_processor(model):
            found = learn(model)
        assert any(rows is not None for rows in counted)
        patch.setattr(processor, "real_rows", lambda positions, **_how: None)
        with on_processor(model):
            padded = learn(model)
    for expected in (padded, learn(model)):
        torch.testing.assert_close(found[0], expected[0], rtol=1e-9, atol=1e-9)
        for one, other in zip(found[1], expected[1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


def test_full_batches_and_answers_keep_their_shape():
    assert real_rows(torch.arange(20).expand(4, 20)) is None
    with torch.no_grad():
        assert real_rows(placed([3, 9], "right")) is None
        assert real_rows(placed([3, 9], "right"), exact_count=True) is None


@pytest.mark.parametrize(("missing", "copied", "exact_count"), [(1, 0, 0), (3, 0, 97), (7, 94, 93)])
def test_little_padding_is_left_out_where_that_costs_no_copies(missing, copied, exact_count):
    """How many rows 100 slots become: 94 is what 93 are rounded up to, 0 is that padding stays."""
    positions = torch.arange(100).view(4, 25).clone()
    positions[3, 25 - missing :] = -1
    for which, expected in ((False, copied), (True, exact_count)):
        rows = real_rows(positions, exact_count=which)
        assert (0 if rows is None else len(rows.index)) == expected


def test_few_numbers_of_rows():
    """So that products have few shapes."""
    found = set()
    for count in range(2049, 4097, 7):
        rows = real_rows(placed([count], "right"))
        assert rows.count == count <= len(rows.index) <= 1.04 * count
        found.add(len(rows.index))
    assert len(found) <= 32
