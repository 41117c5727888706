"""One mixer over one long text, forward or with gradients: its seconds and its peak memory."""

from __future__ import annotations

import statistics
import time
from typing import Any, get_args

import serve
import torch

from heedful.config import MixerName
from heedful.engines.training.training_engine import prepare_training
from heedful.errors import ConfigError
from heedful.models.mixers import mixer_spec
from heedful.models.shape import TranslatorShape
from heedful.nn.mixer import Context, build_part
from heedful.nn.mixer_spec import RecurrentSpec
from heedful.nn.positions import Positions
from heedful.nn.spec import PartSpec


def names() -> dict[str, Any]:
    """Every mixer of the registry, and the options that make others of them."""
    return {"names": list(get_args(MixerName))}


def rate(width: int, repeats: int) -> dict[str, Any]:
    """Operations a second of products [4096, D] x [D, D], forward and backward."""
    x, weight = torch.randn(4096, width), torch.randn(width, width)
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        y = x @ weight
        torch.mm(y, weight.T)
        torch.mm(x.T, y)
        seconds.append(time.perf_counter() - began)
    return {"operations_per_second": 6 * x.numel() * width / statistics.median(seconds[1:])}


def case(
    mixer: str,
    options: dict[str, Any],
    length: int,
    width: int,
    heads: int,
    repeats: int,
    *,
    backward: bool,
) -> dict[str, Any]:
    """Run it some times, after once to warm up.

    Args:
        mixer: a name of the registry; `recurrent` for a layer of cells.
        options: of the shape, besides; of the layer of cells.
        length: tokens, L.
        width: D.
        heads: of those that have heads.
        repeats: how often.
        backward: whether gradients of the input and the parameters are computed too.

    Mixers are causal where they can be; `causal` of the answer says so.
    """
    torch.manual_seed(1)
    spec, causal = _spec(mixer, {"width": width, "num_heads": heads} | options)
    module = build_part(width, spec).train(backward)
    x = torch.randn(1, length, width, requires_grad=backward)
    context = Context(Positions.of_self(torch.arange(length)[None]))
    wanted = [x, *module.parameters()]
    engine = prepare_training(module, x.device)
    seconds = []
    before = serve.reset_peak()
    for _ in range(repeats + 1):
        began = time.perf_counter()
        with engine.active(), torch.set_grad_enabled(backward):
            output = module(x, context)
            if backward:
                torch.autograd.grad(output.sum(), wanted, allow_unused=True)
        seconds.append(time.perf_counter() - began)
        del output
    work = module.work(length, length).total
    return {
        "seconds": seconds[1:],
        "memory_mb": round(serve.peak_mb() - before, 2),
        "operations": work,
        "causal": causal,
        "parameters": sum(each.numel() for each in module.parameters()),
    }


def _spec(mixer: str, options: dict[str, Any]) -> tuple[PartSpec, bool]:
    """The spec of a mixer, and whether it is causal."""
    if mixer == "recurrent":
        return RecurrentSpec(cell=options["cell"]), True
    shape = TranslatorShape.parse({"positions": "none", "mixer": mixer, **options})
    try:
        return mixer_spec(shape, shape.mixer, True), True
    except ConfigError:  # it reads in both directions only
        return mixer_spec(shape, shape.mixer, False), False


if __name__ == "__main__":
    serve.serve({"case": case, "names": names, "rate": rate})
