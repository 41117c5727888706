"""The summary of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunSummary:
    """The summary of a run.

    Args:
        finished: False when it was asked to stop; it can then be resumed.
        reason: why it ended.
        steps: updates made.
        epochs: whole passes over the corpus.
        target_tokens: trained on, repeats counted.
        seconds: wall-clock time of training and validation, over all resumes.
        parameters: of the model.
        trained_parameters: those that training changed; with low-rank changes, of these.
        model: what RUN/model holds: `weights`, `moving average`, or an average of checkpoints.
        model_step: the step it is of.
        scores: its validation figures.
        signatures: sacreBLEU's, by metric.
        precision: that was trained in.
        compiling: whether training's pass was compiled, and why.
        peak_memory_bytes: the largest resident size of this process.
    """

    finished: bool
    reason: str
    steps: int
    epochs: int
    target_tokens: int
    seconds: float
    parameters: int
    trained_parameters: int
    model: str | None
    model_step: int | None
    scores: Mapping[str, float] = field(default_factory=dict)
    signatures: Mapping[str, str] = field(default_factory=dict)
    precision: str = ""
    compiling: str = ""
    peak_memory_bytes: int = 0

    @property
    def exit_status(self) -> int:
        """0 when the run finished, 1 when it was stopped and waits to be resumed."""
        return 0 if self.finished else 1

    def plain(self) -> dict[str, Any]:
        """The summary as JSON types."""
        return asdict(self)
