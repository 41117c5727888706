"""From a spec to its model: with new weights, or around stored ones.

Stored weights have canonical names: a tensor that several modules share appears once, and linear
maps that run as one matmul (`heedful.nn.linear_layers`) are stored separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful.errors import ModelError
from heedful.models.model_spec import MODEL_KINDS, ModelSpec

if TYPE_CHECKING:
    from heedful.models.causal_lm import CausalLM
    from heedful.models.encoder import EncoderModel
    from heedful.models.images.resnet import ResNet
    from heedful.models.images.vision import VisionModel
    from heedful.models.sounds.transcriber import Transcriber
    from heedful.models.translator import Translator

    AnyModel = Translator | Transcriber | CausalLM | EncoderModel | VisionModel | ResNet

_SHOWN = 5  # names in an error: a wrong `config.json` may miss thousands of tensors


def build_model(spec: ModelSpec) -> AnyModel:
    """Return a model with new weights.

    Args:
        spec: complete description of the model; its `kind` names the class.
    """
    model: AnyModel = resolve_name(MODEL_KINDS[spec.kind].model)(spec)
    return model


def build_around(
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    *,
    where: str,
    dtype: torch.dtype | None = torch.float32,
) -> AnyModel:
    """Return a model with stored weights, without drawing random ones first.

    Args:
        spec: complete description of the model.
        weights: exactly the tensors of `canonical_weights`.
        where: file of the weights, for the error message.
        dtype: type of the model's tensors; None keeps the stored type of each.

    Raises:
        ModelError: when tensors are missing, unknown or of another shape; it names them.
    """
    model = build_on_meta(spec)
    check_weights(canonical_weights(model), weights, where=where)
    # Copies, in memory of PyTorch's alignment: tensors of safetensors are views of the mapped file,
    # which another process may replace, and a matmul of unaligned memory may round differently.
    own = {
        name: torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=tensor.device).copy_(
            tensor
        )
        for name, tensor in weights.items()
    }
    model.load_state_dict(own, strict=False, assign=True)  # shared tensors are stored once
    return model


_DRAWS = (
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.kaiming_uniform_,
    Tensor.uniform_,  # `xavier_uniform_` calls it past the mode; PyTorch 2.10 imports sympy for it
)


class _SkipInit(TorchFunctionMode):
    """A mode without random initial weights: the first draw on meta imports sympy, for 2 s."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function in _DRAWS:
            # Functions of `nn.init` return their tensor, which may be a keyword argument.
            return args[0] if args else (kwargs or {})["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def on_meta() -> Iterator[None]:
    """Build modules on the meta device inside this context: tensors without memory or values."""
    with torch.device("meta"), _SkipInit():
        yield


def build_on_meta(spec: ModelSpec) -> AnyModel:
    """Return a model on the meta device: its tensors have shapes but neither values nor memory."""
    # 0.02 s instead of 0.45 for `transformer-base` with random weights.
    with on_meta():
        return build_model(spec)


def stored_shapes(spec: ModelSpec) -> dict[str, torch.Size]:
    """Return the shapes of a model's weights by canonical name, without allocating them."""
    return {n: t.shape for n, t in canonical_weights(build_on_meta(spec)).items()}


def canonical_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights to store, detached; a tensor that several modules share appears once.

    Tensors that are parts of a fused matrix are views of it.
    """
    weights: dict[str, Tensor] = {}
    seen: set[tuple[int, int, torch.Size]] = set()
    for name, tensor in model.state_dict().items():
        # The storage, not its address: tensors on the meta device have none.
        place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape)
        # Empty tensors, of attentions that lost all heads, share one place and are no aliases.
        if place not in seen or not tensor.numel():
            seen.add(place)
            weights[name] = tensor
    return weights


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, where: str) -> None:
    """Copy stored weights into a model.

    Args:
        model: model of the spec that the weights were stored with.
        weights: exactly the tensors of `canonical_weights`.
        where: file of the weights, for the error message.

    Raises:
        ModelError: when tensors are missing, unknown or of another shape; it names them.
    """
    check_weights(canonical_weights(model), weights, where=where)
    # All at once: a fused matrix is joined from its parts by a hook that needs every one of them.
    result = model.load_state_dict(dict(weights), strict=False)
    # Missing keys are the aliases of shared tensors, which follow the stored one.
    assert not result.unexpected_keys


def check_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], *, where: str) -> None:
    """Refuse weights of another model.

    Args:
        own: weights of the model by canonical name; only their shapes are used.
        weights: stored weights.
        where: file of the stored weights, for the error message.

    Raises:
        ModelError: when tensors are missing, unknown or of another shape; it names them.
    """
    problems: list[str] = []
    if missing := sorted(own.keys() - weights.keys()):
        problems.append(f"missing: {_some(missing)}")
    if unknown := sorted(weights.keys() - own.keys()):
        problems.append(f"unknown: {_some(unknown)}")
    wrong = [
        f"{name} is {list(weights[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if wrong:
        problems.append(f"of another shape: {_some(wrong)}")
    if problems:
        raise ModelError(
            f"The weights do not fit the model ({'; '.join(problems)})",
            where=where,
            remedy="Use the weights and the config.json that were saved together",
        )


def _some(items: list[str]) -> str:
    first = ", ".join(items[:_SHOWN])
    more = len(items) - _SHOWN
    return f"{first} and {more} more" if more > 0 else first
