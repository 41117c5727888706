"""Where a run stands, as plain data that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Scored:
    """What a validation came to.

    Args:
        step: when it was.
        score: the score that decides, larger is better.
    """

    step: int
    score: float


@dataclass
class TrainingState:
    """The counters of a run; weights and optimiser are beside it.

    Args:
        step: updates made or skipped.
        epoch: passes over the corpus finished.
        batch: batches of the present pass already used.
        tokens: target tokens trained on.
        seconds: wall-clock time, over all resumes.
        best: the best validation so far.
        stale: validations since then.
        validated: the last validation, which may be the best one.
        skipped: updates skipped in a row because something was not finite.
        rollbacks: returns to a checkpoint since the last one was written.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: Scored | None = None
    stale: int = 0
    validated: Scored | None = None
    skipped: int = 0
    rollbacks: int = 0

    def plain(self) -> dict[str, Any]:
        """The state as JSON types."""
        return asdict(self)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """What `plain` gave."""
        scored = {
            name: None if values[name] is None else Scored(**values[name])
            for name in ("best", "validated")
        }
        return cls(**{**values, **scored})
