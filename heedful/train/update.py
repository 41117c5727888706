"""One update: accumulate exact gradients over batches, check them, clip, step.

When memory runs out, a batch is split and the update starts again. The loss is a sum over tokens
divided by their number in the whole update, so the gradients of parts add up to those of the batch.
What fails leaves nothing behind: gradients and sums start from nothing. A batch that was not split
draws the randomness of its place in the update; a part draws that of its place and its rows, so
that its dropout is another draw from the same distribution, and the same one whenever the batch is
split in the same way. Where the loss is no plain sum (the balance of experts is one of a batch),
parts count as batches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from heedful.data.batches import positions_in
from heedful.memory import ran_out, release
from heedful.nn.unpadding import sequences_apart
from heedful.train.compiled_pass import CompiledPass
from heedful.train.nonfinite import Diagnosis, find_nonfinite
from heedful.train.objective import CarriedState, Context, LossSum, Objective
from heedful.train.optimizers import build_optimizer, divided, set_learning_rate
from heedful.train.run_settings import derive_seed

if TYPE_CHECKING:
    from heedful.device import Precision
    from heedful.events import Events
    from heedful.train.batch_source import Batch
    from heedful.train.run_settings import RunSettings


T = TypeVar("T")


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update.

    Args:
        values: means over target tokens: `loss` and the objective's extras.
        tokens: target tokens it was computed from.
        grad_norm: length of the gradient before clipping.
        finite: whether loss and gradient were; if not, no weight was changed.
        too_large: of each batch or part that memory ran out for, positions and examples.
        carried_state: what the last batch hands to the next update.
    """

    values: dict[str, float]
    tokens: int
    grad_norm: float
    finite: bool
    too_large: tuple[tuple[int, int], ...] = ()
    carried_state: CarriedState = field(default_factory=dict)


class Updater:
    """Makes updates of one model.

    Args:
        model: the model to train.
        objective: its loss.
        optimizer: changes the weights.
        precision: of the products; float16 gets a loss scaler.
        seed: of the run; the randomness of a batch depends on it, the step and the batch's place.
        clip_norm: largest gradient length, 0 for no limit.

    Attributes:
        compiled: how the model's pass is computed; as it is written if None.
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
    ) -> None:
        self.model = model
        self.objective = objective
        self.optimizer = optimizer
        self.precision = precision
        self.seed = seed
        self.clip_norm = clip_norm
        self.parameters = tuple(model.parameters())
        self.device = self.parameters[0].device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision.needs_scaler)
        self.splitting = Splitting()
        self.compiled: CompiledPass | None = None

    @classmethod
    def of_run(
        cls, model: nn.Module, objective: Objective, settings: RunSettings, precision: Precision
    ) -> Updater:
        """The updater of a run, with a new optimizer."""
        return cls(
            model,
            objective,
            build_optimizer(model, settings.optimizer),
            precision,
            seed=settings.seed,
            clip_norm=settings.optimizer.clip_norm,
        )

    def update(
        self,
        batches: Sequence[Batch],
        step: int,
        learning_rate: float,
        cancelled: Callable[[], bool] = lambda: False,
        carried_state: CarriedState | None = None,
    ) -> UpdateResult | None:
        """Change the weights by the mean gradient over all tokens of all batches.

        Args:
            batches: what one update is computed from, in order.
            step: number of the update, from 1.
            learning_rate: of this update.
            cancelled: asked before each batch; once true, nothing is changed and None comes back.
            carried_state: what the batch before the first handed on.

        Raises:
            OneTooLarge: when there is not enough memory for a single example.
        """
        tokens = sum(batch.target_tokens for batch in batches)
        if not self.model.training:
            self.model.train()
        sums: dict[str, Tensor] = {}
        hand_over = HandOver(carried_state or {})

        def begin() -> None:
            self.optimizer.zero_grad(set_to_none=True)
            sums.clear()
            hand_over.restart()

        def learn(part: Part) -> bool:
            if cancelled():
                return False
            before = hand_over.before(part.place[0])
            result = self._loss(part.batch, step, *part.place, carried_state=before)
            hand_over.add(result.carried_state)
            assert result.tokens == part.batch.target_tokens
            self.scaler.scale(result.loss_sum / tokens).backward()
            for name, value in {"loss": result.loss_sum, **result.extras}.items():
                sums[name] = sums.get(name, 0) + value.detach()
            return True

        with self.precision.matmul():
            too_large = self._compiling(step, lambda: self.splitting.run(batches, begin, learn))
        if too_large is None:
            return None
        values = {name: float(value) / tokens for name, value in sums.items()}
        result = self._apply(values, tokens, learning_rate)
        return replace(result, too_large=too_large, carried_state=hand_over.last())

    def compile(self, batch: Batch, step: int, events: Events, *, asked_for: bool) -> bool:
        """Compile the pass before anything is learned, so that a failure costs nothing.

        Args:
            batch: any; the same one in a run and when it is resumed.
            step: that training stands at.
            events: receive the number of graphs and the seconds they took.
            asked_for: a failure is an error.

        Returns:
            False if it failed.
        """
        self.compiled = CompiledPass(self.model, events, asked_for=asked_for)
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
        self, batches: Sequence[Batch], step: int, carried_state: CarriedState
    ) -> tuple[Diagnosis, Tensor]:
        """Find out where an update that was not finite went wrong.

        Args:
            batches: of the update.
            step: its number.
            carried_state: what the batch before the first handed on.

        Returns:
            The diagnosis and the numbers of the examples concerned.
        """
        hand_over = HandOver(carried_state)
        with self.precision.matmul(), sequences_apart():
            for micro, batch in enumerate(batches):
                size = len(batch.indices)
                before = hand_over.before(micro)

                def again(
                    batch: Batch = batch, micro: int = micro, before: CarriedState = before
                ) -> Tensor:
                    loss = self._loss(batch, step, micro, carried_state=before)
                    hand_over.add(loss.carried_state)
                    return loss.loss_sum

                result = find_nonfinite(self.model, again, size)
                if result is not None:
                    rows = list(result.rows) or list(range(size))
                    return result, batch.indices[rows]
        nowhere = Diagnosis("nothing any more when the batches were run one by one")
        return nowhere, torch.cat([batch.indices for batch in batches])

    def _compiling(self, step: int, work: Callable[[], T]) -> T:
        """Run work that may compile; run it again uncompiled where that fails."""
        if self.compiled is None:
            return work()
        try:
            with self.compiled.reported(step), self.compiled.used():
                return work()
        except Exception as error:
            self.compiled.failed(error)
            self.compiled = None
        return work()

    def _loss(
        self, batch: Batch, step: int, *place: int, carried_state: CarriedState | None = None
    ) -> LossSum:
        seed = derive_seed(self.seed, step, *place)
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # seeding all devices takes a millisecond
        else:
            torch.manual_seed(seed)
        with self.precision.autocast():
            context = Context(step, carried_state or {})
            return self.objective.loss(self.model, batch.to(self.device), context)

    def _apply(self, values: dict[str, float], tokens: int, learning_rate: float) -> UpdateResult:
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
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


class HandOver:
    """The states that batches of an update hand on, each put together from those of its parts.

    Args:
        first: what the batch before the update handed on.
    """

    def __init__(self, first: CarriedState) -> None:
        self.first = first
        self.restart()

    def restart(self) -> None:
        """Forget all batches of the update."""
        self._number, self._before = 0, self.first
        self._parts: list[CarriedState] = []

    def before(self, number: int) -> CarriedState:
        """Return what the batch before one handed on.

        Args:
            number: of the batch in the update, counted from 0; parts of batches come in order.
        """
        if number != self._number:
            self._number, self._before, self._parts = number, self.last(), []
        return self._before

    def add(self, part: CarriedState) -> None:
        """Add what some of the batch's examples hand on."""
        self._parts.append(part)

    def last(self) -> CarriedState:
        """Return what the batch hands on whose parts were added last."""
        names = self._parts[0] if self._parts else {}
        return {name: torch.cat([part[name] for part in self._parts]) for name in names}


