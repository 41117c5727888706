"""One update: accumulate exact gradients over batches, check them, clip, step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from heedful.memory import ran_out, release
from heedful.nn.unpadding import sequences_apart
from heedful.train.batch_splitting import Part, Splitting
from heedful.train.nonfinite import Diagnosis, find_nonfinite
from heedful.train.objective import Context, LossSum, Objective
from heedful.train.optimizers import divided, set_learning_rate
from heedful.train.run_settings import derive_seed

if TYPE_CHECKING:
    from heedful.device import Precision
    from heedful.train.compiled_pass import CompiledPass

T = TypeVar("T")


class Batch(Protocol):
    """The interface of a batch that the trainer uses."""

    @property
    def target_tokens(self) -> int:
        """Real target tokens; the loss is a sum over exactly these."""
        ...

    @property
    def indices(self) -> Tensor:
        """[B] numbers of the examples."""
        ...

    def to(self, device: Any) -> Self:
        """The batch on a device."""
        ...

    def part(self, start: int, stop: int) -> Self:
        """The examples from `start` until `stop`."""
        ...


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update.

    Args:
        values: means over target tokens: `loss` and the objective's extras.
        tokens: target tokens it was computed from.
        grad_norm: length of the gradient before clipping.
        finite: whether loss and gradient were; if not, no weight was changed.
        too_large: of each batch or part that memory ran out for, positions and examples.
    """

    values: dict[str, float]
    tokens: int
    grad_norm: float
    finite: bool
    too_large: tuple[tuple[int, int], ...] = ()


class Updater:
    """Makes updates of one model.

    Args:
        model: what is trained.
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

    def update(
        self,
        batches: Sequence[Batch],
        step: int,
        learning_rate: float,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> UpdateResult | None:
        """Change the weights by the mean gradient over all tokens of all batches.

        Args:
            batches: what one update is computed from, in order.
            step: number of the update, from 1.
            learning_rate: of this update.
            cancelled: asked before each batch; once true, nothing is changed and None comes back.

        Raises:
            OneTooLarge: when there is not enough memory for a single example.
        """
        tokens = sum(batch.target_tokens for batch in batches)
        if not self.model.training:
            self.model.train()
        sums: dict[str, Tensor] = {}

        def begin() -> None:
            self.optimizer.zero_grad(set_to_none=True)
            sums.clear()

        def learn(part: Part) -> bool:
            if cancelled():
                return False
            result = self._loss(part.batch, step, *part.place)
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
        return replace(self._apply(values, tokens, learning_rate), too_large=too_large)

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

    def diagnose(self, batches: Sequence[Batch], step: int) -> tuple[Diagnosis, Tensor]:
        """Find out where an update that was not finite went wrong.

        Returns:
            The diagnosis and the numbers of the examples concerned.
        """
        with self.precision.matmul(), sequences_apart():
            for micro, batch in enumerate(batches):
                size = len(batch.indices)

                def again(batch: Batch = batch, micro: int = micro) -> Tensor:
                    return self._loss(batch, step, micro).loss_sum

                found = find_nonfinite(self.model, again, size)
                if found is not None:
                    rows = list(found.rows) or list(range(size))
                    return found, batch.indices[rows]
        nowhere = Diagnosis("nothing any more when the batches were run one by one")
        return nowhere, torch.cat([batch.indices for batch in batches])

    def _compiling(self, step: int, work: Callable[[], T]) -> T:
        """Do what may compile; it begins anew, uncompiled, where that fails."""
        if self.compiled is None:
            return work()
        try:
            with self.compiled.told(step), self.compiled.used():
                return work()
        except Exception as error:
            self.compiled.failed(error)
            self.compiled = None
        return work()

    def _loss(self, batch: Batch, step: int, *place: int) -> LossSum:
        seed = derive_seed(self.seed, step, *place)
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # seeding all devices takes a millisecond
        else:
            torch.manual_seed(seed)
        with self.precision.autocast():
            return self.objective.loss(self.model, batch.to(self.device), Context(step))

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
