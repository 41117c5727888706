"""Whole updates as CUDA graphs, which a GPU replays without a launch for each kernel.

An update of a small model is some thousand kernels of a few microseconds, each of which takes the
host longer to launch than a GPU to run. A graph launches them all at once, but always the same
kernels, on the same memory, with one seed of random numbers. So a graph covers one part of an
update, from its forward pass to its gradients, together with the work before the first part
(zeroing gradients) and after the last one (gradient norm, clipping, step). An update of one part is
one graph. Batches are copied into the memory of their shape's graphs, learning rate and number of
tokens lie on the device, and the seed is set before each replay, as it is without graphs.

Results do not depend on which shapes have graphs: updates without a graph compute the loss at all
positions, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from heedful.data.batches import tensors_of
from heedful.errors import first_line
from heedful.events import Events
from heedful.memory import ran_out, release
from heedful.train.batch_source import Batch
from heedful.train.objective import CarriedState, LossContext
from heedful.train.optimizers import DeviceStep
from heedful.train.splitting import BatchPart, derive_seed, parts_of
from heedful.train.static_shapes import rounded_up, static_key, static_shapes
from heedful.train.update import Updater
from heedful.train.update_result import LaunchedUpdate, read_later

MOST_SHAPES = 16
"""Number of batch shapes that get graphs, each up to four; other batches run without."""

Replay = Callable[[], Tensor]
"""Runs the recorded kernels on the present content of their memory."""

Record = Callable[[Callable[[], Tensor]], Replay]
"""Records a function of no arguments, after running it once, and returns its replay."""


@dataclass(eq=False)
class _Shape:
    """The graphs for one shape of batches.

    Args:
        batch: batch on the device, whose memory the graphs read.
        graphs: replays by position in the update: (is first part, is last part).
    """

    batch: Batch
    graphs: dict[tuple[bool, bool], Replay] = field(default_factory=dict)

    def fill(self, batch: Batch) -> None:
        """Copy another batch of the same shape into the graphs' memory."""
        source: Any = batch
        own: Any = self.batch
        for (name, memory), (_, tensor) in zip(tensors_of(own), tensors_of(source), strict=True):
            if name != "indices":
                memory.copy_(tensor, non_blocking=True)


