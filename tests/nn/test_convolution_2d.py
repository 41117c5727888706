"""Convolutions over images: beside a loop over pixels, and beside `conv2d` with a masked kernel."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import UserError
from heedful.models.causal_lm import CausalLM
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec
from heedful.nn.attention.masks import Causal
from heedful.nn.attention.sparse_masks import Window2d
from heedful.nn.mixer import Context, Reordering
from heedful.nn.mixer_spec import ConvolutionSpec
from heedful.nn.mixers.convolution_2d import Convolution2d
from heedful.nn.positions import Positions

WIDTH, COLUMNS = 3, 4


def made(kernel_width=3, first=0, columns=COLUMNS):
    torch.manual_seed(5)
    spec = ConvolutionSpec(kernel_width=kernel_width, causal=True, columns=columns, first=first)
    module = Convolution2d(WIDTH, spec).double()
    with torch.no_grad():
        module.projection.bias.normal_()
    return module


def looped(module, text, kernel_width, first=0):
    """The outputs of one text [L, D], pixel by pixel; tokens before `first` see themselves."""
    half, outputs = kernel_width // 2, []
    for at in range(len(text)):
        row, column = divmod(at - first, COLUMNS)
        window = []
        for above in range(half, -1, -1):
            for side in range(-half, half + 1 if above else 1):
                place = first + (row - above) * COLUMNS + column + side
                own = (above, side) == (0, 0)
                seen = own or (row >= above and 0 <= column + side < COLUMNS)
                window.append(text[place] if seen else torch.zeros_like(text[0]))
        outputs.append(F.glu(module.projection(torch.cat(window)), -1))
    return torch.stack(outputs)


@pytest.mark.parametrize(("kernel_width", "first"), [(1, 0), (3, 0), (3, 1), (5, 2), (7, 1)])
@given(lengths=st.lists(st.integers(0, 14), min_size=1, max_size=3), left=st.booleans())
@settings(max_examples=8)
def test_outputs_and_gradients_are_those_of_a_loop(kernel_width, first, lengths, left):
    module, size = made(kernel_width, first), max(lengths) + 1
    x = torch.randn(len(lengths), size, WIDTH, dtype=torch.float64, requires_grad=True)
    positions = torch.full((len(lengths), size), -1)
    for row, length in enumerate(lengths):
        place = slice(size - length, None) if left else slice(0, length)
        positions[row, place] = torch.arange(length)
    y = module(x, Context(Positions.of_self(positions)))
    up, loss = torch.randn_like(y), (x * 0).sum() + sum((p * 0).sum() for p in module.parameters())
    for row, length in enumerate(lengths):
        real = positions[row] >= 0
        if length:
            expected = looped(module, x[row, real], kernel_width, first)
            torch.testing.assert_close(y[row, real], expected)
            loss = loss + (expected * up[row, real]).sum()
    assert not y[positions < 0].any()
    leaves = [x, *module.parameters()]
    ours = torch.autograd.grad((y * up).sum(), leaves)
    for one, other in zip(ours, torch.autograd.grad(loss, leaves), strict=True):
        torch.testing.assert_close(one, other)


def test_it_is_a_convolution_whose_kernel_is_masked():
    module, rows = made(5), 6
    image = torch.randn(2, rows, COLUMNS, WIDTH, dtype=torch.float64)
    kernel = torch.zeros(2 * WIDTH, WIDTH, 25, dtype=torch.float64)
    weight = module.projection.weight.detach().unflatten(1, (13, WIDTH)).transpose(1, 2)
    kernel[:, :, :13] = weight  # in reading order; the other twelve are later pixels
    bias = module.projection.bias
    expected = F.conv2d(image.permute(0, 3, 1, 2), kernel.unflatten(2, (5, 5)), bias, padding=2)
    y = module(image.flatten(1, 2)).unflatten(1, (rows, COLUMNS))
    torch.testing.assert_close(y, F.glu(expected, 1).permute(0, 2, 3, 1))


@pytest.mark.parametrize(("kernel_width", "first"), [(1, 0), (3, 1), (5, 0), (7, 1)])
def test_a_pixel_sees_what_a_window_of_attention_shows(kernel_width, first):
    module, length = made(kernel_width, first), 3 * COLUMNS + first
    x = torch.randn(1, length, WIDTH, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: module(x)[0].sum(-1), x)
    seen = jacobian[:, 0].abs().sum(-1) > 0
    half = kernel_width // 2 + 1
    positions = Positions.counting(1, length, torch.device("cpu"))
    shown = positions.visible(Causal() & Window2d(COLUMNS, half, half, first))[0, 0]
    assert torch.equal(seen[first:, first:], shown[first:, first:])
    # A begin token is no pixel: it stands outside of the image, where all is 0.
    assert not seen[first:, :first].any()
    assert torch.equal(seen[:first], torch.eye(length, dtype=torch.bool)[:first])


@pytest.mark.parametrize("kernel_width", [1, 3, 5])
@given(
    prompt=st.integers(0, 11),
    first=st.integers(0, 2),
    padding=st.integers(0, 3),
    left=st.booleans(),
)
@settings(max_examples=8)
@torch.no_grad()
def test_steps_of_chosen_beams_are_those_of_one_pass(kernel_width, prompt, first, padding, left):
    module = made(kernel_width, first)
    text = torch.randn(prompt + 3, WIDTH, dtype=torch.float64)
    other = torch.randn(2, WIDTH, dtype=torch.float64)
    places = [*[-1] * padding, *range(prompt)] if left else [*range(prompt), *[-1] * padding]
    padded = torch.zeros(1, len(places), WIDTH, dtype=torch.float64)
    padded[0, [i for i, place in enumerate(places) if place >= 0]] = text[:prompt]
    state = module.initial_state(1, text)
    if places:
        context = Context(Positions.of_self(torch.tensor([places])))
        _, state = module.step(padded, state, context)
    state = state.reorder(Reordering(torch.tensor([[0, 0]])))

    def step(at, tokens, state):
        return module.step(
            tokens[None], state, Context(Positions.of_self(torch.tensor([[at, at]])))
        )

    _, state = step(prompt, torch.stack([other[0], text[prompt]]), state)
    state = state.reorder(Reordering(torch.tensor([[1, 1]])))
    _, state = step(prompt + 1, torch.stack([text[prompt + 1], other[1]]), state)
    y, _ = step(prompt + 2, torch.stack([text[prompt + 2], other[0]]), state)
    torch.testing.assert_close(y[0, 0], looped(module, text, kernel_width, first)[-1])


def small(**own):
    shape = {"width": 8, "decoder_layers": 3, "encoder_layers": 1, "dropout": 0.0}
    return TranslatorShape.parse(shape | {"convolution": own, "positions": "learned"})


def test_no_pixel_of_a_model_knows_later_ones():
    torch.manual_seed(0)
    model = CausalLM(causal_lm_spec(small(kernel_width=5, columns=COLUMNS, first=1), 9, 17)).eval()
    ids, positions = torch.randint(0, 9, (1, 17)), torch.arange(17)[None]
    before = model(ids, positions)
    for at in range(17):
        changed = ids.clone()
        changed[0, at] = (ids[0, at] + 1) % 9
        moved = (model(changed, positions) != before).any(-1)[0]
        assert not moved[:at].any()
        assert moved[at]


@torch.no_grad()
def test_pixels_that_are_written_are_those_of_one_pass():
    torch.manual_seed(0)
    model = CausalLM(causal_lm_spec(small(kernel_width=5, columns=COLUMNS, first=1), 9, 17)).eval()
    ids, positions = torch.randint(0, 9, (2, 14)), torch.arange(14).repeat(2, 1)
    expected = model.logits(model(ids, positions))
    # Prompts of several lengths, read in parts: the state does not depend on either.
    at = torch.tensor([[5], [3]])
    padded = positions[:, :5].masked_fill(positions[:, :5] >= at, -1)
    state = model.start(ids[:, :5], padded, chunk=2)
    for _ in range(8):
        logits, state = model.step(state, ids.gather(1, at))
        torch.testing.assert_close(logits[:, 0], expected[torch.arange(2), at[:, 0]])
        at = at + 1


def test_what_has_no_sense_is_refused_with_the_reason():
    def parsed(**own):
        return ConvolutionSpec.parse({"causal": True} | own)

    with pytest.raises(UserError, match="kernel_width 4 has no middle"):
        parsed(kernel_width=4, columns=9)
    with pytest.raises(UserError, match="kernel_width 9 reaches past a row of 4 columns"):
        parsed(kernel_width=9, columns=4)
    with pytest.raises(UserError, match="it needs columns"):
        parsed(first=1)
    with pytest.raises(UserError, match="without an encoder"):
        encoder_spec(small(columns=4), 9, 16, ())
