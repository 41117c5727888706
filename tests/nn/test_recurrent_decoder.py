"""Recurrent decoders beside loops over single sentences and tokens, in float64 and without us."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import UserError
from heedful.nn.attention.score_attention import ScoreAttention
from heedful.nn.capture import Capture
from heedful.nn.mixer import Context, Memory, Reordering
from heedful.nn.mixer_spec import RecurrentDecoderSpec, ScoreAttentionSpec
from heedful.nn.mixers.recurrent_decoder import RecurrentDecoder
from heedful.nn.positions import Positions

WIDTH = 4
DECODERS = {
    "sutskever": {"cell": "lstm", "num_layers": 2, "summary": "backward"},
    "cho": {"cell": "gru", "feeding": "context", "readout": "maxout"},
    "bahdanau": {
        "cell": "gru",
        "summary": "both",
        "attention": {"score": "additive", "width": 3},
        "feeding": "context",
        "readout": "maxout",
    },
    "bahdanau, no readout": {
        "cell": "rnn",
        "attention": {"score": "concat"},
        "feeding": "context",
        "num_layers": 2,
    },
    "luong dot": {"cell": "lstm", "attention": {"score": "dot", "scale": 0.5}, "readout": "tanh"},
    "luong general, fed": {
        "cell": "lstm",
        "num_layers": 2,
        "residual": True,
        "attention": {"score": "general"},
        "feeding": "output",
        "readout": "tanh",
    },
    "luong local-p": {
        "cell": "lstm",
        "attention": {"score": "general", "window": 2},
        "readout": "tanh",
    },
    "luong local-p, fed": {
        "cell": "gru",
        "attention": {"score": "dot", "window": 1},
        "feeding": "output",
        "readout": "tanh",
    },
}


def made(name):
    torch.manual_seed(3)
    decoder = RecurrentDecoder(WIDTH, RecurrentDecoderSpec.parse(DECODERS[name])).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return decoder


def cell_step(cell, read, kept, state):
    """A token's new state: `read` and `kept` are maps of token and state with their biases."""
    hidden, *memory = state
    if cell == "rnn":
        return [torch.tanh(read + kept)]
    if cell == "gru":
        (r1, z1, n1), (r2, z2, n2) = read.chunk(3), kept.chunk(3)
        reset, update = torch.sigmoid(r1 + r2), torch.sigmoid(z1 + z2)
        return [(1 - update) * torch.tanh(n1 + reset * n2) + update * hidden]
    enter, forget, new, leave = (read + kept).chunk(4)
    inner = torch.sigmoid(forget) * memory[0] + torch.sigmoid(enter) * torch.tanh(new)
    return [torch.sigmoid(leave) * torch.tanh(inner), inner]


def attend(weights, spec, query, states):
    """Context vector and weights of one query for the states [S, D] of one source."""
    length, scores = len(states), []
    for state in states:
        if spec.score in ("additive", "concat"):
            inner = weights["query.weight"] @ query + weights["key.weight"] @ state
            inner = inner + weights["key.bias"] if spec.score == "additive" else inner
            scores.append(weights["vector.weight"][0] @ torch.tanh(inner))
        else:
            key = weights["key.weight"] @ state if spec.score == "general" else state
            compared = query
            if spec.score == "dot" and spec.width:
                compared, key = weights["query.weight"] @ query, weights["key.weight"] @ state
            scores.append(compared @ key)
    scores = spec.scale * torch.stack(scores)
    if spec.window is None:
        found = torch.softmax(scores, 0)
        return found @ states, found
    sum_of = weights["place_vector.weight"][0] @ torch.tanh(weights["place.weight"] @ query)
    centre = length * torch.sigmoid(sum_of)
    near = [abs(place - float(centre.detach())) <= spec.window for place in range(length)]
    total = sum(scores[place].exp() for place in range(length) if near[place])
    found = torch.stack(
        [
            scores[place].exp()
            / total
            * torch.exp(-((place - centre) ** 2) / (2 * (spec.window / 2) ** 2))
            if near[place]
            else scores[place] * 0
            for place in range(length)
        ]
    )
    return found @ states, found


