"""On how many examples a property is tried whose examples take long."""

from __future__ import annotations

from hypothesis import settings

QUICK = 10
WHOLE = settings.get_profile("default").max_examples


def slow_examples(number: int) -> int:
    """So many, or ten in a quick run, whose profile has fewer than Hypothesis has by itself.

    Args:
        number: examples of a run of everything.
    """
    return number if settings().max_examples >= WHOLE else min(number, QUICK)
