"""Page "The paper's results": quality and cost of the systems of 2017 and of variants."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from heedful.apps.studio.page import NoSettings, call
from heedful.apps.studio.workspace import Workspace
from heedful.config import read_toml
from heedful.evaluate.corpus_metrics import corpus_scores

RESULTS_FILE = Path(__file__).parents[1] / "results.toml"
REFERENCE = "we saw a small house near the river yesterday evening"
TRANSLATIONS = {
    "by the person": REFERENCE,
    "one word differs": "we saw a small house near the river last evening",
    "as right, in another order": "yesterday evening we saw a small house by the river",
}
"""Translations of one sentence by what they are, to show how BLEU counts; the person's first."""


@call()
def tables(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return tables 2, 3 and 4 of the paper (Vaswani 2017), and BLEU of one sentence."""
    bleu = [_counted(text) | {"about": about} for about, text in TRANSLATIONS.items()]
    return {**read_toml(RESULTS_FILE), "bleu": bleu}


def _counted(text: str) -> dict[str, Any]:
    """Return BLEU of a translation, and how many of its n-grams the reference has."""
    score = corpus_scores([text], [REFERENCE], ["bleu"], tokenize="none")["bleu"]
    words = text.split()
    shared = [
        [round(share * total / 100), total]
        for share, total in zip(score.details["precisions"], count(len(words), -1), strict=False)
    ]
    return {"words": words, "shared": shared, "score": score.score}
