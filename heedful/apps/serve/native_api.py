"""Heedful's own interface, with scores, alignments and checks of a translation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pydantic
from anyio import to_thread
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from heedful.apps.serve.exchange import Body, RefusedRequest, answers, while_connected
from heedful.apps.serve.server_parts import Interface
from heedful.apps.serve.service import Service
from heedful.apps.serve.translated_text import TranslatedText
from heedful.apps.web import json_response
from heedful.pipelines.glossary import Glossary
from heedful.pipelines.text_splitting import Translation
from heedful.search.search_settings import SearchSettings

if TYPE_CHECKING:
    from heedful.apps.quality.reports import TranslationReport
    from heedful.pipelines.translation import TranslationPipeline


class TranslateTexts(Body):
    """A request for translations, with settings of the search."""

    texts: list[str] = Field(description="texts, which are translated line by line")
    source: str = Field("", description="source language code; requires target")
    target: str = Field("", description="target language code; requires source")
    model: str = Field("", description="name of a model, instead of languages")
    search: dict[str, Any] = Field(
        default_factory=dict, description="settings of the search, such as beam and n_best"
    )
    glossary: dict[str, str | list[str]] = Field(
        default_factory=dict,
        max_length=1000,
        description="terms, each with one or several required translations",
    )
    alignment: bool = Field(False, description="return word alignments as well")
    report: bool = Field(False, description="check translations and return a report on each line")


class TranslatedTexts(pydantic.BaseModel):
    """Translations, line by line."""

    translations: list[dict[str, Any]]
    models: list[str] = Field(description="names of the models used, in order")


def find_route(service: Service, model: str, source: str, target: str) -> tuple[str, ...]:
    """Return the names of the models for a request that names a model or languages.

    Raises:
        ModelError, RefusedRequest: when there are no such models, or the request names neither.
    """
    if model:
        return (service.models.find(model).name,)
    if source and target:
        return tuple(each.name for each in service.models.route(source, target))
    raise RefusedRequest(400, "Give source and target, or model", "invalid", where="source")


class NativeApi(Interface):
    """The endpoint `/v1/translate`."""

    @answers("/v1/translate", TranslateTexts, result=TranslatedTexts)
    async def translate(self, request: Request, body: TranslateTexts) -> Response:
        """Translate texts, with scores, tokens, next-best translations and alignments."""
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
            writer = await self.service.translator(route[-1])
            reports = iter(await to_thread.run_sync(self._reports, translated, route, writer))
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
        self,
        translated: Sequence[TranslatedText],
        route: Sequence[str],
        writer: TranslationPipeline,
    ) -> list[TranslationReport]:
        """Check the lines of all texts.

        Over a pivot, the scores of the last model belong to the intermediate text, so only the
        checks of texts and of the words that this model knows are made.

        Args:
            translated: texts with their lines.
            route: names of the models.
            writer: the last of the models, which wrote the lines.
        """
        from heedful.apps.quality.calibration import Calibration, calibration_path
        from heedful.apps.quality.checker import Checker

        first, last = (self.service.models.find(name) for name in (route[0], route[-1]))
        stored = calibration_path(last.path)
        calibration = Calibration.read(stored) if stored.exists() else None
        languages = (first.source or None, last.target or None)
        checker = Checker(writer, languages, calibration=calibration)
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
