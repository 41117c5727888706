"""Page "The paper's results": quality and cost of the systems of 2017 and of variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heedful.apps.studio.page import NoSettings, call
from heedful.apps.studio.workspace import Workspace
from heedful.config import read_toml

RESULTS_FILE = Path(__file__).parents[1] / "results.toml"


@call()
def tables(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return tables 2, 3 and 4 of the paper (Vaswani 2017)."""
    return read_toml(RESULTS_FILE)
