"""One update: accumulate exact gradients over batches, check them, clip them, and step.

The loss is a sum over the tokens of the whole update, on all processes, divided by their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn

from heedful.device import Precision
from heedful.engines.training.training_engine import (
    ChunkedLosses,
    CompiledEngine,
    prepare_training,
)
from heedful.events import Events
from heedful.memory import ran_out, release
from heedful.train.batch_source import Batch, BatchCopies
from heedful.train.nonfinite import NOWHERE, Diagnosis, find_nonfinite, first_bad_weight
from heedful.train.objective import CarriedState, HandOver, LossContext, LossSum, Objective
from heedful.train.optimizers import DeviceStep, divided, import_moments, set_learning_rate
from heedful.train.parallel.team import Team
from heedful.train.splitting import (
    BatchPart,
    PartialSums,
    PassBuffers,
    Splitting,
    derive_seed,
    parts_of,
)
from heedful.train.static_shapes import of_one_shape, shapes_are_static
from heedful.train.update_result import LaunchedUpdate, UpdateResult, read_later

T = TypeVar("T")

DECIDING = {"cuda"}
"""Types of devices that make or skip a step by themselves; see `DeviceStep`."""


class Distribution:
    """A model and its loss in a single process; for several: `parallel/distribution.py`.

    Args:
        model: model to train.
        objective: loss of the model.

    Attributes:
        team: processes that train together; None for this one alone.
        seed_numbers: numbers that seed dropout, in addition to the place of a part.
        loss_factor: factor of the loss, after which the reduced gradients of all processes are
            those of the summed loss.
        can_run_alone: true if a pass through the model needs no other process.
        partial_sums: largest number of separate gradient sums; see `PartialSums`.
        rows: original row numbers [N] int64 of matrices with permuted rows, by weight name.
    """

    loss_factor = 1.0
    can_run_alone = True
    partial_sums = 1
    team: Team | None = None
    seed_numbers: tuple[int, ...] = ()
    rows: Mapping[str, Tensor] = MappingProxyType({})

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        self.model = model
        self.objective = objective

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sum values over the processes that train on different tokens."""
        return list(values)

    def loss(self, batch: Batch, context: LossContext) -> LossSum:
        """Return the summed loss of a batch on the model's device."""
        return self.objective.loss(self.model, batch, context)

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        """A context for the forward and backward pass of one part of an update.

        Args:
            last: flag of the last part, whose backward pass sums gradients over the processes.
        """
        yield

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the L2 norm [] of the whole gradient, the same on all processes."""
        return torch.nn.utils.get_total_norm(gradients)

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gather tensors in one piece; names are WEIGHT or KIND/WEIGHT.

        A collective: all processes call it, and those that do not write get no copies.
        """
        return dict(tensors)

    def local_part(self, name: str, whole: Tensor) -> Tensor:
        """Return the part of a whole tensor that this process holds; names as in `full_tensors`."""
        return whole

    def whole_model(self, tensors: Mapping[str, Tensor]) -> nn.Module | None:
        """Make a model in one piece with the given weights; None if the model itself is one piece.

        Args:
            tensors: weights as this process holds them.
        """
        return None


@dataclass(frozen=True)
class UpdateSums:
    """Sums over the parts of an update that were passed through the model so far.

    Args:
        step: number of the update.
        divisor: number of target tokens of the whole update, where the loss is computed.
        hand_over: carried state from batch to batch.
        values: losses and other sums [] of each part, by name, on the device.
    """

    step: int
    divisor: float | Tensor
    hand_over: HandOver
    values: dict[str, list[Tensor]] = field(default_factory=dict)

    def restart(self) -> None:
        """Forget all parts."""
        self.values.clear()
        self.hand_over.restart()


