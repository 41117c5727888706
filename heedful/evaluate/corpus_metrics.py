"""Metrics of a corpus: sacreBLEU's with their signatures, exact match, perplexity.

Validation in training and `heedful evaluate` both use them, so their scores are comparable. Texts
are scored in the usual spelling of Unicode: where one side writes é as two characters, BLEU fell
from 60.3 to 18.2, though nobody sees a difference.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, cast

from heedful.errors import ConfigError, DataError, first_line, suggest
from heedful.registry import ON_USE, find
from heedful.text.normalization import TextNormalizer
from heedful.text.pretokenization import is_spaceless

if TYPE_CHECKING:  # sacreBLEU takes a while to import; the metrics' names must not wait for it
    from sacrebleu.metrics.base import Metric, Score

METRIC_NAMES = ("bleu", "chrf", "ter")
AUTO = "auto"
"""Name of the choice of a tokenizer by the script of the references."""

_USUAL = TextNormalizer("nfc")
_SCRIPT_SAMPLE = 1000  # number of references whose letters show the script
_KANA = re.compile("[\u3041-\u30ff]")
_IDEOGRAPH = re.compile("[\u4e00-\u9fff]")

References = Sequence[str] | Sequence[Sequence[str]]


@dataclass(frozen=True)
class MetricScore:
    """The score of a corpus by one metric.

    Attributes:
        name: `bleu`, `chrf` or `ter`.
        score: value of the metric: 0 to 100 for BLEU and chrF, higher is better; for TER errors per
            100 reference words, lower is better.
        signature: sacreBLEU's signature: case, tokenizer, smoothing, version.
        details: components of the score (n-gram precisions, brevity penalty, lengths in tokens).
    """

    name: str
    score: float
    signature: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the score as JSON data."""
        return asdict(self)


