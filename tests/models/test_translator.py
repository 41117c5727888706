"""The translator: steps equal whole passes, beams equal copies, padding does not matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.models.spec import TranslatorShape
from heedful.models.translator import Translator

SHAPES = {
    "2017": {},
    "pre-norm, RMS, SwiGLU": {"norm_placement": "pre", "norm": "rms", "activation": "swiglu"},
    "rotary, grouped": {"positions": "rotary", "num_kv_heads": 2},
    "alibi, multi-query, no bias": {"positions": "alibi", "num_kv_heads": 1, "bias": False},
    "t5": {"positions": "t5", "norm_placement": "pre"},
    "relative keys, window": {"positions": "relative_keys", "window": 3},
    "learned, separate tables": {"positions": "learned", "share_embeddings": "none"},
    "no positions, target tied": {"positions": "none", "share_embeddings": "target"},
}


def build(seed: int = 0, **changes) -> Translator:
    torch.manual_seed(seed)
    base = {"width": 16, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4}
    shape = TranslatorShape(**{**base, "feedforward": 24, "max_length": 20, **changes})
    return Translator(shape.expand(30, 30)).eval()


def positions_of(lengths: list[int], size: int, *, left: bool) -> torch.Tensor:
    rows = []
    for length in lengths:
        real, padding = list(range(length)), [-1] * (size - length)
        rows.append(padding + real if left else real + padding)
    return torch.tensor(rows)


def place(ids: list[list[int]], size: int, *, left: bool) -> torch.Tensor:
    return torch.tensor(
        [[0] * (size - len(r)) + r if left else r + [0] * (size - len(r)) for r in ids]
    )


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_steps_with_caches_equal_one_pass(name):
    model = build(**SHAPES[name])
    source = torch.randint(4, 30, (3, 7))
    source_positions = positions_of([7, 4, 1], 7, left=False)
    target = torch.randint(4, 30, (3, 6))
    target_positions = torch.arange(6).expand(3, 6)
    whole = model.logits(model(source, source_positions, target, target_positions))
    state = model.start(source, source_positions)
    for t in range(6):
        logits, state = model.step(state, target[:, t : t + 1])
        torch.testing.assert_close(logits[:, 0], whole[:, t], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SHAPES)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=4),
    source_left=st.booleans(),
    target_left=st.booleans(),
    extra=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@settings(max_examples=12, deadline=None)
@torch.no_grad()
def test_a_sentence_does_not_depend_on_neighbours_or_padding(
    name, lengths, source_left, target_left, extra, seed
):
    model = build(seed, **SHAPES[name])
    draw = torch.Generator().manual_seed(seed)

    def ids(length: int) -> list[int]:
        return torch.randint(4, 30, (length,), generator=draw).tolist()

    sources, targets = [ids(s) for s, _ in lengths], [ids(t) for _, t in lengths]
    s_size, t_size = max(map(len, sources)) + extra, max(map(len, targets)) + extra
    batched = model(
        place(sources, s_size, left=source_left),
        positions_of([len(s) for s in sources], s_size, left=source_left),
        place(targets, t_size, left=target_left),
        positions_of([len(t) for t in targets], t_size, left=target_left),
    )
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        alone = model(
            torch.tensor([source]),
            torch.arange(len(source))[None],
            torch.tensor([target]),
            torch.arange(len(target))[None],
        )[0]
        where = slice(t_size - len(target), None) if target_left else slice(0, len(target))
        torch.testing.assert_close(batched[row, where], alone, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_reorder_chooses_beams_and_sentences():
    model = build()
    source = torch.randint(4, 30, (3, 5))
    source_positions = positions_of([5, 3, 4], 5, left=False)
    start = model.start(source, source_positions)
    _, state = model.step(start, torch.full((3, 1), 1))
    beams = torch.tensor([[10, 11], [12, 13], [14, 15]])
    state = model.reorder(state, torch.tensor([[0, 0], [1, 1], [2, 2]]))
    _, state = model.step(state, beams)
    # Sentence 0 has left; the beams of 1 change places, and 2 keeps its second beam only.
    state = model.reorder(state, torch.tensor([[3, 2], [5, 5]]))
    logits, state = model.step(state, torch.tensor([[20, 21], [22, 23]]))
    histories = [[1, 13, 20], [1, 12, 21], [1, 15, 22], [1, 15, 23]]
    for row, history in enumerate(histories):
        sentence = 1 + row // 2
        whole = model.logits(
            model(
                source[sentence : sentence + 1],
                source_positions[sentence : sentence + 1],
                torch.tensor([history]),
                torch.arange(3)[None],
            )
        )
        torch.testing.assert_close(logits[row // 2, row % 2], whole[0, -1], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_cross_attention_is_a_distribution_over_real_source_pieces():
    model = build(**SHAPES["rotary, grouped"])
    source_positions = positions_of([5, 2], 5, left=False)
    target_positions = positions_of([3, 4], 4, left=False)
    given_batch = (
        torch.randint(4, 30, (2, 5)),
        source_positions,
        torch.randint(4, 30, (2, 4)),
        target_positions,
    )
    weights = model.cross_attention(*given_batch)
    assert weights.shape == (2, 2, 4, 4, 5)
    real = (target_positions >= 0)[None, :, None, :].expand(2, 2, 4, 4)
    torch.testing.assert_close(weights.sum(-1), real.float())
    assert weights[:, 1, :, :, 2:].abs().max() == 0
    some = model.cross_attention(*given_batch, layers=[1], heads=[3, 0])
    torch.testing.assert_close(some[0], weights[1][:, [3, 0]])


def test_sharing_shares():
    def count(share: str) -> int:
        model = build(share_embeddings=share)
        return sum(p.numel() for p in model.parameters())

    table = 30 * 16
    assert count("target") - count("all") == table
    assert count("none") - count("all") == 2 * table
