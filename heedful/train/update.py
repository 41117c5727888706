"""One update: accumulate exact gradients over batches, check them, clip, step.

The loss is a sum over the tokens of the whole update, on all processes, divided by their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from heedful.engines.training.training_engine import (
    ChunkedLosses,
    CompiledEngine,
    prepare_training,
)
from heedful.memory import ran_out, release
from heedful.train.batch_source import BatchCopies
from heedful.train.nonfinite import NOWHERE, Diagnosis, find_nonfinite, first_bad_weight
from heedful.train.objective import CarriedState, HandOver, LossContext, LossSum, Objective
from heedful.train.optimizers import DeviceStep, divided, import_moments, set_learning_rate
from heedful.train.splitting import BatchPart, PartialSums, Splitting, derive_seed, parts_of
from heedful.train.static_shapes import of_one_shape, shapes_are_static
from heedful.train.update_result import LaunchedUpdate, UpdateResult, read_later

if TYPE_CHECKING:
    from heedful.device import Precision
    from heedful.events import Events
    from heedful.train.batch_source import Batch
    from heedful.train.parallel.team import Team

T = TypeVar("T")

DECIDING = {"cuda"}
"""Types of devices that decide by themselves whether an update is made; see `DeviceStep`."""


class Distribution:
    """A model and its loss, all of it in this process; others: `parallel/distribution.py`.

    Args:
        model: to train.
        objective: its loss.

    Attributes:
        team: the processes that train together; None for this one alone.
        lane: numbers that randomness depends on beside the place of a part.
        loss_factor: what to multiply a loss by, so that summed gradients of all processes are those
            of the summed loss.
        may_look: whether a process can pass a batch through the model without the others.
        partial_sums: of an update's gradients that are kept apart at most; see `PartialSums`.
        rows: of matrices whose rows are kept in another order: by the names of weights [N] int64,
            the original number of every row.
    """

    loss_factor = 1.0
    may_look = True
    partial_sums = 1
    team: Team | None = None
    lane: tuple[int, ...] = ()
    rows: Mapping[str, Tensor] = MappingProxyType({})

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        self.model = model
        self.objective = objective

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sums over the processes that learn from different tokens."""
        return list(values)

    def loss(self, batch: Batch, context: LossContext) -> LossSum:
        """The summed loss of a batch on the model's device."""
        return self.objective.loss(self.model, batch, context)

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        """A context for the forward pass and the backward pass of one part of an update.

        Args:
            last: whether gradients are summed over all processes in its backward pass.
        """
        yield

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The length of the whole gradient [], the same on all processes."""
        return torch.nn.utils.get_total_norm(gradients)

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors in one piece, by the names of weights (after a kind and a slash, if any).

        All processes ask together; those who do not write get no copies.
        """
        return dict(tensors)

    def placed(self, name: str, whole: Tensor) -> Tensor:
        """The part of a tensor that this process keeps, by its name as in `whole`."""
        return whole

    def copy_in_one_piece(self, tensors: Mapping[str, Tensor]) -> nn.Module | None:
        """A model with some weights to judge or write; None where the model is in one piece itself.

        Args:
            tensors: the weights, as this process keeps them.
        """
        return None


