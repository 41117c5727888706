"""Translation where PyTorch is not installed: one model, plain searches, a processor.

It treats texts as `TranslationPipeline` does, and gives the same translations, but searches one
segment after the other. What it cannot do is refused, and the refusal says how to add PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.engines.inference.lowering import Unsupported
from heedful.errors import TorchMissing
from heedful.kernels.library import kernels
from heedful.models.model_directory import find_model_directory, no_translator, read_facts
from heedful.pipelines.numpy_translation import (
    NumpyTranslationPipeline,
    row_logsumexp,
    searches,
)
from heedful.pipelines.text_splitting import SegmentResult, Warn
from heedful.search.alignment import Alignment, align
from heedful.search.search_settings import SearchSettings, longest_output
from heedful.text.tokenizer import framed

if TYPE_CHECKING:
    from heedful.pipelines.search_items import SearchItem
    from heedful.pipelines.segment_search import Progress


class TorchFreeSearch:
    """Search and scoring of segments as `SegmentSearch` has them, without PyTorch.

    Args:
        pipeline: pipeline of the model, whose searches are used.
        name: directory or name that it was loaded from.
    """

    # In the place of properties of the models that others have.
    models: tuple[Any, ...] = ()
    model: Any = None
    precision: Any = None
    forces_words = False

    def __init__(self, pipeline: NumpyTranslationPipeline, name: str = "") -> None:
        self._pipeline = pipeline
        self.name = name
        self.models = self.engines = (pipeline.translator,)
        self.model = self.engine = pipeline.translator
        self.shortlist: Any = None
        self.tokenizers = pipeline.tokenizers
        self.specials = pipeline.specials

    def facts(self) -> dict[str, str]:
        """Return what there is to know at a glance, by name."""
        facts = {"kind": "translator", "device": "cpu, by NumPy", "does": "translate, score"}
        return {"model": self.name, **facts}

    def _follow(self) -> None:
        """Take the model as it is: without PyTorch nobody can change its weights."""

    def search_segments(
        self,
        items: Sequence[SearchItem],
        batches: Sequence[Sequence[int]],
        settings: SearchSettings,
        alignment: bool,
        warn: Warn | None,
        progress: Progress | None,
    ) -> list[SegmentResult]:
        """Translate segments; see `SegmentSearch.search_segments`.

        Raises:
            TorchMissing: for samples, prefixes, and penalties other than that of the length.
        """
        if not searches(settings):
            raise TorchMissing("A search with sampling, alternatives, n-gram or coverage penalties")
        if any(item.prefix or item.phrases for item in items):
            raise TorchMissing("A translation with forced words")
        longest = longest_output([self._pipeline.translator.spec], settings)
        results = []
        for item in items:
            result = self._pipeline.find(item.segment, settings, longest)
            if alignment:
                segment = item.segment
                target = self.tokenizers.target
                aligned = [
                    self._align(segment.ids, segment.text, each.tokens, target.decode(each.tokens))
                    for each in result.hypotheses
                ]
                result = replace(result, alignments=aligned)
            results.append(result)
            if progress is not None:
                progress(len(results), len(items))
        return results

    def score_pairs(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        alignment: bool,
        warn: Warn | None,
        progress: Progress | None,
        sizes: Mapping[str, Any],
    ) -> tuple[Sequence[Sequence[float]], Sequence[Alignment | None]]:
        """Return scores and alignments; see `SegmentSearch.score_pairs`."""
        source, target = self.tokenizers.source, self.tokenizers.target
        scores, alignments = [], list[Alignment | None]()
        for ids, tokens in pairs:
            scores.append(self._token_scores(ids, tokens))
            texts = source.decode(ids), target.decode(tokens)
            alignments.append(self._align(ids, texts[0], tokens, texts[1]) if alignment else None)
            if progress is not None:
                progress(len(scores), len(pairs))
        return scores, alignments

    def _token_scores(self, source: Sequence[int], target: Sequence[int]) -> list[float]:
        """Return the log-probability of each token and of the end token, as a search sums them."""
        text = self._pipeline.translator.begin(framed(self.tokenizers.source, source))
        before, scores = self.specials.bos, []
        for token in (*target, self.specials.eos):
            logits = text.step([before])
            scores.append(float(logits[0, token] - row_logsumexp(logits)[0]))
            before = token
        return scores

    def _align(
        self, source: Sequence[int], source_text: str, target: Sequence[int], target_text: str
    ) -> Alignment:
        weights = self._pipeline.translator.attention(
            framed(self.tokenizers.source, source), [self.specials.bos, *target]
        )
        return align(
            weights,
            (self.tokenizers.source, source, source_text),
            (self.tokenizers.target, target, target_text),
        )


def numpy_pipeline(
    paths: Sequence[Path], *, shortlist: bool | str | Path = False, options: Mapping[str, Any]
) -> NumpyTranslationPipeline:
    """Load the pipeline of a translator without PyTorch, or say what it needs PyTorch for.

    Args:
        paths: model or run directories, of which there may be one.
        shortlist: False, as there are none without PyTorch.
        options: `device`, `precision` and `split`, see `heedful.load`.

    Raises:
        TorchMissing: when the processor, the model, its device or another option needs PyTorch.
        UserError: when there is no model, or it is damaged.
    """
    if len(paths) != 1 or shortlist is not False:
        raise TorchMissing("An ensemble" if len(paths) != 1 else "A shortlist")
    if kernels() is None:
        raise TorchMissing("A processor without kernels in C (see `heedful doctor`)")
    kind = read_facts(find_model_directory(paths[0])).spec.kind
    if kind != "translator":
        raise no_translator(kind, str(paths[0]))
    try:
        return NumpyTranslationPipeline.read(paths[0], **options)
    except Unsupported as error:
        raise TorchMissing("This model, device or precision") from error
