"""Whole updates as CUDA graphs, which a GPU replays without being told each kernel.

An update of a small model is some thousand kernels of a few microseconds, each of which takes a
processor longer to start than a GPU to run. A graph starts them all at once, but always the same
ones, on the same memory, with one seed of random numbers. So it is recorded of a piece: one part of
an update from its forward pass to its gradients, with whatever goes before the first part (zeroing
gradients) and after the last one (their length, clipping, the step). An update of one part is one
graph. Batches are copied into the memory of their shape's graphs, learning rate and number of
tokens lie on the device, and the seed is set before each replay, as it is without graphs.

What is computed does not depend on which shapes have graphs: updates without one look at shapes
alone, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.data.batches import tensors_of
from heedful.memory import ran_out, release
from heedful.train.objective import CarriedState, LossContext
from heedful.train.optimizers import DeviceStep
from heedful.train.splitting import BatchPart, derive_seed, parts_of
from heedful.train.static_shapes import rounded_up, static_key, static_shapes
from heedful.train.update import Updater
from heedful.train.update_result import LaunchedUpdate, read_later

if TYPE_CHECKING:
    from heedful.events import Events
    from heedful.train.batch_source import Batch

MOST_SHAPES = 16
"""Shapes of batches that get graphs, each with up to four; the rest runs without."""

Replay = Callable[[], Tensor]
"""Does what was recorded, with what stands in its memory now."""

Record = Callable[[Callable[[], Tensor]], Replay]
"""Makes of a function of no arguments another that does the same again; runs it once before."""


@dataclass(eq=False)
class _Shape:
    """The graphs of a shape of batches.

    Args:
        batch: on the device, that they read.
        graphs: by whether they are of an update's first part, and whether of its last.
    """

    batch: Batch
    graphs: dict[tuple[bool, bool], Replay] = field(default_factory=dict)

    def fill(self, batch: Batch) -> None:
        """Put another batch of the shape into the graphs' memory."""
        source: Any = batch
        own: Any = self.batch
        for (name, memory), (_, tensor) in zip(tensors_of(own), tensors_of(source), strict=True):
            if name != "indices":
                memory.copy_(tensor, non_blocking=True)


