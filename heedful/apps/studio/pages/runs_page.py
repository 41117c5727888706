"""Page "Runs": training curves, comparison of runs, and outputs of their models."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heedful.apps.studio.page import call
from heedful.apps.studio.run_log import AXES, KINDS, Axis, smooth_curve, stretch_of, thin_curve
from heedful.apps.studio.text_history import history, with_chrf
from heedful.apps.studio.workspace import Workspace, WorkspaceDirectory
from heedful.config import Config, flat
from heedful.errors import UserError
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.pipelines.translation import TranslationPipeline

if TYPE_CHECKING:
    from heedful.apps.studio.run_log import Curve, RunLog, RunState
    from heedful.train.run_settings import RunSettings

POINTS = 400
MOST_RUNS, MOST_FIGURES = 12, 8
LINES, LINE_LENGTH = 5, 400
_CONTINUATION = 40
OVERVIEW = {
    "width": "model.width",
    "learning rate": "schedule.peak_learning_rate",
    "tokens a step": "data.batch_tokens",
}
"""Settings in the table of all runs, by their names there."""
SET_BY_SCHEDULE = frozenset({"lr", "epoch", "total_tokens", "seconds"})
"""Figures without noise, which are not smoothed."""
LOWER_IS_BETTER = frozenset({"loss", "nll", "perplexity", "bits_per_token", "ter"})

Names = Annotated[tuple[str, ...], Field(max_length=MOST_RUNS)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class RunsRequest(Config):
    """Names of runs."""

    runs: Names = ()


class CurvesRequest(RunsRequest):
    """Runs, metrics, and the range of an axis to show."""

    figures: Annotated[tuple[str, ...], Field(max_length=MOST_FIGURES)] = ("loss",)
    axis: Axis = "step"
    smooth: Annotated[float, Field(ge=0, lt=1)] = 0.0
    log: bool = Field(False, description="thin curves evenly on a logarithmic axis")
    low: Number | None = Field(None, description="lower end of the range; the first point if unset")
    high: Number | None = Field(None, description="upper end of the range; the last point if unset")


class CompareRunsRequest(RunsRequest):
    """Runs, and a target score."""

    score: str = Field(
        "", description="validation metric; if empty, the one that selects the best model"
    )
    target: Number | None = Field(
        None, description="target score; if unset, the best score that all runs reached"
    )


class HistoryRequest(RunsRequest):
    """Runs, and one of the sentences that they translate at each validation."""

    sentence: Annotated[int, Field(ge=-1, le=10_000)] = Field(
        -1, description="index of the sentence; -1 for the one whose translations differ most"
    )


class RunRecordRequest(Config):
    """Name of a run."""

    run: str


class SamplesRequest(RunsRequest):
    """Runs, and input lines of their models."""

    lines: Annotated[
        tuple[Annotated[str, Field(max_length=LINE_LENGTH)], ...], Field(max_length=LINES)
    ] = ()


@call(RunsRequest)
def states(request: RunsRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the state of every run; of those asked for the metrics and differing settings."""
    logs = {name: workspace.log(name) for name in request.runs}
    figures = dict.fromkeys(f for log in logs.values() for fs in log.figures().values() for f in fs)
    return {
        "runs": [
            _state(each, each.log) for each in workspace.places.values() if each.log is not None
        ],
        "figures": list(figures),
        "differences": _differences(logs),
    }


@call(CurvesRequest)
def curves(request: CurvesRequest, workspace: Workspace) -> dict[str, Any]:
    """Return thinned metrics of training and validation, and the range that each run covers."""
    return {
        "runs": [
            {
                "name": name,
                "span": _span(workspace.log(name), request),
                "figures": {f: _figure(workspace.log(name), f, request) for f in request.figures},
            }
            for name in request.runs
        ]
    }


