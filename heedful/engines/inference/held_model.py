"""A model as its definition for people, and the engine that computes it, kept in step.

An engine holds packed copies of weights and takes addresses once, so nobody may touch it. People
get the definition, an ordinary `nn.Module`. It is read when they ask for it first; from then on
each call looks whether it has changed, and makes the engine again where it has. What no longer is
what the spec describes is computed by the definition itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import is_
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from heedful.device import Precision, RunningPrecision
from heedful.engines.inference.prepare import precision_of, prepare
from heedful.errors import ModelError, UserError, first_line
from heedful.memory import ran_out
from heedful.models.build import build_on_meta

if TYPE_CHECKING:
    from pathlib import Path

    from heedful.models.build import AnyModel

M = TypeVar("M", bound="AnyModel")

_SMALL = 1 << 14
"""Elements below which tensors are summed together: each sum of its own takes 20 µs."""

_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class HeldModel(Generic[M]):
    """A model and the engine that computes it.

    Args:
        engine: engine, or a definition that computes itself.
        read: reader of the definition of an engine; None where the engine is the definition.
        precision: precision that engines are made in; None where the definition computes itself.
    """

    def __init__(
        self,
        engine: M,
        read: Callable[[], M] | None = None,
        precision: Precision | RunningPrecision | None = None,
    ) -> None:
        self._engine: M | None = engine
        self._read = read
        self._asked_for = precision
        self._model: M | None = None if read is not None else engine
        self._pieces: list[object] = []
        self._sums: list[object] = []
        self._as_specified = True
        self._lock = Lock()

    @classmethod
    def prepared(
        cls,
        model: M,
        read: Callable[[], M],
        precision: Precision | RunningPrecision,
        device: torch.device,
        shared: Path | None = None,
    ) -> Self:
        """Make the engine of a model that nobody else holds.

        Args:
            model: model, whose weights are taken.
            read: reader of the same model, for people who ask for it.
            precision, device, shared: arguments of `prepare`.

        Raises:
            ConfigError: when the device does not have the precision.
        """
        engine = prepare(model, precision, device, donate=True, shared=shared)
        return cls(engine, partial(_read_to, read, device), precision)

    @property
    def model(self) -> M:
        """The definition, which anybody may change."""
        if self._model is None:
            assert self._read is not None
            # Parameters of inference mode could never be trained.
            with torch.inference_mode(False), torch.enable_grad():
                self._model = self._read()
            # The directory may hold newer weights by now, and both must be of the same ones.
            self._engine = None
        return self._model

    def replaced(self, model: M) -> HeldModel[M]:
        """Return another model of the same kind as one held, with an engine of the same precision.

        Args:
            model: definition.

        Raises:
            ModelError: when it is no model, or of another kind.
        """
        if not isinstance(model, nn.Module) or getattr(model, "spec", None) is None:
            raise ModelError(
                f"This is no model of Heedful, but of the type {type(model).__name__!r}",
                remedy="Give a model of the same kind, such as a changed copy of the old one",
            )
        if model.spec.kind != self.last.spec.kind:
            raise ModelError(
                f"The model's kind is {model.spec.kind!r}, not {self.last.spec.kind!r}",
                remedy="Give a model of the same kind, such as a changed copy of the old one",
            )
        other = HeldModel(model, None, self._asked_for or "auto")
        other._engine = None
        return other

    @property
    def last(self) -> M:
        """The model that computed last, or will: for those who look and compute nothing."""
        seen = self._engine if self._engine is not None else self._model
        assert seen is not None
        return seen

    @property
    def precision(self) -> Precision | None:
        """Precision of the engine; None where the definition computes."""
        return None if self._engine is None else precision_of(self._engine)

    def current(self) -> M:
        """Return what computes the model as it is now.

        Raises:
            ModelError: when the weights have no values.
        """
        model = self._model
        # Nobody has the definition of most models, and these lines are all that it costs them.
        if model is None or self._asked_for is None:
            assert self._engine is not None
            return self._engine
        with self._lock:
            _check_values(model)
            pieces, sums = list(_pieces(model)), checksums(model)
            same = len(pieces) == len(self._pieces) and all(map(is_, pieces, self._pieces))
            if self._engine is None or not same or sums != self._sums:
                self._as_specified = is_as_specified(model)
                # A copy: memory that an engine has addresses of must be nobody else's to free.
                self._engine = (
                    prepare(copy.deepcopy(model), self._asked_for, donate=True)
                    if self._as_specified
                    else model
                )
                self._pieces, self._sums = pieces, sums
            return self._engine

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in evaluation mode, in which a changed model's failure is said to be that.

        Raises:
            ModelError: when the definition cannot compute what somebody has made of it.
        """
        engine = self._engine
        training = engine is not None and engine.training
        try:
            if training:
                engine.eval()
            yield
        except Exception as error:
            if self._as_specified or isinstance(error, UserError) or ran_out(error):
                raise
            raise ModelError(
                f"The model was changed and cannot be computed: {first_line(error)}",
                remedy="Undo the change, or load the model again",
            ) from error
        finally:
            if training:
                engine.train()

    def __getstate__(self) -> dict[str, Any]:
        # An engine holds addresses of this process; a copy makes its own.
        return {"model": self.model, "precision": self._asked_for}

    def __setstate__(self, state: dict[str, Any]) -> None:
        HeldModel.__init__(self, state["model"], None, state["precision"])
        if self._asked_for is not None:
            self._engine = None


