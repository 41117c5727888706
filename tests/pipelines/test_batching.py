"""A batch that memory runs out for is split; what comes out is the same."""

from __future__ import annotations

import itertools
import string
from typing import Any

import pytest
import torch

from heedful.errors import RunError
from heedful.models.causal_lm import CausalLM
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.models.translator import Translator
from heedful.pipelines.batching import BatchQueue, run_batches, split_on_oom
from heedful.pipelines.text_encoding import EncoderPipeline
from heedful.pipelines.text_generation import generate
from heedful.pipelines.translation import TranslationPipeline
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

TEXTS = ["ab", "cd efg", "h", "", "bad cab fed", "a bee", "face", "dead beef", "g", "hag fed"]
MANY = [f"{one} {other}"[: 3 + i % 9] for i, one in enumerate(TEXTS) for other in TEXTS[::3]]
SHAPE = TranslatorShape(
    width=16, encoder_layers=1, decoder_layers=1, num_heads=2, feedforward=16, max_length=40
)
SAID = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"


class Allocator:
    """Fails for more than so many rows, and remembers how many were asked for."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[int] = []

    def __call__(self, rows: int) -> None:
        self.asked.append(rows)
        if rows > self.most:
            raise RuntimeError(SAID)


def gate(monkeypatch: pytest.MonkeyPatch, model: Any, name: str, most: int) -> Allocator:
    """Let a method of a model fail for more than so many rows."""
    allocator, method = Allocator(most), getattr(model, name)

    def gated(source: Any, *others: Any, **options: Any) -> Any:
        allocator(source.shape[0])
        return method(source, *others, **options)

    monkeypatch.setattr(model, name, gated)
    return allocator


@pytest.fixture(scope="module")
def translator() -> TranslationPipeline:
    tokenizers = train_pair(TokenizerSpec(kind="characters"), [string.ascii_lowercase], ["abcd"])
    torch.manual_seed(5)
    spec = translator_spec(SHAPE, tokenizers.source.size, tokenizers.target.size)
    return TranslationPipeline(Translator(spec).eval(), tokenizers)


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("options", [{}, {"sampling": True, "seed": 3, "beam": 1}])
def test_translations_stay_the_same(
    translator: TranslationPipeline, monkeypatch: pytest.MonkeyPatch, most: int, options: Any
) -> None:
    asked: dict[str, Any] = {"max_length": 12, "alignment": True, **options}
    expected = translator.translate(TEXTS, **asked)
    allocator = gate(monkeypatch, translator.model, "start", most)
    said: list[str] = []
    found = translator.translate(TEXTS, warn=said.append, **asked)
    assert found == expected
    assert max(allocator.asked) > most
    assert [text for text in said if "memory" in text]
    assert "Out of memory with 9 items" in next(text for text in said if "memory" in text)


def test_scores_stay_the_same(
    translator: TranslationPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, targets = [text for text in TEXTS if text], ["abcd"] * 9
    expected = translator.score(sources, targets)
    gate(monkeypatch, translator.model, "start", 2)
    with pytest.warns(RuntimeWarning, match="results stay the same"):
        found = translator.score(sources, targets)
    assert [each.score for each in found] == pytest.approx([each.score for each in expected])


def test_continuations_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    model = CausalLM(causal_lm_spec(SHAPE, 20, 40)).eval()
    prompts = [[1 + i, 2, 3][: 1 + i % 3] for i in range(7)]
    options: dict[str, Any] = {"max_length": 6, "sampling": True, "seed": 1, "ends": [19]}
    expected = generate(model, prompts, **options)
    allocator = gate(monkeypatch, model, "start", 2)
    with pytest.warns(RuntimeWarning):
        found = generate(model, prompts, **options)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert allocator.asked[0] == 7


def test_labels_stay_the_same(encoder_directory: Any) -> None:
    pipeline = EncoderPipeline.load(encoder_directory, device="cpu")
    texts = ["the cat sat", "who ran?", "a dog", "the mat", "the dog ran on the mat."]
    expected = pipeline.classify(texts)
    allocator = Allocator(2)
    hook = pipeline.model.register_forward_pre_hook(lambda _, inputs: allocator(len(inputs[0])))
    try:
        with pytest.warns(RuntimeWarning):
            found = pipeline.classify(texts)
    finally:
        hook.remove()
    for one, other in zip(found, expected, strict=True):
        assert [label.label for label in one] == [label.label for label in other]
    assert allocator.asked[0] == 5


def test_one_text_that_does_not_fit_is_an_error(
    translator: TranslationPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate(monkeypatch, translator.model, "start", 0)
    with pytest.raises(RunError, match="not enough memory for one text") as caught:
        translator.translate(TEXTS, warn=lambda _: None)
    assert caught.value.where == "line 5"


@pytest.mark.parametrize("most", [1, 3, 7, 20])
def test_every_item_is_computed_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("heedful.pipelines.batching.release", lambda: None)
    allocator, said = Allocator(most), list[str]()

    def work(part: list[int]) -> list[int]:
        allocator(len(part))
        return [number * number for number in part]

    sizes = (1, 20, 2, 19, 13, 20)
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    batches = [range(*pair) for pair in itertools.pairwise(edges)]
    found = list(run_batches(BatchQueue(batches, said.append, str), work))
    assert [number for part, _ in found for number in part] == list(range(edges[-1]))
    assert [square for _, result in found for square in result] == [n * n for n in range(edges[-1])]
    assert all(part for part, _ in found)
    failures = sum(asked > most for asked in allocator.asked)
    assert len(said) == failures <= 5


def test_other_errors_pass() -> None:
    def work(part: list[int]) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        list(split_on_oom([[1, 2]], work, None, str))


def test_a_queue_splits_what_is_given_back() -> None:
    said: list[str] = []
    queue = BatchQueue([range(8), range(8, 12), range(12, 13)], said.append, str)
    assert queue.take() == (list(range(8)), 1)
    assert queue.take() == ([8, 9, 10, 11], 1)
    queue.give_back([8, 9, 10, 11], 1)
    queue.give_back(list(range(8)), 1)  # of another thread, at the same time: halves all the same
    assert [text.split(":")[0] for text in said] == [
        "Out of memory with 4 items at once",
        "Out of memory with 8 items at once",
    ]
    taken = [queue.take() for _ in range(6)]
    assert taken == [
        ([0, 1, 2, 3], 2),
        ([4, 5, 6, 7], 2),
        ([8, 9], 2),
        ([10, 11], 2),
        ([12], 2),
        None,
    ]
    with pytest.raises(RunError, match="one text") as caught:
        queue.give_back([12], 2)
    assert caught.value.where == "12"


@pytest.mark.parametrize(("method", "most"), [("start", 3), ("step", 4)])
def test_no_batch_is_lost_where_memory_runs_out(
    translator: TranslationPipeline, monkeypatch: pytest.MonkeyPatch, method: str, most: int
) -> None:
    expected = translator.translate(MANY, max_length=15)
    real = getattr(translator.model, method)
    said: list[str] = []
    failed: list[int] = []

    def gated(state: Any, tokens: Any, *others: Any) -> Any:
        rows = len(tokens)
        if rows > most and len(failed) < 9:
            failed.append(rows)
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(state, tokens, *others)

    monkeypatch.setattr(translator.model, method, gated)
    done: list[int] = []
    found = translator.translate(
        MANY,
        max_length=15,
        batch_size=8,
        warn=said.append,
        progress=lambda *told: done.append(told[0]),
    )
    assert failed
    assert len([text for text in said if "Out of memory" in text]) == len(failed)
    assert [t.tokens for t in found] == [t.tokens for t in expected]
    assert done[-1] == sum(bool(text.strip()) for text in MANY)


def test_threads_share_a_queue(translator: TranslationPipeline) -> None:
    before = torch.get_num_threads()
    expected = translator.translate(MANY, max_length=15, batch_size=4)
    torch.set_num_threads(3)
    try:
        found = translator.translate(MANY, max_length=15, batch_size=4)
    finally:
        torch.set_num_threads(before)
    assert [t.tokens for t in found] == [t.tokens for t in expected]
