"""Page "Runs": the curves of training runs as they grow, and what their models write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heedful.config import Config, flat
from heedful.errors import UserError
from heedful.studio.page import Call, Page
from heedful.studio.run_log import thinned

if TYPE_CHECKING:
    from heedful.studio.run_log import RunLog
    from heedful.studio.workspace import Place, Workspace

POINTS = 500
MOST_RUNS = 12
LINES, LINE_LENGTH = 5, 400
_CONTINUATION = 40

Names = Annotated[tuple[str, ...], Field(max_length=MOST_RUNS)]


class CurvesRequest(Config):
    """Some runs and one of their figures."""

    runs: Names = ()
    figure: str = "loss"


class SamplesRequest(Config):
    """Some runs, and the lines that each of their models is given."""

    runs: Names = ()
    lines: Annotated[
        tuple[Annotated[str, Field(max_length=LINE_LENGTH)], ...], Field(max_length=LINES)
    ] = ()


def curves(asked: CurvesRequest, workspace: Workspace) -> dict[str, Any]:
    """A figure in training and validation, where each run stands, and how their settings differ."""
    logs = {name: workspace.log(name) for name in asked.runs}
    return {
        "runs": [_curves(name, log, asked.figure) for name, log in logs.items()],
        "figures": sorted({f for log in logs.values() for k in log.figures().values() for f in k}),
        "differences": _differences(logs),
    }


def samples(asked: SamplesRequest, workspace: Workspace) -> dict[str, Any]:
    """What the newest model of each run makes of some lines."""
    lines = [line for line in asked.lines if line.strip()]
    found: list[dict[str, Any]] = []
    for name in asked.runs:
        place = workspace.place(name)
        entry: dict[str, Any] = {"run": name, "texts": [], "problem": None}
        try:
            if place.has_model and lines:
                entry["texts"] = _written(place, lines)
            elif lines:
                entry["problem"] = "no model yet: the run was not validated once"
        except UserError as error:
            entry["problem"] = str(error)
        found.append(entry)
    return {"samples": found, "lines": lines}


def _curves(name: str, log: RunLog, figure: str) -> dict[str, Any]:
    events = log.events()
    last = events[-1] if events else {}
    validations = [event for event in events if event.get("event") == "validation"]
    summary = next((event for event in events if event.get("event") == "summary"), None)
    trained = (e for e in reversed(events) if e.get("event", "train") == "train")
    training: dict[str, Any] = next(trained, {})
    settings = log.settings()
    return {
        "name": name,
        "train": thinned(log.points(figure), POINTS),
        "validation": thinned(log.points(figure, "validation"), POINTS),
        "step": last.get("step", 0),
        "max_steps": settings.max_steps,
        "task": settings.task,
        "tokens_per_second": training.get("tokens_per_second"),
        "seconds": training.get("seconds"),
        "newest": {k: v for k, v in validations[-1].items() if k != "event"} if validations else {},
        "done": None if summary is None else str(summary.get("reason", "finished")),
    }


def _differences(logs: dict[str, RunLog]) -> list[dict[str, Any]]:
    """Settings in which the runs are not alike."""
    if len(logs) < 2:
        return []
    every = {name: flat(log.settings().plain()) for name, log in logs.items()}
    keys = dict.fromkeys(key for values in every.values() for key in values)
    rows = [
        {"setting": key, "values": [_shown(values.get(key)) for values in every.values()]}
        for key in keys
    ]
    return [row for row in rows if len(set(row["values"])) > 1]


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple) and value and isinstance(value[0], dict):  # corpora
        names = [str(part) for each in value for part in each.values() if isinstance(part, str)]
        return ", ".join(Path(name).name for name in names)[:200]
    return "–" if value is None else str(value)[:200]


def _written(place: Place, lines: list[str]) -> list[str]:
    from heedful.decode.pipeline import TranslationPipeline
    from heedful.models.causal_lm import CausalLM
    from heedful.models.translator import Translator

    found = place.load()
    if isinstance(found.model, Translator) and found.tokenizers is not None:
        pipeline = TranslationPipeline(found.model, found.tokenizers)
        return [str(text) for text in pipeline.translate(lines)]
    if isinstance(found.model, CausalLM) and found.tokenizers is not None:
        from heedful.decode.text_generation import GenerationPipeline

        writer = GenerationPipeline(found.model, found.tokenizers.target)
        return [g.text for g in writer.generate(lines, max_length=_CONTINUATION)]
    raise UserError(f"A model of kind {found.model.spec.kind!r} writes no text", where=place.name)


PAGE = Page(
    name="runs",
    title="Runs",
    summary="Curves of training runs as they grow, and what their models write.",
    about=(
        "The figures that runs write while they train, read again every few seconds; with several "
        "runs also the settings in which they differ. Give some lines, and each run's newest model "
        "translates or continues them, anew whenever validation has found a better one."
    ),
    calls={"curves": Call(CurvesRequest, curves), "samples": Call(SamplesRequest, samples)},
)