class Updater:
    """Makes updates of one model.

    Args:
        model: model to train.
        objective: loss of the model.
        optimizer: optimizer of its parameters.
        precision: number format of the matmuls; float16 gets a loss scaler.
        seed: random seed of the run; a batch is seeded by it, the step and the batch's place.
        clip_norm: largest gradient norm; 0 for no limit.
        distribution: model spread over processes; None for this process alone.

    Attributes:
        engine: engine that computes the model's passes.
        compiled: engine with compiled passes; None without compilation.
        device_step: step that the device makes or skips by itself; None where every result is read
            at once: on CPUs, with a loss scaler, and with several processes, which exchange
            sums as numbers.
        copies: copier of batches to a GPU while it computes; None on CPUs.
        interruptible: maker of a context for the passes of an update, which change no weight; it
            may break them off by an exception.
    """

    interruptible: Callable[[], AbstractContextManager[object]] = staticmethod(nullcontext)

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        *,
        seed: int,
        clip_norm: float = 0.0,
        distribution: Distribution | None = None,
    ) -> None:
        self.model = model
        self.distribution = distribution or Distribution(model, objective)
        self.optimizer = optimizer
        self.precision = precision
        self.seed = seed
        self.clip_norm = clip_norm
        self.parameters = tuple(model.parameters())
        self.device = self.parameters[0].device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision.needs_scaler)
        self.pass_buffers = PassBuffers(model)
        self.gradients = PartialSums(self.parameters, self.distribution.partial_sums)
        self.splitting = Splitting(self.distribution.team, alone=self.distribution.can_run_alone)
        self.engine = prepare_training(model, self.device)
        self.compiled: CompiledEngine | None = None
        alone = self.distribution.team is None and not precision.needs_scaler
        fused = all(group.get("fused") for group in optimizer.param_groups)
        decides = self.device.type in DECIDING and alone and fused
        # Only PyTorch's fused optimizers read `found_inf` and `grad_scale` on the device.
        self.device_step = DeviceStep(optimizer, self.device) if decides else None
        self.copies = BatchCopies(self.device) if self.device.type == "cuda" else None

    def update(
        self,
        batches: Sequence[Batch | BatchPart],
        step: int,
        learning_rate: float,
        cancelled: Callable[[], bool] = lambda: False,
        carried_state: CarriedState | None = None,
    ) -> UpdateResult | None:
        """Make an update and wait for its result; see `launch`."""
        launched = self.launch(batches, step, learning_rate, cancelled, carried_state)
        return None if launched is None else launched.read()

    def launch(
        self,
        batches: Sequence[Batch | BatchPart],
        step: int,
        learning_rate: float,
        cancelled: Callable[[], bool] = lambda: False,
        carried_state: CarriedState | None = None,
    ) -> LaunchedUpdate | None:
        """Change the weights by the mean gradient over all tokens of all batches.

        Args:
            batches: batches of the update, in order; with several processes the parts of this one,
                at least one.
            step: number of the update, from 1.
            learning_rate: learning rate of this update.
            cancelled: predicate that is called before each batch; true leaves all weights alone
                and returns None. Several processes call it between updates only.
            carried_state: carried state of the batch before the first.

        Raises:
            OneTooLarge: when there is not enough memory for a single example.
        """
        parts = parts_of(batches)
        # The divisor is known before the first pass, so gradients never need rescaling.
        tokens = round(self.distribution.sums([sum(part.tokens for part in parts)])[0])
        if not self.model.training:
            self.model.train()
        on_device = self.device_step
        # The divisor is on the device, where recorded graphs and skipped steps read it.
        divisor = tokens if on_device is None else on_device.begin(tokens, learning_rate)
        sums = UpdateSums(step, divisor, HandOver(carried_state or {}))
        self.pass_buffers.keep()
        try:
            with self.precision.matmul(), self.interruptible():
                made = self._compiling(step, partial(self._accumulate, parts, sums, cancelled))
        except BaseException:
            self.pass_buffers.restore()  # broken off: the next attempt begins as this one did
            raise
        if not made:
            self.pass_buffers.restore()
            return None
        too_large = self.splitting.failed
        carried = sums.hand_over.last()
        if on_device is not None:
            norm = self.distribution.norm(self._gradients())
            on_device.take(torch.stack(sums.values["loss"]), norm, self.clip_norm)
            self.pass_buffers.restore(on_device.skipped)
            return read_later(sums.values, norm, on_device, tokens, carried, too_large)
        # In float64 a few float32 numbers have the same sum in any order.
        here = [sum(torch.stack(values).tolist()) for values in sums.values.values()]
        totals = self.distribution.sums(here)
        values = {name: total / tokens for name, total in zip(sums.values, totals, strict=True)}
        result = self._apply(values, tokens, learning_rate)
        result = replace(result, too_large=too_large, carried_state=carried)
        return LaunchedUpdate(lambda: result, carried)

    def _accumulate(
        self, parts: Sequence[BatchPart], sums: UpdateSums, cancelled: Callable[[], bool]
    ) -> bool:
        """Sum gradients and losses over all parts; return False where the update was cancelled."""

        def begin() -> None:
            # Called again after a memory error: nothing of the failed attempt may stay.
            self.optimizer.zero_grad(set_to_none=True)
            self.pass_buffers.restore()
            self.gradients.begin(len(parts))
            sums.restart()

        for attempt in self.splitting.attempts(parts, begin):
            for part in attempt:
                if self.distribution.team is None and cancelled():
                    return False
                with self.splitting.trying(part):
                    self._add_gradients(part, part is attempt[-1], sums)
                if self.splitting.stuck is not None:
                    break
        return True

    def _add_gradients(self, part: BatchPart, last: bool, sums: UpdateSums) -> None:
        """Run the forward and backward pass of a part; `last` marks the update's last part."""
        # `place[0]` is the index of the batch: all its parts get the state of the batch before.
        before = sums.hand_over.before(part.place[0])
        batch = part.batch if self.copies is None else self.copies.copy(part.batch)
        with self.distribution.gradient_sync(last):
            result = self._loss(batch, sums.step, *part.place, carried_state=before)
            sums.hand_over.add(result.carried_state)
            assert result.tokens == part.batch.target_tokens
            # Agreed before the backward pass of the last part, in which gradients are exchanged.
            if last:
                self.splitting.agree()
            loss = result.loss_sum / sums.divisor
            # 0 for a stand-in; otherwise it turns an engine's mean over processes into a sum.
            factor = self.distribution.loss_factor * part.counts
            # A product with 1 would add a node to the graph of every part.
            loss = loss if factor == 1.0 else loss * factor
            with self.gradients.adding(last):
                self.scaler.scale(loss).backward()
        for name, value in {"loss": result.loss_sum, **result.extras}.items():
            # Detached and kept on the device: reading here would wait for every part.
            sums.values.setdefault(name, []).append(value.detach() * part.counts)

    def load_moments(self, tensors: dict[str, Tensor]) -> None:
        """Restore the optimizer's state, see `import_moments`."""
        import_moments(self.optimizer, self.model, tensors)

    def compile(
        self,
        batch: Batch,
        step: int,
        events: Events,
        *,
        asked_for: bool,
        one_shape: bool = False,
    ) -> bool:
        """Compile the pass before the first update, so that a failure costs no training.

        Args:
            batch: any batch, the same in a run and when it is resumed.
            step: present step of the run.
            events: receivers of the number of graphs and the seconds they took.
            asked_for: request by name, so that a failure is an error.
            one_shape: true if all batches have the shape of this one.

        Returns:
            False if compiling failed.
        """
        self.compiled = CompiledEngine(self.model, events, asked_for=asked_for, one_shape=one_shape)
        return self.warm_up(batch, step)

    def warm_up(self, batch: Batch, step: int) -> bool:
        """Run one forward and backward pass and drop the gradients, so that kernels are compiled.

        Args:
            batch: any batch, the same in a run and when it is resumed, as graphs may depend on the
                first sizes.
            step: present step of the run.

        Returns:
            False if compiling failed.
        """

        def learn() -> None:
            loss = self._loss(batch, 0, 0).loss_sum
            self.scaler.scale(loss / batch.target_tokens).backward()

        self.model.train()
        try:
            with self.precision.matmul(), self.pass_buffers.unchanged():
                self._compiling(step, learn)
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            release()  # the first update fails in the same way, and splits its batches
        self.optimizer.zero_grad(set_to_none=True)
        return self.compiled is not None

    def diagnose(
        self, batches: Sequence[Batch | BatchPart], step: int, carried_state: CarriedState
    ) -> tuple[Diagnosis, Tensor]:
        """Find the origin of a non-finite update.

        Args:
            batches: batches of the update, or parts of them, of this process.
            step: number of the update.
            carried_state: carried state of the batch before the first.

        Returns:
            The diagnosis and the numbers of the affected examples.
        """
        hand_over = HandOver(carried_state)
        looking = self.pass_buffers.unchanged()
        with looking, self.precision.matmul(), self.distribution.gradient_sync(False):
            for part in parts_of(batches):
                before = hand_over.before(part.place[0])

                def again(part: BatchPart = part, before: CarriedState = before) -> Tensor:
                    # The same seeds as before, so dropout repeats the failing pass.
                    loss = self._loss(part.batch, step, *part.place, carried_state=before)
                    hand_over.add(loss.carried_state)
                    return loss.loss_sum

                result = find_nonfinite(self.model, again, part.examples)
                if result is not None:
                    return result, part.numbers(result.rows)
        return NOWHERE, torch.cat([part.numbers() for part in parts_of(batches)])

    def origin(
        self,
        parts: Sequence[BatchPart],
        step: int,
        carried_state: CarriedState,
        lines: Callable[[Sequence[int]], list[str]],
    ) -> tuple[bool, str, dict[str, str]]:
        """Describe the origin of a non-finite update, as this process sees it.

        Args:
            parts, step, carried_state: see `diagnose`.
            lines: function from example numbers to their origins ("file:line").

        Returns:
            True if this process found it, a clause that describes it, and place and lines.
        """
        if not self.distribution.can_run_alone:
            return False, "in a model or texts in parts, which no process can look into alone", {}
        found, indices = self.diagnose(parts, step, carried_state)
        where = lines(indices.tolist())
        values = {"place": found.place, "lines": ", ".join(where)}
        return found is not NOWHERE, found.describe(where), values

    def bad_weight(self) -> str | None:
        """Return the name of a weight that is not finite; None if all are."""
        return first_bad_weight(self.model)

    def _compiling(self, step: int, work: Callable[[], T]) -> T:
        """Run work with the compiled engine; if compiling fails, run it again uncompiled."""
        if self.compiled is not None:
            try:
                with self.compiled.reported(step), self.compiled.active():
                    return work()
            # Work is repeatable: `begin` resets gradients and sums. An error of the model itself
            # appears again below.
            except Exception as error:
                self.compiled.failed(error)
                self.compiled = None
        with self.engine.active():
            return work()

    def _loss(
        self, batch: Batch, step: int, *place: int, carried_state: CarriedState | None = None
    ) -> LossSum:
        seed = derive_seed(self.seed, step, *place, *self.distribution.seed_numbers)
        if self.device.type == "cpu":
            # `torch.manual_seed` seeds all devices, which takes a millisecond.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        with self.precision.autocast():
            context = LossContext(step, carried_state or {}, self.losses)
            if self.device.type != "cpu":
                batch = batch.to(self.device)
            return self.distribution.loss(batch, context)

    @property
    def losses(self) -> ChunkedLosses:
        """The engine's cross-entropies, or their static form (see `static_shapes`)."""
        losses = (self.compiled or self.engine).losses
        return of_one_shape(losses) if shapes_are_static.get() else losses

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    def _apply(self, values: dict[str, float], tokens: int, learning_rate: float) -> UpdateResult:
        self.scaler.unscale_(self.optimizer)
        gradients = self._gradients()
        norm = self.distribution.norm(gradients)
        # Waits for the device; `DeviceStep` is the way that does not.
        grad_norm = float(norm)
        loss_is_finite = torch.isfinite(torch.tensor(values["loss"])).item()
        finite = bool(loss_is_finite) and bool(torch.isfinite(norm))
        shrink = finite and self.clip_norm and grad_norm > self.clip_norm
        if finite or self.scaler.is_enabled():
            # The scaler itself skips a step whose scaled gradients overflowed.
            set_learning_rate(self.optimizer, learning_rate)
            with divided(self.optimizer, gradients, norm / self.clip_norm if shrink else None):
                self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.zero_grad(set_to_none=True)
        if not finite:
            self.pass_buffers.restore()  # one NaN would stay in running statistics for ever
        return UpdateResult(values, tokens, grad_norm, finite)