def by_loop(decoder, tokens, states):
    """Outputs and weights for the tokens [T, D] of one target, given its source's [S, D]."""
    spec, weights = decoder.spec, dict(decoder.named_parameters())
    vectors = 2 if spec.cell == "lstm" else 1
    of = {n.removeprefix("attention."): w for n, w in weights.items() if n.startswith("attention.")}
    ends = {"forward": states[-1], "backward": states[0]}
    half = WIDTH // 2
    ends["both"] = torch.cat([states[-1][:half], states[0][half:]])
    summary = ends[spec.summary]
    first = torch.tanh(weights["start.weight"] @ summary + weights["start.bias"]).split(WIDTH)
    layers = [list(first[n * vectors : (n + 1) * vectors]) for n in range(spec.num_layers)]
    outputs, found, output = [], [], torch.zeros_like(summary)
    for token in tokens:
        context, looked = summary, None
        if spec.attention and spec.feeding == "context":
            context, looked = attend(of, spec.attention, layers[-1][0], states)
        fed = {"none": [], "context": [context], "output": [output]}[spec.feeding]
        below = torch.cat([token, *fed])
        for n in range(spec.num_layers):
            p = {
                name.rpartition(".")[2]: w
                for name, w in weights.items()
                if name.startswith(f"layers.{n}.")
            }
            read = p["weight_ih_l0"] @ below + p["bias_ih_l0"]
            kept = p["weight_hh_l0"] @ layers[n][0] + p["bias_hh_l0"]
            layers[n] = cell_step(spec.cell, read, kept, layers[n])
            below = layers[n][0] + below if spec.residual and n else layers[n][0]
        if spec.attention and spec.feeding != "context":
            context, looked = attend(of, spec.attention, below, states)
        output = below
        if spec.readout == "tanh":
            both = torch.cat([context, below])
            output = torch.tanh(weights["readout.weight"] @ both + weights["readout.bias"])
        elif spec.readout == "maxout":
            read = torch.cat([below, token, context])
            pairs = weights["readout.weight"] @ read + weights["readout.bias"]
            output = torch.maximum(pairs[0::2], pairs[1::2])
        outputs.append(output)
        found.append(looked)
    return torch.stack(outputs), None if found[0] is None else torch.stack(found)


def padded(lengths, left):
    size = max(lengths) + 1
    positions = torch.full((len(lengths), size), -1)
    for row, length in enumerate(lengths):
        place = slice(size - length, None) if left else slice(0, length)
        positions[row, place] = torch.arange(length)
    return positions


