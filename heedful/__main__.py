"""`python -m heedful`: the command line."""

from __future__ import annotations

import sys

from heedful.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
