"""The translator: steps equal whole passes, beams equal copies, padding does not matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.batches import PairBatch
from heedful.engines.training.chunked_loss import ChunkedLosses, ProcessorLosses
from heedful.models.cost import count_parameters
from heedful.models.model_spec import TranslatorSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.train.objective import LossContext, TranslationObjective
from heedful.train.run_settings import ObjectiveSettings

from ..on_processor import either_way

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
    return Translator(translator_spec(shape, 30, 30)).eval()


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
@settings(max_examples=12)
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


def unusual(**changes) -> Translator:
    """A model with all that imported ones may have and our own do not."""
    torch.manual_seed(1)
    shape = TranslatorShape(
        width=16,
        encoder_layers=1,
        decoder_layers=2,
        num_heads=4,
        feedforward=24,
        positions="learned",
        max_length=20,
        dropout=0.0,
    )
    extras = {
        "share_embeddings": "inputs",
        "output_bias": True,
        "output_scale": 0.25,
        "logits_softcap": 0.8,
    }
    model = Translator(translator_spec(shape, 30, 30).model_copy(update=extras | changes))
    if model.output_bias is not None:
        torch.nn.init.normal_(model.output_bias)
    return model.eval()


@torch.no_grad()
def test_scale_bias_and_cap_of_the_output_in_a_pass_and_in_steps():
    model = unusual()
    batch = (
        torch.randint(4, 30, (2, 5)),
        positions_of([5, 3], 5, left=True),
        torch.randint(4, 30, (2, 6)),
        torch.arange(6).expand(2, 6),
    )
    plain = unusual(output_bias=False, output_scale=None, logits_softcap=None)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if k != "output_bias"})
    whole = model.logits(model(*batch))
    uncapped = plain.logits(plain(*batch)) / 4 + model.output_bias
    torch.testing.assert_close(whole, 0.8 * (uncapped / 0.8).tanh())
    few = torch.tensor([7, 4, 20])
    restricted, _ = model.step(model.start(*batch[:2]), batch[2][:, :1], model.output_over(few))
    torch.testing.assert_close(restricted[:, 0], whole[:, 0, few], rtol=1e-4, atol=1e-5)
    state = model.start(*batch[:2])
    for t in range(6):
        logits, state = model.step(state, batch[2][:, t : t + 1])
        torch.testing.assert_close(logits[:, 0], whole[:, t], rtol=1e-4, atol=1e-5)


@either_way
@pytest.mark.parametrize("losses", [ChunkedLosses(), ProcessorLosses()])
@pytest.mark.parametrize("r_drop", [0.0, 2.0])
def test_the_loss_is_that_of_the_logits(r_drop, losses, trained):
    model = unusual().train()
    positions = positions_of([4, 2], 4, left=False)
    ids = torch.randint(4, 30, (3, 2, 4))
    batch = PairBatch(ids[0], positions, ids[1], ids[2], positions, torch.arange(2), 6)
    objective = TranslationObjective(ObjectiveSettings(label_smoothing=0.1, r_drop=r_drop))
    with trained(model):
        found = objective.loss(model, batch, LossContext(step=1, losses=losses)).loss_sum
    real = positions >= 0
    logits = model.logits(model(ids[0], positions, ids[1], positions)[real])
    expected = torch.nn.functional.cross_entropy(
        logits, ids[2][real], label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(found, expected)
    gradients = [
        torch.autograd.grad(loss, [model.output_bias, model.output_weight], retain_graph=True)
        for loss in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_sources_and_targets_may_share_a_table_that_the_output_does_not():
    model = unusual()
    assert model.source_embedding is model.target_embedding is not model.output_projection
    assert count_parameters(model.spec) == sum(p.numel() for p in model.parameters())
    with pytest.raises(ValueError, match="inputs"):
        TranslatorSpec(**(model.spec.plain() | {"source_vocabulary": 31}))


def test_dropout_after_the_last_norm_is_for_training():
    spec = build(norm_placement="pre", dropout=0.0).spec
    spec = spec.model_copy(
        update={"encoder": spec.encoder.model_copy(update={"final_dropout": 0.5})}
    )
    model = Translator(spec).train()
    batch = torch.randint(4, 30, (2, 8)), positions_of([8, 8], 8, left=False)
    dropped = (model.encode(*batch).states == 0).float().mean()
    assert 0.3 < dropped < 0.7
    assert (model.eval().encode(*batch).states != 0).all()


def test_specs_written_before_there_were_such_settings_are_read():
    spec = build().spec
    plain = spec.plain()
    for stack in ("encoder", "decoder"):
        del plain[stack]["final_dropout"]
    del plain["output_bias"]
    assert TranslatorSpec.parse(plain) == spec


def test_rows_of_no_position_and_segments_are_counted():
    spec = build(positions="learned").spec
    positions = spec.embedding.positions.model_copy(update={"unused_rows": 2})
    embedding = spec.embedding.model_copy(update={"positions": positions, "num_segments": 3})
    unlike = spec.model_copy(update={"embedding": embedding})
    assert count_parameters(unlike) - count_parameters(spec) == 2 * (2 + 3) * 16
    assert count_parameters(unlike) == sum(p.numel() for p in Translator(unlike).parameters())
