"""Translators that search and score segments in batches, or a single one without PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch

from heedful.device import Precision
from heedful.engines.inference.cpu_model import is_untouched, share_weights
from heedful.engines.inference.lowering import Unsupported
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
from heedful.pipelines.segment_search import (
    SearchItem,
    SegmentSearch,
    score_pairs,
    target_specials,
)
from heedful.pipelines.text_splitting import SegmentResult, Warn
from heedful.search.lexical_shortlist import Shortlist
from heedful.search.search_settings import SearchSettings, longest_output
from heedful.search.step_model import Ensemble, StepModel
from heedful.text.tokenizer_pair import TokenizerPair

BATCH_TOKENS = 4096
"""Positions of a batch, padding and hypotheses counted."""

Pair = tuple[Sequence[int], Sequence[int]]
"""Ids of a source and its target."""

Result = TypeVar("Result")

Progress = Callable[[int, int], None]
"""Called with how many items are done, and of how many."""


class BatchedTranslation:
    """One or several translators at work on batches of segments.

    Args:
        models: a model, or members of an ensemble.
        tokenizers: of source and target.
        precision: of the forward passes; float32 if unset.
        shortlist: translations are made of these tokens only; of any if unset.
    """

    def __init__(
        self,
        models: Sequence[Translator],
        tokenizers: TokenizerPair,
        precision: Precision | None,
        shortlist: Shortlist | None,
    ) -> None:
        self.models = models
        self.tokenizers = tokenizers
        self.precision = precision
        self.shortlist = shortlist
        self.specials = target_specials(tokenizers)
        self.model: StepModel[Any] = models[0] if len(models) == 1 else Ensemble(tuple(models))

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return self.models[0].output_weight.device

    def search(
        self,
        items: Sequence[SearchItem],
        settings: SearchSettings,
        *,
        alignment: bool,
        batch_size: int | None,
        batch_tokens: int,
        warn: Warn | None,
        progress: Progress | None,
    ) -> list[SegmentResult]:
        """Translate segments; how they are batched changes no result.

        Args:
            items: the segments.
            settings: of the search.
            alignment: also give alignments.
            batch_size: segments translated together, instead of `batch_tokens`.
            batch_tokens: positions translated together: segments × longest source × beam.
            warn: called when memory ran out and a batch was split.
            progress: called with (done, total) segments after each batch.

        Returns:
            A result for each item, in their order.
        """
        longest = longest_output([model.spec for model in self.models], settings)
        alone = None if alignment else self._search_alone(items, settings, longest)
        if alone is not None:
            if progress is not None:
                progress(1, 1)
            return [alone]
        batches: list[list[int]] = []
        for beam, numbers in _by_beam(items, settings):
            planned = plan_batches(
                [len(items[i].ids) + 1 for i in numbers],
                width=beam,
                batch_tokens=batch_tokens,
                batch_size=batch_size,
            )
            batches += [[numbers[place] for place in batch] for batch in planned]
        search = SegmentSearch(
            *(self.model, self.device, self.tokenizers, settings, longest, alignment),
            *(self.shortlist, max(model.spec.predicted_vocabulary for model in self.models)),
        )

        def searched() -> Iterator[tuple[list[int], list[SegmentResult]]]:
            return run_batches(queue, lambda numbers: search([items[i] for i in numbers]))

        queue = BatchQueue(batches, warn, lambda number: f"line {items[number].line}")
        results: dict[int, SegmentResult] = {}
        with self._running():
            count = batches_at_once(self.device, len(batches))
            for numbers, part in in_threads(searched, count, self._in_thread):
                results.update(zip(numbers, part, strict=True))
                if progress is not None:
                    progress(len(results), len(items))
        return [results[i] for i in range(len(items))]

    def score(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        batch_size: int | None,
        batch_tokens: int,
        warn: Warn | None,
        progress: Progress | None,
    ) -> list[tuple[float, ...]]:
        """Natural-log probabilities of the tokens of given translations and their end tokens.

        Args:
            sources: ids of each source.
            targets: ids of each target.
            batch_size, batch_tokens, warn, progress: as for `search`; positions count on the longer
                side of a pair.
        """

        def run(pairs: list[Pair]) -> list[tuple[float, ...]]:
            return score_pairs(self.model, self.device, self.tokenizers, pairs)

        return self.in_batches(
            run,
            list(zip(sources, targets, strict=True)),
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            warn=warn,
            progress=progress,
        )

    def in_batches(
        self,
        run: Callable[[list[Pair]], list[Result]],
        pairs: Sequence[Pair],
        *,
        batch_size: int | None,
        batch_tokens: int,
        warn: Warn | None,
        progress: Progress | None,
    ) -> list[Result]:
        """The results of a function of pairs, in the order of the pairs.

        Args:
            run: computes a batch.
            pairs: ids of a source and its target.
            batch_size, batch_tokens, warn, progress: as for `score`.
        """
        lengths = [max(map(len, pair)) + 1 for pair in pairs]
        batches = plan_batches(lengths, width=1, batch_tokens=batch_tokens, batch_size=batch_size)
        results: dict[int, Result] = {}

        def run_part(part: list[int]) -> list[Result]:
            return run([pairs[i] for i in part])

        with self._running():
            for part, result in split_on_oom(batches, run_part, warn, lambda i: f"line {i + 1}"):
                results.update(zip(part, result, strict=True))
                if progress is not None:
                    progress(len(results), len(lengths))
        return [results[i] for i in range(len(lengths))]

    def _search_alone(
        self, items: Sequence[SearchItem], settings: SearchSettings, longest: int | None
    ) -> SegmentResult | None:
        """The result for a single segment; None where a batch must be made.

        A step takes PyTorch's operations, and the search in batches, longer than the arithmetic
        of a small model. The same kernels and the same search give the same bits.
        """
        if len(items) != 1 or items[0].prefix or items[0].phrases or not searches(settings):
            return None
        if len(self.models) > 1 or self.shortlist is not None or self.tokenizers.protection:
            return None
        if not is_untouched(self.models[0]) or self._numpy is None:
            return None
        try:
            return self._numpy.find(items[0].segment, settings, longest)
        except MemoryError:  # a batch can say what to do then
            return None

    @functools.cached_property
    def _numpy(self) -> NumpyTranslationPipeline | None:
        """The same model without PyTorch, where the kernels compute all of it."""
        try:
            return NumpyTranslationPipeline(share_weights(self.models[0]), self.tokenizers)
        except Unsupported:
            return None

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


def _by_beam(items: Sequence[SearchItem], settings: SearchSettings) -> list[tuple[int, list[int]]]:
    """Beams, and the numbers of the items that are searched by them: those without phrases first.

    Searched apart, these take the plain, faster selection, and no item depends on another's beam.
    """
    groups: dict[tuple[bool, int], list[int]] = {(False, settings.width): []}
    for number, item in enumerate(items):
        groups.setdefault((bool(item.phrases), item.beam(settings)), []).append(number)
    return [(beam, numbers) for (_, beam), numbers in sorted(groups.items())]
