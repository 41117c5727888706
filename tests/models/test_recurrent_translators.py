"""Translators of recurrent layers and convolutions: like all others, whatever they are made of."""

from __future__ import annotations

import functools
import json
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from heedful.data.padding import pad
from heedful.engines import cost_memory
from heedful.engines.inference.prepare import prepare
from heedful.engines.inference.support import explain
from heedful.errors import ModelError, UserError
from heedful.models import cost
from heedful.models.build import build_model
from heedful.models.checkpoint import load_model, save_model
from heedful.models.recurrent_stacks import recurrent_options
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.search.dispatch import search
from heedful.search.scoring import attention_of, score_targets
from heedful.search.search_settings import SearchSettings, Specials
from heedful.search.step_model import Ensemble
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

from ..on_processor import on_processor
from ..summary import NOT_RUN

VOCABULARY, SPECIALS = 30, Specials(pad=0, bos=1, eos=2)
SMALL = {"width": 16, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0, "positions": "none"}
FIXED = {"recurrent": {"cell": "lstm", "direction": "backward"}}
CHO = {"recurrent": {"cell": "gru", "feeding": "context", "readout": "maxout"}}
ADDITIVE = {"recurrent": {**CHO["recurrent"], "attention": "additive", "direction": "both"}}
GENERAL = {"attention": "general", "feeding": "output", "readout": "tanh", "residual": True}
LUONG = {"recurrent": {**GENERAL, "direction": "forward"}}
SCALED = {"recurrent": {"attention": "dot", "readout": "tanh", "key_width": 8, "scale": 0.35}}
LOCAL = {"recurrent": {"attention": "dot", "readout": "tanh", "window": 2, "cell": "rnn"}}
CONVOLUTIONS = {"convolution": {}, "positions": "learned"}
SHAPES = {
    "fixed": FIXED,
    "cho": CHO,
    "additive": ADDITIVE,
    "luong": LUONG,
    "scaled": SCALED,
    "local": LOCAL,
    "convolutions": CONVOLUTIONS,
}


def shape(options):
    return TranslatorShape.parse(SMALL | options)


