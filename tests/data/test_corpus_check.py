"""The check before training: everything odd is counted with its lines, and nonsense is refused."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import pytest

from heedful.data.corpus_check import CheckReport, CorpusReport, check_corpora
from heedful.data.corpus_spec import CorpusSpec, DataSpec
from heedful.data.encoded_pairs import EncodedPairs, encode_corpora, epoch_batches, select_pairs
from heedful.errors import DataError
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

GOOD = [(f"the {n} dog sleeps", f"der {n} hund schläft") for n in ("big", "small", "old", "red")]


@cache
def tokenizers() -> TokenizerPair:
    sources, targets = zip(*GOOD, strict=True)
    return train_pair(TokenizerSpec(kind="characters"), sources * 3, targets * 3)


class Corpora:
    """Corpora written for one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def encode(self, *corpora: list[tuple[str, str]]) -> EncodedPairs:
        specs = []
        for pairs in corpora:
            path = self.folder / f"c{len(list(self.folder.glob('*.tsv')))}.tsv"
            path.write_bytes("".join(f"{s}\t{t}\n" for s, t in pairs).encode())
            specs.append(CorpusSpec(file=str(path)))
        return encode_corpora(specs, tokenizers(), self.folder / "cache")


@pytest.fixture
def corpora(tmp_path: Path) -> Corpora:
    return Corpora(tmp_path)


def limits(pairs: EncodedPairs, **changes: float) -> DataSpec:
    return DataSpec.parse({"train": [c.spec.plain() for c in pairs.corpora], **changes})


def findings(report: CorpusReport) -> dict[str, tuple[int, bool, tuple[int, ...]]]:
    return {f.what: (f.count, f.left_out, f.lines) for f in report.findings}


def test_nothing_odd_is_found_in_good_pairs(corpora: Corpora) -> None:
    train = corpora.encode(GOOD)
    (report,) = check_corpora(train, None, limits(train)).corpora
    assert report.findings == ()
    assert (report.role, report.pairs, report.used) == ("train", 4, 4)
    assert report.source_tokens == sum(len(s) for s, _ in GOOD)
    assert report.target_tokens == sum(len(t) for _, t in GOOD)
    assert (report.source_unknown, report.target_unknown) == (0, 0)


def test_pairs_that_are_left_out(corpora: Corpora) -> None:
    odd = [("", "der"), ("the", " \u3000"), ("", ""), ("the " * 30, "der"), ("the dog", "d")]
    train = corpora.encode(GOOD + odd, [*GOOD[:1], ("", "der")])
    first, second = check_corpora(
        train, None, limits(train, max_length=100, max_length_ratio=4)
    ).corpora
    assert findings(first) == {
        "empty source": (1, True, (5,)),
        "empty target": (1, True, (6,)),
        "both empty": (1, True, (7,)),
        "too long": (1, True, (8,)),
        "length ratio": (1, True, (9,)),
    }
    assert (first.pairs, first.used) == (9, 4)
    assert findings(second)["empty source"] == (1, True, (2,))
    selection = select_pairs(train, limits(train, max_length=100, max_length_ratio=4))
    assert selection.kept.tolist() == [0, 1, 2, 3, 9]


def test_a_pair_that_fits_no_batch_is_left_out(corpora: Corpora) -> None:
    train = corpora.encode([*GOOD, ("the " * 30, "der " * 30)])
    for budget, used in ((121, 5), (120, 4)):
        spec = limits(train, batch_tokens=budget)
        assert check_corpora(train, None, spec).corpora[0].used == used


def test_odd_pairs_that_are_kept(corpora: Corpora) -> None:
    odd = [GOOD[1], ("der hund", " der hund "), ("the big dog sleeps", "der"), GOOD[1]]
    train = corpora.encode(GOOD + odd, [GOOD[2]])
    first, second = check_corpora(train, None, limits(train)).corpora
    assert findings(first) == {
        "the same pair as an earlier one": (2, False, (5, 8)),
        "source and target are the same": (1, False, (6,)),
        "one side unusually long for the other": (1, False, (7,)),
    }
    assert first.used == 8
    assert findings(second) == {"the same pair as an earlier one": (1, False, (1,))}


def test_swapped_sides_are_not_the_same_pair(corpora: Corpora) -> None:
    train = corpora.encode([("der", "the"), ("the", "der"), *GOOD])
    assert check_corpora(train, None, limits(train)).corpora[0].findings == ()


