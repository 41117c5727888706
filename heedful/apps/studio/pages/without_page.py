"""Page "Without each part": recorded runs of a small translator, and live training of another."""

from __future__ import annotations

from statistics import fmean
from typing import Annotated, Any

from pydantic import Field

from heedful.apps.studio.page import NoSettings, call
from heedful.apps.studio.small_translator import (
    HELD_OUT,
    PAIRS,
    STEPS,
    VALIDATED_SENTENCES,
    VARIANTS,
    Components,
    read_records,
)
from heedful.apps.studio.workspace import Workspace
from heedful.config import Config


class TrainRequest(Config):
    """The parts of a small translator to train; all other settings are fixed."""

    components: Components = Components()
    seed: Annotated[int, Field(ge=1, le=1000)] = 1


@call()
def recorded(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return the recorded runs: the curves and scores of each variant over seeds."""
    records = read_records()
    runs = records.pop("runs")
    variants = []
    for name, variant in VARIANTS.items():
        of_seeds = runs[name]
        variants.append(
            {
                "name": name,
                "title": variant.title,
                "reason": variant.reason,
                "components": variant.components.plain(),
                "reference": variant.reference,
                "small": variant.is_small,
                "steps": variant.steps,
                "runs": of_seeds,
                "scores": {
                    "exact": _over_seeds([each["exact"] for each in of_seeds]),
                    "bleu": _over_seeds([each["bleu"] for each in of_seeds]),
                    "loss": _over_seeds([each["loss"][-1][1] for each in of_seeds]),
                    "seconds": _over_seeds([each["seconds"] for each in of_seeds]),
                },
            }
        )
    return {**records, "validated": VALIDATED_SENTENCES, "variants": variants}


@call(TrainRequest)
def train(request: TrainRequest, workspace: Workspace) -> dict[str, Any]:
    """Start a training of the small translator with these parts.

    Raises:
        ConfigError: when the parts do not make a translator.
        UserError: when another training is running.
    """
    request.components.check()
    job = {
        "components": request.components.plain(),
        "settings": request.components.settings(request.seed, STEPS),
        "pairs": PAIRS,
        "held_out": HELD_OUT,  # the lines of the recorded runs
    }
    return {"training": workspace.training.start(job)}


@call()
def progress(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return the state of the last training; null before the first."""
    return {"training": workspace.training.status()}


@call()
def stop(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Stop the running training, if there is one."""
    return {"training": workspace.training.stop()}


def _over_seeds(values: list[float]) -> dict[str, float]:
    return {"mean": fmean(values), "low": min(values), "high": max(values)}
