"""Decoding steps on fixed memory: what the blocks give, whatever comes and goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from heedful.apps.pruning.head_pruning import without_heads
from heedful.engines.inference.cuda_graphs import MOST_GRAPHS, GraphedStack, Shape
from heedful.models.causal_lm import CausalLM
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.models.translator import Translator
from heedful.nn.attention import beam_cache
from heedful.nn.attention.beam_cache import Lineage
from heedful.nn.mixer import Memory

from . import searches
from .searches import PIECES, ids, padded

KINDS = {
    "2017": {},
    "pre-norm, RMS, SwiGLU, no bias": {
        "norm_placement": "pre",
        "norm": "rms",
        "activation": "swiglu",
        "bias": False,
    },
    "grouped, learned positions": {"num_kv_heads": 2, "positions": "learned"},
    "window": {"window": 3},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
}


def shape(**changes):
    small = {"width": 16, "encoder_layers": 1, "decoder_layers": 2, "num_heads": 4}
    return TranslatorShape(**small, feedforward=24, dropout=0.0, **changes)


def translator(**changes) -> Translator:
    torch.manual_seed(0)
    return Translator(translator_spec(shape(**changes), PIECES, PIECES)).eval()


class Recorder:
    """Instead of a graph: counts how often each is replayed, and spoils what it gave before."""

    def __init__(self) -> None:
        self.made: list[Counter] = []

    def __call__(self, compute):
        count = Counter()
        self.made.append(count)
        given: list[Tensor] = []

        def replay() -> Tensor:
            for each in given:
                each.fill_(torch.nan)  # as a graph writes to the same memory again
            given[:] = [compute()]
            count["replays"] += 1
            return given[0]

        return replay

    @property
    def replays(self) -> int:
        return sum(each["replays"] for each in self.made)


def graphed(model) -> Recorder:
    recorder = Recorder()
    model.decoder = GraphedStack.of(model.decoder, recorder)
    return recorder


def searched(model: Translator, source: Tensor, positions: Tensor, steps: int = 24):
    """A search that ends at any step."""
    reorders = {
        0: [[s] * 4 for s in range(len(source))],
        2: [[1, 0, 1], [9, 11, 10]],
        5: [[2, 2, 0]],
        9: [[1, 0]],
        13: [[0, 1, 1]],
        18: [[2, 2]],
        20: [[1, 0]],
    }
    return searches.searched(model, source, positions, reorders, steps)


def close(found, wanted) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
@torch.inference_mode()
def test_a_search_gives_what_blocks_give(name) -> None:
    model = translator(**KINDS[name])
    batches = [
        (ids(4, 9, seed=5), padded([9, 4, 1, 7], 9)),
        (ids(3, 20, seed=6), padded([20] * 3, 20)),
        (ids(3, 17, seed=7), padded([17, 3, 11], 17)),
    ]
    wanted = [searched(model, *batch)[0] for batch in batches]
    recorder = graphed(model)
    for _ in range(3):
        for batch, logits in zip(batches, wanted, strict=True):
            close(searched(model, *batch)[0], logits)
    assert recorder.replays > 100


@torch.inference_mode()
def test_slots_that_nobody_needs_any_more_are_dropped(monkeypatch) -> None:
    monkeypatch.setattr(beam_cache, "_COMPACT_FROM", 8)
    empty = Lineage.empty
    monkeypatch.setattr(Lineage, "empty", lambda *given: replace(empty(*given), compact_from=8))
    model, batch = translator(), (ids(4, 9, seed=5), padded([9, 4, 1, 7], 9))
    wanted, state = searched(model, *batch)
    assert state.decoder.lineage.positions.shape[1] < 50  # of 63
    graphed(model)
    for _ in range(3):
        close(searched(model, *batch)[0], wanted)


@torch.inference_mode()
def test_what_was_given_stays() -> None:
    model = translator()
    stack, x = model.decoder, torch.randn(2, 1, 16)
    graphed(model)
    memory = Memory(torch.randn(2, 3, 16), padded([3, 2], 3))
    for _ in range(2):
        state, given = stack.start(x, memory), []
        for step in range(3):
            y, state = stack.step(x * (step + 1), torch.full((2, 1), step), state)
            given.append((y, y.clone()))
    for y, before in given:
        assert torch.equal(y, before)


@torch.inference_mode()
def test_a_text_is_continued_as_blocks_do() -> None:
    torch.manual_seed(0)
    model = CausalLM(causal_lm_spec(shape(), PIECES, 200)).eval()
    prompts, positions = ids(2, 7, seed=1), padded([7, 3], 7)

    def continued():
        state, found = model.start(prompts, positions), []
        for step in range(80):  # past the slots that a graph begins with
            logits, state = model.step(state, ids(*state.next_positions.shape, seed=step))
            found.append(logits)
            if step == 1:
                state = model.reorder(state, torch.tensor([[0, 0, 0], [1, 1, 1]]))
        return found

    wanted = continued()
    recorder = graphed(model)
    close(continued(), wanted)
    assert recorder.replays > 70
    assert len(recorder.made) > 1


@torch.inference_mode()
def test_a_state_stays_what_it_is() -> None:
    """Two steps from one state, and searches in turns."""
    model, plain = translator(), translator()
    source, positions = ids(3, 6, seed=2), padded([6, 2, 5], 6)
    recorder = graphed(model)
    found = {}
    for name, each in (("graphed", model), ("plain", plain)):
        for _ in range(3):
            searched(each, source, positions, 4)
        one, other = each.start(source, positions), each.start(source.flip(0), positions.flip(0))
        logits = []
        for step in range(12):
            tokens = ids(3, 1, seed=step)
            first, following = each.step(one, tokens)
            beside, other = each.step(other, tokens)
            once_more, _ = each.step(one, tokens)
            again, _ = each.step(one, 53 - tokens)
            assert torch.equal(first, once_more)
            logits += [first, again, beside]
            one = following
        found[name] = logits
    close(found["graphed"], found["plain"])
    assert recorder.replays > 30


@torch.inference_mode()
def test_pruned_heads_and_cut_blocks() -> None:
    source, positions = ids(3, 6, seed=2), padded([6, 3, 5], 6)
    model = without_heads(translator(), {"decoder.0.self": [1], "decoder.1.cross": [0, 3]})
    wanted = searched(model, source, positions, 3)[0]
    recorder = graphed(model)
    for _ in range(3):
        close(searched(model, source, positions, 3)[0], wanted)
    before = recorder.replays
    assert before > 0
    model.decoder.blocks[0].cut = frozenset({"feedforward"})
    searched(model, source, positions, 3)
    assert recorder.replays == before


@torch.inference_mode()
def test_what_cannot_be_recorded_is_left_to_the_blocks() -> None:
    model = translator()
    source, positions = ids(3, 6, seed=2), padded([6, 3, 5], 6)
    wanted = searched(model, source, positions, 3)[0]
    asked = Counter()

    def refuse(compute):
        asked["times"] += 1
        raise RuntimeError("operation not permitted when stream is capturing")

    model.decoder = GraphedStack.of(model.decoder, refuse)
    for _ in range(3):
        close(searched(model, source, positions, 3)[0], wanted)
    assert asked["times"] == 1


@torch.inference_mode()
def test_memory_that_ran_out_is_no_reason_to_give_up() -> None:
    model, asked = translator(), Counter()

    def refuse(compute):
        asked["times"] += 1
        raise torch.OutOfMemoryError("CUDA out of memory")

    model.decoder = GraphedStack.of(model.decoder, refuse)
    source, positions = ids(3, 6, seed=2), padded([6, 3, 5], 6)
    for _ in range(3):
        searched(model, source, positions, 3)
    assert asked["times"] > 1


@torch.inference_mode()
def test_graphs_are_few() -> None:
    model = translator()
    recorder = graphed(model)
    for rows in range(8, 8 * (MOST_GRAPHS + 4), 8):
        source, positions = ids(rows, 3, seed=rows), padded([3] * rows, 3)
        for _ in range(2):
            model.step(model.start(source, positions), source[:, :1])
    assert len(recorder.made) == MOST_GRAPHS + 3
    assert len(model.decoder._graphs) == MOST_GRAPHS


def test_shapes_are_rounded_up() -> None:
    def around(rows: int, slots: int, source: int) -> tuple[int, int, int]:
        found = Shape.around(torch.zeros(rows, 5, 2), slots, source)
        return found.rows, found.slots, found.source

    assert around(1, 1, 0) == (1, 64, 0)
    assert around(3, 64, 1) == (4, 64, 16)
    assert around(8, 65, 16) == (8, 128, 16)
    assert around(33, 200, 17) == (40, 256, 32)


@pytest.mark.parametrize("context", [torch.enable_grad, lambda: torch.autocast("cpu")])
def test_learning_and_autocast_are_left_to_the_blocks(context) -> None:
    model = translator()
    recorder = graphed(model)
    with torch.no_grad(), context():
        for _ in range(3):
            state = model.start(ids(2, 6, seed=2), padded([6, 3], 6))
            model.step(state, ids(2, 1, seed=3))
    assert recorder.made == []
