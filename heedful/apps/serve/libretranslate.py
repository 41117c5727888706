"""LibreTranslate's interface, with which its clients work unchanged.

Fields, shapes and statuses are those of https://docs.libretranslate.com (version 1.7).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
from anyio import to_thread
from babel import Locale
from pydantic import BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from heedful.apps.serve.document_translation import supported_suffixes, translate_documents
from heedful.apps.serve.exchange import (
    TOO_OFTEN,
    Body,
    MissingValue,
    NoBody,
    RefusedRequest,
    answers,
    while_connected,
)
from heedful.apps.serve.languages import (
    choose_source,
    has_letters,
    match_language,
    primary_subtag,
)
from heedful.apps.serve.server_parts import Interface
from heedful.apps.web import json_response
from heedful.errors import ModelError
from heedful.search.search_settings import SearchSettings

MOST_ALTERNATIVES = 8

LEAST_PROBABILITY = 0.01
"""Minimum probability of further detected languages in a list."""

_FRONTEND_TIMEOUT = 500
"""Milliseconds that LibreTranslate's page waits after a keystroke before it translates."""


def _number(value: Any) -> Any:
    """Return 0 for an empty form field; refuse booleans, which pydantic accepts as numbers."""
    if isinstance(value, bool):
        raise ValueError("a number is needed, not true or false")
    return 0 if value in ("", None) else value


class TranslateBody(Body):
    """A request for translations."""

    q: str | list[str] = Field(description="text to translate, or a list of texts")
    source: str = Field(min_length=1, description="source language code, or auto to detect it")
    target: str = Field(min_length=1, description="target language code")
    format: Literal["text", "html"] = Field("text", description="format of the text")
    alternatives: Annotated[
        int,
        BeforeValidator(_number, json_schema_input_type=int | str | None),
        Field(ge=0, le=MOST_ALTERNATIVES),
    ] = Field(0, description="number of next-best translations")
    api_key: str = Field("", description="API key, if the server requires one")


class Detected(pydantic.BaseModel):
    """A language and its confidence."""

    confidence: float = Field(description="confidence in percent")
    language: str


