"""Training by graphs that PyTorch compiles: for any sizes, or for one.

The model's blocks are compiled, each as one graph without a break, with its backward pass. Blocks
of a stack are alike, so one graph serves them all: `transformer-big` takes 46 seconds on an H100's
host, and as one whole graph 172, for no more speed (torchtitan compiles layer by layer for the same
reason). A model without blocks is compiled as a whole. The loss is compiled chunk by chunk; seeds,
accumulation, clipping, the optimiser and passes with captures are not. Padding stays in: a graph
cannot have as many rows as there happen to be tokens.

The choice of an attention kernel is part of a graph. It is made by a plan for the device's type,
given as a value, so that the plan for CUDA can be asked, and traced, on a processor. What the plan
needs of positions, the blocks of pairs that a mask leaves, is made once before the blocks run.

The first batch is passed through and forgotten before the first update, always the same one: a
failure costs nothing, the warm-up is a number, and a resumed run is compiled for the same sizes.
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
"""Forms of a function that are compiled, each for inputs that the others do not serve. What fits
none of them then runs uncompiled."""


class CompiledEngine:
    """Training of one model by compiled graphs; see `TrainingEngine`.

    A graph is made when a kind of input first comes.

    Args:
        model: the model to train.
        events: receive the number of graphs and the seconds they took.
        asked_for: a failure is an error; else it is a warning, and training goes on without.
        one_shape: batches have one shape, for which the graphs are made; parts of a batch, where
            memory runs out, get another that serves any sizes.
        device: type of the device that the graphs are planned for; the model's own if None.
        backend: compiles a graph: PyTorch's own, or `eager` and `aot_eager`, which only trace it.

    Attributes:
        graphs: how many there are.
    """

    def __init__(
        self,
        model: nn.Module,
        events: Events,
        *,
        asked_for: bool,
        one_shape: bool = False,
        device: str | None = None,
        backend: str = "inductor",
    ) -> None:
        self.model = model
        self._device = device or next(model.parameters()).device.type
        self._backend = torch._dynamo.lookup_backend(backend)
        self._exchange = Exchange(model, compiled_kinds(self._device))
        self.losses = MaskedLosses(compiled=backend == "inductor")
        self.events = events
        self.asked_for = asked_for
        self.graphs = 0
        self._reported = 0
        self._parts = blocks_of(model) or [model]
        own = _with_code_of_its_own(self._parts[0])
        dynamic = None if one_shape else True  # None: once sizes differ
        self._compiled = torch.compile(own, dynamic=dynamic, backend=self._compile, fullgraph=True)

    @contextmanager
    def active(self) -> Iterator[None]:
        """A context in which the model runs compiled, unless something of a pass is captured."""
        before = [vars(part).get("forward") for part in self._parts]
        for part, own in zip(self._parts, before, strict=True):
            compiled = functools.partial(self._forward, part)
            vars(part)["forward"] = (
                own.of_compiled(compiled) if isinstance(own, CheckpointedForward) else compiled
            )
        try:
            with self._exchange.made(), warnings.catch_warnings():
                # Constants that are kept on a device are constants of a graph too.
                warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru_")
                # The compiler looks at what comes of the block before as it does at parameters.
                warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not")
                yield
        finally:
            for part, own in zip(self._parts, before, strict=True):
                del vars(part)["forward"]
                if own is not None:
                    vars(part)["forward"] = own

    @contextmanager
    def reported(self, step: int) -> Iterator[None]:
        """A context that reports afterwards what was compiled within it, and how long it took.

        Args:
            step: of the update.
        """
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
        """See `TrainingEngine.explain`."""
        what = f"{len(self._parts)} blocks share {self.graphs} graphs planned for {self._device}"
        if self._device != "cuda":
            return f"{what}; attention by PyTorch's fused kernel or plain products"
        return (
            f"{what}; attention by FlashAttention where rows are whole texts and nothing else is "
            "asked of scores, by flex_attention elsewhere"
        )

    def failed(self, error: Exception) -> None:
        """Say that compiling failed, and that training goes on without.

        Args:
            error: from a pass or its backward; raised again when it is about something else.

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
        if any(_looks(each) for each in (*inputs, *options.values())):
            return type(part).forward(part, *inputs, **options)
        with _bounded():
            try:
                return self._compiled(part, *inputs, **options)
            except Exception as error:
                if type(error).__name__ != "FailOnRecompileLimitHit":
                    raise
                # One form more than are compiled: it is computed as it is written.
                return type(part).forward(part, *inputs, **options)

    def _compile(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = self._backend(graph, inputs)
        self.graphs += 1
        return compiled


def _looks(given: object) -> bool:
    """True for an argument of a pass that is, or holds, a capture of its inside."""
    return isinstance(given, Capture) or getattr(given, "capture", None) is not None


def _with_code_of_its_own(like: nn.Module) -> Callable[..., Any]:
    """A copy of a class's forward; PyTorch counts graphs by code, which all instances share."""
    forward = type(like).forward

    def call(part: nn.Module, *inputs: Any, **options: Any) -> Any:
        return forward(part, *inputs, **options)

    return FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)


@contextmanager
def _bounded() -> Iterator[None]:
    """A context in which few graphs are made, each for as many inputs as can be.

    Sizes that happen to be equal in the first batch (sources as long as targets) are not taken for
    the same size.
    """
    sizes: Any = torch.fx.experimental._config
    with (
        torch._dynamo.config.patch(recompile_limit=MOST_FORMS),
        sizes.patch(use_duck_shape=False),
    ):
        yield


def why_not_compiled(error: BaseException) -> str | None:
    """The reason why compiling failed, in a line; None when an error is not about compiling.

    Args:
        error: as PyTorch raised it.
    """
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    of_compiler = [each for each in chain if _is_of_compiler(each)]
    if not of_compiler:
        return None
    cause: BaseException = of_compiler[-1]
    while (inner := getattr(cause, "inner_exception", None)) is not None:
        cause = inner
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    first = lines[0] if lines else type(cause).__name__
    more = [line for line in lines[1:] if "error:" in line.lower()][:1]
    return ": ".join([first.rstrip(".:"), *more])


def _is_of_compiler(error: BaseException) -> bool:
    return type(error).__module__.startswith(("torch._dynamo.", "torch._inductor."))