@call(CompareRunsRequest)
def compare(request: CompareRunsRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the best and the newest score of each run, and when it reached a target."""
    logs = {name: workspace.log(name) for name in request.runs}
    scores = list(dict.fromkeys(f for log in logs.values() for f in log.figures()["validation"]))
    score = request.score if request.score in scores else _deciding(logs, scores)
    sign = _sign(score)
    found = {name: log.curve(score, "validation") for name, log in logs.items()}
    best = {name: _best(curve, sign) for name, curve in found.items() if len(curve[0])}
    target = request.target
    if target is None and best:
        target = min((values for _, values in best.values()), key=lambda value: sign * value)
    first = next(iter(best.values()), None)
    rows = []
    for name, log in logs.items():
        row: dict[str, Any] = {"name": name, "best": None, "newest": None, "reached": None}
        if name in best:
            assert first is not None
            row["best_step"], row["best"] = best[name]
            row["newest"] = float(found[name][1][-1])
            row["difference"] = best[name][1] - first[1]
            row["reached"] = None if target is None else _reached(log, score, sign, target)
        rows.append(row | _totals(log.state()))
    return {
        "scores": scores,
        "score": score,
        "lower_is_better": sign < 0,
        "target": target,
        "runs": rows,
    }


@call(HistoryRequest, "history")
def texts_over_time(request: HistoryRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the translations of a validation sentence at each step, with changed words."""
    samples = {name: workspace.log(name).state().samples for name in request.runs}
    return history(samples, request.sentence)


@call(RunsRequest)
def worst(request: RunsRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the worst translations of each run's newest validation, with their chrF."""
    found = {name: workspace.log(name).state().worst for name in request.runs}
    return {
        "runs": [
            {"name": name, "step": each[0], "texts": with_chrf(each[1])}
            for name, each in found.items()
            if each is not None
        ]
    }


@call(SamplesRequest)
def samples(request: SamplesRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the output of each run's newest model for some lines."""
    lines = [line for line in request.lines if line.strip()]
    outputs: list[dict[str, Any]] = []
    for name in request.runs:
        place = workspace.place(name)
        entry: dict[str, Any] = {"run": name, "texts": [], "problem": None}
        try:
            if place.has_model and lines:
                entry["texts"] = _write(place, lines)
            elif lines and not place.is_compared:
                entry["problem"] = "no model yet: the run was not validated once"
        except UserError as error:
            entry["problem"] = str(error)
        outputs.append(entry)
    return {"samples": outputs, "lines": lines}


@call(RunRecordRequest)
def record(request: RunRecordRequest, workspace: Workspace) -> dict[str, Any]:
    """Return what the other calls read of a run: an exported page answers them from it."""
    place, log = workspace.place(request.run), workspace.log(request.run)
    settings = log.settings() if log.has_settings else None
    state = log.state()
    texts = history({request.run: state.samples}, 0)
    sentences = [history({request.run: state.samples}, i) for i in range(len(texts["sentences"]))]
    return {
        "state": _state(place, log),
        **_all_curves(log),
        "settings": settings
        and {
            key: None if value is None else _setting(value)
            for key, value in flat(settings.plain()).items()
        },
        "choose_by": settings and settings.validation.choose_by,
        "samples": [
            {key: each[key] for key in ("source", "reference")}
            | {"texts": each["runs"][0]["texts"]}
            for each in sentences
        ],
        "worst": state.worst and {"step": state.worst[0], "texts": with_chrf(state.worst[1])},
        "compared": place.is_compared,
    }


def _all_curves(log: RunLog) -> dict[str, Any]:
    """Return the curves of all metrics on all axes; curves at the same places share them."""
    places: dict[tuple[float, ...], int] = {}
    curves: dict[str, dict[str, Any]] = {}
    for kind, figures in log.figures().items():
        curves[kind] = {}
        for figure in figures:
            on_axes = curves[kind][figure] = {}
            for axis in AXES:
                found, values = log.curve(figure, kind, axis)
                # Whole numbers, such as steps, are recorded with all their digits.
                at = tuple(int(x) if x.is_integer() else x for x in found.tolist())
                index = places.setdefault(at, len(places))
                on_axes[axis] = {"places": index, "values": values.tolist()}
    return {"places": list(places), "curves": curves}


def _state(place: WorkspaceDirectory, log: RunLog) -> dict[str, Any]:
    state, settings = log.state(), log.settings() if log.has_settings else None
    newest = state.validations[-1] if state.validations else {}
    score = _deciding({place.name: log}, [name for name in newest if name not in ("event", "step")])
    curve = log.curve(score, "validation")
    now = time.time()
    training = state.is_training(now) and not place.is_at_hand
    quiet = None if state.written is None else max(0.0, now - state.written)
    reason = None if state.summary is None else str(state.summary.get("reason", "finished"))
    return {
        "name": place.name,
        "lines": state.lines,
        "training": training,
        "quiet": quiet,
        "left": seconds_left(state, settings) if training and settings else None,
        "done": reason,
        "max_steps": settings and settings.max_steps,
        "task": settings and settings.task,
        "begun": settings is not None and settings.init is not None,
        "settings": {} if settings is None else _overview(settings),
        "parameters": (state.summary or {}).get("parameters"),
        "loss": newest.get("loss", state.training.get("loss")),
        # A run that is begun anew empties its file, maybe since the state was read.
        "best": [score, _best(curve, _sign(score))[1]] if len(curve[0]) else None,
        "validations": len(state.validations),
        "samples": len(state.samples),
        **_totals(state),
    }


def _overview(settings: RunSettings) -> dict[str, Any]:
    """Return the settings of `OVERVIEW`; a run begun from another model names no sizes."""
    every = flat(settings.plain())
    if settings.init is not None:
        every = {key: value for key, value in every.items() if not key.startswith("model.")}
    return {name: every.get(key) for name, key in OVERVIEW.items()}


def _totals(state: RunState) -> dict[str, Any]:
    names = ("seconds", "total_tokens")
    return {"step": state.step} | {name: state.training.get(name) for name in names}


def seconds_left(state: RunState, settings: RunSettings) -> float | None:
    """Return the seconds to the end of a run at the present speed, by the limit that comes first.

    Steps, minutes and passes over the data limit a run.
    """
    seconds = state.training.get("seconds")
    if not state.step or not isinstance(seconds, int | float):
        return None
    left = [(settings.max_steps - state.step) * seconds / state.step]
    if settings.max_minutes is not None:
        left.append(60 * settings.max_minutes - seconds)
    epoch = state.training.get("epoch")
    if settings.max_epochs is not None and isinstance(epoch, int | float) and epoch > 0:
        left.append((settings.max_epochs - epoch) * seconds / epoch)
    return max(0.0, min(left))


def _span(log: RunLog, request: CurvesRequest) -> list[float] | None:
    """Return the first and the last position of the metrics on the axis."""
    ends: list[float] = []
    for kind in KINDS:
        for figure in request.figures:
            places, _ = log.curve(figure, kind, request.axis)
            if request.log:
                places = places[places > 0]
            if len(places):
                ends += [float(places.min()), float(places.max())]
    return [min(ends), max(ends)] if ends else None


def _figure(log: RunLog, figure: str, request: CurvesRequest) -> dict[str, Any]:
    def thin(curve: Curve) -> list[tuple[float, float]]:
        part = stretch_of(curve, request.low, request.high)
        return thin_curve(part, POINTS, log=request.log)

    train = log.curve(figure, "train", request.axis)
    is_smoothed = request.smooth > 0 and figure not in SET_BY_SCHEDULE
    return {
        "train": thin(train),
        "smoothed": thin(smooth_curve(train, request.smooth)) if is_smoothed else [],
        "validation": thin(log.curve(figure, "validation", request.axis)),
    }


def _deciding(logs: dict[str, RunLog], scores: list[str]) -> str:
    """Return the score that selects the best model, from the first run that has one."""
    known = [log for log in logs.values() if log.has_settings]
    chosen = (log.settings().validation.choose_by for log in known)
    return next((str(name) for name in chosen if name in scores), scores[0] if scores else "")


def _sign(score: str) -> float:
    """Return the factor that makes more of a score better."""
    return -1.0 if score in LOWER_IS_BETTER else 1.0


def _best(curve: Curve, sign: float) -> tuple[float, float]:
    steps, values = curve
    index = int((sign * values).argmax())
    return float(steps[index]), float(values[index])


def _reached(log: RunLog, score: str, sign: float, target: float) -> dict[str, float | None] | None:
    """Return step, seconds and tokens at which a score first reached a target."""
    found: dict[str, float | None] = {}
    for axis in AXES:
        places, values = log.curve(score, "validation", axis)
        good = (sign * values >= sign * target).nonzero()[0]
        found[axis] = float(places[good[0]]) if len(good) else None
    return None if found["step"] is None else found


def _differences(logs: dict[str, RunLog]) -> list[dict[str, Any]]:
    logs = {name: log for name, log in logs.items() if log.has_settings}
    if len(logs) < 2:
        return []
    every = {name: flat(log.settings().plain()) for name, log in logs.items()}
    keys = dict.fromkeys(key for values in every.values() for key in values)
    # A run that begins from another model has that model's sizes, and names none of its own.
    begun = [every[name] for name, log in logs.items() if log.settings().init is not None]
    rows = [
        {"setting": key, "values": [_setting(values.get(key)) for values in every.values()]}
        for key in keys
        if key != "init"  # the state of a run says that it began from a model
        and not (key.startswith("model.") and any(values.get(key) is None for values in begun))
    ]
    return [row for row in rows if len(set(row["values"])) > 1]


def _setting(value: Any) -> str:
    """Return a setting in words: of corpora and of models their names."""
    if isinstance(value, list | tuple):
        parts: list[Any] = []
        for each in value:  # a corpus has a weight beside its files
            files = isinstance(each, dict)
            parts += [part for part in each.values() if isinstance(part, str)] if files else [each]
        names = dict.fromkeys(_setting(part) for part in parts if part not in ("", None))
        return ", ".join(names)[:200] or "none"
    if isinstance(value, str) and "/" in value:
        return Path(value).name
    return "–" if value in ("", None) else str(value)[:200]


def _write(place: WorkspaceDirectory, lines: list[str]) -> list[str]:
    loaded = place.load()
    model: Any = loaded.model
    if not model.spec.generates or loaded.tokenizers is None:
        raise UserError(f"A model of kind {model.spec.kind!r} writes no text", where=place.name)
    if model.spec.reads == "pairs":
        translations = TranslationPipeline(model, loaded.tokenizers).translate(lines)
        return [str(text) for text in translations]
    writer = GenerationPipeline(model, loaded.tokenizers.target)
    return [each.text for each in writer.generate(lines, max_length=_CONTINUATION)]
