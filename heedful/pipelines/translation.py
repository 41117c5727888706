"""Raw text in, translations out: the one path of all that translates, scores or validates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, Unpack

import torch
from torch import Tensor

from heedful.data.batches import source_tensors
from heedful.device import Precision, RunningPrecision, resolve_device
from heedful.engines.cpu_model import is_untouched, share_weights
from heedful.engines.lowering import Unsupported
from heedful.engines.prepare import precision_of, prepare
from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.checkpoint import ReadModel, load_model, load_translator
from heedful.models.model_spec import TranslatorSpec
from heedful.models.translator import Translator
from heedful.pipelines.batching import (
    BatchQueue,
    batches_at_once,
    in_threads,
    plan_batches,
    run_batches,
    split_on_oom,
)
from heedful.pipelines.numpy_translation import NumpyTranslationPipeline, searches
from heedful.pipelines.segment_search import SearchItem, SegmentSearch
from heedful.pipelines.text_splitting import (
    CutText,
    Score,
    SegmentResult,
    Translation,
    Warn,
    assemble,
    cut_texts,
    single_line,
    warn_of_cuts,
)
from heedful.search.lexical_shortlist import Shortlist, load_shortlist
from heedful.search.scoring import score_targets
from heedful.search.search_settings import (
    SearchOptions,
    SearchSettings,
    Specials,
    check_fits,
    longest_output,
)
from heedful.search.step_model import Ensemble, StepModel
from heedful.text.tokenizer_pair import TokenizerPair

BATCH_TOKENS = 4096
"""Positions of a batch, padding and hypotheses counted."""

_SEGMENTS_OF_A_TEXT = 1 << 20
"""Random draws are named by text and segment: no text has as many segments."""

Progress = Callable[[int, int], None]
"""Called with how many items are done, and of how many."""


class TranslationPipeline:
    """A translator of raw text: one model, or several whose probabilities are averaged.

    Args:
        models: a model, or members of an ensemble; all with the same tokenizers.
        tokenizers: of source and target.
        precision: of the forward passes; float32 if unset.
        shortlist: translations are made of these tokens only; of any if unset. Scores of given
            translations are always over the whole vocabulary.
    """

    def __init__(
        self,
        models: Translator | Sequence[Translator],
        tokenizers: TokenizerPair,
        *,
        precision: Precision | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        self.models = tuple(models) if isinstance(models, Sequence) else (models,)
        self.tokenizers = tokenizers
        self.precision = precision
        self.shortlist = shortlist
        self.model: StepModel[Any] = (
            self.models[0] if len(self.models) == 1 else Ensemble(self.models)
        )
        target = tokenizers.target
        self.specials = Specials(pad=target.pad, bos=target.bos, eos=target.eos)

    @classmethod
    def load(
        cls,
        path: str | Path | Sequence[str | Path],
        *,
        device: str = "auto",
        precision: RunningPrecision = "auto",
        shortlist: bool | str | Path = False,
        read: ReadModel = load_model,
    ) -> Self:
        """Load a model directory, or several as an ensemble.

        Args:
            path: a model directory or a run directory (its best model), or several.
            device: auto, cpu, cuda, cuda:1 or mps.
            precision: auto (float32, on the fastest route that is as exact), fp32, bf16,
                fp16 or int8.
            shortlist: whether to use the (first) model's own, or the file of another.
            read: what reads a directory.

        Raises:
            ModelError: when there is no model, or models of an ensemble do not fit together.
            ConfigError: when the device or precision is not to be had.
        """
        paths = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
        if not paths:
            raise ModelError("No model given", remedy="Give at least one model directory")
        where = resolve_device(device)
        loaded = [load_translator(p, read) for p in paths]
        tokenizers = loaded[0][1]
        for other, (_, pair) in list(zip(paths, loaded, strict=True))[1:]:  # to tell costs time
            if pair.fingerprint != tokenizers.fingerprint:
                raise ModelError(
                    f"Its tokenizers differ from those of {paths[0]}",
                    where=str(other),
                    remedy="An ensemble needs models trained with the same tokenizers",
                )
        short = load_shortlist(shortlist, paths[0], tokenizers)
        engines = [prepare(model, precision, where, donate=True) for model, _ in loaded]
        return cls(engines, tokenizers, precision=precision_of(engines[0]), shortlist=short)

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return self.models[0].output_weight.device

    @property
    def max_length(self) -> int:
        """Longest source in tokens that is translated in one piece."""
        return min(model.spec.max_length for model in self.models)

    def translate(
        self,
        texts: Sequence[str],
        *,
        settings: SearchSettings | None = None,
        prefixes: Sequence[str] | None = None,
        alignment: bool = False,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        continuous_batching: bool = False,
        first_line: int = 1,
        warn: Warn | None = None,
        progress: Progress | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[Translation]:
        """Translate texts: one translation for each, in their order.

        A text of several lines is translated line by line; a translation has as many lines as its
        text, and no other line breaks. White space alone gives "". A line that is too long for the
        model is translated in pieces. How sentences are batched changes no result.

        Args:
            texts: any strings.
            settings: of the search; defaults if unset.
            prefixes: for each text how its translation must begin, "" for anyhow.
            alignment: also give alignments; the translations stay the same.
            batch_size: sentences translated together, instead of `batch_tokens`.
            batch_tokens: positions translated together: sentences × longest source × beam.
            continuous_batching: accepted for older programs; it has no effect.
            first_line: number of the first text, for warnings and random draws: a corpus that is
                translated part by part then gives what it would give at once.
            warn: told in a sentence about long lines, cut translations, and batches that were
                split because memory ran out.
            progress: told (done, total) segments after each batch.
            **options: fields of `SearchSettings` that override `settings`.

        Raises:
            ConfigError: when settings contradict each other or the model.
            DataError: when there are not as many prefixes as texts.
        """
        settings = _settings(settings, options)
        _check_batching(batch_size, batch_tokens)
        texts = _listed(texts, "texts")
        cut = cut_texts(
            texts, self.tokenizers.source, self.max_length, warn=warn, first_line=first_line
        )
        alone = None if alignment or prefixes is not None else self._alone(cut, settings)
        if alone is not None:
            ordered = iter([alone])
            if progress is not None:
                progress(1, 1)
        else:
            items = self._items(cut, prefixes, first_line)
            batches = plan_batches(
                [len(item.segment.ids) + 1 for item in items],
                width=settings.n_best if settings.sampling else settings.beam,
                batch_tokens=batch_tokens,
                batch_size=batch_size,
            )
            search = SegmentSearch(
                self.model,
                self.device,
                self.tokenizers,
                settings,
                longest_output(self._specs, settings),
                alignment,
                self.shortlist,
            )
            ordered = iter(self._search_batches(items, search, batches, warn, progress))
        translations = [
            assemble(text, [next(ordered) for _ in text.segments], self.tokenizers.target)
            for text in cut
        ]
        if warn is not None:
            warn_of_cuts(translations, first_line, warn)
        return translations

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str | Sequence[int]],
        *,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        warn: Warn | None = None,
        progress: Progress | None = None,
    ) -> list[Score]:
        """Natural-log probabilities of given translations, by the steps a search takes.

        Args:
            sources: texts.
            targets: a text for each source, or its token ids. A text is cut into tokens as in
                training, which need not be how a search put it together.
            batch_size: pairs scored together, instead of `batch_tokens`.
            batch_tokens: positions scored together, on the longer side, padding counted.
            warn: told in a sentence when memory ran out and a batch was split.
            progress: told (done, total) pairs after each batch.

        Raises:
            DataError: when there are not as many targets as sources, or one is longer than a model
                with learned positions can read.
        """
        _check_batching(batch_size, batch_tokens)
        sources = _listed(sources, "sources")
        if len(sources) != len(targets):
            raise DataError(
                f"{len(sources)} sources and {len(targets)} targets",
                remedy="Give one target for each source",
            )
        source_ids = self.tokenizers.source.encode_batch([single_line(s) for s in sources])
        target_ids = [
            self.tokenizers.target.encode(single_line(t)) if isinstance(t, str) else list(t)
            for t in targets
        ]
        frame = len(self.tokenizers.source.first) + len(self.tokenizers.source.last)
        for number, pair in enumerate(zip(source_ids, target_ids, strict=True), start=1):
            check_fits(self._specs, pair[0], f"line {number}", frame=frame)
            check_fits(self._specs, pair[1], f"line {number}")
            assert not self.specials.ids & set(pair[1]), "targets hold no special tokens"
        lengths = [max(map(len, pair)) + 1 for pair in zip(source_ids, target_ids, strict=True)]
        batches = plan_batches(lengths, width=1, batch_tokens=batch_tokens, batch_size=batch_size)
        scores: dict[int, Score] = {}

        def run(part: list[int]) -> list[tuple[float, ...]]:
            tensors = self._sources([source_ids[i] for i in part])
            chosen = [target_ids[i] for i in part]
            return score_targets(self.model, *tensors, chosen, self.specials)

        with self._running():
            for part, found in split_on_oom(batches, run, warn, lambda i: f"line {i + 1}"):
                for i, token_scores in zip(part, found, strict=True):
                    pieces = self.tokenizers.target.pieces(target_ids[i])
                    scores[i] = Score.of(pieces, token_scores)
                if progress is not None:
                    progress(len(scores), len(lengths))
        return [scores[i] for i in range(len(lengths))]

    @property
    def _specs(self) -> list[TranslatorSpec]:
        return [model.spec for model in self.models]

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Evaluation mode, no gradients, the chosen precision; all as before afterwards."""
        training = [model for model in self.models if model.training]
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self.precision is not None:
                stack.enter_context(self.precision.autocast())
            for model in training:
                model.eval()
                stack.callback(model.train)
            yield

    @contextmanager
    def _in_thread(self) -> Iterator[None]:
        """The settings of PyTorch that each further thread needs while `_running` holds."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self.precision is not None:
                stack.enter_context(self.precision.in_thread())
            yield

    def _sources(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        source, positions = source_tensors(list(ids), self.tokenizers.source)
        return source.to(self.device), positions.to(self.device)

    def _items(
        self, cut: Sequence[CutText], prefixes: Sequence[str] | None, first_line: int
    ) -> list[SearchItem]:
        if prefixes is not None and len(prefixes) != len(cut):
            raise DataError(
                f"{len(prefixes)} prefixes for {len(cut)} texts",
                remedy='Give one prefix for each text, "" for none',
            )
        items: list[SearchItem] = []
        for number, text in enumerate(cut):
            prefix: list[int] = []
            if prefixes is not None:
                prefix = self.tokenizers.target.encode(single_line(prefixes[number]))
            for i, segment in enumerate(text.segments):
                name = (first_line + number) * _SEGMENTS_OF_A_TEXT + i
                items.append(SearchItem(segment, name, () if i else prefix))
        return items

    def _alone(self, cut: Sequence[CutText], settings: SearchSettings) -> SegmentResult | None:
        """The result for texts of a single piece; None where a batch must be made.

        A step takes PyTorch's operations, and the search in batches, longer than the arithmetic
        of a small model. The same kernels and the same search tell the same bits.
        """
        if len(self.models) > 1 or self.shortlist is not None or not searches(settings):
            return None
        pieces = [segment for text in cut for segment in text.segments]
        if len(pieces) != 1 or not is_untouched(self.models[0]) or self._lean is None:
            return None
        try:
            return self._lean.find(pieces[0], settings, longest_output(self._specs, settings))
        except MemoryError:  # of which a batch can say what to do
            return None

    @functools.cached_property
    def _lean(self) -> NumpyTranslationPipeline | None:
        """The same model for one sentence, where it needs no more; asked once it runs."""
        try:
            return NumpyTranslationPipeline(share_weights(self.models[0]), self.tokenizers)
        except Unsupported:
            return None

    def _search_batches(
        self,
        items: Sequence[SearchItem],
        search: SegmentSearch,
        batches: Sequence[Sequence[int]],
        warn: Warn | None,
        progress: Progress | None,
    ) -> list[SegmentResult]:
        """Search in batches, several at once in threads; results in the order of the items."""

        def place(number: int) -> str:
            return f"line {items[number].name // _SEGMENTS_OF_A_TEXT}"

        def searched() -> Iterator[tuple[list[int], list[SegmentResult]]]:
            return run_batches(queue, lambda numbers: search([items[i] for i in numbers]))

        queue = BatchQueue(batches, warn, place)
        results: dict[int, SegmentResult] = {}
        with self._running():
            count = batches_at_once(self.device, len(batches))
            for numbers, part in in_threads(searched, count, self._in_thread):
                results.update(zip(numbers, part, strict=True))
                if progress is not None:
                    progress(len(results), len(items))
        return [results[i] for i in range(len(items))]


def _settings(settings: SearchSettings | None, options: SearchOptions) -> SearchSettings:
    return SearchSettings.parse({**(settings.plain() if settings else {}), **options})


def _listed(texts: Sequence[str], name: str) -> Sequence[str]:
    if isinstance(texts, str):
        raise DataError(f"{name} is a single string", remedy="Give a list of strings")
    return texts


def _check_batching(batch_size: int | None, batch_tokens: int) -> None:
    for name, value in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} = {value}: a batch holds at least 1")
