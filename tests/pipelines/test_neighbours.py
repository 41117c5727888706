"""What a text is answered does not depend on the texts beside it: not one bit of its scores."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.kernels.library import has_int8_kernels, kernels
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

pytestmark = pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")

BATCH_SIZES = {1: 16, 2: 12, 7: 32, 32: 32}
"""How many of the lines are translated in batches of a size; small batches take the longest."""

SEARCHES = {"greedy": {"beam": 1}, "beam": {"beam": 4, "n_best": 2}}
EXTRA: dict[str, dict[str, Any]] = {
    "rotary": {"positions": "rotary", "norm_placement": "pre", "num_kv_heads": 1},
    "window": {"window": 20},
    "alibi": {"positions": "alibi"},
}


@functools.cache
def lines() -> list[str]:
    """Sources of 20 to 90 characters; outputs, which never want to end, are of 60 to 200 tokens."""
    draw = random.Random(5)
    lengths = [20, 90, *(draw.randint(20, 90) for _ in range(30))]
    return ["".join(draw.choices("abcdefgh", k=length)) for length in lengths]


@functools.cache
def tokenizers() -> TokenizerPair:
    return train_pair(TokenizerSpec(kind="characters"), lines(), lines())


def write(path: Path, **options: Any) -> Path:
    """Store a random translator that hardly ever ends a sentence by itself."""
    pair = tokenizers()
    shape = TranslatorShape(
        **{"width": 32, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "feedforward": 64}
        | options
    )
    plain = translator_spec(shape, pair.source.size, pair.target.size).plain() | {
        "output_bias": True
    }
    torch.manual_seed(3)
    model = Translator(type(translator_spec(shape, 4, 4)).parse(plain))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter)).mul_(2)
        model.output_bias[pair.target.eos] = -30.0
    save_model(model, pair, path)
    return path


def answers(pipeline: Any, size: int, search: dict[str, Any]) -> list[Any]:
    texts = lines()[: BATCH_SIZES[size]]
    return [
        [(each.tokens, each.token_scores, each.score) for each in found.n_best]
        for found in pipeline.translate(texts, batch_size=size, **search)
    ]


@pytest.mark.parametrize(
    ("shape", "precision", "search"),
    [
        *[("paper", precision, search) for precision in ("fp32", "int8") for search in SEARCHES],
        *[(shape, "fp32", "beam") for shape in EXTRA],
    ],
)
def test_translations_do_not_depend_on_the_batch(
    tmp_path: Path, shape: str, precision: Any, search: str
) -> None:
    if precision == "int8" and not has_int8_kernels():
        pytest.skip("no kernels for 8-bit products here")
    pipeline = heedful.load(
        write(tmp_path / "model", **EXTRA.get(shape, {})), device="cpu", precision=precision
    )
    found = {size: answers(pipeline, size, SEARCHES[search]) for size in BATCH_SIZES}
    together = found[32]
    lengths = [len(tokens) for (tokens, *_), *_ in together]
    assert min(lengths) >= 60
    assert max(lengths) >= 200
    for size, each in found.items():
        wanted = together[: len(each)]
        assert each == wanted, (size, sum(a != b for a, b in zip(each, wanted, strict=True)))
