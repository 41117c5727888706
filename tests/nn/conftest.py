from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from heedful.models.shape import TranslatorShape
from heedful.models.translator import Translator
from heedful.nn.native import library

LEVELS = {"best": 3, "avx512": 2, "avx2": 1}


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[int]:
    """A set of instructions; afterwards again the one that the environment asks for."""
    yield library.kernels().heedful_begin(LEVELS[request.param])
    library.kernels.cache_clear()


class _Stopping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


@pytest.fixture
def stopping():
    """A copy that lets no gradient through."""
    return _Stopping.apply


@pytest.fixture
def build() -> Callable[..., Translator]:
    """Makes small translators, always of the same weights, whose shape is changed as asked."""

    def built(**changes) -> Translator:
        torch.manual_seed(0)
        sizes = {"width": 64, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4}
        shape = TranslatorShape(**{**sizes, "feedforward": 72, "max_length": 30, **changes})
        model = Translator(shape.expand(50, 50)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return model

    return built
