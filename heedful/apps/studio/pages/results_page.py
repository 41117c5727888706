"""Page "The paper's results": quality and cost of the systems of 2017 and of variants."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.apps.studio.page import Call, NoSettings, Page
from heedful.config import read_toml

if TYPE_CHECKING:
    from heedful.apps.studio.workspace import Workspace

RESULTS_FILE = Path(__file__).parents[1] / "results.toml"


def tables(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return tables 2, 3 and 4 of the paper (Vaswani 2017)."""
    return read_toml(RESULTS_FILE)


PAGE = Page(
    name="results",
    title="The paper's results",
    summary="Quality and training cost of the systems of 2017.",
    about=(
        "In 2017 the big Transformer translated better than all systems before it, at a fraction "
        "of the best one's training. BLEU counts the words and phrases that a translation shares "
        "with one by a person: more is better. All figures are the paper's own."
    ),
    calls={"tables": Call(NoSettings, tables)},
)
