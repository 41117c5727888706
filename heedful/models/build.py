"""From a spec to its model: with new weights, or around stored ones.

Stored weights have canonical names: a tensor that several modules share appears once, and maps that
run as one product (`heedful.nn.linear_layers`) are stored apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful.errors import ModelError
from heedful.models.model_spec import ModelSpec

if TYPE_CHECKING:
    from heedful.models.causal_lm import CausalLM
    from heedful.models.encoder import EncoderModel
    from heedful.models.translator import Translator
    from heedful.models.vision import VisionModel

    AnyModel = Translator | CausalLM | EncoderModel | VisionModel

_MODELS = {
    "translator": ("heedful.models.translator", "Translator"),
    "causal_lm": ("heedful.models.causal_lm", "CausalLM"),
    "encoder": ("heedful.models.encoder", "EncoderModel"),
    "vision": ("heedful.models.vision", "VisionModel"),
}
"""Module and class of each kind, imported when one is built: a translator needs no encoder."""

_SHOWN = 5


def build_model(spec: ModelSpec) -> AnyModel:
    """Return a model with new weights.

    Args:
        spec: the complete description; its `kind` names the class.
    """
    module, name = _MODELS[spec.kind]
    model: AnyModel = getattr(import_module(module), name)(spec)
    return model


def build_around(
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    *,
    where: str,
    dtype: torch.dtype | None = torch.float32,
) -> AnyModel:
    """Return a model with stored weights; none are drawn first.

    Args:
        spec: the complete description.
        weights: exactly the tensors of `canonical_weights`.
        where: the file they come from, for the error message.
        dtype: of the model; None keeps each tensor's own.

    Raises:
        ModelError: listing the tensors that are missing, unknown or of another shape.
    """
    model = build_on_meta(spec)
    check_weights(canonical_weights(model), weights, where=where)
    # Copies, in memory of PyTorch's alignment: tensors of safetensors are views of the mapped file,
    # which another process may replace, and products over them may round differently.
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
    Tensor.uniform_,  # of `xavier_uniform_`, which asks no mode; PyTorch 2.10 imports sympy for it
)


class _SkipInit(TorchFunctionMode):
    """A mode without random first weights: their first draw on meta imports sympy, for 2 s."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function in _DRAWS:
            return args[0] if args else (kwargs or {})["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def on_meta() -> Iterator[None]:
    """Build modules without numbers inside this context: on the meta device, none drawn."""
    with torch.device("meta"), _SkipInit():
        yield


def build_on_meta(spec: ModelSpec) -> AnyModel:
    """Return a model whose tensors have a shape and no numbers; takes no memory."""
    with on_meta():
        return build_model(spec)


def stored_shapes(spec: ModelSpec) -> dict[str, torch.Size]:
    """Return the canonical names of a model's weights and their shapes; takes no memory."""
    return {n: t.shape for n, t in canonical_weights(build_on_meta(spec)).items()}


def canonical_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights to store, detached; a tensor that several modules share appears once.

    Tensors are views of the model's own where the model stores them so.
    """
    weights: dict[str, Tensor] = {}
    seen: set[tuple[int, int, torch.Size]] = set()
    for name, tensor in model.state_dict().items():
        # Not the address: tensors on the meta device have none.
        place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape)
        # Tensors without numbers are all at one place: those of heads that were pruned.
        if place not in seen or not tensor.numel():
            seen.add(place)
            weights[name] = tensor
    return weights


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, where: str) -> None:
    """Copy stored weights into a model.

    Args:
        model: built from the spec the weights were stored with.
        weights: exactly the tensors of `canonical_weights`.
        where: the file they come from, for the error message.

    Raises:
        ModelError: listing the tensors that are missing, unknown or of another shape.
    """
    check_weights(canonical_weights(model), weights, where=where)
    # Fused maps load through their hooks, which want every part at once; shared tensors follow.
    result = model.load_state_dict(dict(weights), strict=False)
    assert not result.unexpected_keys


def check_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], *, where: str) -> None:
    """Refuse weights of another model.

    Args:
        own: the model's, by canonical name; only their shapes are used.
        weights: the stored ones.
        where: the file they come from, for the error message.

    Raises:
        ModelError: listing the tensors that are missing, unknown or of another shape.
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
