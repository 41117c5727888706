"""The paired bootstrap against sacreBLEU's, a slow one written out, and cases known by heart."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from heedful.apps.evaluation.bootstrap import paired_bootstrap
from heedful.errors import DataError


def corpus(lines: int, damage_a: float, damage_b: float) -> tuple[list[str], list[str], list[str]]:
    """Random references and two systems that get that share of the words wrong."""
    draw = random.Random(7)
    vocabulary = [f"word{i}" for i in range(40)]
    references = [draw.choices(vocabulary, k=draw.randint(5, 12)) for _ in range(lines)]
    systems = [
        [" ".join("x" if draw.random() < share else word for word in line) for line in references]
        for share in (damage_a, damage_b)
    ]
    return systems[0], systems[1], [" ".join(line) for line in references]


@pytest.fixture(autouse=True)
def sacrebleu_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)


def test_same_scores_and_means_as_sacrebleu() -> None:
    a, b, references = corpus(40, 0.3, 0.25)
    ours = paired_bootstrap(a, b, references, samples=100)
    test = PairedTest(
        [("a", a), ("b", b)],
        {"BLEU": BLEU(), "CHRF": CHRF(), "TER": TER()},
        [references],
        test_type="bs",
        n_samples=100,
    )
    _, theirs = test()
    for name, key in (("bleu", "BLEU"), ("chrf", "chrF2"), ("ter", "TER")):
        for system, result in zip((ours[name].a, ours[name].b), theirs[key], strict=True):
            assert system.score == pytest.approx(result.score)
            assert system.mean == pytest.approx(result.mean, rel=1e-5)
            # its interval is half of the width, cut at whole resamples
            assert (system.high - system.low) / 2 == pytest.approx(result.ci, rel=0.05)


@pytest.mark.parametrize("damage", [0.3, 0.27])
def test_p_values_are_near_those_of_sacrebleus_randomization(damage: float) -> None:
    a, b, references = corpus(300, 0.3, damage)
    test = PairedTest([("a", a), ("b", b)], {"BLEU": BLEU()}, [references], n_samples=1000)
    _, theirs = test()
    ours = paired_bootstrap(a, b, references, ["bleu"])["bleu"].p_value
    # Two tests of one hypothesis, each with a deviation of 0.016 or less by its 1,000 draws.
    assert ours == pytest.approx(theirs["BLEU"][1].p_value, abs=0.05)


def test_one_better_sentence_is_no_evidence() -> None:
    """The test of sacreBLEU takes equal differences for smaller ones: it says p = 0.001 here."""
    a, _, references = corpus(100, 0.3, 0.3)
    b = [references[0], *a[1:]]
    assert paired_bootstrap(a, b, references, ["bleu"], samples=200)["bleu"].p_value > 0.1


def test_equal_to_scoring_every_resample_anew() -> None:
    a, b, references = corpus(12, 0.35, 0.3)
    ours = paired_bootstrap(a, b, references, ["bleu"], samples=80, seed=3)["bleu"]
    generator = np.random.default_rng(3)
    bleu = BLEU()

    def score(system: list[str], rows: list[int]) -> float:
        lines = [[references[i] for i in rows]]
        return float(bleu.corpus_score([system[i] for i in rows], lines).score)

    scores = []
    for _ in range(80):
        rows = [int(i) for i in generator.choice(12, size=12, replace=True)]
        scores.append((score(a, rows), score(b, rows)))
    differences = [y - x for x, y in scores]
    observed = score(b, list(range(12))) - score(a, list(range(12)))
    centre = sum(differences) / 80
    as_large = sum(abs(d - centre) >= abs(observed) for d in differences)
    assert ours.difference.score == pytest.approx(observed)
    assert ours.difference.mean == pytest.approx(centre)
    assert ours.p_value == pytest.approx((as_large + 1) / 81)
    assert ours.wins == pytest.approx(sum((d > 0) + 0.5 * (d == 0) for d in differences) / 80)
    assert sum(d < ours.difference.low for d in differences) == 2
    assert sum(d > ours.difference.high for d in differences) == 2


def test_a_system_against_itself_is_no_different() -> None:
    a, _, references = corpus(20, 0.3, 0.3)
    for result in paired_bootstrap(a, a, references, samples=50).values():
        assert result.p_value == 1.0
        assert result.wins == 0.5
        assert result.difference.low == result.difference.high == 0.0


def test_clearly_better_is_significant_and_lower_ter_wins() -> None:
    a, b, references = corpus(60, 0.5, 0.1)
    results = paired_bootstrap(a, b, references, samples=100)
    for result in results.values():
        assert result.wins == 1.0
        assert result.p_value < 0.03
    assert results["ter"].difference.high < 0 < results["bleu"].difference.low
    swapped = paired_bootstrap(b, a, references, samples=100)
    assert swapped["chrf"].wins == 0.0
    assert swapped["chrf"].p_value == results["chrf"].p_value


def test_nearly_equal_is_not_significant() -> None:
    a, b, references = corpus(60, 0.3, 0.3)
    assert paired_bootstrap(a, b, references, ["bleu"], samples=200)["bleu"].p_value > 0.05


def test_lines_must_correspond() -> None:
    with pytest.raises(DataError, match="1 lines to score, but the reference has 2"):
        paired_bootstrap(["a", "b"], ["a"], ["a", "b"])