class GraphedUpdater(Updater):
    """Makes updates by graphs where it can; for objectives that can be static, in one process.

    The first update records the graphs of its shape before anything is learned; where that fails,
    all updates run as they do without. Other shapes get theirs when they come for the second time.

    Args:
        *args: as of `Updater`.
        record: makes a graph of a piece of an update.
        events: receive notes.
        rounds: whether padded batches are rounded up to few shapes.
        **options: as of `Updater`.
    """

    def __init__(
        self, *args: Any, record: Record, events: Events, rounds: bool = False, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.record = record
        self.events = events
        self.rounds = rounds
        self.step_on_device = self.device_step or DeviceStep(self.optimizer, self.device)
        self.device_step = self.step_on_device
        self._shapes: dict[Any, _Shape | None] = {}
        self._static_gradients: list[tuple[torch.nn.Parameter, Tensor]] = []
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self._norm = torch.zeros((), dtype=self.parameters[0].dtype, device=self.device)
        self._names: tuple[str, ...] = ()
        self._is_static = True
        self._records = True

    def launch(
        self,
        batches: Sequence[Batch | BatchPart],
        step: int,
        learning_rate: float,
        cancelled: Callable[[], bool] = lambda: False,
        carried_state: CarriedState | None = None,
    ) -> LaunchedUpdate | None:
        """See `Updater.launch`."""
        assert not carried_state, "graphs have no memory of the batch before"
        parts = parts_of(batches)
        if self._is_static:
            same = [replace(p, batch=rounded_up(p.batch)) if self.rounds else p for p in parts]
            with static_shapes():
                shapes = self._recorded(same)
                if shapes is not None:
                    return self._replayed(same, shapes, step, learning_rate, cancelled)
                if self._is_static:
                    return self._ordinary(same, step, learning_rate, cancelled)
        return super().launch(parts, step, learning_rate, cancelled)

    def load_moments(self, tensors: dict[str, Tensor]) -> None:
        """See `Updater.load_moments`; graphs of the moments before are forgotten."""
        self._shapes.clear()
        super().load_moments(tensors)

    def _ordinary(
        self, parts: Sequence[BatchPart], step: int, rate: float, cancelled: Callable[[], bool]
    ) -> LaunchedUpdate | None:
        launched = super().launch(parts, step, rate, cancelled)
        if self.splitting.most is not None and self._records:
            self._give_up("memory ran out")
        return launched

    def _give_up(self, why: str) -> None:
        """Record nothing from now on, and return the memory of all graphs."""
        self._records = False
        self._shapes.clear()
        self._static_gradients.clear()
        release()
        self.events.note(f"Updates are not recorded as CUDA graphs: {why}")

    # Recording

    def _recorded(self, parts: Sequence[BatchPart]) -> list[_Shape] | None:
        """The shape of each part, with the graphs of its piece; None if a part is to have none."""
        if not self._records or not all(part.counts for part in parts):
            return None
        shapes = [self._shape(part.batch) for part in parts]
        if not all(shapes):
            return None
        is_first = not self._static_gradients
        found = [shape for shape in shapes if shape is not None]
        try:
            for number, shape in enumerate(found):
                piece = number == 0, number == len(parts) - 1
                if piece not in shape.graphs:
                    shape.graphs[piece] = self._graph(shape.batch, *piece)
        except (MemoryError, RuntimeError) as error:
            self._is_static = not is_first
            self._give_up("memory ran out" if ran_out(error) else _first_line(error))
            return None
        if is_first:
            self.events.note("Updates run as CUDA graphs, recorded for each shape of batches")
        return found

    def _shape(self, batch: Batch) -> _Shape | None:
        """The memory of a batch's shape; None when it comes for the first time, or too late."""
        key = static_key(batch)
        found = self._shapes.get(key)
        if found is not None:
            return found
        is_known = key in self._shapes
        self._shapes.setdefault(key, None)
        count = sum(each is not None for each in self._shapes.values())
        if count >= MOST_SHAPES or (self._static_gradients and not is_known):
            return None
        self._shapes[key] = made = _Shape(_cloned(batch.to(self.device)))
        return made

    def _graph(self, batch: Batch, first: bool, last: bool) -> Replay:
        """Record a piece; what runs before it is recorded changes nothing."""
        skipped = self.step_on_device.skipped
        before = skipped.clone()
        skipped.fill_(1.0)
        self.model.train()
        try:
            with _capturable(self.optimizer):
                self._find_gradients(batch)
                return self.record(lambda: self._piece(batch, first, last))
        finally:
            skipped.copy_(before)

    def _find_gradients(self, batch: Batch) -> None:
        """Learn from a batch and forget it: parameters with gradients keep those tensors."""
        if self._static_gradients:
            self._give_gradients()
            return
        self.optimizer.zero_grad(set_to_none=True)
        with (self.compiled or self.engine).active():
            loss, _ = self._pass(batch)
            loss.backward()
        self._static_gradients = [(p, p.grad) for p in self.parameters if p.grad is not None]

    def _give_gradients(self) -> None:
        """Let parameters have the tensors that graphs put gradients into."""
        first, gradient = self._static_gradients[0]
        if first.grad is not gradient:
            for parameter in self.parameters:
                parameter.grad = None
            for parameter, gradient in self._static_gradients:
                parameter.grad = gradient

    def _pass(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss [] over the update's tokens, and the sums [] over the batch's by name."""
        with self.precision.autocast():
            result = self.distribution.loss(batch, LossContext(0, losses=self.losses))
        sums = {"loss": result.loss_sum, **result.extras}
        detached = {name: value.detach() for name, value in sums.items()}
        return result.loss_sum / self.step_on_device.tokens, detached

    def _piece(self, batch: Batch, first: bool, last: bool) -> Tensor:
        """Compute one part of an update; the sums [names] over its tokens."""
        gradients = [gradient for _, gradient in self._static_gradients]
        if first:
            torch._foreach_zero_(gradients)
            self._loss_sum.zero_()
        with (self.compiled or self.engine).active():
            loss, sums = self._pass(batch)
            loss.backward()
        if sum(p.grad is not None for p in self.parameters) != len(gradients):
            raise RuntimeError("parts of an update have gradients of different parameters")
        self._loss_sum += sums["loss"].double()
        if last:
            device_step = self.step_on_device
            self._norm.copy_(self.distribution.norm(gradients))
            device_step.take(self._loss_sum, self._norm, self.clip_norm)
        self._names = tuple(sums)
        return torch.stack(list(sums.values()))

    # Replaying

    def _replayed(
        self,
        parts: Sequence[BatchPart],
        shapes: Sequence[_Shape],
        step: int,
        rate: float,
        cancelled: Callable[[], bool],
    ) -> LaunchedUpdate | None:
        tokens = sum(part.tokens for part in parts)
        if not self.model.training:
            self.model.train()
        self._give_gradients()
        self.step_on_device.begin(tokens, rate)
        values = []
        for number, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
            if cancelled():
                return None
            shape.fill(part.batch if self.copies is None else self.copies.copied(part.batch))
            torch.manual_seed(derive_seed(self.seed, step, *part.place, *self.distribution.lane))
            replay = shape.graphs[number == 0, number == len(parts) - 1]
            values.append(replay().clone())  # the next replay puts others there
        sums = {name: [each[i] for each in values] for i, name in enumerate(self._names)}
        return read_later(sums, self._norm, self.step_on_device, tokens, {})


def _cloned(batch: Batch) -> Batch:
    source: Any = batch
    tensors = {name: t.clone() for name, t in tensors_of(source) if name != "indices"}
    result: Batch = replace(source, **tensors)
    return result


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@contextmanager
def _capturable(optimizer: Any) -> Iterator[None]:
    """A context in which an optimizer's step may be recorded; it warns of what is not."""
    optimizer._warned_capturable_if_run_uncaptured = True
    for group in optimizer.param_groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in optimizer.param_groups:
            group["capturable"] = False