_TRIED = 0.75
"""Share of the positions that memory ran out for that is tried again; a half is less."""


@dataclass(frozen=True)
class Part:
    """A batch of an update, or some of its examples.

    Args:
        batch: of them.
        place: numbers that its randomness depends on: its batch's in the update and, of a part,
            its first example and the one after its last.
    """

    batch: Batch
    place: tuple[int, ...]

    @property
    def positions(self) -> int:
        """On the longer side, padding counted."""
        whole: Any = self.batch
        return positions_in(whole)

    @property
    def examples(self) -> int:
        return len(self.batch.indices)

    def halves(self) -> list[Part]:
        micro, start, *_ = (*self.place, 0)
        middle, end = self.examples // 2, self.examples
        return [
            Part(self.batch.part(first, last), (micro, start + first, start + last))
            for first, last in ((0, middle), (middle, end))
        ]


class OneTooLarge(Exception):
    """There is not enough memory for a single example.

    Args:
        index: [1], its number.
        positions: of it.
    """

    def __init__(self, index: Tensor, positions: int) -> None:
        super().__init__(f"{positions} positions")
        self.index = index
        self.positions = positions


class Splitting:
    """Runs batches, in parts where memory demands it.

    What is nearly as large as what failed is split without being tried, for as long as the process
    lives: batches fill the same budget, and each would be computed in vain first.

    Attributes:
        most: positions of the largest part that is tried; None for any.
    """

    def __init__(self) -> None:
        self.most: int | None = None

    def run(
        self,
        batches: Sequence[Batch],
        begin: Callable[[], None],
        learn: Callable[[Part], bool],
    ) -> tuple[tuple[int, int], ...] | None:
        """Learn from all batches, in order.

        Args:
            batches: of one update.
            begin: forgets all that was learned from in this update.
            learn: learns from a batch or a part of one; False to give up the update.

        Returns:
            Positions and examples of each part that memory ran out for; None when given up.

        Raises:
            OneTooLarge: when a part of one example is too large.
        """
        failed: list[tuple[int, int]] = []
        parts = [Part(batch, (micro,)) for micro, batch in enumerate(batches)]
        while True:
            parts = [small for part in parts for small in self._small(part)]
            begin()
            done, stuck = self._attempt(parts, learn)
            if stuck is None:
                return tuple(failed) if done else None
            begin()
            release()
            if stuck.examples == 1:
                raise OneTooLarge(stuck.batch.indices, stuck.positions)
            failed.append((stuck.positions, stuck.examples))
            self.most = round(_TRIED * stuck.positions)

    def _small(self, part: Part) -> list[Part]:
        if self.most is None or part.examples == 1 or part.positions <= self.most:
            return [part]
        return [small for half in part.halves() for small in self._small(half)]

    def _attempt(
        self, parts: Sequence[Part], learn: Callable[[Part], bool]
    ) -> tuple[bool, Part | None]:
        """Learn from all parts: True if done, and the part that was too large, if any.

        The error ends here: it holds the tensors of the pass that failed.
        """
        for part in parts:
            try:
                if not learn(part):
                    return False, None
            except (MemoryError, RuntimeError) as error:
                if not ran_out(error):
                    raise
                return False, part
        return True, None