def _read_to(read: Callable[[], M], device: torch.device) -> M:
    return read().to(device).eval()


def _check_values(model: nn.Module) -> None:
    for name, tensor in model.named_parameters():
        # Kernels would read past the end of a storage that was emptied.
        extent = 1 + sum(
            (n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)
        )
        size = (tensor.storage_offset() + extent) * tensor.element_size()
        if tensor.is_meta or (tensor.numel() and tensor.untyped_storage().nbytes() < size):
            raise ModelError(
                "A weight of the model has no values",
                where=f"{name}, on the device {tensor.device.type!r}",
                remedy="Load the model again, or give it a weight with values",
            )


def is_as_specified(model: AnyModel) -> bool:
    """Return whether a model is what its spec describes: parts, settings, shapes, and no hooks.

    Args:
        model: model in float32 whose weights may have any values.
    """
    tensors = list(model.parameters())
    plain = all(
        each.dtype == torch.float32 and each.layout == torch.strided and each.is_contiguous()
        for each in tensors
    )
    if not plain or len({each.device for each in tensors}) != 1:
        return False
    built = build_on_meta(model.spec)
    # Names of shared parts and tensors appear once, so that untying changes the names.
    ours, theirs = dict(model.named_modules()), dict(built.named_modules())
    if ours.keys() != theirs.keys():
        return False
    if [(n, p.shape) for n, p in model.named_parameters()] != [
        (n, p.shape) for n, p in built.named_parameters()
    ]:
        return False
    return all(_settings(ours[name]) == _settings(theirs[name]) for name in ours)


def _settings(module: nn.Module) -> tuple[object, ...]:
    """Return the class and the attributes of a module, but for its tensors and children."""
    unused = ("training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
    values = {
        # Tensors without names, such as tables of angles, follow from the settings.
        name: tuple(value.shape) if isinstance(value, Tensor) else value
        for name, value in vars(module).items()
        if name not in unused
    }
    return type(module), sorted(module._buffers), values


def _pieces(model: nn.Module) -> Iterator[object]:
    """Yield the classes, attributes, children and hooks of all modules, to compare identities."""
    for module in model.modules():
        yield type(module)
        for name, value in vars(module).items():
            if isinstance(value, dict):
                yield from value.values()
            elif name != "training":
                yield value


def checksums(model: nn.Module) -> list[object]:
    """Return sums of the bits of all tensors of a model, which change with any element.

    Version counters miss `p.data.mul_(2)` and whatever NumPy writes, addresses miss more; 40 MB are
    summed in 5 ms.

    Args:
        model: model on any device.
    """
    tensors = [*model.parameters(), *model.buffers()]
    facts: list[object] = [(each.dtype, each.device, each.shape) for each in tensors]
    small: dict[torch.device, list[Tensor]] = {}
    sums: list[Tensor] = []
    for tensor in tensors:
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        flat = tensor.detach().contiguous().reshape(-1).view(_WHOLE_NUMBERS[tensor.element_size()])
        if len(flat) < _SMALL:
            small.setdefault(tensor.device, []).append(flat)
            continue
        # Two floats at a time where they are pairs: sums of 64 bits need no conversion.
        if flat.element_size() == 4 and len(flat) % 2 == 0 and flat.storage_offset() % 2 == 0:
            flat = flat.view(torch.int64)
        rows = flat[: len(flat) // 256 * 256].view(-1, 256)
        # Weighted by place, so that exchanged rows and columns show.
        sums += [_weighted(rows.sum(0)), _weighted(rows.sum(1))]
        small.setdefault(tensor.device, []).append(flat[rows.numel() :])
    sums += [_weighted(torch.cat(each)) for each in small.values()]
    return [*facts, *(int(each) for each in sums)]


def _weighted(values: Tensor) -> Tensor:
    return (values * torch.arange(1, len(values) + 1, device=values.device)).sum()


def held(models: Iterable[Any]) -> tuple[HeldModel[Any], ...]:
    """Return models as held ones; a definition computes itself."""
    return tuple(each if isinstance(each, HeldModel) else HeldModel(each) for each in models)