def test_overlap_of_training_and_validation(corpora: Corpora) -> None:
    train = corpora.encode(GOOD)
    other = [("the red dog", "der hund"), (GOOD[0][0], "der hund"), GOOD[3]]
    valid = corpora.encode(other)
    report = check_corpora(train, valid, limits(train)).corpora[1]
    assert report.role == "valid"
    assert findings(report) == {
        "the pair is in the training data": (1, False, (3,)),
        "the source is in the training data": (2, False, (2, 3)),
    }


def test_examples_are_few_and_counts_complete(corpora: Corpora) -> None:
    train = corpora.encode([*GOOD, *[("", "der")] * 2000])
    ((count, _, lines),) = findings(check_corpora(train, None, limits(train)).corpora[0]).values()
    assert count == 2000
    assert lines == (5, 6, 7, 8, 9)


def test_unknown_tokens_are_measured_and_mostly_unknown_refused(corpora: Corpora) -> None:
    train = corpora.encode([("the東", "der"), ("東東", "hund")])
    report = check_corpora(train, None, limits(train)).corpora[0]
    assert report.source_unknown == pytest.approx(3 / 6)
    bad = corpora.encode([("the", "東京東京r")])
    with pytest.raises(DataError, match="80% of the target tokens are unknown") as caught:
        check_corpora(bad, None, limits(bad))
    assert "byte-bpe" in str(caught.value)
    assert caught.value.where == bad.corpora[0].spec.file
    with pytest.raises(DataError, match="unknown"):
        check_corpora(train, bad, limits(train))


def test_nothing_left_is_refused(corpora: Corpora) -> None:
    train = corpora.encode([("", "der"), ("the " * 30, "der")])
    with pytest.raises(DataError, match="1 empty source, 1 too long") as caught:
        check_corpora(train, None, limits(train, max_length=100))
    assert "data.max_length" in str(caught.value)
    with pytest.raises(DataError, match="No pair is left"):
        check_corpora(corpora.encode(GOOD), train, limits(train, max_length=100))


def test_encodings_are_told(tmp_path: Path) -> None:
    (tmp_path / "s.gz").write_bytes(gzip.compress(b"the dog\r\nthe\n"))
    (tmp_path / "t.txt").write_bytes("\ufeffder hund\nd\ufffd\n".encode())
    spec = CorpusSpec(source=str(tmp_path / "s.gz"), target=str(tmp_path / "t.txt"))
    for _ in range(2):  # read, and out of the cache
        train = encode_corpora([spec], tokenizers(), tmp_path / "cache")
        (report,) = check_corpora(train, None, limits(train)).corpora
        assert report.encodings == {
            str(tmp_path / "s.gz"): "UTF-8, gzip, carriage return at the end of 1 line",
            str(tmp_path / "t.txt"): "UTF-8, with a byte order mark, "
            "U+FFFD, damage done earlier, in 1 line (first: 2)",
        }


def test_padding_is_that_of_the_batches(corpora: Corpora) -> None:
    train = corpora.encode([("the dog" * n, "der" * n) for n in range(1, 14)])
    spec = limits(train, batch_tokens=100, pool_batches=1)
    batches = epoch_batches(train, select_pairs(train, spec), spec, seed=7, epoch=0)
    grids = [
        [1 + len(train.text_of(int(i))[side]) for i in batch]
        for batch in batches
        for side in (0, 1)
    ]
    report = check_corpora(train, None, spec, seed=7).batches
    assert report != check_corpora(train, None, spec, seed=8).batches
    assert report.batches == len(batches)
    assert report.pairs == 13
    assert report.positions == sum(len(grid) * max(grid) for grid in grids)
    assert report.padding == pytest.approx(1 - sum(map(sum, grids)) / report.positions)


def test_the_report_is_plain_data_and_lines(corpora: Corpora) -> None:
    train = corpora.encode([*GOOD, ("", "der"), ("東", "der")])
    report = check_corpora(train, corpora.encode(GOOD[:1]), limits(train))
    assert isinstance(report, CheckReport)
    plain = json.loads(json.dumps(report.plain()))
    assert plain["corpora"][0]["findings"][0]["what"] == "empty source"
    text = "\n".join(report.lines())
    assert "5 of 6 pairs used" in text
    assert "1 left out: empty source (line 5)" in text
    assert "unknown" in text
    assert "batches: 1 an epoch of 5 pairs" in text
