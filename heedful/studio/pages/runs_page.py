"""Pages "Runs" and "Schedule": curves of training, texts of the models, learning rates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field

from heedful.config import Config, dump_toml, flat
from heedful.errors import UserError
from heedful.studio.page import Call, Page
from heedful.studio.workspace import Axis, thin_curve
from heedful.train.run_settings import ScheduleSettings

if TYPE_CHECKING:
    from heedful.studio.workspace import Place, RunLog, Workspace


POINTS = 500
MOST_RUNS = 12
LINES, LINE_LENGTH = 5, 400
_CONTINUATION = 40

Names = Annotated[tuple[str, ...], Field(max_length=MOST_RUNS)]


class CurvesRequest(Config):
    """Some runs and one of their figures."""

    runs: Names = ()
    figure: str = "loss"
    axis: Axis = "step"


class SamplesRequest(Config):
    """Some runs, and the input lines of their models."""

    runs: Names = ()
    lines: Annotated[
        tuple[Annotated[str, Field(max_length=LINE_LENGTH)], ...], Field(max_length=LINES)
    ] = ()


def curves(request: CurvesRequest, workspace: Workspace) -> dict[str, Any]:
    """Return a figure in training and validation, the state of each run, and their differences."""
    logs = {name: workspace.log(name) for name in request.runs}
    return {
        "runs": [_curves(name, log, request) for name, log in logs.items()],
        "figures": sorted({f for log in logs.values() for k in log.figures().values() for f in k}),
        "differences": _differences(logs),
    }


def samples(request: SamplesRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the output of the newest model of each run for some lines."""
    lines = [line for line in request.lines if line.strip()]
    outputs: list[dict[str, Any]] = []
    for name in request.runs:
        place = workspace.place(name)
        entry: dict[str, Any] = {"run": name, "texts": [], "problem": None}
        try:
            if place.has_model and lines:
                entry["texts"] = _write(place, lines)
            elif lines:
                entry["problem"] = "no model yet: the run was not validated once"
        except UserError as error:
            entry["problem"] = str(error)
        outputs.append(entry)
    return {"samples": outputs, "lines": lines}


def _curves(name: str, log: RunLog, request: CurvesRequest) -> dict[str, Any]:
    events = log.events()
    last = events[-1] if events else {}
    validations = [event for event in events if event.get("event") == "validation"]
    summary = next((event for event in events if event.get("event") == "summary"), None)
    trained = (e for e in reversed(events) if e.get("event", "train") == "train")
    training: dict[str, Any] = next(trained, {})
    settings = log.settings()
    return {
        "name": name,
        **{
            kind: thin_curve(log.points(request.figure, kind, request.axis), POINTS)
            for kind in ("train", "validation")
        },
        "step": last.get("step", 0),
        "max_steps": settings.max_steps,
        "task": settings.task,
        "tokens_per_second": training.get("tokens_per_second"),
        "seconds": training.get("seconds"),
        "newest": {k: v for k, v in validations[-1].items() if k != "event"} if validations else {},
        "done": None if summary is None else str(summary.get("reason", "finished")),
    }


def _differences(logs: dict[str, RunLog]) -> list[dict[str, Any]]:
    if len(logs) < 2:
        return []
    every = {name: flat(log.settings().plain()) for name, log in logs.items()}
    keys = dict.fromkeys(key for values in every.values() for key in values)
    rows = [
        {"setting": key, "values": [_setting(values.get(key)) for values in every.values()]}
        for key in keys
    ]
    return [row for row in rows if len(set(row["values"])) > 1]


def _setting(value: Any) -> str:
    if isinstance(value, list | tuple) and value and isinstance(value[0], dict):  # corpora
        names = [str(part) for each in value for part in each.values() if isinstance(part, str)]
        return ", ".join(Path(name).name for name in names)[:200]
    return "–" if value is None else str(value)[:200]


def _write(place: Place, lines: list[str]) -> list[str]:
    from heedful.pipelines.text_generation import GenerationPipeline
    from heedful.pipelines.translation import TranslationPipeline

    loaded = place.load()
    model: Any = loaded.model
    if not model.spec.generates or loaded.tokenizers is None:
        raise UserError(f"A model of kind {model.spec.kind!r} writes no text", where=place.name)
    if model.spec.reads == "pairs":
        translations = TranslationPipeline(model, loaded.tokenizers).translate(lines)
        return [str(text) for text in translations]
    writer = GenerationPipeline(model, loaded.tokenizers.target)
    return [each.text for each in writer.generate(lines, max_length=_CONTINUATION)]


RUNS = Page(
    name="runs",
    title="Runs",
    summary="Curves of training runs as they grow, and texts of their models.",
    about=(
        "The figures that runs write in training, read again every few seconds; with several "
        "runs also the settings in which they differ. Enter some lines, and each run's best model "
        "translates or continues them, again whenever validation finds a better one."
    ),
    calls={"curves": Call(CurvesRequest, curves), "samples": Call(SamplesRequest, samples)},
)


CURVE_STEPS = 400
Kind = Literal["inverse_sqrt", "cosine", "linear", "constant"]
Step = Annotated[int, Field(ge=1, le=10_000_000)]


class CurveRequest(Config):
    """A schedule, and the runs to draw over it."""

    kind: Kind = "inverse_sqrt"
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 4000
    peak_learning_rate: Annotated[float, Field(gt=0, le=10)] | None = None
    final_learning_rate: Annotated[float, Field(ge=0, le=10)] = 0.0
    width: Annotated[int, Field(ge=1, le=100_000)] = 512
    max_steps: Step = 40_000
    runs: Annotated[tuple[str, ...], Field(max_length=16)] = ()


class RunRequest(Config):
    """A run."""

    run: str


def curve(request: CurveRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the rate at a few hundred steps, for every kind of schedule."""
    from heedful.train.optimizers import learning_rate, peak_learning_rate

    settings = ScheduleSettings(
        kind=request.kind,
        warmup_steps=request.warmup_steps,
        peak_learning_rate=request.peak_learning_rate,
        final_learning_rate=request.final_learning_rate,
    )
    steps = _steps(request.max_steps, request.warmup_steps)
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
        "runs": {
            name: thin_curve(workspace.log(name).points("lr"), CURVE_STEPS) for name in request.runs
        },
        "toml": dump_toml({"max_steps": request.max_steps, "schedule": settings.plain()}),
    }


def settings_of(request: RunRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the schedule of a run as this page's settings."""
    settings = workspace.log(request.run).settings()
    return {
        **settings.schedule.plain(),
        "width": settings.model.width,
        "max_steps": settings.max_steps,
    }


def _steps(last: int, warmup: int) -> list[int]:
    """Evenly spaced steps, with the first, the last and the end of the warm-up."""
    stride = max(1, last // CURVE_STEPS)
    corners = {1, last} | ({warmup} if 1 <= warmup <= last else set())
    return sorted(corners | set(range(stride, last + 1, stride)))


SCHEDULE = Page(
    name="schedule",
    title="Schedule",
    summary="The learning rate over the steps of training.",
    about=(
        "The rate rises in a straight line while Adam's averages are still unreliable, then falls. "
        "The 2017 schedule falls with the inverse square root of the step and takes its peak from "
        "the width of the model; cosine and linear schedules end at the last step. A run's own "
        "rates, as it logged them, can be laid over the formula."
    ),
    calls={"curve": Call(CurveRequest, curve), "settings": Call(RunRequest, settings_of)},
)