class GraphedUpdater(Updater):
    """Makes updates by CUDA graphs, for static objectives in one process.

    The first update records the graphs of its shape before any weight changes; where that fails,
    all updates run without graphs. Other shapes get graphs when they come for the second time.

    Args:
        *args: arguments of `Updater`.
        record: function that records a part of an update.
        events: receivers of notes.
        rounds: rounding of padded batches up to few shapes.
        **options: keyword arguments of `Updater`.
    """

    def __init__(
        self, *args: Any, record: Record, events: Events, rounds: bool = False, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.record = record
        self.events = events
        self.rounds = rounds
        # The host cannot leave a recorded step out, so the device has to decide.
        self.step_on_device = self.device_step or DeviceStep(self.optimizer, self.device)
        self.device_step = self.step_on_device
        self._shapes: dict[Any, _Shape | None] = {}
        self._trained: list[torch.nn.Parameter] = []  # those that get gradients
        # Sums of gradients over the parts of an update: graphs write to the tensors they were
        # recorded with. Updates of one part, the usual ones, need none.
        self._gradient_sums: list[Tensor] = []
        # Summed in float64: each part of an update is a sum over thousands of tokens.
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
            # Rounded up with and without graphs, so that results do not depend on `MOST_SHAPES`.
            same = [replace(p, batch=rounded_up(p.batch)) if self.rounds else p for p in parts]
            with static_shapes():
                shapes = self._graphs_of(same)
                if shapes is not None:
                    return self._replay(same, shapes, step, learning_rate, cancelled)
                if self._is_static:
                    return self._launch_eagerly(same, step, learning_rate, cancelled)
        # Recording failed at the first update: objectives go back to their ordinary losses.
        return super().launch(parts, step, learning_rate, cancelled)

    def load_moments(self, tensors: dict[str, Tensor]) -> None:
        """See `Updater.load_moments`; graphs recorded with the former moments are dropped."""
        self._shapes.clear()
        super().load_moments(tensors)

    def _launch_eagerly(
        self, parts: Sequence[BatchPart], step: int, rate: float, cancelled: Callable[[], bool]
    ) -> LaunchedUpdate | None:
        launched = super().launch(parts, step, rate, cancelled)
        # Graphs keep their memory reserved; without them the next batches may fit again.
        if self.splitting.most is not None and self._records:
            self._give_up("memory ran out")
        return launched

    def _give_up(self, why: str) -> None:
        """Record nothing from now on, and free the memory of all graphs."""
        self._records = False
        self._shapes.clear()
        self._trained.clear()
        self._gradient_sums.clear()
        release()
        self.events.note(f"Updates are not recorded as CUDA graphs: {why}")

    # Recording

    def _graphs_of(self, parts: Sequence[BatchPart]) -> list[_Shape] | None:
        """Return each part's shape with its graphs; None if a part gets no graph."""
        # The loss of a stand-in part has weight 0, but graphs are recorded with weight 1.
        if not self._records or not all(part.counts for part in parts):
            return None
        shapes = [self._shape(part.batch) for part in parts]
        if not all(shapes):
            return None
        is_first = not self._trained
        found = [shape for shape in shapes if shape is not None]
        try:
            for number, shape in enumerate(found):
                piece = number == 0, number == len(parts) - 1
                # Zeroing belongs to the first part and the step to the last, hence graphs by
                # position.
                if piece not in shape.graphs:
                    shape.graphs[piece] = self._graph(shape.batch, *piece)
        except (MemoryError, RuntimeError) as error:
            # After a first failure nothing was trained yet, so the ordinary losses may take over;
            # later that would change the run's numbers midway.
            self._is_static = not is_first
            self._give_up("memory ran out" if ran_out(error) else first_line(error).rstrip("."))
            return None
        if is_first:
            self.events.note("Updates run as CUDA graphs, recorded for each shape of batches")
        return found

    def _shape(self, batch: Batch) -> _Shape | None:
        """Return the tensors and graphs of a batch's shape; None if the shape gets no graphs.

        Once there are graphs, a further shape gets some when it comes a second time.
        """
        key = static_key(batch)
        found = self._shapes.get(key)
        if found is not None:
            return found
        # A shape that never comes again would pay for its recording and keep memory for nothing.
        is_known = key in self._shapes
        self._shapes.setdefault(key, None)
        count = sum(each is not None for each in self._shapes.values())
        if count >= MOST_SHAPES or (self._trained and not is_known):
            return None
        self._shapes[key] = made = _Shape(_clone(batch.to(self.device)))
        return made

    def _graph(self, batch: Batch, first: bool, last: bool) -> Replay:
        """Record a part of an update; the warm-up runs before it change no weight."""
        skipped = self.step_on_device.skipped
        before = skipped.clone()
        # Recording runs the optimizer's step once, which the device skips while this is 1.
        skipped.fill_(1.0)
        self.model.train()
        try:
            with _capturable(self.optimizer):
                self._find_gradients(batch)
                if not (first and last) and not self._gradient_sums:
                    self._gradient_sums = [torch.zeros_like(p) for p in self._trained]
                return self.record(lambda: self._piece(batch, first, last))
        finally:
            skipped.copy_(before)

    def _find_gradients(self, batch: Batch) -> None:
        """Run one backward pass to find which parameters get gradients."""
        if self._trained:
            return
        self.optimizer.zero_grad(set_to_none=True)
        with (self.compiled or self.engine).active():
            loss, _ = self._pass(batch)
            loss.backward()
        self._trained = [p for p in self.parameters if p.grad is not None]

    def _pass(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss divided by the update's tokens [], and the batch's sums [] by name."""
        with self.precision.autocast():
            # Step 0: a recorded pass cannot depend on the step; scheduled sampling is not static.
            result = self.distribution.loss(batch, LossContext(0, losses=self.losses))
        sums = {"loss": result.loss_sum, **result.extras}
        detached = {name: value.detach() for name, value in sums.items()}
        return result.loss_sum / self.step_on_device.tokens, detached

    def _piece(self, batch: Batch, first: bool, last: bool) -> Tensor:
        """Compute one part of an update; return the sums [names] over its tokens."""
        if first:
            # The first pass writes its gradients to new memory: zeroing 124 M sums and adding to
            # them took 1 of 36 ms (H100).
            self.optimizer.zero_grad(set_to_none=True)
            self._loss_sum.zero_()
        else:
            for parameter, total in zip(self._trained, self._gradient_sums, strict=True):
                parameter.grad = total
        with (self.compiled or self.engine).active():
            loss, sums = self._pass(batch)
            loss.backward()
        gradients = self._gradients()
        if len(gradients) != len(self._trained):
            raise RuntimeError("parts of an update have gradients of different parameters")
        if first and not last:
            torch._foreach_copy_(self._gradient_sums, gradients)
        self._loss_sum += sums["loss"].double()
        if last:
            device_step = self.step_on_device
            self._norm.copy_(self.distribution.norm(gradients))
            device_step.take(self._loss_sum, self._norm, self.clip_norm)
            # A reference would keep memory of this graph from the others of the pool.
            self.optimizer.zero_grad(set_to_none=True)
        self._names = tuple(sums)
        return torch.stack(list(sums.values()))

    # Replaying

    def _replay(
        self,
        parts: Sequence[BatchPart],
        shapes: Sequence[_Shape],
        step: int,
        rate: float,
        cancelled: Callable[[], bool],
    ) -> LaunchedUpdate | None:
        tokens = sum(part.tokens for part in parts)
        # `train()` walks all modules, so it is called only where it changes something.
        if not self.model.training:
            self.model.train()
        self.step_on_device.begin(tokens, rate)
        values = []
        for number, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
            if cancelled():
                return None
            shape.fill(part.batch if self.copies is None else self.copies.copy(part.batch))
            # PyTorch's graphs read seed and offset of the generator from the device at each replay.
            torch.manual_seed(
                derive_seed(self.seed, step, *part.place, *self.distribution.seed_numbers)
            )
            replay = shape.graphs[number == 0, number == len(parts) - 1]
            values.append(replay().clone())  # the next replay overwrites them
        sums = {name: [each[i] for each in values] for i, name in enumerate(self._names)}
        return read_later(sums, self._norm, self.step_on_device, tokens, {})


def _clone(batch: Batch) -> Batch:
    source: Any = batch
    tensors = {name: t.clone() for name, t in tensors_of(source) if name != "indices"}
    result: Batch = replace(source, **tensors)
    return result


@contextmanager
def _capturable(optimizer: Any) -> Iterator[None]:
    """A context in which an optimizer's step may be recorded, without PyTorch's warning."""
    # Suppresses PyTorch's warning that a capturable step runs outside of a graph, as it does here.
    optimizer._warned_capturable_if_run_uncaptured = True
    for group in optimizer.param_groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in optimizer.param_groups:
            group["capturable"] = False
