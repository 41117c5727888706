"""Measures of heads: hand-made patterns, a plain recomputation over a corpus, labels."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
import torch

from heedful import inspect
from heedful.errors import DataError, ModelError
from heedful.inspect.head_measures import AttentionShare, BatchRows, Tally, label_of, measure

KINDS = ("previous", "next", "first", "same")
TEXTS = ["abc de", "aab", "ponm", "hgfed cba", "bab abba", "a"]
TARGETS = ["fgh", "h", "ab ab", "mnop", "cc", "dddd e"]


def by_hand(*heads):
    """A tally of sentences of 3 and 5 tokens whose attention is given by functions of (q, k, L)."""
    tally = Tally(len(heads), KINDS)
    for length in (3, 5):
        places = range(length)
        weights = torch.tensor(
            [[[[f(q, k, length) for k in places] for q in places] for f in heads]]
        )
        q, k = torch.arange(length)[:, None], torch.arange(length)
        kinds = torch.stack([k == q - 1, k == q + 1, (k == 0).expand(length, -1), k == q])
        rows = BatchRows(
            torch.ones(1, length, dtype=torch.bool),
            torch.ones(1, 1, length, length, dtype=torch.bool),
            (k - q).double()[None],
            kinds[None],
        )
        tally.add(weights.float(), rows)
    return tally


def test_heads_made_by_hand():
    tally = by_hand(
        lambda q, k, n: float(k == max(q - 1, 0)),
        lambda q, k, n: float(k == 0),
        lambda q, k, n: 1 / n,
        lambda q, k, n: float(k == q),
    )
    shares = {(kind, head): tally.share(kind, head) for kind in KINDS for head in range(4)}
    assert shares["previous", 0].share == shares["first", 1].share == shares["same", 3].share == 1
    assert shares["previous", 0].rows == 2 + 4
    assert shares["first", 0].rows == 8
    # The first row of either sentence looks at itself, the second at the first.
    assert shares["first", 0].share == pytest.approx(4 / 8)
    assert shares["next", 0].share == 0
    even = (2 / 3 + 4 / 5) / 6
    for kind in ("previous", "next"):
        assert shares[kind, 2].share == pytest.approx(even, abs=1e-7)
        assert shares[kind, 0].baseline == pytest.approx(even)
    assert shares["first", 2].share == pytest.approx(2 / 8, abs=1e-7)
    assert shares["first", 2].evidence == 0
    assert shares["same", 3].evidence == 1
    entropy, largest, distance, offset, most = tally.means(2)
    assert entropy == pytest.approx(largest, abs=1e-6)
    assert largest == pytest.approx((3 * math.log(3) + 5 * math.log(5)) / 8)
    # |k − q| over all pairs: 8 of 9 pairs' worth in 3 × 3, 40 in 5 × 5, each by its row's weight.
    assert distance == pytest.approx((8 / 3 + 40 / 5) / 8, abs=1e-6)
    assert offset == pytest.approx(0, abs=1e-6)
    assert most == pytest.approx((3 / 3 + 5 / 5) / 8)
    assert tally.means(0)[2:4] == pytest.approx((6 / 8, -6 / 8))
    assert tally.means(1)[4] == 1
    assert tally.means(1)[0] == 0


def naive(subject, readings, part, layer, head):
    """Shares by loops over single sentences."""
    sums, entropies, distances = {}, [], []
    columns = [inspect.attention(subject, r, part).columns for r in readings]
    tokens = [r.encoder if part != "decoder" else r.decoder for r in readings]
    counts = Counter(i for t in tokens for i, s in zip(t.ids, t.special, strict=True) if not s)
    for reading, looked, pieces in zip(readings, tokens, columns, strict=True):
        rows = inspect.attention(subject, reading, part, layers=[layer], heads=[head]).weights[0, 0]
        least = min(
            (counts[i] for i, s in zip(looked.ids, looked.special, strict=True) if not s), default=0
        )
        for q, row in enumerate(rows):
            causal = part == "decoder"
            visible = [k for k in range(len(row)) if not causal or k <= q]
            kinds = {
                "previous": [q - 1],
                "next": [q + 1],
                "first": [0],
                "same": [q],
                "repeated": [
                    k
                    for k in visible
                    if part != "cross"
                    and k != q
                    and looked.ids[k] == looked.ids[q]
                    and not looked.special[k]
                ],
                "separator": [k for k in visible if looked.special[k] and k > 0],
                "rare": [
                    k for k in visible if not looked.special[k] and counts[looked.ids[k]] == least
                ],
            }
            for kind, keys in kinds.items():
                keys = [k for k in keys if k in visible]
                if keys:
                    entry = sums.setdefault(kind, [0.0, 0.0, 0])
                    entry[0] += sum(float(row[k]) for k in keys)
                    entry[1] += len(keys) / len(visible)
                    entry[2] += 1
            entropies.append(-sum(float(w) * math.log(w) for w in row if w > 0))
            distances.append(sum(float(row[k]) * abs(k - q) for k in visible))
        assert len(pieces) == rows.shape[1]
    shares = {kind: (a / n, b / n, n) for kind, (a, b, n) in sums.items()}
    return shares, sum(entropies) / len(entropies), sum(distances) / len(distances)


@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
def test_a_corpus_by_plain_loops(part, toys):
    subject = toys.translator()
    readings = inspect.read_all(subject, TEXTS, TARGETS)
    found = measure(subject, readings, part)
    for layer, head in ((0, 1), (1, 3)):
        shares, entropy, distance = naive(subject, readings, part, layer, head)
        own = found.head(layer, head)
        for kind, share in own.shares.items():
            expected = shares[kind]
            assert (share.share, share.baseline) == pytest.approx(expected[:2], abs=1e-6)
            assert share.rows == expected[2]
        assert own.entropy == pytest.approx(entropy, abs=1e-6)
        if part == "cross":
            assert own.distance is None
            assert "previous" not in own.shares
        else:
            assert own.distance == pytest.approx(distance, abs=1e-5)
            assert set(own.shares) == set(shares)


def test_batches_do_not_matter(toys):
    for subject in (toys.translator(), toys.causal_lm(), toys.encoder()):
        pairs = (TARGETS,) if subject.model.spec.kind == "translator" else ()
        readings = inspect.read_all(subject, TEXTS, *pairs)
        one = measure(subject, readings, batch_tokens=1)
        all_at_once = measure(subject, list(reversed(readings)), batch_tokens=10**6)
        assert (
            one.rows
            == all_at_once.rows
            == sum(len(r.predicted or r.decoder or r.encoder) for r in readings)
        )
        for a, b in zip(one.heads, all_at_once.heads, strict=True):
            assert a.entropy == pytest.approx(b.entropy, abs=1e-6)
            assert {k: v.rows for k, v in a.shares.items()} == {
                k: v.rows for k, v in b.shares.items()
            }
            for kind, share in a.shares.items():
                other = b.shares[kind]
                assert (share.share, share.baseline, share.error) == pytest.approx(
                    (other.share, other.baseline, other.error), abs=1e-6
                )
        json.dumps(one.plain(), allow_nan=False)


@pytest.mark.parametrize("framed", [False, True])
def test_aligned_share_of_given_links(framed, toys):
    subject = toys.translator()
    before = int(framed)  # tokens before the text
    subject.source.first = (subject.source.bos,) * before
    readings = inspect.read_all(subject, ["ab cd", "e fg"], ["hi j", "kl m"])
    found = measure(subject, readings, links=[{(1, 0)}, set()]).head(2, 1).shares["aligned"]
    weights = inspect.attention(subject, readings[0], layers=[2], heads=[1]).weights[0, 0]
    # A word's first piece holds the space before it: "ab", " cd" and "hi", " j".
    rows, columns = [0, 1], [before + 2, before + 3, before + 4]
    assert found.rows == 2
    assert found.share == pytest.approx(float(weights[rows][:, columns].sum()) / 2, abs=1e-6)
    assert found.baseline == pytest.approx(3 / (6 + before))


def share_of(share, baseline, error=0.0, rows=1000, sentences=100):
    return AttentionShare(share, baseline, error, rows, sentences)


def test_labels_need_evidence():
    def kind(entropy=1.0, largest=3.0, **shares):
        label = label_of(entropy, largest, shares)
        return label and label.kind

    assert kind(previous=share_of(0.9, 0.1)) == "previous"
    assert kind(previous=share_of(0.56, 0.1)) == "previous"
    assert kind(previous=share_of(0.54, 0.1)) is None
    assert kind(previous=share_of(0.9, 0.1, error=0.2)) is None
    assert kind(previous=share_of(0.96, 0.9)) == "previous"
    assert kind(previous=share_of(0.94, 0.9)) is None, "short sentences prove little"
    assert kind(previous=share_of(1.0, 1.0)) is None
    assert kind(previous=share_of(1.0, 0.1, rows=99)) is None
    assert kind(previous=share_of(1.0, 0.1, sentences=9)) is None
    assert kind(previous=share_of(1.0, 0.1, error=math.inf)) is None
    assert kind(first=share_of(0.8, 0.1), separator=share_of(0.9, 0.1)) == "separator"
    assert kind(entropy=2.9, previous=share_of(0.1, 0.1)) == "broad"
    assert kind(entropy=2.8, previous=share_of(0.1, 0.1)) is None
    assert kind(entropy=1.0, largest=1.0, previous=share_of(0.1, 0.1)) is None
    assert (
        "0.90 of attention is on the token before"
        in label_of(1, 3, {"previous": share_of(0.9, 0.1)}).why
    )


def test_a_head_that_is_made_to_look_back_is_found(toys):
    """Attention dictated by an enormous bias: the label says what was dictated."""
    subject = toys.encoder()
    module = subject.model.encoder.blocks[1].self_attention
    module.position_bias = LookBack()
    texts = ["".join("abcdefgh"[(i + j) % 8] for j in range(12)) for i in range(8)] * 2
    found = measure(subject, inspect.read_all(subject, texts), "encoder")
    assert [h.label and h.label.kind for h in found.heads if h.layer == 1] == ["previous"] * 4
    assert found.head(1, 0).shares["previous"].share == pytest.approx(1, abs=1e-6)
    few = measure(subject, inspect.read_all(subject, texts[:3]), "encoder")
    assert all(head.label is None for head in few.heads)


class LookBack(torch.nn.Module):
    def forward(self, query, keys, positions):
        return 1e4 * (positions.distance() == -1).float()[:, None]


def test_what_cannot_be_measured(toys):
    subject = toys.causal_lm()
    readings = inspect.read_all(subject, ["abc"])
    with pytest.raises(ModelError, match="no encoder attention"):
        measure(subject, readings, "encoder")
    with pytest.raises(DataError, match="no text to measure"):
        measure(subject, [])
    with pytest.raises(DataError, match="Links of 1 sentences"):
        measure(subject, readings, links=[set()])