@pytest.mark.parametrize("name", DECODERS)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=3),
    left=st.booleans(),
)
@settings(max_examples=5, deadline=None)
def test_outputs_weights_and_gradients_are_those_of_a_loop(name, sizes, left):
    decoder = made(name)
    sources, targets = padded([s for s, _ in sizes], left), padded([t for _, t in sizes], left)
    memory = torch.randn(*sources.shape, WIDTH, dtype=torch.float64, requires_grad=True)
    x = torch.randn(*targets.shape, WIDTH, dtype=torch.float64, requires_grad=True)
    capture = Capture(["part.weights"])
    context = Context(
        Positions.of_self(targets), Positions(targets, sources), capture=capture, address="part"
    )
    y, _ = decoder.step(x, decoder.read(Memory(memory, sources)), context)
    up, loss = torch.randn_like(y), x.new_zeros(())
    for row in range(len(sizes)):
        real = targets[row] >= 0
        expected, weights = by_loop(decoder, x[row, real], memory[row, sources[row] >= 0])
        torch.testing.assert_close(y[row, real], expected)
        loss = loss + (expected * up[row, real]).sum()
        if weights is not None:
            found = capture.found["part.weights"][row, 0]
            seen = found[real][:, sources[row] >= 0].double()
            torch.testing.assert_close(seen, weights, rtol=1e-5, atol=1e-6)
            assert not found[~real].any()
            assert not found[:, sources[row] < 0].any()
    leaves = [x, memory, *decoder.parameters()]
    ours = torch.autograd.grad((y * up * (targets >= 0)[..., None]).sum(), leaves)
    for one, other in zip(ours, torch.autograd.grad(loss, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_beams_go_on_from_the_states_they_were_chosen_from(name):
    decoder = made(name)
    sources = padded([4, 2], left=True)
    memory = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    state = decoder.read(Memory(memory, sources))

    def step(tokens, sources, state):
        places = torch.zeros(tokens.shape[:2], dtype=torch.int64)
        context = Context(Positions.of_self(places), Positions(places, sources))
        return decoder.step(tokens, state, context)

    first, second, third = (torch.randn(2, 2, WIDTH, dtype=torch.float64) for _ in range(3))
    _, state = step(first[:, :1], sources, state)
    state = state.reorder(Reordering(torch.tensor([[0, 0], [1, 1]])))
    _, state = step(second, sources, state)
    chosen = Reordering(torch.tensor([[3, 2]]), sentences=torch.tensor([1]))
    state = state.reorder(chosen)
    y, state = step(third[1:], sources[1:], state)
    states = memory[1, sources[1] >= 0]
    for beam, other in enumerate((1, 0)):
        tokens = torch.stack([first[1, 0], second[1, other], third[1, beam]])
        torch.testing.assert_close(y[0, beam], by_loop(decoder, tokens, states)[0][-1])
    begun = decoder.restart(state)
    y, _ = step(first[1:, :1], sources[1:], begun)
    torch.testing.assert_close(y[0, 0], by_loop(decoder, first[1, :1], states)[0][-1])


@pytest.mark.parametrize("score", ["additive", "concat", "dot", "general"])
@given(left=st.booleans(), window=st.sampled_from([None, 2]), embeddings=st.booleans())
@settings(max_examples=6, deadline=None)
def test_attention_of_one_head_is_that_of_a_loop(score, left, window, embeddings):
    torch.manual_seed(4)
    spec = ScoreAttentionSpec(score=score, window=window, embeddings=embeddings)
    module = ScoreAttention(WIDTH, spec).double()
    sources, targets = padded([4, 1], left), padded([2, 3], left)
    memory, embedded = (torch.randn(2, 5, WIDTH, dtype=torch.float64) for _ in range(2))
    x, token = (torch.randn(2, 4, WIDTH, dtype=torch.float64) for _ in range(2))
    context = Context(Positions.of_self(targets), Positions(targets, sources), embedding=token)
    y, _ = module.step(x, module.read(Memory(memory, sources, embedding=embedded)), context)
    weights = dict(module.function.named_parameters())
    for row in range(2):
        here = sources[row] >= 0
        states, length = memory[row, here], int(here.sum())
        for place in (targets[row] >= 0).nonzero()[:, 0]:
            query = x[row, place]
            if embeddings and score in ("dot", "general"):
                query = weights["query.weight"] @ query + weights["query.bias"]
            if embeddings:
                query = query + token[row, place]
                if score in ("additive", "concat"):  # the token's embedding joins the mapped query
                    continue
            if window is not None and embeddings:
                continue  # the place is predicted from the query as it came
            mixed, found = attend(weights, spec, query, states)
            if embeddings:
                mixed = found @ (states + embedded[row, here]) * length**0.5
            expected = module.output.weight @ mixed + module.output.bias
            torch.testing.assert_close(y[row, place], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("score", ["additive", "concat", "dot"])
def test_keys_may_be_narrower_than_states_and_scores_scaled(score):
    torch.manual_seed(4)
    spec = ScoreAttentionSpec(score=score, width=3, scale=0.4)
    module = ScoreAttention(WIDTH, spec).double()
    positions = torch.arange(4)[None]
    memory, x = (torch.randn(1, 4, WIDTH, dtype=torch.float64) for _ in range(2))
    context = Context(Positions.of_self(positions), Positions(positions, positions))
    y, _ = module.step(x, module.read(Memory(memory, positions)), context)
    weights = dict(module.function.named_parameters())
    assert weights["key.weight"].shape == (3, WIDTH)
    for place in range(4):
        mixed, _ = attend(weights, spec, x[0, place], memory[0])
        expected = module.output.weight @ mixed + module.output.bias
        torch.testing.assert_close(y[0, place], expected, rtol=1e-6, atol=1e-7)


def test_a_source_of_no_tokens_gives_no_nan():
    decoder = made("luong local-p, fed")
    sources = torch.full((1, 3), -1)
    memory = torch.randn(1, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    targets = torch.arange(2)[None]
    context = Context(Positions.of_self(targets), Positions(targets, sources))
    x = torch.randn(1, 2, WIDTH, dtype=torch.float64)
    y, _ = decoder.step(x, decoder.read(Memory(memory, sources)), context)
    y.sum().backward()
    assert y.isfinite().all()
    assert not memory.grad.any()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"attention": {}}, "neither read by the first layer nor by the readout"),
        ({"feeding": "output"}, "it needs attention"),
        ({"attention": {"embeddings": True}, "readout": "tanh"}, "blocks of convolutions"),
        (
            {"attention": {"over": "input", "window": 2}},
            "a place in another text; in self-attention",
        ),
        ({"attention": {"over": "input"}}, "compare states with a memory"),
        ({"attention": {"score": "general", "width": 4}}, "no width"),
        ({"attention": {"embeddings": True, "width": 4}}, "have the model width"),
    ],
)
def test_what_has_no_sense_is_refused_with_the_reason(values, reason):
    with pytest.raises(UserError, match=reason):
        RecurrentDecoderSpec.parse(values)
