"""Page "Schedule": learning rates by formula and as logged; runs with warm-ups of many lengths."""

from __future__ import annotations

from statistics import fmean
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from heedful.apps.studio.page import NoSettings, call
from heedful.apps.studio.run_log import thin_curve
from heedful.apps.studio.small_translator import VARIANTS, WIDTH, read_warmups
from heedful.apps.studio.workspace import Workspace
from heedful.config import Config, dump_toml
from heedful.train.optimizers import learning_rate, peak_learning_rate
from heedful.train.run_settings import ScheduleSettings

CURVE_STEPS = 400
SMALL_STEPS = 40
"""Points of the learning rate of a recorded run, which is drawn pale and small."""
Kind = Literal["inverse_sqrt", "cosine", "linear", "constant"]
Step = Annotated[int, Field(ge=1, le=10_000_000)]


class CurveRequest(Config):
    """A schedule."""

    kind: Kind = "inverse_sqrt"
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 4000
    peak_learning_rate: Annotated[float, Field(gt=0, le=10)] | None = None
    final_learning_rate: Annotated[float, Field(ge=0, le=10)] = 0.0
    width: Annotated[int, Field(ge=1, le=100_000)] = 512
    max_steps: Step = 40_000


class RunRequest(Config):
    """The name of a run."""

    run: str


@call(CurveRequest)
def curve(request: CurveRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the learning rate at a few hundred steps, for every kind of schedule."""
    own = {"kind", "warmup_steps", "peak_learning_rate", "final_learning_rate"}
    settings = ScheduleSettings(**request.model_dump(include=own))
    steps = _steps(request.max_steps, request.warmup_steps, CURVE_STEPS)
    curves = {
        kind: [
            learning_rate(
                settings.model_copy(update={"kind": kind}),
                step,
                width=request.width,
                max_steps=request.max_steps,
            )
            for step in steps
        ]
        for kind in get_args(Kind)
    }
    return {
        "steps": steps,
        "curves": curves,
        "peak": peak_learning_rate(settings, request.width),
        "peak_step": max(1, request.warmup_steps),
        "toml": dump_toml({"max_steps": request.max_steps, "schedule": settings.plain()}),
    }


@call(RunRequest, "settings")
def settings_of(request: RunRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the schedule of a run as this page's settings, and the learning rates it logged."""
    log = workspace.log(request.run)
    settings = log.settings()
    return {
        "logged": thin_curve(log.curve("lr"), CURVE_STEPS),
        **settings.schedule.plain(),
        "width": settings.model.width,
        "max_steps": settings.max_steps,
    }


@call()
def warmups(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return the runs with warm-ups of many lengths, their means, and the learning rates."""
    records = read_warmups()
    total = records["steps"]
    found = []
    for steps, runs in ((each["steps"], each["runs"]) for each in records["warmups"]):
        schedule = ScheduleSettings.parse(VARIANTS["six"].settings(1)["schedule"])
        schedule = schedule.model_copy(update={"warmup_steps": steps})
        found.append(
            {
                "steps": steps,
                "loss": [
                    [points[0][0], fmean(loss for _, loss in points)]
                    for points in zip(*(run["loss"] for run in runs), strict=True)
                ],
                "exact": fmean(run["exact"] for run in runs),
                "runs": [{"exact": run["exact"], "loss": run["loss"]} for run in runs],
                "rates": [
                    [step, learning_rate(schedule, step, width=WIDTH, max_steps=total)]
                    for step in _steps(total, steps, SMALL_STEPS)
                ],
            }
        )
    seeds = len(records["warmups"][0]["runs"])
    return {"steps": total, "rate": records["rate"], "seeds": seeds, "warmups": found}


def _steps(last: int, warmup: int, count: int) -> list[int]:
    """Return evenly spaced steps that include the first, the last and the end of the warm-up."""
    stride = max(1, last // count)
    corners = {1, last} | ({warmup} if 1 <= warmup <= last else set())
    return sorted(corners | set(range(stride, last + 1, stride)))
