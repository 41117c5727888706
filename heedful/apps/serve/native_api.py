"""Heedful's own interface, with scores, alignments and checks of a translation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pydantic
from anyio import to_thread
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from heedful.apps.serve.exchange import (
    Body,
    Endpoint,
    RefusedRequest,
    while_connected,
)
from heedful.apps.serve.service import Service
from heedful.apps.serve.translated_text import TranslatedText
from heedful.apps.web import json_response
from heedful.pipelines.glossary import Glossary
from heedful.pipelines.text_splitting import Translation
from heedful.search.search_settings import SearchSettings

if TYPE_CHECKING:
    from heedful.apps.quality.reports import TranslationReport


class TranslateTexts(Body):
    """A request for translations, with settings of the search."""

    texts: list[str] = Field(description="texts to translate, each line by line")
    source: str = Field("", description="source language code; requires target")
    target: str = Field("", description="target language code; requires source")
    model: str = Field("", description="name of a model, instead of languages")
    search: dict[str, Any] = Field(
        default_factory=dict, description="settings of the search, such as beam and n_best"
    )
    glossary: dict[str, str | list[str]] = Field(
        default_factory=dict,
        max_length=1000,
        description="terms and their required translations, one or several of each",
    )
    alignment: bool = Field(False, description="return word alignments, too")
    report: bool = Field(False, description="check translations and return a report on each line")


class Line(pydantic.BaseModel):
    """The translation of a line."""

    text: str
    score: float = Field(description="natural log-probability, summed over tokens")
    finished: bool = Field(description="false if it was cut at the maximum length")
    tokens: list[str]
    token_scores: list[float]
    n_best: list[dict[str, Any]] = Field(description="next-best translations")
    missing: list[str] = Field(description="terms of glossaries that had no room")
    untranslated: list[str] = Field(
        description="sentences left as they are, since their kept parts had no place"
    )
    alignment: dict[str, Any] | None
    report: dict[str, Any] | None = Field(
        description="failed checks, and for each check its value, threshold and evidence"
    )


class TranslatedTexts(pydantic.BaseModel):
    """Translations, line by line."""

    translations: list[dict[str, Any]]
    models: list[str] = Field(description="names of the models used, in order")


def error_body(refusal: RefusedRequest) -> Mapping[str, Any]:
    """Return an error with the name of the wrong value."""
    return {"error": refusal.message, "reason": refusal.reason, "where": refusal.where}


def find_route(service: Service, model: str, source: str, target: str) -> tuple[str, ...]:
    """Return the names of the models for a request that names a model, or languages.

    Raises:
        ModelError, RefusedRequest: when there are none, or the request names nothing.
    """
    if model:
        return (service.models.find(model).name,)
    if source and target:
        return tuple(each.name for each in service.models.route(source, target))
    raise RefusedRequest(400, "Give source and target, or model", "invalid", where="source")


class NativeApi:
    """The endpoint `/v1/translate`.

    Args:
        service: service of the server.
    """

    def __init__(self, service: Service) -> None:
        self.service = service

    def endpoints(self) -> list[Endpoint[Any]]:
        """Return the paths that are answered."""
        return [
            Endpoint(
                "/v1/translate",
                "Translate texts, with scores, tokens, next-best translations and alignments",
                TranslateTexts,
                self.translate,
                error_body,
                result=TranslatedTexts,
            )
        ]

    async def translate(self, request: Request, body: TranslateTexts) -> Response:
        """Answer `/v1/translate`."""
        plain = self.service.search.plain() | body.search
        settings = SearchSettings.parse(plain, where="search")
        route = find_route(self.service, body.model, body.source, body.target)
        glossary = Glossary.of_terms(body.glossary) if body.glossary else None
        translated = await while_connected(
            request,
            self.service.translate(
                body.texts,
                route,
                settings=settings,
                alignment=body.alignment or body.report,
                glossary=glossary,
            ),
        )
        request.state.texts = len(body.texts)
        reports: Iterator[TranslationReport | None] = repeat(None)
        if body.report:
            reports = iter(await to_thread.run_sync(self._reports, translated, route))
        return json_response(
            {
                "translations": [
                    {
                        "text": text.text,
                        "lines": [
                            _line(line, next(reports), alignment=body.alignment)
                            for line in text.lines
                        ],
                    }
                    for text in translated
                ],
                "models": route,
            }
        )

    def _reports(
        self, translated: Sequence[TranslatedText], route: Sequence[str]
    ) -> list[TranslationReport]:
        """Check the lines of all texts.

        Over a pivot, scores of the last model belong to the intermediate text: then only checks of
        the texts alone are made.
        """
        from heedful.apps.quality.calibration import Calibration, calibration_path
        from heedful.apps.quality.checker import Checker

        first, last = (self.service.models.find(name) for name in (route[0], route[-1]))
        stored = calibration_path(last.path)
        calibration = Calibration.read(stored) if stored.exists() else None
        languages = (first.source or None, last.target or None)
        checker = Checker(languages=languages, calibration=calibration)
        sources = [line.text for text in translated for line in text.sources]
        lines = [line for text in translated for line in text.lines]
        if len(route) > 1:
            lines = [Translation(line) for line in lines]
        return checker.reports(sources, lines)


def _line(
    line: Translation, report: TranslationReport | None, *, alignment: bool
) -> dict[str, Any]:
    aligned = line.alignment if alignment else None
    return {
        "text": str(line),
        "score": line.score,
        "finished": line.finished,
        "tokens": list(line.tokens),
        "token_scores": list(line.token_scores),
        "n_best": [{"text": str(other), "score": other.score} for other in line.others],
        "missing": list(line.missing),
        "untranslated": list(line.untranslated),
        "alignment": None if aligned is None else aligned.plain(),
        "report": None if report is None else report.plain(),
    }
