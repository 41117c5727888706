"""Training by graphs that PyTorch compiles, for any sizes or for one shape.

The model's blocks are compiled, each as one graph without a break, with its backward pass. Blocks
of a stack are alike, so one graph serves them all: `transformer-big` takes 46 seconds on an H100's
host, and as one whole graph 172, for no more speed (torchtitan compiles layer by layer for the same
reason). A model without blocks is compiled as a whole. The loss is compiled chunk by chunk; seeds,
accumulation, clipping, the optimiser and passes with captures are not. Padding stays in, because a
graph cannot follow the number of real tokens.

The choice of an attention kernel is part of a graph. A plan for a type of device makes it, so the
plan for CUDA can be queried and traced on a processor. The block masks that the plan needs are made
from the positions once, before the blocks run.

Before the first update the first batch passes through without effect. It is always the same batch,
so a failure costs nothing, the warm-up can be measured, and a resumed run is compiled for the same
sizes.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from heedful.engines.class_exchange import Exchange
from heedful.engines.training.activation_checkpointing import CheckpointedForward, blocks_of
from heedful.engines.training.masked_loss import MaskedLosses
from heedful.engines.training.traced_parts import compiled_kinds
from heedful.errors import RunError
from heedful.nn.capture import Capture

if TYPE_CHECKING:
    from heedful.events import Events

MOST_FORMS = 8
"""Most compiled forms of a function, each for inputs that the others do not serve. Inputs of a
further form run uncompiled."""


class CompiledEngine:
    """Training of one model by compiled graphs; see `TrainingEngine`.

    A graph is compiled at the first input of each kind.

    Args:
        model: model to train.
        events: receiver of the number of graphs and of the seconds they took.
        asked_for: flag that a failure to compile is an error; otherwise it is a warning, and
            training goes on uncompiled.
        one_shape: flag that all batches have one shape, for which the graphs are made. Parts of a
            batch that did not fit in memory get another graph, for any sizes.

    Attributes:
        graphs: number of graphs so far.
    """

    def __init__(
        self,
        model: nn.Module,
        events: Events,
        *,
        asked_for: bool,
        one_shape: bool = False,
    ) -> None:
        self.model = model
        self._device = next(model.parameters()).device.type
        self._backend: Callable[..., Any] = torch._dynamo.lookup_backend("inductor")
        self._exchange = Exchange(model, compiled_kinds(self._device))
        self.losses = MaskedLosses(compiled=True)
        self.events = events
        self.asked_for = asked_for
        self.graphs = 0
        self._reported = 0
        self._parts = blocks_of(model) or [model]

        # All parts share one compiled function and its graphs: the blocks of a stack are alike.
        own = _copied_forward(self._parts[0])
        dynamic = None if one_shape else True  # None: sizes are fixed until another one comes
        self._compiled = torch.compile(own, dynamic=dynamic, backend=self._compile, fullgraph=True)

    @contextmanager
    def active(self) -> Iterator[None]:
        """A context in which the model runs compiled, except passes with a capture."""
        before = [vars(part).get("forward") for part in self._parts]
        # The compiled pass is set in the instances: `torch.compile(block)` would wrap the block,
        # and put `_orig_mod` into the names of a checkpoint.
        for part, own in zip(self._parts, before, strict=True):
            compiled = functools.partial(self._forward, part)
            vars(part)["forward"] = (
                own.of_compiled(compiled) if isinstance(own, CheckpointedForward) else compiled
            )
        try:
            with self._exchange.made(), warnings.catch_warnings():
                # Cached constants (masks, sinusoids) become constants of a graph, as intended.
                warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru_")
                # Dynamo reads `.grad` of every input, and a block's input is no leaf tensor.
                warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not")
                # The precision of float32 is a setting of the run, and no oversight.
                warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
                yield
        finally:
            for part, own in zip(self._parts, before, strict=True):
                del vars(part)["forward"]
                if own is not None:
                    vars(part)["forward"] = own

    @contextmanager
    def reported(self, step: int) -> Iterator[None]:
        """A context that reports, when it ends, the graphs compiled within it at an update."""
        started = time.monotonic()
        yield
        if self.graphs == self._reported:
            return
        seconds = time.monotonic() - started
        added, self._reported = self.graphs - self._reported, self.graphs
        values = {"graphs": self.graphs, "seconds": round(seconds, 3)}
        self.events.metric(step, values, "compile")
        new = f"{added} graph{'s' * (added > 1)}"
        now = f"; there are {self.graphs} now" if added < self.graphs else ""
        self.events.note(f"Compiled {new} in {seconds:.0f} seconds at step {step}{now}")

    def explain(self) -> str:
        what = f"{len(self._parts)} blocks share {self.graphs} graphs planned for {self._device}"
        if self._device != "cuda":
            return f"{what}; attention by PyTorch's fused kernel or plain products"
        return (
            f"{what}; attention by FlashAttention or cuDNN where rows are whole texts and nothing "
            "else is asked of scores, by plain products for short rows, by flex_attention elsewhere"
        )

    def failed(self, error: Exception) -> None:
        """Warn that compiling failed and that training goes on uncompiled.

        Args:
            error: error of a forward or backward pass; raised again if it has another cause.

        Raises:
            RunError: when compiling was asked for.
        """
        why = why_not_compiled(error)
        if why is None:
            raise error
        what = f"Training's pass could not be compiled: {why}"
        if self.asked_for:
            remedy = "Use compile = off, or mend what is missing (HEEDFUL_DEBUG=1 shows all of it)"
            raise RunError(what, where="compile = on", remedy=remedy) from error
        self.events.warn(f"{what}. Training goes on uncompiled")

    def _forward(self, part: nn.Module, *inputs: Any, **options: Any) -> Any:
        # A capture is an argument of a model's pass, and a field of a block's context.
        arguments = (*inputs, *options.values())
        if any(
            isinstance(each, Capture) or getattr(each, "capture", None) is not None
            for each in arguments
        ):
            return type(part).forward(part, *inputs, **options)
        with _bounded():
            try:
                return self._compiled(part, *inputs, **options)
            except Exception as error:
                if type(error).__name__ != "FailOnRecompileLimitHit":
                    raise
                # The limit of forms is reached; `fullgraph` turns that into an error.
                return type(part).forward(part, *inputs, **options)

    def _compile(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = self._backend(graph, inputs, config_patches=_patches())
        # Dynamo calls the backend once for each graph: recompilations count too.
        self.graphs += 1
        return compiled


@functools.cache
def _patches() -> dict[str, Any]:
    """Return the settings of the compiler that differ from its own."""
    from torch._inductor import config

    # Sums over rows inside of kernels over columns leave partial sums to a slow kernel: gradients
    # of norms took 2.7 of an update's 30 ms that way, and 2.0 without (GPT-2, H100, torch 2.11).
    known = hasattr(config.triton, "mix_order_reduction")
    return {"triton.mix_order_reduction": False} if known else {}


def _copied_forward(like: nn.Module) -> Callable[..., Any]:
    """Copy a class's forward: PyTorch counts graphs by code object, which all models share."""
    forward = type(like).forward

    def call(part: nn.Module, *inputs: Any, **options: Any) -> Any:
        return forward(part, *inputs, **options)

    return FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)


