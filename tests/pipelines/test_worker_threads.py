"""Batches side by side give what they give one by one, and leave nothing behind."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from heedful.device import Precision
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.pipelines.batching import batches_at_once, in_threads
from heedful.pipelines.segment_search import SegmentSearch
from heedful.pipelines.translation import TranslationPipeline
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

CORPUS = ["a dog runs by the lake.", "two cats sit, and look."] * 3
TEXTS = ["a dog", "", "two cats look, and sit by the lake", "the lake", "dog, cat", "sit", "a lake"]
SHAPE = {"width": 16, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "feedforward": 32}


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def make(precision: Precision | None = None) -> TranslationPipeline:
    pair = train_pair(TokenizerSpec(kind="bpe", vocabulary_size=50), CORPUS, CORPUS)
    torch.manual_seed(0)
    model = Translator(
        translator_spec(TranslatorShape(**SHAPE), pair.source.size, pair.target.size)
    )
    return TranslationPipeline(model, pair, precision=precision)


@pytest.mark.parametrize("precision", [None, Precision("bf16", "cpu")])
def test_translations_are_the_same(threads, precision, monkeypatch):
    pipeline = make(precision)
    calls = set()
    search = SegmentSearch._search_batch

    def watched(*arguments):
        calls.add(threading.current_thread().name)
        assert torch.is_inference_mode_enabled()
        assert torch.is_autocast_enabled("cpu") == (precision is not None)
        assert torch.get_num_threads() == 1
        return search(*arguments)

    options = {"max_length": 9, "beam": 2, "n_best": 2, "batch_size": 1}
    done = []
    monkeypatch.setattr(SegmentSearch, "_search_batch", watched)
    together = pipeline.translate(TEXTS, progress=lambda *told: done.append(told), **options)
    assert all(name.startswith("batch") for name in calls)
    assert done == [(n, 6) for n in range(1, 7)]
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    monkeypatch.setattr(SegmentSearch, "_search_batch", search)
    alone = pipeline.translate(TEXTS, **options)
    assert together == alone
    assert [t.others for t in together] == [t.others for t in alone]
    assert pipeline.models[0].training


def test_an_error_ends_the_work(threads):
    worked = []

    def work(number: int) -> int:
        worked.append(number)
        if number == 1:
            raise ValueError("one")
        time.sleep(0.001)  # else a busy machine lets the other thread finish all of them first
        return number

    waiting = iter(range(1000))
    with pytest.raises(ValueError, match="one"):
        list(in_threads(lambda: map(work, waiting), 2, threading.Lock))
    assert len(worked) < 1000
    assert torch.get_num_threads() == threads
    assert not [t for t in threading.enumerate() if t.name.startswith("batch")]


def test_how_many_at_once(threads):
    cpu = torch.device("cpu")
    assert [batches_at_once(cpu, n) for n in (0, 1, 2, 100)] == [1, 1, 2, 3]
    assert batches_at_once(torch.device("cuda"), 100) == 1
    found = []
    other = threading.Thread(target=lambda: found.append(batches_at_once(cpu, 100)))
    other.start()
    other.join()
    assert found == [1]
