"""COMET in `heedful evaluate`: its scores, and the comparison of two systems by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heedful.cli.evaluation.translation_scores import Translations, score_range
from heedful.cli.flags import Running
from heedful.cli.text_io import read_aligned, show_table
from heedful.errors import UserError


def check_comet(source: Path | None, *, by_length: bool) -> None:
    """Refuse COMET without sources, without its program, or as the only metric by length.

    Args:
        source: file of the source sentences.
        by_length: True if scores by length are asked for, and of no other metric.

    Raises:
        UserError: naming the flag.
    """
    from heedful.apps.evaluation.comet_metric import comet_program

    if source is None:
        raise UserError(
            "COMET scores a translation beside its source, which is missing",
            where="--metrics comet",
            remedy="Add --source FILE",
        )
    if by_length:
        raise UserError(
            "COMET is not measured by length", where="--by-length", remedy="Add --metrics bleu"
        )
    comet_program()


def comet_facts(
    translations: Translations, source: Path, model: str, running: Running
) -> dict[str, Any]:
    """Score systems by COMET, from 0 to 100; show a table, return plain facts.

    Args:
        translations: systems and references, of which COMET reads the first.
        source: file of the source sentences.
        model: name or file of COMET's model.
        running: device.

    Raises:
        DataError: when the number of sources differs from that of the references.
        RunError: when COMET fails.
    """
    from heedful.apps.evaluation.bootstrap import paired_ratios
    from heedful.apps.evaluation.comet_metric import comet_scores
    from heedful.device import resolve_device
    from heedful.evaluate.corpus_metrics import MetricScore

    sources = read_aligned(source, len(translations.references[0]))
    on_gpu = resolve_device(running.device).type == "cuda"
    found = comet_scores(
        sources, translations.systems, translations.references[0], model=model, on_gpu=on_gpu
    )
    sums = {name: [100 * each for each in scores] for name, scores in found.items()}
    ours = sums["system"]
    score = MetricScore("comet", sum(ours) / len(ours), f"model:{model}|scale:100")
    facts: dict[str, Any] = {"scores": {"comet": score.plain()}}
    rows = [("comet", score.signature, f"{score.score:.2f}")]
    if "baseline" in sums:
        paired = paired_ratios(
            "comet", sums["baseline"], ours, [1] * len(ours), samples=translations.samples
        )
        facts["comparison"] = {"comet": paired.plain()}
        shown = (score_range(paired.difference), f"p {paired.p_value:.3f}")
        rows.append(("comet, against the baseline", shown[1], shown[0]))
    if translations.show:
        show_table(f"{len(ours):,} lines", ("metric", "signature", "score"), rows, numbers=1)
    return facts
