"""The selection of values by their keys, in JSON, YAML and catalogues of strings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from heedful.errors import DataError

_PATHS_NAMED = 5

FRONT_MATTER_KEYS = (
    *("title", "linkTitle", "subtitle", "description", "summary", "excerpt", "tagline"),
    *("caption", "alt"),
)
"""Keys in the front matter of Markdown whose values are text for people."""


class ChosenKeys:
    """The values that `--keys` selects; all values if it is unset.

    Args:
        keys: last keys of paths, or whole paths in which * is one key and ** any number of keys.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._patterns = [(_pattern(key), key) for key in keys]
        self._unused = dict(self._patterns)
        self._paths: dict[str, None] = {}

    def has(self, path: Iterable[str | int]) -> bool:
        """Return True if the value at a path is selected.

        Args:
            path: keys of mappings and indices in lists.
        """
        steps = [str(step).replace("\\", "\\\\").replace(".", "\\.") for step in path]
        self._paths.setdefault(".".join("*" if step.isdigit() else step for step in steps))
        written = ".".join(steps)
        matching = [pattern for pattern, _ in self._patterns if pattern.fullmatch(written)]
        for pattern in matching:
            self._unused.pop(pattern, None)
        return bool(matching) or not self._patterns

    def check(self, name: str) -> None:
        """Refuse selected keys that matched no string of the document.

        Args:
            name: name of the document, for messages.

        Raises:
            DataError: naming the keys, and some that exist.
        """
        if self._unused:
            raise DataError(
                f"No string is at {', '.join(self._unused.values())}",
                where=name,
                remedy="There are strings at " + ", ".join(list(self._paths)[:_PATHS_NAMED])
                if self._paths
                else "There are no strings at all",
            )


def _pattern(key: str) -> re.Pattern[str]:
    """Return a pattern for the paths that a key of `--keys` selects."""
    step = r"(?:[^.\\]|\\.)*"
    steps: Sequence[str] = re.findall(r"(?:[^.\\]|\\.)+", key)
    written = "".join(
        rf"(?:{step}\.)*" if each == "**" else (step if each == "*" else re.escape(each)) + r"\."
        for each in steps
    )
    if written.endswith(r"\."):
        written = written.removesuffix(r"\.")
    else:
        written += step
    return re.compile((rf"(?:{step}\.)*" if len(steps) == 1 else "") + written, re.DOTALL)
