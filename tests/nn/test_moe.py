"""Mixture of experts: against a loop over tokens, and in the stacks it may stand in."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from heedful.errors import ConfigError
from heedful.models.build import canonical_weights, load_weights
from heedful.models.causal_lm import CausalLM
from heedful.models.model_spec import CausalLMSpec, TranslatorSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.nn.capture import Capture
from heedful.nn.feedforward import FeedForward
from heedful.nn.mixer import Context, build_part
from heedful.nn.moe import PENALTIES, MixtureOfExperts, penalty
from heedful.nn.positions import Positions
from heedful.nn.spec import ExpertsSpec, FeedForwardSpec
from tests.reference_parts import GrowingCache

WIDTH = 8


def at(positions: torch.Tensor) -> Context:
    """The context of tokens at these positions."""
    return Context(Positions.of_self(positions))


def mixture(num_experts=4, per_token=2, *, seed=0, activation="swiglu", **experts):
    torch.manual_seed(seed)
    spec = FeedForwardSpec(
        width=12,
        activation=activation,
        experts=ExpertsSpec(num_experts=num_experts, per_token=per_token, **experts),
    )
    return build_part(WIDTH, spec).eval()


def by_loop(module, x, positions, *, per_token, renormalize):
    """Token by token, expert by expert."""
    result = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for column in range(x.shape[1]):
            if positions[row, column] < 0:
                continue
            token = x[row, column]
            chances = torch.softmax(module.router.weight @ token, 0)
            best = sorted(range(len(chances)), key=lambda e: -chances[e].item())[:per_token]
            total = sum(chances[e] for e in best) if renormalize else 1.0
            for e in best:
                result[row, column] += chances[e] / total * module.experts[e](token)
    return result


@given(
    num_experts=st.integers(1, 5),
    per_token=st.integers(1, 5),
    renormalize=st.booleans(),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    activation=st.sampled_from(["relu", "geglu"]),
    training=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_equals_a_loop_over_tokens(
    num_experts, per_token, renormalize, lengths, activation, training, seed
):
    per_token = min(per_token, num_experts)
    renormalize = renormalize and (per_token > 1 or num_experts == 1)
    module = mixture(
        num_experts, per_token, seed=seed, activation=activation, renormalize=renormalize
    ).train(training)
    x = torch.randn(len(lengths), 5, WIDTH)
    columns = torch.arange(5).expand(len(lengths), 5)
    positions = columns.masked_fill(columns >= torch.tensor(lengths)[:, None], -1)
    expected = by_loop(module, x, positions, per_token=per_token, renormalize=renormalize)
    torch.testing.assert_close(module(x, at(positions)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("renormalize", [True, False])
def test_one_expert_is_the_plain_network(renormalize):
    module = mixture(1, 1, renormalize=renormalize)
    x, positions = torch.randn(2, 3, WIDTH), torch.arange(3).expand(2, 3)
    plain = module.experts[0]
    assert isinstance(plain, FeedForward)
    assert torch.equal(module(x, at(positions)), plain(x))


def test_gradients_equal_the_loops_and_idle_experts_have_zeros():
    module = mixture(6, 2).train()
    x, positions = torch.randn(1, 2, WIDTH, requires_grad=True), torch.arange(2)[None]
    used = set(module.route(x[0]).experts.flatten().tolist())
    assert len(used) < 6
    found = torch.autograd.grad(
        module(x, at(positions)).square().sum(),
        [x, *module.parameters()],
        allow_unused=False,
    )
    looped = by_loop(module, x, positions, per_token=2, renormalize=True).square().sum()
    expected = torch.autograd.grad(looped, [x, *module.parameters()], allow_unused=True)
    names = ["x", *dict(module.named_parameters())]
    for name, ours, theirs in zip(names, found, expected, strict=True):
        if theirs is None:
            assert int(name.split(".")[1]) not in used
            assert not ours.any()
        else:
            assert ours.any(), name
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def kept(module, x, positions):
    capture = Capture(["layer.balance", "layer.penalty", "layer.routing"])
    out = module(x, Context(Positions.of_self(positions), capture=capture, address="layer"))
    assert torch.equal(out, module(x, at(positions)))
    return capture.found


def test_balance_by_hand_ignores_padding():
    module = mixture(4, 2, balance_weight=0.5)
    x = torch.randn(3, 6, WIDTH)
    columns = torch.arange(6).expand(3, 6)
    positions = columns.masked_fill(columns >= torch.tensor([6, 2, 0])[:, None], -1)
    found = kept(module, x, positions)
    real = x[positions >= 0]
    chances = torch.softmax(real @ module.router.weight.T, -1)
    counts = [0] * 4
    for row in chances.tolist():
        for e in sorted(range(4), key=lambda e: -row[e])[:2]:
            counts[e] += 1
    expected = 4 * sum(counts[e] / 8 * chances[:, e].mean() for e in range(4))
    torch.testing.assert_close(found["layer.balance"], expected)
    torch.testing.assert_close(found["layer.penalty"], 0.5 * expected)
    routing = found["layer.routing"]
    torch.testing.assert_close(routing.sum(-1), (positions >= 0).float())
    assert ((routing > 0).sum(-1) == 2 * (positions >= 0)).all()
    # What stands in padding is nobody's business.
    x[positions < 0] = 1e4
    again = kept(module, x, positions)
    assert torch.equal(again["layer.balance"], found["layer.balance"])


def test_balance_is_least_when_even_and_most_when_one_sided():
    module = mixture(4, 2)
    with torch.no_grad():  # token i likes the experts i and i + 1, all alike
        module.router.weight.copy_(torch.eye(4, WIDTH) + torch.eye(4, WIDTH).roll(1, 0))
    positions = torch.arange(4)[None]
    even = kept(module, torch.eye(4, WIDTH)[None], positions)["layer.balance"]
    torch.testing.assert_close(even, torch.tensor(2.0))
    same = 50 * torch.eye(4, WIDTH)[:1].expand(1, 4, WIDTH)
    one_sided = kept(module, same, positions)["layer.balance"]
    torch.testing.assert_close(one_sided, torch.tensor(4.0))


def test_minimising_the_penalty_evens_out_the_experts():
    module = mixture(4, 1, renormalize=False, balance_weight=1.0).train()
    x = torch.randn(1, 200, WIDTH) + 1.0
    positions = torch.arange(200)[None]
    optimizer = torch.optim.SGD([module.router.weight], lr=0.3)
    with torch.no_grad():
        module.router.weight[2] += 1.0  # everything goes there at first

    def largest_share():
        counts = torch.bincount(module.route(x[0]).experts.flatten(), minlength=4)
        return counts.max().item() / 200

    assert largest_share() > 0.9
    for _ in range(60):
        capture = Capture([PENALTIES])
        module(x, Context(Positions.of_self(positions), capture=capture, address="layer"))
        optimizer.zero_grad()
        penalty(capture).backward()
        optimizer.step()
    assert largest_share() < 0.5


def test_nothing_but_padding():
    for training in (True, False):
        module = mixture().train(training)
        positions = torch.full((2, 3), -1)
        found = kept(module, torch.randn(2, 3, WIDTH), positions)
        assert found["layer.balance"] == 0
        assert not module(torch.randn(2, 3, WIDTH), at(positions)).any()


def test_bfloat16_and_autocast_route_in_float32():
    module = mixture(4, 2)
    x, positions = torch.randn(2, 5, WIDTH), torch.arange(5).expand(2, 5)
    expected, routes = module(x, at(positions)), module.route(x[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = module(x, at(positions))
        assert torch.equal(module.route(x[0]).weights, routes.weights)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.float(), expected, rtol=0.05, atol=0.05)
    module.bfloat16()
    x = x.bfloat16()
    whole = module(x, at(positions))
    assert whole.dtype == torch.bfloat16
    torch.testing.assert_close(whole.float(), expected, rtol=0.05, atol=0.05)
    chances = torch.softmax(x[0].float() @ module.router.weight.float().T, -1)
    torch.testing.assert_close(module.route(x[0]).probabilities, chances)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"num_experts": 2, "per_token": 3}, "per_token 3"),
        ({"num_experts": 4, "per_token": 1}, "renormalize"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, word):
    with pytest.raises(ConfigError, match=word):
        ExpertsSpec.parse(settings)


def translator(experts: ExpertsSpec, seed=0) -> Translator:
    torch.manual_seed(seed)
    shape = TranslatorShape(
        width=WIDTH, encoder_layers=2, decoder_layers=2, num_heads=2, feedforward=12
    )
    plain = translator_spec(shape, 30, 30).plain()
    for stack in ("encoder", "decoder"):
        parts = {each["name"]: each["part"] for each in plain[stack]["pattern"][0]["sublayers"]}
        parts["feedforward"]["experts"] = experts.plain()
    return Translator(TranslatorSpec.parse(plain)).eval()


EXPERTS = ExpertsSpec(num_experts=4, per_token=2)


@torch.no_grad()
def test_steps_with_caches_and_beams_equal_one_pass():
    model = translator(EXPERTS)
    source, target = torch.randint(4, 30, (2, 5)), torch.randint(4, 30, (4, 4))
    source_positions = torch.tensor([[0, 1, 2, 3, 4], [0, 1, -1, -1, -1]])
    both = [0, 0, 1, 1]
    positions = torch.arange(4).expand(4, 4)
    whole = model.logits(model(source[both], source_positions[both], target, positions))
    state = model.start(source, source_positions)
    state = model.reorder(state, torch.tensor([[0, 0], [1, 1]]))  # two beams each
    for t in range(4):
        logits, state = model.step(state, target[:, t].view(2, 2))
        torch.testing.assert_close(logits.view(4, -1), whole[:, t], rtol=1e-5, atol=1e-5)
    # The rows of such a cache are beams; what is kept of a step is by sentence, as its states are.
    capture, fifth = Capture(["decoder.*.feedforward.routing"]), torch.full((2, 2), 4)
    context = Context(
        Positions.of_self(fifth.view(4, 1)),
        Positions(fifth, state.memory_positions),
        capture=capture,
        address="decoder.1",
    )
    block, read = model.decoder.blocks[1], model.decoder.read_from(state.decoder)[1]
    own = block.self_attention.initial_state(4, torch.empty(0), GrowingCache.empty)
    block(torch.randn(2, 2, WIDTH), context, (own, *read[1:]))
    assert capture.found["decoder.1.feedforward.routing"].shape == (2, 2, 4)


@torch.no_grad()
def test_a_language_model_with_a_cache_and_left_padding_equals_one_pass():
    torch.manual_seed(0)
    block = {
        "self_attention": {"num_heads": 2, "mask": {"kind": "causal"}},
        "feedforward": {"width": 12, "activation": "swiglu", "experts": EXPERTS.plain()},
    }
    plain = {"width": WIDTH, "vocabulary": 30, "decoder": {"num_layers": 2, "block": block}}
    model = CausalLM(CausalLMSpec.parse(plain)).eval()
    ids = torch.randint(0, 30, (2, 6))
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [-1, -1, 0, 1, 2, 3]])
    whole, real = model(ids, positions), positions >= 0
    state = model.start(ids[:, :0], positions[:, :0])
    for columns in (slice(0, 3), slice(3, 5), slice(5, 6)):
        states, state = model.extend(state, ids[:, columns], positions[:, columns])
        seen = real[:, columns]
        torch.testing.assert_close(states[seen], whole[:, columns][seen], rtol=1e-5, atol=1e-5)


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    left=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=15)
@torch.no_grad()
def test_a_sentence_does_not_depend_on_neighbours_or_padding(lengths, left, seed):
    model = translator(EXPERTS, seed)
    size = max(lengths) + 1
    ids = torch.randint(4, 30, (len(lengths), size))
    positions = torch.full((len(lengths), size), -1)
    for row, length in enumerate(lengths):
        where = slice(size - length, None) if left else slice(0, length)
        positions[row, where] = torch.arange(length)
    batched = model(ids, positions, ids, positions)
    for row in range(len(lengths)):
        real = positions[row] >= 0
        alone = ids[row : row + 1, real], positions[row : row + 1, real]
        torch.testing.assert_close(
            batched[row, real], model(*alone, *alone)[0], rtol=1e-5, atol=1e-5
        )


def test_penalties_of_both_stacks_reach_every_router():
    model = translator(EXPERTS).train()
    ids, positions = torch.randint(4, 30, (2, 5)), torch.arange(5).expand(2, 5)
    capture = Capture([PENALTIES])
    model(ids, positions, ids, positions, capture)
    assert set(capture.found) == {
        f"{stack}.{layer}.feedforward.penalty"
        for stack in ("encoder", "decoder")
        for layer in (0, 1)
    }
    total = penalty(capture)
    torch.testing.assert_close(total, sum(capture.found.values()))
    total.backward()
    routers = [m.router for m in model.modules() if isinstance(m, MixtureOfExperts)]
    assert len(routers) == 4
    assert all(router.weight.grad.any() for router in routers)
    assert penalty(Capture([PENALTIES])) == 0


def test_weights_and_spec_survive_files(tmp_path):
    model = translator(EXPERTS)
    save_file(canonical_weights(model), str(tmp_path / "model.safetensors"))
    written = json.dumps(model.spec.plain())
    again = Translator(TranslatorSpec.parse(json.loads(written)))
    load_weights(again, load_file(str(tmp_path / "model.safetensors")), where="the file")
    assert again.spec == model.spec
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
