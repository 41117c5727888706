"""Search, scoring and alignment of segments in batches, by one or several translators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from heedful.pipelines.batching import (
    BatchQueue,
    batches_at_once,
    in_threads,
    run_batches,
    split_on_oom,
)
from heedful.pipelines.search_items import (
    SearchItem,
    encoder_input,
    requirements,
    target_specials,
)
from heedful.pipelines.text_splitting import SegmentResult, Warn, distinct_texts
from heedful.search.search_settings import SearchSettings, Specials, longest_output

# PyTorch is imported where it is used: without it, texts are cut and joined here all the same.
if TYPE_CHECKING:
    import torch

    from heedful.device import Precision
    from heedful.models.translator import Translator
    from heedful.pipelines.known_targets import Pair
    from heedful.pipelines.numpy_translation import NumpyTranslationPipeline
    from heedful.search.lexical_shortlist import Shortlist
    from heedful.search.step_model import StepModel
    from heedful.text.tokenizer_pair import TokenizerPair

Result = TypeVar("Result")

Progress = Callable[[int, int], None]
"""Receiver of the number of finished items and of all items."""


class SegmentSearch:
    """One or several translators that search and score segments of texts in batches.

    Arguments and attributes are those of `TranslationPipeline`.
    """

    forces_words = True
    """True if a search can be held to required words."""
    tokenizers: TokenizerPair
    shortlist: Shortlist | None
    _held: tuple[Any, ...]
    """The models as `HeldModel`s."""
    _precision: Precision | None

    def _follow(self) -> None:
        """Take the engines of the models as they are now; every public method begins with it."""
        engines = tuple(each.current() for each in self._held)
        if engines != vars(self).get("engines"):
            from heedful.search.step_model import Ensemble

            self.engines: tuple[Translator, ...] = engines
            self.engine: StepModel[Any] = engines[0] if len(engines) == 1 else Ensemble(engines)
            vars(self).pop("_numpy", None)  # it has addresses in the engine before

    @property
    def precision(self) -> Precision | None:
        """Precision of the forward passes; float32 if None."""
        return self._precision or self._held[0].precision

    @cached_property
    def specials(self) -> Specials:
        """Special tokens of the target."""
        return target_specials(self.tokenizers)

    @cached_property
    def _vocabulary(self) -> int:
        """Target vocabulary size of the model; the largest one of an ensemble."""
        return max(model.spec.predicted_vocabulary for model in self.engines)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.engines[0].output_weight.device

    def search_segments(
        self,
        items: Sequence[SearchItem],
        batches: Sequence[Sequence[int]],
        settings: SearchSettings,
        alignment: bool,
        warn: Warn | None,
        progress: Progress | None,
    ) -> list[SegmentResult]:
        """Translate segments; how they are batched changes no result.

        Args:
            items: segments to translate.
            batches: indices of the items of each batch, from `plan_searches`.
            settings: settings of the search.
            alignment: True to align words, too.
            warn: receiver of a sentence when memory ran out and a batch was split.
            progress: receiver of (done, total) segments after each batch.

        Returns:
            A result for each item, in the same order.
        """
        longest = longest_output([model.spec for model in self.engines], settings)
        alone = None if alignment else self._search_alone(items, settings, longest)
        if alone is not None:
            if progress is not None:
                progress(1, 1)
            return [alone]
        queue = BatchQueue(batches, warn, lambda number: f"line {items[number].line}")
        work = partial(self._search_batch, items, settings, longest, alignment)
        results: dict[int, SegmentResult] = {}
        with self._running():
            count = batches_at_once(self.device, len(batches))
            stream = partial(run_batches, queue, work)
            # Threads finish in any order, so results are stored by index.
            for numbers, part in in_threads(stream, count, self._in_thread):
                results.update(zip(numbers, part, strict=True))
                if progress is not None:
                    progress(len(results), len(items))
        return [results[i] for i in range(len(items))]

    def _search_batch(
        self,
        items: Sequence[SearchItem],
        settings: SearchSettings,
        longest: int | None,
        alignment: bool,
        numbers: Sequence[int],
    ) -> list[SegmentResult]:
        """Translate the items with these indices, in this order; all have the same beam width."""
        from heedful.search.dispatch import search

        items = [items[i] for i in numbers]
        phrases, ids = [item.phrases for item in items], [item.ids for item in items]
        if any(phrases):
            # All items of a batch have the same beam width, see `plan_searches`; required phrases
            # need a larger one.
            settings = settings.model_copy(update={"beam": items[0].beam(settings)})
        source, positions = encoder_input(ids, self.tokenizers, self.device)
        vocabulary = None
        if self.shortlist is not None:
            needed = [item.needed for item in items]
            vocabulary = self.shortlist.restrict(ids, needed, self.specials, self.device)
        # Hypotheses may have the same text, so more than `n_best` are needed for distinct texts.
        several = settings.n_best > 1 and not settings.sampling
        kept = settings.n_best
        if several or settings.risk_samples:
            kept = settings.risk_samples or settings.width
        # Alignment uses the encoder output again after the search.
        begun = self.engine.start(source, positions) if alignment else None
        results = search(
            self.engine,
            source,
            positions,
            settings.model_copy(update={"n_best": kept}),
            specials=self.specials,
            prefixes=[item.prefix for item in items],
            names=[item.name for item in items],
            longest=longest,
            begun=begun,
            vocabulary=vocabulary,
            required=requirements(phrases, self.tokenizers, self._vocabulary),
        )
        if several:
            target = self.tokenizers.target
            results = [distinct_texts(each, target)[: settings.n_best] for each in results]
        if settings.alternatives:  # one hypothesis of each group, in the order of groups
            results = [sorted(each, key=lambda h: -h.normalized_score) for each in results]
        if settings.risk_samples:
            from heedful.pipelines.known_targets import least_risk

            target = self.tokenizers.target
            results = [least_risk(each, target)[: settings.n_best] for each in results]
        if not alignment:
            return list(map(SegmentResult, results, [None] * len(results), phrases))
        from heedful.pipelines.known_targets import align_hypotheses

        known = (self.engine, self.device, begun, self.tokenizers)
        alignments = align_hypotheses(*known, items, results)
        return list(map(SegmentResult, results, alignments, phrases))

    def _search_alone(
        self, items: Sequence[SearchItem], settings: SearchSettings, longest: int | None
    ) -> SegmentResult | None:
        """Return the result for a single segment; None if it needs the search in batches.

        For a small model, the overhead of PyTorch's operations and of the batched search exceeds
        the arithmetic. Both searches use the same kernels and algorithm and give the same bits.
        """
        # The search of one sentence supports no prefixes, phrases, ensembles or shortlists.
        if len(items) != 1 or items[0].prefix or items[0].phrases:
            return None
        if len(self.engines) > 1 or self.shortlist is not None or self.tokenizers.protection:
            return None
        from heedful.pipelines.numpy_translation import can_share, searches

        # Checked in every call, as hooks may be added to the model between two calls.
        if not searches(settings) or not can_share(self.engines[0]) or self._numpy is None:
            return None
        try:
            return self._numpy.find(items[0].segment, settings, longest)
        except MemoryError:  # the search in batches has an error message for it
            return None

    @cached_property
    def _numpy(self) -> NumpyTranslationPipeline | None:
        """Pipeline of the same model without PyTorch; None if kernels do not support all of it."""
        from heedful.pipelines.numpy_translation import NumpyTranslationPipeline

        return NumpyTranslationPipeline.sharing(self.engines[0], self.tokenizers)

    def score_pairs(
        self,
        pairs: Sequence[Pair],
        alignment: bool,
        warn: Warn | None,
        progress: Progress | None,
        sizes: Mapping[str, Any],
    ) -> tuple[Sequence[Sequence[float]], Sequence[Any]]:
        """Return the log-probabilities of given targets' tokens, and word alignments.

        Args:
            pairs: token ids of sources and targets.
            alignment: False for alignments of None.
            warn: receiver of a sentence when memory ran out and a batch was split.
            progress: receiver of (done, total) pairs after each batch.
            sizes: arguments of `plan_pairs`.
        """
        from heedful.pipelines.known_targets import align_pairs, plan_pairs, score_pairs

        batches = plan_pairs(pairs, **sizes)
        scores = self.run_pairs(score_pairs, pairs, batches, warn, progress)
        if not alignment:
            return scores, [None] * len(pairs)
        return scores, self.run_pairs(align_pairs, pairs, batches, warn, None)

    def run_pairs(
        self,
        run: Callable[[StepModel[Any], torch.device, TokenizerPair, list[Pair]], list[Result]],
        pairs: Sequence[Pair],
        batches: Sequence[Sequence[int]],
        warn: Warn | None,
        progress: Progress | None,
    ) -> list[Result]:
        """Score or align pairs of known sources and targets.

        Args:
            run: `score_pairs` or `align_pairs`.
            pairs: token ids of sources and targets.
            batches: indices of the pairs of each batch.
            warn: receiver of a sentence when memory ran out and a batch was split.
            progress: receiver of (done, total) pairs after each batch.

        Returns:
            A result for each pair, in the same order.
        """
        results: dict[int, Result] = {}

        def run_part(part: list[int]) -> list[Result]:
            return run(self.engine, self.device, self.tokenizers, [pairs[i] for i in part])

        with self._running():
            for part, result in split_on_oom(batches, run_part, warn, lambda i: f"line {i + 1}"):
                results.update(zip(part, result, strict=True))
                if progress is not None:
                    progress(len(results), len(pairs))
        return [results[i] for i in range(len(pairs))]

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Switch to evaluation mode, no gradients and the chosen precision; restore all at exit."""
        import torch

        with ExitStack() as stack:
            # Validation during training uses the model in training, which must return to that mode.
            for each in self._held:
                stack.enter_context(each.running())
            stack.enter_context(torch.inference_mode())
            if self.precision is not None:
                stack.enter_context(self.precision.autocast())
            yield

    @contextmanager
    def _in_thread(self) -> Iterator[None]:
        """Enter the context of `_running` in a further thread."""
        import torch

        with ExitStack() as stack:
            # A new thread does not inherit inference mode and autocast.
            stack.enter_context(torch.inference_mode())
            if self.precision is not None:
                stack.enter_context(self.precision.in_thread())
            yield