class TranslateResult(pydantic.BaseModel):
    """One translation or a list, as in the request."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None


class DetectBody(Body):
    """A request for the language of a text."""

    q: str = Field(description="text whose language to detect")
    api_key: str = ""


class SuggestBody(Body):
    """A better translation, from a client."""

    q: str = Field(min_length=1, description="text")
    s: str = Field(min_length=1, description="better translation of the text")
    source: str = Field(min_length=1, description="source language code")
    target: str = Field(min_length=1, description="target language code")
    api_key: str = ""


class SuggestResult(pydantic.BaseModel):
    """A suggestion that was kept."""

    success: bool


class Language(pydantic.BaseModel):
    """A source language and its target languages."""

    code: str
    name: str
    targets: list[str]


class Languages(pydantic.RootModel[list[Language]]):
    """The languages of a server."""


class DetectResult(pydantic.RootModel[list[Detected]]):
    """Languages, the most probable first."""


def language_name(code: str) -> str:
    """Return the English name of a language; its code where no name is known."""
    names: Mapping[str, str] = Locale("en").languages
    plain = names.get(primary_subtag(code))
    return names.get(code.replace("-", "_")) or (f"{plain} ({code})" if plain else code)


class LibreTranslate(Interface):
    """The endpoints for texts."""

    @staticmethod
    def error_body(refusal: RefusedRequest) -> Mapping[str, Any]:
        """Return an error in LibreTranslate's form and words, which some of its clients read."""
        message = refusal.message
        if isinstance(refusal, MissingValue):
            message = f"Invalid request: missing {refusal.where} parameter"
        if refusal.reason == TOO_OFTEN:
            message = f"Slowdown: {message}"
        return {"error": message, **refusal.details}

    @answers("/translate", TranslateBody, result=TranslateResult)
    async def translate(self, request: Request, body: TranslateBody) -> Response:
        """Translate text from a language to another."""
        texts = [body.q] if isinstance(body.q, str) else body.q
        settings = self.service.search
        if body.alternatives:
            settings = self.service.search_for(body.alternatives + 1)
        detected: list[Detected] = []
        sources = [body.source] * len(texts)
        if body.source == "auto":
            detected = [await self._detected(text, body.target) for text in texts]
            sources = [each.language for each in detected]
        routes = [
            () if detected and not has_letters(text) else self._route(source, body.target)
            for text, source in zip(texts, sources, strict=True)
        ]
        translated: list[list[str]] = [[] for _ in texts]
        for source, route in dict.fromkeys(zip(sources, routes, strict=True)):
            numbers = [i for i, other in enumerate(sources) if other == source]
            part = await while_connected(
                request,
                self._translate([texts[i] for i in numbers], route, body.format, source, settings),
            )
            for number, ranked in zip(numbers, part, strict=True):
                translated[number] = ranked
        request.state.texts = len(texts)
        answer = _answer(translated, detected, body)
        names = dict.fromkeys(name for route in routes for name in route)
        return json_response(answer, headers={"x-heedful-models": ", ".join(names)})

    async def _translate(
        self,
        texts: Sequence[str],
        route: Sequence[str],
        format: str,
        language: str,
        settings: SearchSettings,
    ) -> list[list[str]]:
        """Return the best and the next-best translations of each text."""
        if format == "html":
            pages = [text.encode("utf-8", "replace") for text in texts]
            self.service.check(texts)
            documents = await translate_documents(
                self.service, pages, format, route, settings=settings, language=language
            )
            return [[answer.data.decode("utf-8") for answer in answers] for answers in documents]
        found = await self.service.translate(texts, route, settings=settings)
        return [[text.join(text.ranked(rank)) for rank in range(text.ranks + 1)] for text in found]

    @answers("/detect", DetectBody, result=DetectResult)
    async def detect(self, request: Request, body: DetectBody) -> Response:
        """Detect the language of a text."""
        # As in LibreTranslate there is always an answer, possibly with a confidence of 0.
        nothing = [(next(iter(self._sources()), "en"), 0.0)]
        ranked = await self.service.detect(body.q) or nothing
        likely = [each for each in ranked[:3] if each[1] >= LEAST_PROBABILITY] or ranked[:1]
        return json_response([_detected(*each).model_dump() for each in likely])

    @answers("/languages", result=Languages, is_open=True)
    async def languages(self, request: Request, body: NoBody) -> Response:
        """List the languages and what each can be translated to.

        LibreTranslate's page looks up each target among the languages, so languages that are only
        targets are listed too.
        """
        sources = self._sources()
        targets = (code for codes in sources.values() for code in codes)
        return json_response(
            [
                {"code": code, "name": language_name(code), "targets": sources.get(code, [])}
                for code in dict.fromkeys((*sources, *targets))
            ]
        )

    @answers("/suggest", SuggestBody, result=SuggestResult)
    async def suggest(self, request: Request, body: SuggestBody) -> Response:
        """Keep a better translation for whoever runs the server."""
        if self.parts.suggestions is None:
            raise RefusedRequest(403, "Suggestions are disabled on this server.", "suggestions")
        languages = {"source": self._known(body.source), "target": self._known(body.target)}
        line = json.dumps({"q": body.q, "s": body.s, **languages}, ensure_ascii=False) + "\n"
        # A single write to a file opened for appending: lines of several workers do not mix.
        with self.parts.suggestions.open("ab", buffering=0) as file:
            await to_thread.run_sync(file.write, line.encode())
        return json_response({"success": True})

    @answers("/frontend/settings", is_open=True)
    @answers("/frontend/settings", NoBody, "POST", is_open=True)
    async def settings(self, request: Request, body: NoBody) -> Response:
        """Settings for a page that translates."""
        sources = self._sources()
        source = next(iter(sources), "")
        target = next(iter(sources.get(source, ())), "")
        return json_response(
            {
                "apiKeys": self.parts.needs_key,
                "charLimit": self.service.limits.characters,
                "filesTranslation": self.parts.files is not None,
                "frontendTimeout": _FRONTEND_TIMEOUT,
                "keyRequired": self.parts.needs_key,
                "language": {
                    "source": {"code": source, "name": language_name(source)},
                    "target": {"code": target, "name": language_name(target)},
                },
                "suggestions": self.parts.suggestions is not None,
                "supportedFilesFormat": supported_suffixes() if self.parts.files else [],
            }
        )

    def _sources(self) -> dict[str, list[str]]:
        models = self.service.models
        return {source: models.targets(source) for source, _ in models.pairs()}

    def _known(self, code: str) -> str:
        """Return the server's code of a language.

        Raises:
            RefusedRequest: when no model reads or writes it.
        """
        known = match_language(code, self.service.models.languages())
        if known is None:
            raise RefusedRequest(400, f"{code[:20]} is not supported", "language")
        return known

    def _route(self, source: str, target: str) -> tuple[str, ...]:
        if source == target:
            return ()
        source, target = self._known(source), self._known(target)
        if source == target:
            return ()
        try:
            return tuple(model.name for model in self.service.models.route(source, target))
        except ModelError as error:
            raise RefusedRequest(400, str(error), "language") from None

    async def _detected(self, text: str, target: str) -> Detected:
        """Return the language of a text; in doubt, a language that a model reads.

        Raises:
            RefusedRequest: when no model translates the detected language to the target.
        """
        target = self._known(target)
        able = [code for code, targets in self._sources().items() if target in targets]
        ranked = await self.service.detect(text)
        if not ranked:
            return _detected(next(iter(able), target), 0.0)
        language, probability, is_able = choose_source(ranked, [*able, target])
        if not able:  # without a model, the target language is not preferred
            language, probability = ranked[0]
            is_able = language == target
        found = _detected(language, probability)
        if not is_able:
            raise RefusedRequest(
                400,
                f"The text is {language_name(language)} ({language}) with a confidence of "
                f"{found.confidence} %, and no model translates from it to {target}",
                "language",
                details={"detectedLanguage": found.model_dump()},
            )
        return found


def _detected(language: str, probability: float) -> Detected:
    return Detected(language=language, confidence=round(100 * probability, 1))


def _answer(
    texts: Sequence[Sequence[str]], detected: Sequence[Detected], body: TranslateBody
) -> dict[str, Any]:
    """Return one translation or a list, as in the request."""
    translated = [text[0] for text in texts]
    is_one = isinstance(body.q, str)
    answer: dict[str, Any] = {"translatedText": translated[0] if is_one else translated}
    if body.alternatives:
        others = [list(text[1 : body.alternatives + 1]) for text in texts]
        answer["alternatives"] = others[0] if is_one else others
    if detected:
        plain = [each.model_dump() for each in detected]
        answer["detectedLanguage"] = plain[0] if is_one else plain
    return answer
