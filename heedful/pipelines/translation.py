"""Translation pipeline, which commands, the server and validation in training share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from heedful.device import RunningPrecision, resolve_device
from heedful.engines.inference.prepare import precision_of, prepare
from heedful.errors import ModelError
from heedful.models.checkpoint import ReadModel, load_model, load_translator
from heedful.pipelines.segment_search import SegmentSearch
from heedful.pipelines.text_splitting import TargetScore, Warn
from heedful.pipelines.text_translation import BATCH_TOKENS, Progress, TextTranslation
from heedful.text.tokenizer_pair import Split


class TranslationPipeline(SegmentSearch, TextTranslation):
    """A translator of raw text: one model, or several whose probabilities are averaged.

    Args:
        models: a model, or members of an ensemble; all with the same tokenizers.
        tokenizers: tokenizers of source and target.
        precision: precision of the forward passes; float32 if unset.
        shortlist: shortlist whose tokens translations are made of; all tokens if unset. Scores of
            given translations are always over the whole vocabulary.

    Attributes:
        model: the model, or the ensemble.
        specials: special tokens of the target.
    """

    @classmethod
    def load(
        cls,
        path: str | Path | Sequence[str | Path],
        *,
        device: str = "auto",
        precision: RunningPrecision = "auto",
        shortlist: bool | str | Path = False,
        split: Split | None = None,
        read: ReadModel = load_model,
        shared: Path | None = None,
    ) -> Self:
        """Load a model directory, or several as an ensemble.

        Args:
            path: a model directory or a run directory (its best model), or several.
            device: auto, cpu, cuda, cuda:1 or mps.
            precision: auto (float32 by the fastest exact method), fp32, bf16,
                fp16 or int8.
            shortlist: True for the shortlist of the (first) model, or the file of another one.
            split: parts of a text that are translated apart: `sentences`, `lines`, or `none`, where
                line breaks become spaces; as the model has learned if unset.
            read: reader of a model directory.
            shared: folder in which processes share weights; None for weights of its own.

        Raises:
            ModelError: when there is no model, or models of an ensemble have different tokenizers.
            ConfigError: when the device or precision is not available.
        """
        paths = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
        if not paths:
            raise ModelError("No model given", remedy="Give at least one model directory")
        # Checked before models are read, so that a missing device is reported at once.
        where = resolve_device(device)
        loaded = [load_translator(p, read) for p in paths]
        tokenizers = loaded[0][1]
        # Compared only for ensembles: a fingerprint hashes the whole vocabulary, which takes time.
        for other, (_, pair) in list(zip(paths, loaded, strict=True))[1:]:
            if pair.fingerprint != tokenizers.fingerprint:
                raise ModelError(
                    f"Its tokenizers differ from those of {paths[0]}",
                    where=str(other),
                    remedy="An ensemble needs models trained with the same tokenizers",
                )
        tokenizers = tokenizers.splitting(split)
        short = None
        if shortlist is not False:
            from heedful.search.lexical_shortlist import load_shortlist

            short = load_shortlist(shortlist, paths[0], tokenizers)
        # `donate`: nobody else holds the loaded models, so that packed weights may replace theirs.
        engines = [
            prepare(model, precision, where, donate=True, shared=shared) for model, _ in loaded
        ]
        return cls(engines, tokenizers, precision=precision_of(engines[0]), shortlist=short)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str | Sequence[int]],
        *,
        alignment: bool = False,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        warn: Warn | None = None,
        progress: Progress | None = None,
    ) -> list[TargetScore]:
        """Return natural-log probabilities of given translations, by the same steps as a search.

        Args:
            sources: texts.
            targets: target of each source, as text or token ids. Text is tokenized as in training;
                a search may have found it with other tokens.
            alignment: True to align words, too.
            batch_size: pairs scored together, instead of `batch_tokens`.
            batch_tokens: positions scored together, on the longer side, padding counted.
            warn: receiver of a sentence when memory ran out and a batch was split.
            progress: receiver of (done, total) pairs after each batch.

        Raises:
            DataError: when there are not as many targets as sources, or one has more tokens than
                the model has learned positions.
        """
        from heedful.pipelines.known_targets import align_pairs, plan_pairs, score_pairs

        pairs = self._encode_pairs(sources, targets)
        batches = plan_pairs(pairs, batch_tokens=batch_tokens, batch_size=batch_size)
        target = self.tokenizers.target
        found = self.run_pairs(score_pairs, pairs, batches, warn, progress)
        scores = [
            TargetScore.of(target.pieces(ids), token_scores)
            for (_, ids), token_scores in zip(pairs, found, strict=True)
        ]
        if not alignment:
            return scores
        alignments = self.run_pairs(align_pairs, pairs, batches, warn, None)
        return [
            replace(score, alignment=aligned)
            for score, aligned in zip(scores, alignments, strict=True)
        ]