class Updater:
    """Makes updates of one model.

    Args:
        model: the model to train.
        objective: its loss.
        optimizer: changes the weights.
        precision: of the products; float16 gets a loss scaler.
        seed: of the run; the randomness of a batch depends on it, the step and the batch's place.
        clip_norm: largest gradient length, 0 for no limit.
        distribution: of the model over processes; all of it on this one if None.

    Attributes:
        engine: computes the model's passes.
        compiled: the same as graphs, where they are compiled; else None.
        device_step: the step that the device makes or leaves out by itself; None where results are
            waited for: on processors, with a loss scaler, and with several processes, whose sums
            travel as numbers.
        copies: of batches to the device beside what it computes; None on processors.
    """

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
        self.gradients = PartialSums(self.parameters, self.distribution.partial_sums)
        self.splitting = Splitting(self.distribution.team, alone=self.distribution.may_look)
        self.engine = prepare_training(model, self.device)
        self.compiled: CompiledEngine | None = None
        alone = self.distribution.team is None and not precision.needs_scaler
        fused = all(group.get("fused") for group in optimizer.param_groups)
        decides = self.device.type in DECIDING and alone and fused
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
            batches: what one update is computed from, in order; with several processes the parts
                of this one, at least one.
            step: number of the update, from 1.
            learning_rate: of this update.
            cancelled: asked before each batch; once true, nothing is changed and None comes back.
                Several processes ask between updates only.
            carried_state: what the batch before the first handed on.

        Raises:
            OneTooLarge: when there is not enough memory for a single example.
        """
        parts = parts_of(batches)
        tokens = round(self.distribution.sums([sum(part.tokens for part in parts)])[0])
        if not self.model.training:
            self.model.train()
        sums: dict[str, list[Tensor]] = {}
        hand_over = HandOver(carried_state or {})
        on_device = self.device_step
        divisor = tokens if on_device is None else on_device.begin(tokens, learning_rate)

        def begin() -> None:
            self.optimizer.zero_grad(set_to_none=True)
            self.gradients.begin(len(parts))
            sums.clear()
            hand_over.restart()

        def learn(part: BatchPart, last: bool) -> bool:
            if self.distribution.team is None and cancelled():
                return False
            before = hand_over.before(part.place[0])
            batch = part.batch if self.copies is None else self.copies.copied(part.batch)
            with self.distribution.exchanging(last):
                result = self._loss(batch, step, *part.place, carried_state=before)
                hand_over.add(result.carried_state)
                assert result.tokens == part.batch.target_tokens
                if last:
                    self.splitting.agree()
                loss = self._weighed(result.loss_sum / divisor, part)
                with self.gradients.adding(last):
                    self.scaler.scale(loss).backward()
            for name, value in {"loss": result.loss_sum, **result.extras}.items():
                sums.setdefault(name, []).append(value.detach() * part.counts)
            return True

        with self.precision.matmul():
            too_large = self._compiling(step, lambda: self.splitting.run(parts, begin, learn))
        if too_large is None:
            return None
        carried = hand_over.last()
        if on_device is not None:
            norm = self.distribution.norm(self._gradients())
            on_device.take(torch.stack(sums["loss"]), norm, self.clip_norm)
            return read_later(sums, norm, on_device, tokens, carried, too_large)
        # In float64, where a few numbers of float32 have the same sum in any order.
        here = [sum(torch.stack(values).tolist()) for values in sums.values()]
        totals = self.distribution.sums(here)
        values = {name: total / tokens for name, total in zip(sums, totals, strict=True)}
        result = self._apply(values, tokens, learning_rate)
        result = replace(result, too_large=too_large, carried_state=carried)
        return LaunchedUpdate(lambda: result, carried)

    def load_moments(self, tensors: dict[str, Tensor]) -> None:
        """Restore the optimizer's state, see `import_moments`."""
        import_moments(self.optimizer, self.model, tensors)

    def _weighed(self, loss: Tensor, part: BatchPart) -> Tensor:
        """The loss of a part as its gradient is to count; as it is where one process trains."""
        factor = self.distribution.loss_factor * part.counts
        return loss if factor == 1.0 else loss * factor

    def compile(
        self,
        batch: Batch,
        step: int,
        events: Events,
        *,
        asked_for: bool,
        one_shape: bool = False,
    ) -> bool:
        """Compile the pass before anything is learned, so that a failure costs nothing.

        Args:
            batch: any; the same one in a run and when it is resumed.
            step: that training stands at.
            events: receive the number of graphs and the seconds they took.
            asked_for: a failure is an error.
            one_shape: all batches have the shape of this one.

        Returns:
            False if it failed.
        """
        self.compiled = CompiledEngine(self.model, events, asked_for=asked_for, one_shape=one_shape)
        return self.warm_up(batch, step)

    def warm_up(self, batch: Batch, step: int) -> bool:
        """Learn from a batch and forget it, so that what it takes is compiled.

        Args:
            batch: any; the same one in a run and when it is resumed, for the graphs may depend on
                the sizes they were first made for.
            step: that training stands at.

        Returns:
            False if compiling failed.
        """

        def learn() -> None:
            loss = self._loss(batch, 0, 0).loss_sum
            self.scaler.scale(loss / batch.target_tokens).backward()

        self.model.train()
        try:
            with self.precision.matmul():
                self._compiling(step, learn)
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            release()  # the first update will find out, and split
        self.optimizer.zero_grad(set_to_none=True)
        return self.compiled is not None

    def diagnose(
        self, batches: Sequence[Batch | BatchPart], step: int, carried_state: CarriedState
    ) -> tuple[Diagnosis, Tensor]:
        """Find out where an update that was not finite went wrong.

        Args:
            batches: of the update, or parts of them; those of this process.
            step: its number.
            carried_state: what the batch before the first handed on.

        Returns:
            The diagnosis and the numbers of the examples concerned.
        """
        hand_over = HandOver(carried_state)
        with self.precision.matmul(), self.distribution.exchanging(False):
            for part in parts_of(batches):
                before = hand_over.before(part.place[0])

                def again(part: BatchPart = part, before: CarriedState = before) -> Tensor:
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
        """The origin of what was not finite in an update, as far as this process knows.

        Args:
            parts, step, carried_state: as in `diagnose`.
            lines: the places of examples in their files, by their numbers.

        Returns:
            Whether it was found here, a clause that says it, and the place and lines.
        """
        if not self.distribution.may_look:
            return False, "in a model or texts in parts, which no process can look into alone", {}
        found, indices = self.diagnose(parts, step, carried_state)
        where = lines(indices.tolist())
        values = {"place": found.place, "lines": ", ".join(where)}
        return found is not NOWHERE, found.describe(where), values

    def bad_weight(self) -> str | None:
        """The name of a weight that is not finite itself, if there is one."""
        return first_bad_weight(self.model)

    def _compiling(self, step: int, work: Callable[[], T]) -> T:
        """Run work by the engine; where compiling fails, run it again uncompiled."""
        if self.compiled is not None:
            try:
                with self.compiled.reported(step), self.compiled.active():
                    return work()
            except Exception as error:
                self.compiled.failed(error)
                self.compiled = None
        with self.engine.active():
            return work()

    def _loss(
        self, batch: Batch, step: int, *place: int, carried_state: CarriedState | None = None
    ) -> LossSum:
        seed = derive_seed(self.seed, step, *place, *self.distribution.lane)
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # seeding all devices takes a millisecond
        else:
            torch.manual_seed(seed)
        with self.precision.autocast():
            context = LossContext(step, carried_state or {}, self.losses)
            if self.device.type != "cpu":
                batch = batch.to(self.device)
            return self.distribution.loss(batch, context)

    @property
    def losses(self) -> ChunkedLosses:
        """Cross-entropies of the engine, or those whose shapes no number decides."""
        losses = (self.compiled or self.engine).losses
        return of_one_shape(losses) if shapes_are_static.get() else losses

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    def _apply(self, values: dict[str, float], tokens: int, learning_rate: float) -> UpdateResult:
        self.scaler.unscale_(self.optimizer)
        gradients = self._gradients()
        norm = self.distribution.norm(gradients)
        grad_norm = float(norm)
        loss_is_finite = torch.isfinite(torch.tensor(values["loss"])).item()
        finite = bool(loss_is_finite) and bool(torch.isfinite(norm))
        shrink = finite and self.clip_norm and grad_norm > self.clip_norm
        if finite or self.scaler.is_enabled():
            # the scaler itself leaves out a step whose scaled gradients overflowed
            set_learning_rate(self.optimizer, learning_rate)
            with divided(self.optimizer, gradients, norm / self.clip_norm if shrink else None):
                self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.zero_grad(set_to_none=True)
        return UpdateResult(values, tokens, grad_norm, finite)
