"""Reports on translations: the value and the evidence of each check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Side = Literal["source", "target"]

Languages = tuple[str | None, str | None]
"""Codes of source and target, None where unknown."""


@dataclass(frozen=True)
class Evidence:
    """A range of a text that a check reports.

    Args:
        side: source or target.
        start: index of its first character.
        end: index after its last character.
        text: characters of the range.
        note: explanation for people.
    """

    side: Side
    start: int
    end: int
    text: str
    note: str

    def plain(self) -> dict[str, Any]:
        """The evidence as JSON data."""
        return {
            "side": self.side,
            "start": self.start,
            "end": self.end,
            "text": self.text,
            "note": self.note,
        }


@dataclass(frozen=True)
class CheckResult:
    """The result of one check of one translation.

    Args:
        name: name of the check, a key of `CHECKS`.
        failed: True if the translation is in doubt.
        value: measured value.
        threshold: value beyond which the check fails.
        evidence: ranges of the texts that show the fault.
        advisory: True for a check that is reported, but puts no translation in doubt.
    """

    name: str
    failed: bool
    value: float
    threshold: float
    evidence: tuple[Evidence, ...] = ()
    advisory: bool = False

    def plain(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {
            "name": self.name,
            "failed": self.failed,
            "value": round(self.value, 4),
            "threshold": self.threshold,
            "evidence": [each.plain() for each in self.evidence],
            "advisory": self.advisory,
        }


@dataclass(frozen=True)
class TranslationReport:
    """The results of all checks of one translation.

    Args:
        checks: results of the checks that could be made: checks of probabilities need a model,
            checks of languages need language codes.
        confidence: predicted chrF, 0 to 100; None without a calibration.
    """

    checks: tuple[CheckResult, ...] = ()
    confidence: float | None = None

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed, without advisory checks."""
        return tuple(each.name for each in self.checks if each.failed and not each.advisory)

    @property
    def in_doubt(self) -> bool:
        """True if a check failed."""
        return bool(self.failed)

    def __getitem__(self, name: str) -> CheckResult:
        """Return the result of a check.

        Raises:
            KeyError: when the check was not made.
        """
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    def plain(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            "failed": list(self.failed),
            "confidence": None if self.confidence is None else round(self.confidence, 1),
            "checks": [check.plain() for check in self.checks],
        }


def counted(name: str, evidence: Sequence[Evidence]) -> CheckResult:
    """Return the result of a check that fails if there is any evidence."""
    return CheckResult(name, bool(evidence), len(evidence), 0, tuple(evidence))
