"""Prepare a finished model for inference: the engine that runs it fastest on its device.

A processor runs translators and language models by kernels in C, or by oneDNN's packed matmuls
where the kernels were not compiled; a GPU replays their decoding steps as CUDA graphs. In 8 bits
every kind of model is packed. The definition computes all other models.

An engine holds packed copies of weights and takes addresses once, so nobody may touch it. People
get the definition, an ordinary `nn.Module`, which is read when they ask for it first. From then on
each call looks whether it has changed, and makes the engine anew where it has.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from inspect import isfunction
from operator import is_
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import torch
from torch import nn

from heedful.device import Precision, RunningPrecision, resolve_precision, standard_tensors
from heedful.engines.class_exchange import copy_model
from heedful.engines.inference.cpu_model import read_positions, use_kernels
from heedful.engines.inference.packed_linear import (
    Int8NativeLinear,
    MakeLayer,
    NativeLinear,
    PackedLinear,
    PackedProjection,
    int8_linear,
    pack_linear,
    packs,
)
from heedful.errors import ConfigError, ModelError, UserError, first_line
from heedful.kernels import library
from heedful.memory import ran_out, reuse_freed

if TYPE_CHECKING:
    from pathlib import Path

    from heedful.models.build import AnyModel
    from heedful.models.checkpoint import ReadModel

M = TypeVar("M", bound="Any")
"""A kind of `AnyModel`."""
_Method = tuple[type, str, Any]
"""A class, the name of a method that it defines, and the method."""


@standard_tensors()
def prepare(
    model: M,
    precision: Precision | RunningPrecision = "auto",
    device: torch.device | None = None,
    *,
    donate: bool = False,
    shared: Path | None = None,
) -> M:
    """Make an engine of a finished model: another object with the same methods.

    Args:
        model: finished model, which does not change and can still be trained, unless it is donated.
        precision: numeric precision. `auto` is float32 by the fastest exact route: PyTorch's routes
            are timed to choose one, kernels in C leave no choice. `bf16` stores the weights of
            decoders in bfloat16, so that no step converts them (without bfloat16 instructions
            matmuls are float32). `int8` quantizes the weights of all linear layers.
        device: device of the engine; the model's own if None.
        donate: flag that the parameters are taken from the model, which is unusable afterwards.
            Each parameter is freed as soon as it is packed.
        shared: folder in which processes share weights, see `map_weights`; None for no sharing.

    Returns:
        The engine, in eval mode; `precision_of` tells its precision.

    Raises:
        ConfigError: when the device does not have the precision.
    """
    if device is None:
        device = next(model.parameters()).device
    if not isinstance(precision, Precision):
        precision = _choose_precision(model, precision, device)
    engine = copy_model(model, donate=donate)
    engine.to(device).eval()
    if device.type == "cpu":
        read_positions(engine)
    # `nn.Module.__setattr__` is bypassed, so that no state dict contains this attribute.
    vars(engine)["precision"] = _convert(engine, precision, shared)
    return engine


def precision_of(model: torch.nn.Module) -> Precision | None:
    """Return the precision that a model was prepared in; None for a model that is no engine."""
    return cast("Precision | None", vars(model).get("precision"))


def _choose_precision(model: AnyModel, name: RunningPrecision, device: torch.device) -> Precision:
    # A named precision needs no timing, which matters at a cold start.
    native = model.spec.generates and device.type == "cpu" and library.kernels() is not None
    if name == "auto" and native:
        return Precision("fp32", "cpu", reason="kernels in C")
    return resolve_precision(name, device, width=model.spec.width, exact=True)


def _convert(engine: AnyModel, precision: Precision, shared: Path | None) -> Precision:
    """Replace the parts of an engine; return the precision it runs in."""
    generates = engine.spec.generates
    if generates and precision.device == "cpu":
        # Each decoding step frees and takes the same megabytes; page faults took a tenth of the
        # time of a small model.
        reuse_freed()
    if precision.name == "int8":
        linear = int8_linear()
        if linear is None:
            raise ConfigError(
                "This processor or this PyTorch has no exact products of 8-bit integers",
                where="precision = int8",
                remedy="Use auto, fp32 or bf16",
            )
        _pack(engine, linear, shared)
        use_kernels(engine, native=linear is Int8NativeLinear)
        return replace(precision, stored=True)
    if not generates or precision.device not in ("cpu", "cuda"):
        return precision
    # Stored once in bfloat16: autocast would convert all weights in every decoding step.
    if precision.name == "bf16":
        engine.to(torch.bfloat16)
        precision = replace(precision, stored=True)
    if precision.device == "cuda":
        from heedful.engines.inference.gpu_model import use_cuda_graphs  # a processor has no graphs

        use_cuda_graphs(engine)
    elif precision.name == "fp32" and library.kernels() is not None:
        _pack(engine, NativeLinear, shared)
        use_kernels(engine, native=True)
    # oneDNN serves bfloat16, and float32 where no kernels in C were compiled.
    elif packs(torch.bfloat16 if precision.name == "bf16" else torch.float32):
        _pack(engine, PackedLinear, shared)
    # PyTorch would emulate bfloat16 here, at a tenth of the rate of float32.
    elif precision.name == "bf16" and library.kernels() is not None:
        _pack(engine, NativeLinear, shared)
        reason = "no bfloat16 products here: numbers are rounded to it, products are of float32"
        precision = replace(precision, reason=reason)
    return precision


def _pack(engine: AnyModel, linear: MakeLayer, shared: Path | None) -> None:
    """Replace all linear layers by packed ones, and the output projection of a decoder."""
    pack_linear(engine, linear)
    if engine.spec.generates:
        decoder: Any = engine
        decoder.output_projection = PackedProjection(
            decoder.output_projection, decoder.output_bias, linear
        )
    # Weights are shared after packing, as processes share the packed form, and before addresses are
    # taken.
    if shared is not None:
        from heedful.engines.inference.mapped_weights import map_weights  # for workers of a server

        map_weights(engine, shared)


@cache
def _let_forks_compute() -> None:
    """Let processes that are forked from this one compute, in one thread."""
    # A fork lacks the threads that GNU's OpenMP has started, so its first product in several
    # threads would wait for them forever.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


class HeldModel(Generic[M]):
    """A model and the engine that computes it.

    Args:
        engine: engine, or a definition that computes itself.
        read: reader of the definition of an engine; None where the engine is the definition.
        precision: precision that engines are made in; None where the definition computes itself.
        methods: methods of the definition's classes; those of the engine's if unset.
    """

    def __init__(
        self,
        engine: M,
        read: Callable[[], M] | None = None,
        precision: Precision | RunningPrecision | None = None,
        methods: Sequence[_Method] | None = None,
    ) -> None:
        _let_forks_compute()
        self._engine: M | None = engine
        self._read = read
        self._asked_for = precision
        self._model: M | None = None if read is not None else engine
        self._pieces: list[object] = []
        self._sums: list[object] = []
        self._as_specified = True
        self._methods = _methods_of(engine) if methods is None else methods
        self._was_patched = False
        self._lock = Lock()

    @classmethod
    def prepared(
        cls,
        model: M,
        read: ReadModel,
        path: Path,
        precision: Precision | RunningPrecision,
        device: torch.device,
        shared: Path | None = None,
    ) -> Self:
        """Make the engine of a model that nobody else holds.

        Args:
            model: model, whose weights are taken.
            read: reader of the same model, for people who ask for it.
            path: its directory.
            precision, device, shared: arguments of `prepare`.

        Raises:
            ConfigError: when the device does not have the precision.
        """
        methods = _methods_of(model)  # an engine has classes of its own
        engine = prepare(model, precision, device, donate=True, shared=shared)
        return cls(engine, partial(_read_to, read, path, device), precision, methods)

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
        spec: Any = getattr(model, "spec", None)
        if not isinstance(model, nn.Module) or spec is None:
            raise ModelError(
                f"This is no model of Heedful, but of the type {type(model).__name__!r}",
                remedy="Give a model of the same kind, such as a changed copy of the old one",
            )
        kind, known = spec.kind, self.last.spec.kind
        if kind != known:
            raise ModelError(
                f"The model's kind is {kind!r}, not {known!r}",
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
        patched = any(
            vars(owner).get(name) is not method or method.__module__ != owner.__module__
            for owner, name, method in self._methods
        )
        # Nobody has the definition of most models, and these lines are all that it costs them.
        if self._asked_for is None or (model is None and not patched):
            assert self._engine is not None
            return self._engine
        model = self.model
        with self._lock:
            from heedful.engines.inference import model_changes

            model_changes.check_values(model)
            pieces, sums = list(model_changes.pieces(model)), model_changes.checksums(model)
            same = len(pieces) == len(self._pieces) and all(map(is_, pieces, self._pieces))
            same = same and sums == self._sums and patched == self._was_patched
            if self._engine is None or not same:
                # An engine would not call a method that somebody has put into a class.
                self._as_specified = not patched and model_changes.is_as_specified(model)
                # A copy: memory that an engine has addresses of must be nobody else's to free.
                self._engine = (
                    prepare(copy.deepcopy(model), self._asked_for, donate=True)
                    if self._as_specified
                    else model
                )
                self._pieces, self._sums, self._was_patched = pieces, sums, patched
            return self._engine

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in evaluation mode, in which a changed model's failure is said to be that.

        Raises:
            ModelError: when the definition cannot compute what somebody has made of it.
        """
        engine = self.last
        training = engine.training
        try:
            if training:
                engine.eval()
            with standard_tensors():
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


def _methods_of(model: nn.Module) -> list[_Method]:
    """Return the methods of the classes that a definition is made of, but for PyTorch's own."""
    owners = dict.fromkeys(owner for each in model.modules() for owner in type(each).__mro__)
    return [
        (owner, name, value)
        for owner in owners
        if owner.__module__.partition(".")[0] not in ("torch", "builtins", "typing", "abc")
        for name, value in vars(owner).items()
        if isfunction(value)
    ]


@standard_tensors()
def _read_to(read: ReadModel, path: Path, device: torch.device) -> Any:
    model, _ = read(path)
    model.to(device).eval()
    return model


def held(models: Iterable[Any]) -> tuple[HeldModel[Any], ...]:
    """Return models as held ones; a definition computes itself."""
    return tuple(each if isinstance(each, HeldModel) else HeldModel(each) for each in models)
