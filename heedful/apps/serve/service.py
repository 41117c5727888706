"""The work of a server for its interfaces: translation, continuation and language detection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from anyio import to_thread

from heedful.apps.serve.languages import ranked_languages
from heedful.apps.serve.scheduler import DeadlinePassed, QueueFull, Scheduler, WaitingText
from heedful.apps.serve.served_models import ServedModels
from heedful.apps.serve.server_settings import Limits
from heedful.apps.serve.translated_text import TranslatedText, framed_lines
from heedful.errors import ConfigError, DataError
from heedful.pipelines.glossary import Glossary
from heedful.pipelines.text_generation import Generation, GenerationPipeline, TextStream
from heedful.pipelines.text_splitting import Translation
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.search_settings import GenerationSettings, SearchSettings
from heedful.text.field_tokenizer import prompt_ids

MOST_CHARACTERS_AT_ONCE = 2000
"""Maximum number of characters that are tokenised in the event loop: 0.2 ms, as long as a switch to
a thread."""

PASSAGES_AT_ONCE = 128
"""Number of passages of a document in the queue at once: a few batches, which leave room for
others."""

MOST_CHARACTERS_READ = 10_000
"""Maximum number of characters that are read to detect a language."""


@dataclass(frozen=True)
class TextWork:
    """Lines to translate, or prompts to continue, with the same model and settings.

    Args:
        compute: method of the model's pipeline, or a function with its arguments.
        settings: settings of the search.
        width: number of hypotheses of a text that are computed together.
        options: further arguments of the method.
    """

    compute: Callable[..., Iterable[Any]]
    settings: SearchSettings | GenerationSettings
    width: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, texts: Sequence[str]) -> Sequence[Any]:
        """Compute a batch; see `Workload`."""
        # Samples depend on the index of a line, so each line is computed as the first of its
        # request.
        parts = [[text] for text in texts] if self.settings.sampling else [list(texts)]
        return [
            result
            for part in parts
            for result in self.compute(
                part, settings=self.settings, batch_size=len(part), **self.options
            )
        ]


@dataclass(eq=False)
class Service:
    """The models of a server and their queue.

    Args:
        models: served models.
        scheduler: scheduler of batches.
        limits: limits of requests.
        search: default settings of translations.
    """

    models: ServedModels
    scheduler: Scheduler
    limits: Limits
    search: SearchSettings
    _loading: dict[str, asyncio.Task[TranslationPipeline | GenerationPipeline]] = field(
        init=False, default_factory=dict
    )

    def search_for(self, count: int) -> SearchSettings:
        """Return the server's settings of a search with a number of answers to a text.

        Raises:
            ConfigError: when the settings contradict each other.
        """
        search = self.search
        changes: dict[str, Any] = {"n_best": count}
        if search.alternatives:  # each answer needs a separate beam
            beam = max(1, min(search.beam, self.limits.beam // count))
            changes |= {"alternatives": count, "beam": beam}
        elif not search.sampling:
            changes["beam"] = max(search.beam, count)
        elif search.risk_samples:
            changes["risk_samples"] = max(search.risk_samples, count)
        return SearchSettings.parse(search.plain() | changes, where="the request")

    async def translate(
        self,
        texts: Sequence[str],
        route: Sequence[str],
        *,
        settings: SearchSettings | None = None,
        alignment: bool = False,
        is_passage: bool = False,
        glossary: Glossary | None = None,
    ) -> list[TranslatedText]:
        """Translate texts line by line, through one model or over a pivot.

        White space around lines and line breaks stay unchanged.

        Args:
            texts: texts of any number of lines.
            route: names of the models, in order.
            settings: settings of the search; the server's if unset. Next-best translations come
                from the last model.
            alignment: true to return the alignments of the last model.
            is_passage: true for passages of documents, which are not cut into lines.
            glossary: terms of this request, beside those of the model.

        Raises:
            ConfigError, DataError, ModelError: when the request is wrong.
            QueueFull, DeadlinePassed: when the server is overloaded.
        """
        if not is_passage:
            self.check(texts)
        if glossary is not None and len(route) > 1:
            # A glossary maps source terms to target terms, but each model sees the pivot language.
            raise ConfigError(
                f"A glossary needs one model; this translation takes {' and '.join(route)}",
                where="glossary",
                remedy="Name languages that one model translates",
            )
        settings = settings or self.search
        deadline = time.monotonic() + self.limits.seconds
        is_whole = is_passage or self.models.options.split == "none"
        sources = [framed_lines(text, is_whole=is_whole) for text in texts]
        lines = [[Translation(line.text) for line in text] for text in sources]
        for name in route:
            is_last = name == route[-1]
            used = settings if is_last else settings.model_copy(update={"n_best": 1})
            pipeline, terms = await self._with_glossary(name, used, glossary)
            options = {"glossary": terms, "alignment": alignment and is_last}
            work = TextWork(pipeline.translate, used, used.width, options)
            encode = pipeline.tokenizers.source.encode_batch
            lines = await self._translate_lines(work, encode, lines, deadline)
        return [
            TranslatedText(tuple(each), tuple(source))
            for each, source in zip(lines, sources, strict=True)
        ]

    async def translate_passages(
        self,
        passages: Sequence[str],
        route: Sequence[str],
        *,
        settings: SearchSettings | None = None,
        alignment: bool = False,
        advance: Callable[[int], None],
    ) -> list[TranslatedText]:
        """Translate the passages of a document part by part, without blocking other requests.

        The time limit holds for each part, so a long document is not cancelled while it makes
        progress.

        Args:
            passages: texts, each translated as a whole.
            route: names of the models, in order.
            settings: settings of the search; the server's if unset.
            alignment: true to return alignments.
            advance: function called with the number of passages of each finished part.

        Raises:
            as for `translate`.
        """
        done: list[TranslatedText] = []
        size = PASSAGES_AT_ONCE
        end = time.monotonic() + self.limits.seconds
        while len(done) < len(passages):
            part = passages[len(done) : len(done) + size]
            try:
                done += await self.translate(
                    part, route, settings=settings, alignment=alignment, is_passage=True
                )
            except QueueFull as full:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(full.retry_after)
                continue
            except DeadlinePassed:
                if size == 1:
                    raise
                size = max(1, size // 4)  # a smaller part may finish in time
                continue
            advance(len(part))
            end = time.monotonic() + self.limits.seconds
        return done

    async def generate(
        self,
        name: str,
        prompts: Sequence[str],
        lengths: Sequence[int],
        settings: GenerationSettings,
    ) -> list[Generation]:
        """Continue prompts with a language model.

        Args:
            name: name of the model.
            prompts: beginnings of the texts.
            lengths: number of tokens of each prompt, from `lengths`.
            settings: settings of the search.

        Raises:
            as for `translate`.
        """
        pipeline = await self.generator(name)
        width = settings.n_best if settings.sampling else settings.beam
        work = TextWork(pipeline.generate, settings, width)
        deadline = time.monotonic() + self.limits.seconds
        longest = settings.limited(None).max_length
        assert longest is not None
        jobs = [
            WaitingText(work, prompt, count + longest, deadline)
            for prompt, count in zip(prompts, lengths, strict=True)
        ]
        return await self._results(jobs, deadline)

    async def stream(
        self,
        name: str,
        prompt: str,
        length: int,
        settings: GenerationSettings,
        emit: Callable[[str], None],
    ) -> TextStream:
        """Continue a prompt, and stream text as soon as it is final.

        Args:
            name: name of a language model.
            prompt: beginning of the text.
            length: number of its tokens, from `lengths`.
            settings: settings of the search.
            emit: function called with each chunk, in another thread; its errors end the stream.

        Returns:
            The stream after its end.

        Raises:
            as for `translate`.
        """
        pipeline = await self.generator(name)
        deadline = time.monotonic() + self.limits.seconds

        def compute(texts: Sequence[str], **options: Any) -> list[TextStream]:
            (text,) = texts  # a stream shares no batch: no other workload equals this one
            stream = pipeline.stream(text, settings=settings)
            for piece in stream:
                emit(piece)
            return [stream]

        work = TextWork(compute, settings, width=1)
        (stream,) = await self._results([WaitingText(work, prompt, length, deadline)], deadline)
        assert isinstance(stream, TextStream)
        return stream

    async def detect(self, text: str) -> list[tuple[str, float]]:
        """Return the languages that a text may be in, the most probable first."""
        known = self.models.languages()
        return await to_thread.run_sync(ranked_languages, text[:MOST_CHARACTERS_READ], known)

    async def generator(self, name: str) -> GenerationPipeline:
        """Return the loaded pipeline of a language model.

        Raises:
            ConfigError: when it is a translator.
        """
        pipeline = await self._pipeline(name)
        if self.models.find(name).is_translator:
            raise ConfigError("This model is a translator", where=f"model = {name}")
        return cast(GenerationPipeline, pipeline)

    async def translator(self, name: str) -> TranslationPipeline:
        """Return a translator, which is loaded if it is not in memory.

        Raises:
            ConfigError: when the model is a language model.
            ModelError: when there is no such model.
        """
        pipeline = await self._pipeline(name)
        if not self.models.find(name).is_translator:
            raise ConfigError("This model is a language model", where=f"model = {name}")
        return cast(TranslationPipeline, pipeline)

    async def lengths(self, name: str, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text.

        Raises:
            DataError, ModelError: when there are too many or too long texts, or no such model.
        """
        self.check(texts)
        if not self.models.find(name).is_translator:
            return await to_thread.run_sync(self._prompt_lengths, await self.generator(name), texts)
        encode = (await self.translator(name)).tokenizers.source.encode_batch
        return list(map(len, await to_thread.run_sync(encode, list(texts))))

    def check(self, texts: Sequence[str]) -> None:
        """Refuse texts that are too many or too long for a request.

        Raises:
            DataError: naming the limit.
        """
        limits = self.limits
        if len(texts) > limits.texts:
            raise DataError(
                f"{len(texts):,} texts; at most {limits.texts:,} are allowed in a request"
            )
        characters = sum(map(len, texts))
        if characters > limits.characters:
            raise DataError(
                f"{characters:,} characters; a request may have at most {limits.characters:,}",
                remedy="Split the text into several requests",
            )

    def _check_search(self, settings: SearchSettings) -> None:
        """Refuse a search that would take more than a request's share of time and memory.

        Raises:
            ConfigError: naming the limit.
        """
        limits = self.limits
        if settings.width > limits.beam:
            raise ConfigError(
                f"{settings.width} hypotheses of a text; at most {limits.beam} are taken",
                where="search",
                remedy="Ask for a narrower beam, or for fewer samples or alternatives",
            )
        for name in ("min_length", "max_length"):
            if (getattr(settings, name) or 0) > limits.tokens:
                raise ConfigError(
                    f"At most {limits.tokens:,} tokens are allowed", where=f"search.{name}"
                )

    async def _with_glossary(
        self, name: str, settings: SearchSettings, own: Glossary | None
    ) -> tuple[TranslationPipeline, Glossary | None]:
        """Return a translator, and its glossary joined with the glossary of a request."""
        self._check_search(settings)
        pipeline = await self.translator(name)
        glossary = self.models.find(name).glossary
        if own is not None:
            glossary = own if glossary is None else own.joined(glossary)
            # Checked before the request is queued, so that a wrong glossary is refused at once.
            await to_thread.run_sync(pipeline.check_glossary, glossary)
        return pipeline, glossary

    async def _pipeline(self, name: str) -> TranslationPipeline | GenerationPipeline:
        """Return the pipeline of a model; loading does not block other requests."""
        pipeline = self.models.at_hand(name)
        if pipeline is not None:
            return pipeline
        # One loading thread, however many requests wait, leaves the pool of 40 to the others.
        if name not in self._loading:
            task = asyncio.ensure_future(to_thread.run_sync(self.models.get, name))
            task.add_done_callback(lambda done: self._loading.pop(name))
            self._loading[name] = task
        return await asyncio.shield(self._loading[name])

    async def _translate_lines(
        self,
        work: TextWork,
        encode: Callable[[Sequence[str]], Sequence[Sequence[int]]],
        lines: Sequence[Sequence[Translation]],
        deadline: float,
    ) -> list[list[Translation]]:
        flat = [line for text in lines for line in text if line]
        if sum(map(len, flat)) <= MOST_CHARACTERS_AT_ONCE:
            encoded = encode(flat)
        else:
            encoded = await to_thread.run_sync(encode, flat)
        jobs = [
            WaitingText(work, line, len(ids), deadline)
            for line, ids in zip(flat, encoded, strict=True)
        ]
        results = iter(await self._results(jobs, deadline))
        return [[next(results) if line else Translation() for line in text] for text in lines]

    async def _results(self, jobs: Sequence[WaitingText], deadline: float) -> list[Any]:
        """Queue jobs and wait for all of them, or drop them if the request ends."""
        if not jobs:
            return []
        self.scheduler.submit(jobs)
        futures = [asyncio.wrap_future(job.future) for job in jobs]
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return list(await asyncio.gather(*futures))
        except TimeoutError:
            raise DeadlinePassed from None
        finally:
            if not all(job.future.done() for job in jobs):
                self.scheduler.forget(jobs)

    @staticmethod
    def _prompt_lengths(pipeline: GenerationPipeline, prompts: Iterable[str]) -> list[int]:
        return [len(prompt_ids(pipeline.tokenizer, prompt)) for prompt in prompts]
