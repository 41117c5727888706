"""Linear attention beside its definition in float64; steps equal the whole; beams are reordered."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.engines.inference.prepare import prepare
from heedful.errors import ModelError
from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import load_model, save_model
from heedful.models.encoder import EncoderModel
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.capture import Capture
from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import LinearAttentionSpec
from heedful.nn.mixers.linear_attention import LinearAttention
from heedful.nn.positions import Positions
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

WIDTH, HEADS, VOCABULARY = 24, 3, 40


def stack(*, causal: bool, layers: int = 2) -> dict[str, object]:
    mixer = {"kind": "linear_attention", "num_heads": HEADS, "causal": causal}
    network = {"kind": "feedforward", "width": 32, "activation": "gelu"}
    sublayers = [
        {"name": "self_attention", "part": mixer, "norm_placement": "before"},
        {"name": "feedforward", "part": network, "norm_placement": "before"},
    ]
    return {"num_layers": layers, "pattern": [{"sublayers": sublayers}], "final_norm": {}}


def language_model(vocabulary: int = VOCABULARY) -> CausalLM:
    torch.manual_seed(0)
    values = {"width": WIDTH, "vocabulary": vocabulary, "decoder": stack(causal=True)}
    return CausalLM(CausalLMSpec.parse(values)).eval()


def definition(module, x, positions, segments=None):
    """Weights by features, key by key, in float64."""
    maps = [each.double() for each in module.projection.weight.chunk(3)]
    biases = [each.double() for each in module.projection.bias.chunk(3)]
    q, k, v = (
        (x.double() @ m.T + b).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for m, b in zip(maps, biases, strict=True)
    )
    q, k = (torch.where(each > 0, each + 1, each.exp()) for each in (q, k))
    seen = (positions >= 0)[:, None, None, :].expand(-1, HEADS, x.shape[1], -1)
    if module.causal:
        order = torch.arange(x.shape[1])
        seen = seen & (order[None, :] <= order[:, None])
    if segments is not None:
        seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
    weights = (q @ k.transpose(2, 3)) * seen
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    mixed = (weights @ v).transpose(1, 2).flatten(2)
    return mixed @ module.output.weight.double().T + module.output.bias.double(), weights


def mixer(*, causal: bool) -> LinearAttention:
    torch.manual_seed(1)
    module = LinearAttention(WIDTH, LinearAttentionSpec(num_heads=HEADS, causal=causal))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


def padded(lengths, size, *, left):
    positions = torch.full((len(lengths), size), -1)
    for row, length in enumerate(lengths):
        place = slice(size - length, None) if left else slice(0, length)
        positions[row, place] = torch.arange(length)
    return positions


@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=3),
    causal=st.booleans(),
    left=st.booleans(),
    packed=st.booleans(),
)
@settings(max_examples=25)
def test_output_weights_and_gradients_are_those_of_the_definition(lengths, causal, left, packed):
    module = mixer(causal=causal)
    size = max(lengths) + 1
    positions = padded(lengths, size, left=left)
    segments = None
    if packed and causal:
        segments = (torch.arange(size) // 37).expand(len(lengths), -1).contiguous()
    x = torch.randn(len(lengths), size, WIDTH, requires_grad=True)
    capture = Capture(["weights.weights"])
    context = Context(Positions.of_self(positions, segments), capture=capture, address="weights")
    y = module(x, context)
    expected, weights = definition(module, x, positions, segments)
    real = positions >= 0
    torch.testing.assert_close(y[real].double(), expected[real], rtol=1e-4, atol=1e-5)
    close = capture.found["weights.weights"].double()
    torch.testing.assert_close(close, weights, rtol=1e-4, atol=1e-5)
    up = torch.randn_like(y) * real[..., None]
    found = torch.autograd.grad(y, [x, *module.parameters()], up)
    right = torch.autograd.grad(expected, [x, *module.parameters()], up.double())
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("engine", [False, True])
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=3), left=st.booleans())
@settings(max_examples=8)
@torch.no_grad()
def test_steps_after_a_prompt_equal_one_pass(engine, lengths, left):
    model = language_model()
    if engine:
        model = prepare(model, "fp32", torch.device("cpu"))
    size = max(lengths)
    ids, positions = (
        torch.randint(VOCABULARY, (len(lengths), size)),
        padded(lengths, size, left=left),
    )
    state = model.start(ids, positions, chunk=17)
    texts = [row[at >= 0].tolist() for row, at in zip(ids, positions, strict=True)]
    for _ in range(3):
        tokens = torch.randint(VOCABULARY, (len(lengths), 1))
        logits, state = model.step(state, tokens)
        for text, token, row in zip(texts, tokens[:, 0].tolist(), logits, strict=True):
            text.append(token)
            alone = torch.tensor([text]), torch.arange(len(text))[None]
            expected = model.logits(model(*alone))[0, -1]
            torch.testing.assert_close(row[0], expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_beams_go_on_from_the_sums_of_those_they_were_chosen_from():
    model = language_model()
    ids, positions = torch.randint(VOCABULARY, (2, 5)), torch.arange(5).expand(2, 5)
    state = model.reorder(model.start(ids, positions), torch.tensor([[0, 0], [1, 1]]))
    first, second = torch.tensor([[7, 8], [9, 10]]), torch.tensor([[11, 12]])
    _, state = model.step(state, first)
    state = model.reorder(state, torch.tensor([[3, 2]]))
    logits, _ = model.step(state, second)
    for beam, tail in enumerate(([10, 11], [9, 12])):
        text = torch.tensor([[*ids[1].tolist(), *tail]])
        expected = model.logits(model(text, torch.arange(7)[None]))[0, -1]
        torch.testing.assert_close(logits[0, beam], expected, rtol=1e-4, atol=1e-4)


def test_it_learns_to_copy():
    model = language_model().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    torch.manual_seed(0)
    losses = []
    for _ in range(120):
        half = torch.randint(VOCABULARY, (16, 1)).expand(-1, 6)
        positions = torch.arange(6).expand(16, 6)
        logits = model.logits(model(half, positions))[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), half[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1
    assert losses[-1] < 0.1


def test_packed_texts_are_as_if_alone():
    model = language_model()
    ids = torch.randint(VOCABULARY, (1, 9))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    together = model(ids, positions, segments)
    for part in (slice(0, 4), slice(4, 9)):
        alone = model(ids[:, part], positions[:, part])
        torch.testing.assert_close(together[:, part], alone, rtol=1e-4, atol=1e-5)


def test_a_model_directory_holds_it(tmp_path):
    tokenizers = train_pair(TokenizerSpec(kind="characters"), ["abc def"] * 3, ["abc def"] * 3)
    model = language_model(tokenizers.target.size)
    save_model(model, tokenizers, tmp_path / "model")
    loaded, _ = load_model(tmp_path / "model")
    assert loaded.spec == model.spec
    ids, positions = torch.tensor([[4, 5, 6]]), torch.arange(3)[None]
    assert torch.equal(loaded(ids, positions), model(ids, positions))


def test_an_encoder_may_see_later_tokens_and_cannot_step():
    values = {"width": WIDTH, "vocabulary": 30, "encoder": stack(causal=False)}
    model = EncoderModel(EncoderSpec.parse(values))
    ids, positions = torch.randint(30, (2, 6)), padded([6, 3], 6, left=False)
    assert model(ids, positions).isfinite().all()
    with pytest.raises(ModelError, match="token by token"):
        mixer(causal=False).initial_state(1, torch.empty(0))
    packed = Context(Positions.of_self(positions, torch.zeros_like(positions)))
    with pytest.raises(ModelError, match="packed texts"):
        mixer(causal=False)(torch.randn(2, 6, WIDTH), packed)
