"""Updates launched in order, one of them before the result of the one before is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from heedful.train.optimizers import learning_rate

if TYPE_CHECKING:
    from heedful.train.batch_source import DataPosition
    from heedful.train.objective import CarriedState
    from heedful.train.parallel.shares import UpdateParts
    from heedful.train.run_settings import RunSettings
    from heedful.train.splitting import BatchPart
    from heedful.train.training_state import TrainingState
    from heedful.train.update_result import LaunchedUpdate


@dataclass(frozen=True)
class Launch:
    """An update that was launched.

    Args:
        update: its result, to be read.
        step: its number.
        rate: its learning rate.
        parts: that it learns from.
        place: of them in the data.
        after: the place of the next update's parts.
        before: what the batch before the first handed on.
        started: when, in seconds of the monotonic clock.
    """

    update: LaunchedUpdate
    step: int
    rate: float
    parts: list[BatchPart]
    place: DataPosition
    after: DataPosition
    before: CarriedState
    started: float


class UpdateLauncher(Protocol):
    """Launches one update; see `Updater.launch`."""

    def __call__(
        self,
        parts: list[BatchPart],
        step: int,
        rate: float,
        cancelled: Callable[[], bool],
        carried_state: CarriedState,
    ) -> LaunchedUpdate | None: ...


class Launches:
    """Launches the updates of a run.

    Args:
        start: launches one of them.
        parts: of each update, that this process learns from.
        settings: of the run.
        width: D of the model, for the paper's learning rate.

    Attributes:
        in_flight: the latest update, while its result was not read.
    """

    def __init__(
        self, start: UpdateLauncher, parts: UpdateParts, settings: RunSettings, width: int
    ) -> None:
        self.start = start
        self.parts = parts
        self.settings = settings
        self.width = width
        self.in_flight: Launch | None = None
        self._in_vain: Launch | None = None

    def launch(
        self, state: TrainingState, carried_state: CarriedState, cancelled: Callable[[], bool]
    ) -> Launch | None:
        """Launch the update after the one in flight, or else the one after a state.

        Args:
            state: of the run when the latest result was read.
            carried_state: what the last batch of that update handed on.
            cancelled: see `Updater.launch`.

        Returns:
            The update, now in flight; None if it was cancelled.
        """
        started = time.monotonic()
        step, place = state.step + 1, state.place
        if (ahead := self.in_flight) is not None:
            step, place, carried_state = ahead.step + 1, ahead.after, ahead.update.carried_state
        parts, after = self._take(place)
        schedule, max_steps = self.settings.schedule, self.settings.max_steps
        rate = learning_rate(schedule, step, width=self.width, max_steps=max_steps)
        update = self.start(parts, step, rate, cancelled, carried_state)
        if update is None:
            return None
        self.in_flight = Launch(update, step, rate, parts, place, after, carried_state, started)
        return self.in_flight

    def landed(self) -> Launch | None:
        """The update in flight, of which the result is read now."""
        landed, self.in_flight = self.in_flight, None
        return landed

    def discard(self) -> None:
        """Forget the update in flight, which changed nothing; its parts are kept for the next."""
        self._in_vain = self.landed()

    def _take(self, place: DataPosition) -> tuple[list[BatchPart], DataPosition]:
        kept, self._in_vain = self._in_vain, None
        if kept is not None and kept.place == place:
            return kept.parts, kept.after
        return self.parts.take(place)