def made(options, seed=0, vocabulary=VOCABULARY):
    torch.manual_seed(seed)
    model = build_model(translator_spec(shape(options), vocabulary, vocabulary)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # With 0.2 convolutions have scores that float32 rounds by more than tests allow.
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def texts(*sizes):
    draw = torch.Generator().manual_seed(sum(sizes))
    return [torch.randint(3, VOCABULARY, (size,), generator=draw).tolist() for size in sizes]


def padded(rows, left, more=0):
    size = max(map(len, rows)) + more
    ids, positions = torch.zeros(len(rows), size).long(), torch.full((len(rows), size), -1)
    for row, text in enumerate(rows):
        place = slice(size - len(text), None) if left else slice(0, len(text))
        ids[row, place], positions[row, place] = torch.tensor(text), torch.arange(len(text))
    return ids, positions


@pytest.mark.parametrize("engine", [False, True])
@pytest.mark.parametrize("name", SHAPES)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    left=st.booleans(),
    more=st.integers(0, 2),
)
@settings(max_examples=4, deadline=None)
def test_steps_padding_and_neighbours_change_nothing(name, engine, sizes, left, more):
    model = made(SHAPES[name])
    run = prepare(model, "fp32", torch.device("cpu")) if engine else model
    sources, targets = texts(*sizes), texts(*(7 - size for size in sizes))
    together = score_targets(run, *padded(sources, left, more), targets, SPECIALS)
    for source, target, scores in zip(sources, targets, together, strict=True):
        with torch.no_grad():
            alone = padded([source], False)
            ids, positions = padded([[SPECIALS.bos, *target]], left, more)
            hidden = model(*alone, ids, positions)[positions >= 0]
            found = model.logits(hidden).log_softmax(-1)
        right = found.gather(1, torch.tensor([*target, SPECIALS.eos])[:, None])[:, 0]
        assert scores == pytest.approx(right.tolist(), abs=2e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_a_search_finds_what_scoring_says_and_an_alignment(name):
    model, (source,) = made(SHAPES[name]), texts(5)
    batch = padded([source], False)
    options = SearchSettings(beam=3, n_best=3, max_length=6)
    (found,) = search(model, *batch, options, specials=SPECIALS)
    assert len({h.tokens for h in found}) == 3
    for hypothesis in found:
        (scores,) = score_targets(model, *batch, [hypothesis.tokens], SPECIALS)
        if len(hypothesis.tokens) < 6:
            assert hypothesis.score == pytest.approx(math.fsum(scores), abs=1e-4)
    state, target = model.start(*batch), found[0].tokens
    if name in ("fixed", "cho"):
        with pytest.raises(ModelError, match="keeps one vector"):
            attention_of(model, state, [target], SPECIALS)
        return
    weights = attention_of(model, state, [target], SPECIALS)
    assert weights.shape == (1, len(target) + 1, 5)
    total = weights.sum(-1)
    if name == "local":  # a Gaussian takes some away
        assert 0 < total.min() <= total.max() <= 1
    else:
        torch.testing.assert_close(total, torch.ones_like(total))
    later = model.reorder(model.start(*batch), torch.tensor([[0, 0]]))
    _, later = model.step(later, torch.tensor([[1, 5]]))
    assert torch.equal(attention_of(model, later, [target], SPECIALS), weights)


def test_ensembles_with_a_transformer_translate():
    transformer = made({"num_heads": 4, "feedforward": 32, "positions": "sinusoidal"}, seed=1)
    members = [made(LUONG), transformer, made(FIXED), made(CONVOLUTIONS)]
    batch = padded(texts(5, 3), True)
    found = search(
        Ensemble(members), *batch, SearchSettings(beam=4, max_length=5), specials=SPECIALS
    )
    for row, source in enumerate(texts(5, 3)):
        target = found[row][0].tokens
        alone = padded([source], False)
        each = [score_targets(m, *alone, [target], SPECIALS)[0][: len(target)] for m in members]
        mean = torch.tensor(each, dtype=torch.float64).exp().mean(0).log()
        assert found[row][0].token_scores[: len(target)] == pytest.approx(mean.tolist(), abs=1e-4)
    weights = attention_of(
        Ensemble(members[:2]), Ensemble(members[:2]).start(*batch), [[5], [6]], SPECIALS
    )
    assert weights.shape == (2, 2, 5)


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_directory_holds_it(name, tmp_path):
    tokenizers = train_pair(TokenizerSpec(kind="characters"), ["abc def"] * 3, ["abc def"] * 3)
    model = made(SHAPES[name], vocabulary=tokenizers.target.size)
    save_model(model, tokenizers, tmp_path / "model")
    loaded, _ = load_model(tmp_path / "model")
    assert loaded.spec == model.spec
    ids, positions = pad([[4, 5, 6], [5]], 0)
    given = (ids, positions, ids, positions)
    assert torch.equal(loaded(*given), model(*given))


@pytest.mark.parametrize("name", SHAPES)
def test_costs_are_those_of_a_run(name):
    spec = translator_spec(shape(SHAPES[name]), 70, 70)
    model = build_model(spec)
    assert cost.count_parameters(spec) == sum(p.numel() for p in model.parameters())
    ids, positions = padded(texts(12), False)
    given = (ids, positions, ids, positions)
    model.eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # switching oneDNN, whose products nobody counts, off
        with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
            model.logits(model(*given))
        assert 3 * counter.get_total_flops() == cost.training_cost(spec, 12, 12).total.total
        state = model.start(ids, positions)
        with FlopCounterMode(display=False) as counter:
            model.step(state, ids[:, :1])
    assert counter.get_total_flops() == cost.step_work(spec, 12, 1).total
    beams = sum(
        tensor.nbytes
        for block in state.decoder.blocks
        for each in block
        for tensor in getattr(each, "own", getattr(each, "tensors", ()))
    )
    assert cost.state_bytes(spec, 1, memory_tokens=12)[0] == beams
    table = cost.parameter_table(spec)
    assert sum(row.total for row in table) == cost.count_parameters(spec)


class Operations(TorchDispatchMode):
    """Notes the names of operations."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket._qualified_op_name)
        return func(*args, **(kwargs or {}))


@functools.cache
def trains_lstm_by_onednn():
    """True if PyTorch trains an LSTM over packed rows by one call of oneDNN, as 2.13 does.

    Older ones (2.11) compute it step by step, and keep half as much for the backward pass.
    """
    with Operations() as operations:
        nn.LSTM(8, 8)(pack_sequence([torch.zeros(2, 8)]))
    return "aten::mkldnn_rnn_layer" in operations.names


@pytest.mark.parametrize("name", SHAPES)
def test_the_estimate_of_activations_is_near(name, record_property):
    spec = translator_spec(shape(SHAPES[name] | {"width": 64}), 70, 70)
    model, kept = build_model(spec), {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.nbytes() >= 256 and storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    ids, positions = torch.randint(3, 70, (4, 24)), torch.arange(24).expand(4, 24)
    keeping = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with on_processor(model), keeping:
        hidden = model(ids, positions, ids, positions)
    assert hidden.requires_grad
    right = sum(storage.nbytes() for storage in kept.values())
    memory = cost_memory.training_memory(spec, 96, 96, kept_weights_length=24)
    assert right * 0.8 < memory.activations
    if '"cell": "lstm"' in json.dumps(spec.plain()) and not trains_lstm_by_onednn():
        record_property(NOT_RUN, "the estimate is of an LSTM of oneDNN, which this PyTorch lacks")
    else:
        assert memory.activations < right * 1.4


@pytest.mark.parametrize("name", SHAPES)
def test_engines_say_which_part_the_definition_computes(name):
    text = explain(translator_spec(shape(SHAPES[name]), 70, 70))
    kind = "Convolution" if name == "convolutions" else "Recurrent"
    assert f"{kind}Spec is unknown to the engine" in text
    assert "a single sentence: as a batch" in text


@pytest.mark.parametrize("name", SHAPES)
def test_a_new_model_holds_every_token_to_be_about_as_likely(name):
    torch.manual_seed(1)
    options = SHAPES[name] | {"width": 128, "encoder_layers": 5, "decoder_layers": 3}
    model = build_model(translator_spec(shape(options), 500, 500)).eval()
    ids, positions = torch.randint(500, (8, 15)), torch.arange(15).expand(8, 15)
    targets = torch.randint(500, (8, 15))
    logits = model.logits(model.decode(model.encode(ids, positions), targets, positions))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flip(0).flatten())
    assert abs(loss.item() - math.log(500)) < 1.0


@pytest.mark.parametrize("name", SHAPES)
def test_options_are_told_from_a_model(name):
    options = shape(SHAPES[name])
    spec = translator_spec(options, 70, 70)
    told = recurrent_options(spec.encoder, spec.decoder)
    assert told == (
        {}
        if options.recurrent is None
        else {"window": None, "key_width": None} | options.recurrent.plain()
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"recurrent": {}, "num_heads": 4}, "num_heads is of blocks of attention"),
        ({"convolution": {}, "norm": "rms"}, "the model's are convolutions"),
        ({"recurrent": {}, "convolution": {}}, "recurrent layers and convolutions"),
        ({"recurrent": {}, "positions": "rotary"}, "known by self-attention only"),
        ({"recurrent": {"window": 2}}, "attention is none"),
        ({"recurrent": {"feeding": "output"}}, "it needs attention"),
        ({"recurrent": {"attention": "dot"}}, "neither read by the first layer"),
        ({"recurrent": {"cel": "gru"}}, "Unknown setting 'recurrent.cel'"),
        ({"convolution": {"kernel_width": 4}}, "has no middle"),
        ({"recurrent": {}, "width": 15}, r"^model: width 15 is odd; two .* one of these settings"),
    ],
)
def test_options_without_sense_are_refused_with_the_reason(options, reason):
    with pytest.raises(UserError, match=reason):
        translator_spec(shape(options), VOCABULARY, VOCABULARY)


def test_parts_in_the_wrong_stack_are_refused_with_the_reason():
    spec = translator_spec(shape(LUONG), VOCABULARY, VOCABULARY)
    with pytest.raises(UserError, match="it makes the memory"):
        spec.with_stacks({"encoder": spec.decoder})
    plain = translator_spec(shape(ADDITIVE), VOCABULARY, VOCABULARY)
    both = spec.decoder.pattern[0].sublayers + plain.encoder.pattern[0].sublayers
    block = spec.decoder.pattern[0].model_copy(update={"sublayers": both})
    with pytest.raises(UserError, match=r"the decoder cannot have recurrent: .* direction both"):
        spec.with_stacks({"decoder": spec.decoder.with_block(block)})
