"""Updates launched in order, each before the result of its predecessor is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
        update: handle of the result.
        step: number of the update.
        rate: learning rate of the update.
        parts: batch parts that it is computed from.
        place: position of these parts in the data.
        after: position of the next update's parts.
        before: carried state of the batch before the first.
        started: time of the launch, in seconds of the monotonic clock.
    """

    update: LaunchedUpdate
    step: int
    rate: float
    parts: list[BatchPart]
    place: DataPosition
    after: DataPosition
    before: CarriedState
    started: float


class Launches:
    """Launches the updates of a run.

    Args:
        start: function that launches one update.
        parts: source of the batch parts that this process trains on.
        settings: settings of the training run.
        width: D of the model, for the paper's learning rate.

    Attributes:
        in_flight: the launched update whose result has not been read yet; None if there is none.
    """

    def __init__(
        self,
        start: Callable[..., LaunchedUpdate | None],
        parts: UpdateParts,
        settings: RunSettings,
        width: int,
    ) -> None:
        self.start = start
        self.parts = parts
        self.settings = settings
        self.width = width
        self.in_flight: Launch | None = None
        self._discarded: Launch | None = None

    def launch(
        self, state: TrainingState, carried_state: CarriedState, cancelled: Callable[[], bool]
    ) -> Launch | None:
        """Launch the update that follows the one in flight or, without one, the given state.

        Args:
            state: counters of the run after the latest result that was read.
            carried_state: carried state of the last batch of that update.
            cancelled: see `Updater.launch`.

        Returns:
            The update, now in flight; None if it was cancelled.
        """
        started = time.monotonic()
        # The state lags one update behind while one is in flight.
        step, place = state.step + 1, state.place
        if (ahead := self.in_flight) is not None:
            step, place, carried_state = ahead.step + 1, ahead.after, ahead.update.carried_state
        # May wait for the thread that reads data; the device computes meanwhile.
        parts, after = self._take(place)
        schedule, max_steps = self.settings.schedule, self.settings.max_steps
        rate = learning_rate(schedule, step, width=self.width, max_steps=max_steps)
        update = self.start(parts, step, rate, cancelled, carried_state)
        # Cancelled between batches: nothing changed, and the position is asked for again.
        if update is None:
            return None
        self.in_flight = Launch(update, step, rate, parts, place, after, carried_state, started)
        return self.in_flight

    def pop_in_flight(self) -> Launch | None:
        """Return the update in flight and forget it: the caller reads its result."""
        flight, self.in_flight = self.in_flight, None
        return flight

    def discard(self) -> None:
        """Discard the update in flight, which changed no weight, and keep its parts."""
        self._discarded = self.pop_in_flight()

    def _take(self, place: DataPosition) -> tuple[list[BatchPart], DataPosition]:
        # The same position is asked for again after a skipped update; the reader is past it
        # already.
        kept, self._discarded = self._discarded, None
        if kept is not None and kept.place == place:
            return kept.parts, kept.after
        return self.parts.take(place)
