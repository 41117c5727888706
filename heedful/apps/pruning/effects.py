"""Effects of ablations on loss, accuracy and BLEU, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from heedful.apps.evaluation.bootstrap import PairedScore, paired_bootstrap, paired_ratios
from heedful.apps.pruning.ablation import AblationMode, ablated
from heedful.apps.pruning.examples import AnsweredInput, Answers, answer
from heedful.errors import ModelError
from heedful.evaluate.corpus_metrics import AUTO, corpus_scores
from heedful.inspect.readings import read_all
from heedful.inspect.subject import Result, Subject
from heedful.search.search_settings import SearchSettings

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Bleu:
    """Settings of BLEU: the search for translations and the comparison with references.

    Args:
        search: settings of the search.
        sentences: number of examples to translate, from the first; all if None.
        tokenize: tokenizer of sacreBLEU.
        lowercase: True to ignore case in comparisons.
    """

    search: SearchSettings = field(default_factory=SearchSettings)
    sentences: int | None = None
    tokenize: str = AUTO
    lowercase: bool = False

    def translate(self, subject: Subject, examples: Sequence[AnsweredInput]) -> list[str]:
        """Translate a corpus.

        Raises:
            ModelError: when the model is no translator.
        """
        if subject.model.spec.reads != "pairs":
            raise ModelError("Only translators have a BLEU", remedy="Look at loss and accuracy")
        texts = [example.reading.text for example in examples[: self.sentences]]
        return [reading.target or "" for reading in read_all(subject, texts, search=self.search)]

    def references(self, examples: Sequence[AnsweredInput]) -> list[str]:
        """Return the reference translations."""
        return [example.reading.target or "" for example in examples[: self.sentences]]

    @property
    def rules(self) -> dict[str, Any]:
        """The tokenizer and the case, as keyword arguments of metrics."""
        return {"tokenize": self.tokenize, "lowercase": self.lowercase}

    def score(self, subject: Subject, examples: Sequence[AnsweredInput]) -> float:
        """Return the BLEU score of a corpus, from 0 to 100."""
        texts, references = self.translate(subject, examples), self.references(examples)
        return corpus_scores(texts, references, ["bleu"], **self.rules)["bleu"].score


@dataclass(frozen=True)
class Effect(Result):
    """Effect of an ablation on the scores of a corpus.

    Args:
        what: addresses of the parts that were ablated together.
        how: mode of the ablation.
        scores: `loss`, `accuracy` and optionally `bleu`, each for the whole model (a), for the
            ablated model (b) and as their difference, with bootstrap intervals.
    """

    what: tuple[str, ...]
    how: AblationMode
    scores: Mapping[str, PairedScore]


def effects(
    subject: Subject,
    examples: Sequence[AnsweredInput],
    ablations: Sequence[str | Iterable[str]],
    how: AblationMode = "off",
    *,
    means: Mapping[str, Tensor] | None = None,
    bleu: Bleu | None = None,
    samples: int = 1000,
    progress: Progress = lambda done, total: None,
) -> list[Effect]:
    """Measure the effect of each of several ablations on a corpus.

    Args:
        subject: the model.
        examples: examples of the corpus, e.g. from `examples_of_text`.
        ablations: addresses or patterns as for `ablated`; the parts of one entry are ablated
            together.
        how: mode of the ablations.
        means: mean outputs from `mean_outputs`, for the mode `mean`.
        bleu: settings of BLEU for a translator; None to compute no BLEU.
        samples: resamples of the paired bootstrap.
        progress: function called with the numbers of finished and of all ablations.

    Raises:
        ModelError: when the model has no such part, or BLEU is requested and the model is no
            translator.
        ConfigError: when a part does not support the mode.
        DataError: when the examples have no answers.
    """
    whole = answer(subject, examples)
    translated = None if bleu is None else bleu.translate(subject, examples)
    measured = []
    for number, what in enumerate(ablations):
        progress(number, len(ablations))
        with ablated(subject.model, what, how, means=means) as addresses:
            without = answer(subject, examples)
            # Translated within the context, since the search must run without the parts as well.
            texts = None if bleu is None else bleu.translate(subject, examples)
        # Paired: both models are resampled on the same sentences, so differences
        # of difficulty cancel.
        scores = _compared(whole, without, samples)
        if bleu is not None and translated is not None and texts is not None:
            references = bleu.references(examples)
            scores |= paired_bootstrap(
                translated, texts, references, ["bleu"], samples=samples, **bleu.rules
            )
        measured.append(Effect(addresses, how, scores))
    progress(len(ablations), len(ablations))
    return measured


def _compared(whole: Answers, without: Answers, samples: int) -> dict[str, PairedScore]:
    counts = whole.counts.tolist()
    sums = {"loss": (whole.losses, without.losses), "accuracy": (whole.right, without.right)}
    return {
        name: paired_ratios(name, a.tolist(), b.tolist(), counts, samples=samples)
        for name, (a, b) in sums.items()
    }
