"""Records that a decoder answers: only what fits is written, and batches change nothing."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.build import build_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.pipelines.record_answers import RecordPipeline
from heedful.pipelines.translation import TranslationPipeline
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.token_fields import TokenField
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

TEXTS = train_tokenizer(TokenizerSpec(kind="characters"), ["abc de"], print)
FIELDS = FieldTokenizer(
    [
        TokenField.read(text)
        for text in ("image:4:any", "map:3:2x2", "caption:text:any", "mood:5:1")
    ],
    {"caption": TEXTS},
)
PAIR = TokenizerPair(FIELDS.only({"image"}), FIELDS.only({"map", "caption", "mood"}))
LONGEST = 16


@pytest.fixture(scope="module")
def pipeline() -> RecordPipeline:
    """A model without training: what it prefers fits nowhere."""
    torch.manual_seed(1)
    shape = TranslatorShape(
        width=16,
        encoder_layers=1,
        decoder_layers=1,
        num_heads=2,
        feedforward=16,
        dropout=0,
        positions="learned",
        share_embeddings="target",
        max_length=LONGEST,
    )
    model = build_model(translator_spec(shape, PAIR.source.size, PAIR.target.size)).eval()
    return RecordPipeline(model, PAIR)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(0, 999), st.booleans())
def test_only_what_fits_is_written(
    pipeline: RecordPipeline, image: list[int], seed: int, sampling: bool
) -> None:
    asked = json.dumps({"image": image})
    (found,) = pipeline.generate([asked], sampling=sampling, seed=seed)
    record = json.loads(found.text)
    assert record.pop("image") == image
    complete = found.ended == "end"
    assert complete or len(found.tokens) == LONGEST
    assert list(record) == ["map", "caption", "mood"][: len(record)]
    assert torch.tensor(record["map"]).shape == (2, 2)
    if complete:
        assert record["mood"] in range(5)
        # Probabilities are those of what fits: the score of greedy search is that of its tokens.
        assert found.score == pytest.approx(math.fsum(found.token_scores), abs=1e-4)


def test_beginnings_are_kept_and_batches_change_nothing(pipeline: RecordPipeline) -> None:
    beginnings: list[dict[str, Any]] = [
        {},
        {"map": [1, 2, 0]},
        {"map": [[0, 0], [0, 0]]},
        {"map": [[0, 1], [2, 2]], "caption": "abc"},
        {"map": [[2, 2], [2, 2]]},
    ]
    lines = [json.dumps({"image": [1, 3, 2], **each}) for each in beginnings]
    together = pipeline.generate(lines)
    for line, begun, found in zip(lines, beginnings, together, strict=True):
        (alone,) = pipeline.generate([line], batch_size=1)
        assert alone.text == found.text
        assert alone.score == pytest.approx(found.score, abs=1e-4)
        record = json.loads(found.text)
        if len(begun.get("map", ())) == 2:
            assert record["map"] == begun["map"]
        assert record.get("caption", "").startswith(begun.get("caption", ""))
    assert [value for row in json.loads(together[1].text)["map"] for value in row][:3] == [1, 2, 0]


def test_a_beginning_that_it_would_write_leads_to_the_same_end(pipeline: RecordPipeline) -> None:
    (whole,) = pipeline.generate(['{"image": [1, 3, 2]}'])
    record = json.loads(whole.text)
    (rest,) = pipeline.generate([json.dumps({"image": [1, 3, 2], "map": record["map"]})])
    assert rest.text == whole.text
    assert rest.tokens == whole.tokens[4:]
    assert rest.token_scores == pytest.approx(whole.token_scores[4:], abs=1e-4)


def test_scores_are_those_of_the_model_over_all_tokens(pipeline: RecordPipeline) -> None:
    record = {"image": [1], "map": [[0, 1], [2, 0]], "caption": "ab", "mood": 3}
    asked = pipeline.asked(json.dumps(record), "here")
    (scores,) = pipeline.token_scores([asked])
    inputs = torch.tensor([[*asked.source, PAIR.source.eos]]), torch.tensor([asked.target])
    source, target = ((ids, torch.arange(ids.shape[1])[None]) for ids in inputs)
    model: Any = pipeline.model
    logits = model.logits(model(*source, *target))[0].detach().log_softmax(-1)
    wanted = [*asked.target[1:], PAIR.target.eos]
    expected = [float(row[id]) for row, id in zip(logits, wanted, strict=True)]
    assert scores == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ('{"map": [0]}', "'image' is missing"),
        ('{"image": [4]}', "a value 4"),
        ('{"image": [1], "mood": 1}', "'map' is missing"),
        ('{"image": [1], "map": [3]}', "a value 3"),
        ('{"image": [1], "moods": 1}', "Did you mean 'mood'"),
        (json.dumps({"image": [1] * LONGEST * 2}), "more than the 16"),
    ],
)
def test_a_record_that_does_not_fit_is_named(
    pipeline: RecordPipeline, record: str, told: str
) -> None:
    with pytest.raises(DataError, match=told) as raised:
        pipeline.generate(['{"image": [0]}', record])
    assert raised.value.where == "record 2"


def test_what_records_do_not_have_is_refused(pipeline: RecordPipeline) -> None:
    for options in ({"stop": ("a",)}, {"coverage_penalty": 0.2}, {"max_length": LONGEST + 1}):
        with pytest.raises(ConfigError):
            pipeline.generate(['{"image": [0]}'], **options)
    with pytest.raises(ModelError, match="answers no records"):
        RecordPipeline(pipeline.model, TokenizerPair(TEXTS, TEXTS))
    translator = TranslationPipeline(pipeline.model, PAIR)
    assert translator.generate(['{"image": [2]}']) == pipeline.generate(['{"image": [2]}'])
    ensemble = TranslationPipeline([pipeline.model, pipeline.model], PAIR)
    with pytest.raises(ModelError, match="ensemble"):
        ensemble.generate(['{"image": [2]}'])