def corpus_scores(
    hypotheses: Sequence[str],
    references: References,
    metrics: Sequence[str] = METRIC_NAMES,
    *,
    tokenize: str = AUTO,
    lowercase: bool = False,
) -> dict[str, MetricScore]:
    """Score a corpus of hypotheses.

    Args:
        hypotheses: outputs to score.
        references: references of the outputs, or several such lists.
        metrics: names of metrics out of `bleu`, `chrf`, `ter`.
        tokenize: sacreBLEU's tokenizer for BLEU; `none` for tokenised text, `auto` for that of the
            references' script.
        lowercase: disregard of case in BLEU and chrF; TER always disregards it.

    Returns:
        A score for each metric, in the order of `metrics`.

    Raises:
        DataError: when the numbers of lines differ, or there are none.
        ConfigError: on a metric or tokenizer that does not exist or is not installed.
    """
    reference_lists = list(map(usual_spelling, check_aligned(hypotheses, references)))
    hypotheses = usual_spelling(hypotheses)
    scores: dict[str, MetricScore] = {}
    for name in metrics:
        metric = build_metric(name, reference_lists, tokenize=tokenize, lowercase=lowercase)
        score = metric.corpus_score(hypotheses, reference_lists)
        scores[name] = MetricScore(
            name, float(score.score), str(metric.get_signature()), _details(score)
        )
    return scores


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of hypotheses that equal their reference character by character, 0 to 1.

    Raises:
        DataError: when the numbers of lines differ, or there are none.
    """
    # Only one reference is accepted: with several, "equal to its reference" would be ambiguous.
    (lines,) = check_aligned(hypotheses, references)
    pairs = zip(hypotheses, lines, strict=True)
    return sum(hypothesis == line for hypothesis, line in pairs) / len(lines)


def perplexity(negative_log_likelihood: float, count: int) -> float:
    """Return the perplexity: exp of the mean negative log-probability.

    Args:
        negative_log_likelihood: sum over all units in nats.
        count: number of units, such as tokens, above 0; predicted end tokens count.

    Returns:
        The perplexity, infinite where it exceeds the largest float.
    """
    assert count > 0, "perplexity of nothing"
    try:
        return math.exp(negative_log_likelihood / count)
    except OverflowError:
        return math.inf


def bits_per_unit(negative_log_likelihood: float, count: int) -> float:
    """Return the mean negative log-probability in bits.

    Args:
        negative_log_likelihood: sum over the text in nats, by tokens or any other units.
        count: number of units, above 0: characters give bits per character, bytes bits per byte.
    """
    assert count > 0, "bits of nothing"
    return negative_log_likelihood / count / math.log(2)


def build_metric(
    name: str,
    references: Sequence[Sequence[str]] = (),
    *,
    tokenize: str = AUTO,
    lowercase: bool = False,
) -> Metric:
    """Make a metric of sacreBLEU, or a registered one.

    Args:
        name: `bleu`, `chrf`, `ter` or the name of a registered metric.
        references: lists of references, whose script decides the tokenizer for `auto`.
        tokenize, lowercase: options of `corpus_scores`.

    Raises:
        ConfigError: on a metric or tokenizer that does not exist or is not installed.
    """
    # Imported here: sacreBLEU takes a while to import, and training without BLEU does not need it.
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    spaceless = _spaceless_tokenizer(references) if tokenize == AUTO else None
    if name == "bleu":
        tokenize = (spaceless or "13a") if tokenize == AUTO else tokenize
        if tokenize not in BLEU.TOKENIZERS:
            raise ConfigError(
                f"Unknown tokenizer {tokenize!r}",
                where="tokenize",
                remedy=suggest(tokenize, BLEU.TOKENIZERS),
            )
        try:
            # `force` silences sacreBLEU's warning that a text looks tokenised, as it is.
            return BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
        except (ImportError, RuntimeError) as error:
            raise ConfigError(
                f"sacreBLEU's tokenizer {tokenize!r} is not installed: {first_line(error)}",
                where="tokenize",
                remedy="Install what it names, or choose another such as 13a, intl, zh or char",
            ) from None
    if name == "chrf":
        # chrF, not chrF++: sacreBLEU's default has no n-grams of words.
        return CHRF(lowercase=lowercase)
    if name == "ter":
        # sacreBLEU's default disregards case.
        return TER(normalized=True, asian_support=True) if spaceless else TER()
    known = (*METRIC_NAMES, *ON_USE["metric"])
    try:
        metric = find("metric", name, known)
    except ValueError as error:
        raise ConfigError(
            f"Unknown metric: {error}", where="metrics", remedy=suggest(name, known)
        ) from None
    if "translation" not in metric.tasks:
        raise ConfigError(
            f"The metric {name} scores no translations, but outputs of {', '.join(metric.tasks)}",
            where="metrics",
            remedy="Leave it out",
        )
    # It has those methods of sacreBLEU's that are used here.
    return cast("Metric", metric())


def _spaceless_tokenizer(references: Sequence[Sequence[str]]) -> str | None:
    """Return the tokenizer for a script without spaces between words; None for other scripts.

    Split at spaces, a sentence of such a script is one word, so BLEU is 0 for most translations.
    """
    text = "".join(islice(chain.from_iterable(references), _SCRIPT_SAMPLE))
    letters = [letter for letter in text if letter.isalpha()]
    if 2 * sum(map(is_spaceless, letters)) <= len(letters):
        return None
    # Kana are tested first, as Japanese is written with ideographs, too.
    if _KANA.search(text):
        # The tokenizer of WMT for Japanese, where its analyser is installed.
        return "ja-mecab" if find_spec("MeCab") and find_spec("ipadic") else "char"
    return "zh" if _IDEOGRAPH.search(text) else "char"


def usual_spelling(lines: Sequence[str]) -> list[str]:
    """Return lines as they are scored: in NFC, with usual spaces and without invisible signs."""
    return [_USUAL.normalized(line) for line in lines]


def describe_spelling(*texts: Sequence[str]) -> str | None:
    """Return a sentence on lines that are scored in another spelling; None without any."""
    changed = sum(_USUAL.normalized(line) != line for lines in texts for line in lines)
    if not changed:
        return None
    return (
        f"{changed:,} lines are not in Unicode's usual spelling (NFC, usual spaces, no invisible "
        "signs): all are scored in it. Normalise the files to score them so elsewhere"
    )


def repeats_itself(text: str) -> bool:
    """Return True for a text that is mostly one word or a few words over and over."""
    words = [stripped for word in text.casefold().split() if (stripped := word.strip(".,;:!?…"))]
    if len(words) >= 4:
        in_a_row = sum(a == b for a, b in pairwise(words))
        return in_a_row >= 2 or 2 * len(set(words)) <= len(words)
    # One long word, or a script without spaces, whose characters recur more often than words do.
    characters = [each for each in "".join(words) if each.isalpha()]
    return len(characters) >= 12 and 3 * len(set(characters)) <= len(characters)


def describe_degenerate(
    translations: Sequence[str], sources: Sequence[str], references: Sequence[str] = ()
) -> str | None:
    """Return a sentence on translations that are mostly degenerate; None if they are not.

    Args:
        translations: translations, one for each source.
        sources: source texts; empty ones have empty translations, which are right.
        references: reference translations; what degenerates as they do is right as well.
    """
    numbers = [number for number, source in enumerate(sources) if source.strip()]
    texts = [translations[number].strip() for number in numbers]
    wanted = [references[number].strip() for number in numbers] if references else []
    total = len(texts)
    if not total:
        return None

    def excess(counts: Sequence[bool], right: Sequence[bool]) -> int:
        return sum(counts) - sum(right)

    empty = excess([not text for text in texts], [not text for text in wanted])
    if 2 * empty > total:
        return f"{empty:,} of {total:,} translations are empty"
    repeated = excess([*map(repeats_itself, texts)], [*map(repeats_itself, wanted)])
    if 2 * repeated > total:
        example = next(text for text in texts if repeats_itself(text))
        shown = example if len(example) <= 60 else f"{example[:60]}…"
        return f'{repeated:,} of {total:,} translations repeat words, such as "{shown}"'
    # Two or three sentences may well have one translation.
    text, same = Counter(texts).most_common(1)[0]
    if total >= 10 and 2 * (same - max(Counter(wanted or sources).values())) > total:
        return f'{same:,} of {total:,} translations are the same: "{text[:60]}"'
    return None


def check_aligned(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """Return the references as a list of lists, each as long as the hypotheses.

    Raises:
        DataError: when the numbers of lines differ, or there are none.
    """
    if not hypotheses:
        raise DataError("There is nothing to score: no hypotheses", remedy="Give at least one line")
    # A string is also a sequence of strings, so the type of the items decides.
    if all(isinstance(item, str) for item in references):
        lists = [[str(item) for item in references]]
    else:
        lists = [list(lines) for lines in references]
    for number, lines in enumerate(lists, start=1):
        if len(lines) != len(hypotheses):
            which = f"reference {number}" if len(lists) > 1 else "the reference"
            raise DataError(
                f"{len(hypotheses)} lines to score, but {which} has {len(lines)}",
                remedy="Give files that correspond line by line, empty lines included",
            )
    return lists


def _details(score: Score) -> dict[str, Any]:
    from sacrebleu.metrics.bleu import BLEUScore
    from sacrebleu.metrics.ter import TERScore

    if isinstance(score, BLEUScore):
        return {
            "precisions": [float(value) for value in score.precisions],
            "brevity_penalty": float(score.bp),
            "length_ratio": score.sys_len / score.ref_len if score.ref_len else 0.0,
            "hypothesis_length": int(score.sys_len),
            "reference_length": int(score.ref_len),
        }
    if isinstance(score, TERScore):
        return {"edits": float(score.num_edits), "reference_length": float(score.ref_length)}
    return {}
