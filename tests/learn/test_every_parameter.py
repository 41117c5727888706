"""Every parameter of every shape of translator gets a gradient."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from heedful.config import Activation, PositionScheme
from heedful.engines.training.chunked_loss import ProcessorLosses
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator

from ..on_processor import either_way

VOCABULARY = 30
SMALL: dict[str, Any] = {
    "width": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_heads": 4,
    "feedforward": 24,
    "dropout": 0.0,
}


def gradients(shape: TranslatorShape, trained: Any) -> dict[str, torch.Tensor]:
    """Gradients of the training loss of a padded batch, by the names of a checkpoint."""
    torch.manual_seed(3)
    model = Translator(translator_spec(shape, VOCABULARY, VOCABULARY))
    lengths = torch.tensor([9, 5, 7])
    source = torch.randint(4, VOCABULARY, (3, 9))
    target = torch.randint(4, VOCABULARY, (3, 9))
    index = torch.arange(9)
    positions = torch.where(index < lengths[:, None], index, -1)
    real = positions >= 0
    goal, losses = torch.randint(4, VOCABULARY, (3, 9)), ProcessorLosses()
    with trained(model):
        hidden = model(source, positions, target, positions)
        weight = model.output_weight
        losses.smoothed_cross_entropy(hidden[real], weight, goal[real], 0.1).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} took no part"
        parameter.data = parameter.grad
    # saved under the names of single projections, where training has fused ones
    return model.state_dict()


SHAPES: list[dict[str, Any]] = [
    # Axes are those of token sequences, and have tests of their own.
    *({"positions": each} for each in get_args(PositionScheme) if each != "axes"),
    *({"activation": activation} for activation in get_args(Activation)),
    *({"share_embeddings": share} for share in ("all", "target", "none")),
    {"norm_placement": "pre"},
    {"norm": "rms"},
    {"norm": "rms", "norm_placement": "pre", "bias": False, "positions": "rotary"},
    {"num_kv_heads": 2},
    {"num_kv_heads": 1, "positions": "t5"},
    {"num_kv_heads": 2, "positions": "relative_keys", "norm_placement": "pre"},
    {"num_kv_heads": 2, "positions": "transformer_xl", "norm_placement": "pre"},
    {"window": 3},
    {"window": 3, "positions": "alibi", "activation": "swiglu"},
]


@either_way
@pytest.mark.parametrize("dials", SHAPES, ids=lambda d: ",".join(f"{k}={v}" for k, v in d.items()))
def test_every_parameter_gets_a_gradient(dials: dict[str, Any], trained: Any) -> None:
    shape = TranslatorShape.parse({**SMALL, **dials})
    for name, gradient in gradients(shape, trained).items():
        assert torch.isfinite(gradient).all(), name
        # The same vector added to all keys of a query adds the same to all its scores, which
        # softmax takes away: a bias of keys has gradient 0, unless keys are rotated, or meet
        # vectors that differ by distance, as in disentangled attention.
        moved = "cross" not in name and shape.positions in ("rotary", "disentangled")
        is_zero = name.endswith("key.bias") and not (moved and "position_bias" not in name)
        assert (gradient.abs().max() < 1e-6) == is_zero, name
