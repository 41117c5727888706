"""The cost of taking a part of a model away, in loss, accuracy and BLEU, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from heedful.errors import ModelError
from heedful.evaluate.bootstrap import PairedScore, paired_bootstrap, paired_ratios
from heedful.evaluate.corpus_metrics import corpus_scores
from heedful.inspect.ablation import AblationMode, ablated
from heedful.inspect.examples import Answers, Example, answer
from heedful.inspect.readings import read_all
from heedful.inspect.result import Result
from heedful.inspect.subject import Subject
from heedful.search.search_settings import SearchSettings

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Bleu:
    """Settings of translating and of comparing translations with references.

    Args:
        search: settings of the search.
        sentences: only this many examples, the first ones; all if None.
        tokenize: sacreBLEU's tokenizer.
        lowercase: ignore case.
    """

    search: SearchSettings = field(default_factory=SearchSettings)
    sentences: int | None = None
    tokenize: str = "13a"
    lowercase: bool = False

    def translate(self, subject: Subject, examples: Sequence[Example]) -> list[str]:
        """Translate a corpus.

        Raises:
            ModelError: when the model is no translator.
        """
        if subject.model.spec.reads != "pairs":
            raise ModelError("Only translators have a BLEU", remedy="Look at loss and accuracy")
        texts = [example.reading.text for example in examples[: self.sentences]]
        return [reading.target or "" for reading in read_all(subject, texts, search=self.search)]

    def references(self, examples: Sequence[Example]) -> list[str]:
        """Return the right translations."""
        return [example.reading.target or "" for example in examples[: self.sentences]]

    def score(self, subject: Subject, examples: Sequence[Example]) -> float:
        """Return the BLEU of a corpus, from 0 to 100."""
        scores = corpus_scores(
            self.translate(subject, examples),
            self.references(examples),
            ["bleu"],
            tokenize=self.tokenize,
            lowercase=self.lowercase,
        )
        return scores["bleu"].score


@dataclass(frozen=True)
class Effect(Result):
    """The effect of an ablation.

    Args:
        what: addresses of the parts that were taken away together.
        how: the mode of the ablation.
        scores: `loss`, `accuracy` and, where it was measured, `bleu`: of the whole model (a), of
            the ablated one (b) and their difference, with intervals over draws of examples.
    """

    what: tuple[str, ...]
    how: AblationMode
    scores: Mapping[str, PairedScore]


def effects(
    subject: Subject,
    examples: Sequence[Example],
    ablations: Sequence[str | Iterable[str]],
    how: AblationMode = "off",
    *,
    means: Mapping[str, Tensor] | None = None,
    bleu: Bleu | None = None,
    samples: int = 1000,
    progress: Progress = lambda done, total: None,
) -> list[Effect]:
    """Measure the cost of each of several ablations on a corpus.

    Args:
        subject: the model.
        examples: the corpus, such as `examples_of_text` makes.
        ablations: the parts to take away, as for `ablated`; those of one entry together.
        how: as for `ablated`.
        means: for `mean`, from `mean_outputs`.
        bleu: how to translate, for a translator; without it there is no BLEU.
        samples: resamples of the paired bootstrap.
        progress: called with the number of ablations that are done, and of all.

    Raises:
        ModelError: when the model has no such part, or is to be scored by BLEU and no translator.
        ConfigError: when a part cannot be ablated so.
        DataError: when there is no right answer in the examples.
    """
    whole = _Outcome.of(subject, examples, bleu)
    measured = []
    for number, what in enumerate(ablations):
        progress(number, len(ablations))
        with ablated(subject.model, what, how, means=means) as addresses:
            without = _Outcome.of(subject, examples, bleu)
        scores = whole.compared(without, samples)
        if bleu is not None and whole.texts is not None and without.texts is not None:
            scores |= paired_bootstrap(
                whole.texts,
                without.texts,
                bleu.references(examples),
                ["bleu"],
                samples=samples,
                tokenize=bleu.tokenize,
                lowercase=bleu.lowercase,
            )
        measured.append(Effect(addresses, how, scores))
    progress(len(ablations), len(ablations))
    return measured


@dataclass(frozen=True)
class _Outcome:
    answers: Answers
    texts: list[str] | None

    @classmethod
    def of(cls, subject: Subject, examples: Sequence[Example], bleu: Bleu | None) -> _Outcome:
        texts = None if bleu is None else bleu.translate(subject, examples)
        return cls(answer(subject, examples), texts)

    def compared(self, other: _Outcome, samples: int) -> dict[str, PairedScore]:
        """Loss and accuracy of both."""
        counts = self.answers.counts.tolist()
        sums = {
            "loss": (self.answers.losses, other.answers.losses),
            "accuracy": (self.answers.right, other.answers.right),
        }
        return {
            name: paired_ratios(name, a.tolist(), b.tolist(), counts, samples=samples)
            for name, (a, b) in sums.items()
        }