@contextmanager
def _bounded() -> Iterator[None]:
    """A context in which few graphs are made, each for as many inputs as possible."""
    # Duck shaping takes sizes that are equal in the first batch (sources as long as targets) for
    # one size, and compiles again when they differ: one of three graphs of 50 to 130 seconds each
    # in the first six updates of `tiny` on a processor (torch 2.13).
    sizes: Any = torch.fx.experimental._config
    with (
        torch._dynamo.config.patch(recompile_limit=MOST_FORMS),
        sizes.patch(use_duck_shape=False),
    ):
        yield


def why_not_compiled(error: BaseException) -> str | None:
    """Return in one line why compiling failed; None for an error with another cause."""
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    # PyTorch wraps the cause several times; the innermost error of the compiler is the clearest.
    modules = ("torch._dynamo.", "torch._inductor.")
    of_compiler = [each for each in chain if type(each).__module__.startswith(modules)]
    if not of_compiler:
        return None
    cause: BaseException = of_compiler[-1]
    while (inner := getattr(cause, "inner_exception", None)) is not None:
        cause = inner
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    first = lines[0] if lines else type(cause).__name__
    # A C++ compiler's complaint stands deep in the message, below the command line.
    more = [line for line in lines[1:] if "error:" in line.lower()][:1]
    return ": ".join([first.rstrip(".:"), *more])
