"""`python -m heedful`: the command line."""

from __future__ import annotations

import sys

from heedful.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
