"""Span corruption and denoising through the same trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, processors

from heedful.data.encoded_texts import encode_texts
from heedful.data.text_corpus import document_reader
from heedful.device import resolve_precision
from heedful.errors import ConfigError, DataError
from heedful.events import Events
from heedful.interop.architectures.translators.bart import ARCHITECTURE as bart
from heedful.interop.architectures.translators.t5 import ARCHITECTURE as t5
from heedful.interop.hugging_face import export_model
from heedful.models.checkpoint import load_translator, save_model
from heedful.models.translator import Translator
from heedful.text.imported_tokenizer import Frame, ImportedTokenizer
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.objective import LossContext
from heedful.train.run import run_training
from heedful.train.run_config import resolve_settings
from heedful.train.run_settings import RunSettings
from heedful.train.task import Task, prepare_task

from .conftest import noted_losses, short_run, write_text

FP32 = resolve_precision("fp32", torch.device("cpu"), width=16)
SHAPE = {"width": 16, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "feedforward": 32}
TEXTS: dict[str, Any] = {"words": ["one", "two", "three", "four", "five."], "each": 12}
TASKS = ["span_corruption", "denoising"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("texts")
    return {
        "train": [{"file": write_text(folder / "train.txt", 1, 60, **TEXTS)}],
        "valid": [{"file": write_text(folder / "valid.txt", 2, 20, **TEXTS)}],
        "max_length": 32,
        "batch_tokens": 256,
        "cache": str(folder / "cache"),
    }


def settings(files: dict[str, Any], task: str, **changes: Any) -> RunSettings:
    kept = {"validation": {"every_steps": 12}, "max_steps": 12}
    return short_run(task, SHAPE, files, kept | changes)


@pytest.mark.parametrize("task", TASKS)
def test_a_stopped_and_resumed_run_is_the_same(
    tmp_path: Path, files: dict[str, Any], task: str
) -> None:
    changes = {"objective": {"permute_sentences": True}} if task == "denoising" else {}
    whole = run_training(tmp_path / "whole", settings(files, task, **changes), events=Events([]))
    part = settings(files, task, **changes, max_steps=9)
    run_training(tmp_path / "parts", part, events=Events([]))
    resumed = settings(files, task, **changes)
    parts = run_training(tmp_path / "parts", resumed, resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(tmp_path / "whole")
    assert parts.scores == whole.scores
    assert whole.epochs >= 1
    assert whole.scores["loss"] < 3.5  # 40 pieces: ln 40 = 3.7


@pytest.fixture(scope="module")
def tasks(files: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    run = tmp_path_factory.mktemp("run")
    found = {}
    for name in TASKS:
        found[name] = prepare_task(run, settings(files, name), None, Events([]))
    return found


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_is_a_function_of_its_place(
    tasks: dict[str, Task], files: dict[str, Any], tmp_path: Path, name: str
) -> None:
    task = tasks[name]
    again = prepare_task(tmp_path, settings(files, name), task.tokenizers, Events([]))
    for epoch in (1, 0):
        count = task.source.count(epoch)
        assert count == again.source.count(epoch)
        batches = [task.source.batch(epoch, number) for number in range(count)]
        for number in reversed(range(count)):
            other = again.source.batch(epoch, number)
            assert other.source.equal(batches[number].source)
            assert other.target_output.equal(batches[number].target_output)
            assert max(other.source.numel(), other.target_output.numel()) <= 256


@pytest.mark.parametrize("name", TASKS)
def test_sources_and_targets_say_the_text(
    tasks: dict[str, Task], files: dict[str, Any], tmp_path: Path, name: str
) -> None:
    task = tasks[name]
    tokenizer = task.tokenizers.source
    gaps = tokenizer.sentinels
    # Rows of 31 pieces: 5 are dropped in 2 spans, and there is a sentinel after the last.
    assert len(gaps) == (3 if name == "span_corruption" else 1)
    assert tokenizer.size <= 40
    pieces: list[int] = []
    shares = []
    rows = {}
    for number in range(task.source.count(0)):
        batch = task.source.batch(0, number)
        for start, source, target, given in zip(
            batch.indices.tolist(),
            batch.source,
            batch.target_output,
            batch.target_input,
            strict=True,
        ):
            shown, wanted = (ids[ids != tokenizer.pad].tolist() for ids in (source, target))
            assert shown.pop() == wanted[-1] == tokenizer.eos
            read = given[given != tokenizer.pad].tolist()
            assert read == [tokenizer.bos, *wanted[:-1]]
            wanted.pop()
            hidden = wanted
            if name == "span_corruption":
                parts: dict[int, list[int]] = {}
                for id in wanted:
                    if id in gaps:
                        parts[id] = []
                    else:
                        parts[max(parts)].append(id)
                hidden = [id for part in parts.values() for id in part]
                wanted = [piece for id in shown for piece in parts.get(id, [id])]
            shares.append((len(wanted) - sum(id not in gaps for id in shown), len(wanted)))
            rows[start] = wanted
            assert not {tokenizer.pad, tokenizer.bos, tokenizer.eos} & {*hidden, *shown}
    pieces = [piece for start in sorted(rows) for piece in rows[start]]
    data = settings(files, name).data
    readers = [document_reader(spec, data.documents) for spec in data.train]
    texts = encode_texts(readers, tokenizer, tmp_path)
    text = texts.span(1, len(texts) - 1).tolist()
    assert pieces == text
    hidden_share = sum(n for n, _ in shares) / sum(n for _, n in shares)
    assert hidden_share == pytest.approx(0.15 if name == "span_corruption" else 0.3, abs=0.015)


@pytest.mark.parametrize("name", TASKS)
def test_validation_is_the_same_each_time_and_for_each_seed(
    tasks: dict[str, Task], files: dict[str, Any], tmp_path: Path, name: str
) -> None:
    task = tasks[name]
    other = prepare_task(tmp_path, settings(files, name, seed=7), task.tokenizers, Events([]))
    found = []
    for each in (task, task, other):
        validator = each.validator(settings(files, name), FP32)
        assert validator is not None
        found.append([(b.source.tolist(), b.target_output.tolist()) for b in validator.batches])
    assert found[0] == found[1] == found[2]


def test_every_parameter_learns(tasks: dict[str, Task]) -> None:
    task = tasks["denoising"]
    model = task.new_model().train()
    task.objective.loss(model, task.source.batch(0, 0), LossContext(1)).loss_sum.backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())


def test_short_texts_and_many_gaps_keep_to_the_budget(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo three\nfour five one\n" * 10, encoding="utf-8")
    data = {
        **files,
        "train": [{"file": str(tmp_path / "a.txt")}],
        "documents": "line",
        "batch_tokens": 64,
    }
    objective = {"mask_share": 0.8, "mean_span": 1}
    chosen = settings(data, "span_corruption", objective=objective)
    task = prepare_task(tmp_path, chosen, None, Events([]))
    for number in range(task.source.count(0)):
        batch: Any = task.source.batch(0, number)
        assert max(batch.source.numel(), batch.target_output.numel()) <= 64


def test_the_same_row_has_other_gaps_in_another_epoch(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    whole_lines = {**files, "documents": "line", "max_length": 64}
    task = prepare_task(tmp_path, settings(whole_lines, "span_corruption"), None, Events([]))
    gaps: list[dict[int, list[int]]] = [{}, {}]
    for epoch, shown in enumerate(gaps):
        for number in range(task.source.count(epoch)):
            batch: Any = task.source.batch(epoch, number)
            lengths = (batch.source_positions >= 0).sum(1).tolist()
            for row, start in enumerate(batch.indices.tolist()):
                shown[start] = batch.source[row, : lengths[row]].tolist()
    assert gaps[0].keys() == gaps[1].keys()
    changed = sum(gaps[0][start] != gaps[1][start] for start in gaps[0])
    assert changed > len(gaps[0]) / 2


@pytest.mark.parametrize("name", TASKS)
def test_a_translator_can_begin_with_the_model(
    tmp_path: Path, files: dict[str, Any], corpus: dict[str, Any], name: str
) -> None:
    run_training(tmp_path / "first", settings(files, name, max_steps=2), events=Events([]))
    model, tokenizers = load_translator(tmp_path / "first")
    assert tokenizers.joint
    chosen = resolve_settings(
        None,
        None,
        {"task": "translation", "init": str(tmp_path / "first"), "data": corpus, "max_steps": 1},
    )
    task = prepare_task(tmp_path, chosen, None, Events([]))
    assert task.tokenizers is not None
    assert task.tokenizers.fingerprint == tokenizers.fingerprint
    begun = task.new_model()
    for key, tensor in model.state_dict().items():
        assert torch.equal(begun.state_dict()[key], tensor), key


def test_training_goes_on_from_a_model_with_room_for_the_gaps(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    first = tmp_path / "first"
    chosen = settings(files, "span_corruption", max_steps=2, objective={"sentinels": 6})
    run_training(first, chosen, events=Events([]))
    values = {"init": str(first), "model": {}, "tokenizer": {}}
    longer = settings({**files, "max_length": 80}, "span_corruption", **values)
    task = prepare_task(tmp_path, longer, None, Events([]))
    assert len(task.tokenizers.source.sentinels) == 6  # type: ignore[union-attr]
    assert torch.equal(
        task.new_model().state_dict()["target_embedding.weight"],
        load_translator(first)[0].state_dict()["target_embedding.weight"],
    )
    with pytest.raises(ConfigError, match="need 16 sentinels, and the tokenizer has 6"):
        prepare_task(
            tmp_path,
            settings(
                {**files, "max_length": 300, "batch_tokens": 300}, "span_corruption", **values
            ),
            None,
            Events([]),
        )
    with pytest.raises(ConfigError, match="6 sentinels"):
        prepare_task(tmp_path, settings(files, "denoising", **values), None, Events([]))


def like_t5() -> tuple[Translator, ImportedTokenizer]:
    pieces = ["<pad>", "</s>", "<unk>", "▁one", "▁two", "▁three", "▁four"]
    pieces += [f"<extra_id_{n}>" for n in reversed(range(4))]
    library = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=2))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.add_special_tokens([piece for piece in pieces if piece.startswith("<")])
    library.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    special = {"pad": 0, "bos": 0, "eos": 1, "unk": 2}
    tokenizer = ImportedTokenizer(special, Frame((), (1,), (1,)), json.loads(library.to_str()))
    sizes = {"d_model": 16, "d_ff": 32, "d_kv": 4, "num_heads": 2, "num_layers": 1}
    spec = t5.read_config({**sizes, "vocab_size": 16}, where="")
    return Translator(spec), tokenizer


def like_bart() -> tuple[Translator, ImportedTokenizer]:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "one", "two", "three", "four", "<mask>"]
    library = tokenizers.Tokenizer(
        models.WordLevel({piece: id for id, piece in enumerate(pieces)}, unk_token="<unk>")
    )
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens(["<s>", "<pad>", "</s>", "<mask>"])
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    special = {"bos": 2, "pad": 1, "eos": 2, "unk": 3, "mask": 8}
    tokenizer = ImportedTokenizer(special, Frame((0,), (2,)), json.loads(library.to_str()))
    layers = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}
    sides = {f"{side}_{k}": n for side in ("encoder", "decoder") for k, n in layers.items()}
    config = {"d_model": 16, "vocab_size": 9, "max_position_embeddings": 34, **sides}
    return Translator(bart.read_config(config, where="")), tokenizer


@pytest.mark.parametrize("name", TASKS)
def test_a_model_of_another_project_is_trained_further(
    tmp_path: Path, files: dict[str, Any], name: str
) -> None:
    model, tokenizer = like_t5() if name == "span_corruption" else like_bart()
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    kind = "t5" if name == "span_corruption" else "bart"
    pair = TokenizerPair(tokenizer, tokenizer)
    save_model(model, pair, ours, origin={"model_type": kind})
    export_model(ours, theirs)
    chosen = settings(files, name, init=str(theirs), model={}, tokenizer={}, max_steps=2)
    task = prepare_task(tmp_path / "run", chosen, None, Events([]))
    begun = task.new_model()
    for key, tensor in model.state_dict().items():
        assert torch.equal(begun.state_dict()[key], tensor), key
    batch: Any = task.source.batch(0, 0)
    first_source, first_target = batch.source[0].tolist(), batch.target_output[0].tolist()
    if name == "span_corruption":
        # T5's sentinels count down; its decoder begins with the padding token.
        assert [id for id in first_source if id in (10, 9, 8, 7)] == [10, 9]
        assert [id for id in first_target if id in (10, 9, 8, 7)] == [10, 9, 8]
        assert batch.target_input[0, 0] == 0
    else:
        assert first_source[0] == first_target[0] == 0
        assert batch.target_input[0, :2].tolist() == [2, 0]
        assert 8 in first_source
        assert 8 not in first_target
    run_training(tmp_path / "run", chosen, events=Events([]))
    assert load_translator(tmp_path / "run")[0].spec == model.spec
    other = "denoising" if name == "span_corruption" else "span_corruption"
    wrong = settings(files, other, init=str(theirs), model={}, tokenizer={})
    with pytest.raises(ConfigError, match="4 sentinels" if other == "denoising" else "has 0"):
        prepare_task(tmp_path / "other", wrong, None, Events([]))


@pytest.mark.parametrize(
    ("task", "changes", "told"),
    [
        ("denoising", {"objective": {"r_drop": 1.0}}, "objective.r_drop"),
        ("denoising", {"objective": {"whole_words": True}}, "objective.whole_words"),
        ("denoising", {"objective": {"sentinels": 5}}, "objective.sentinels"),
        ("span_corruption", {"objective": {"permute_sentences": True}}, "permute_sentences"),
        ("span_corruption", {"validation": {"metrics": ["bleu"]}}, "validation.metrics"),
        ("masked_lm", {"objective": {"mean_span": 4}}, "objective.mean_span"),
        ("causal_lm", {"objective": {"permute_sentences": True}}, "permute_sentences"),
        ("causal_lm", {"objective": {"mask_share": 0.3}}, "objective.mask_share"),
        ("denoising", {"objective": {"mean_span": 0.5}}, "mean_span"),
        ("span_corruption", {"objective": {"sentinels": 1}}, "sentinels"),
        ("span_corruption", {"objective": {"sentinels": 2}}, "need 3 sentinels"),
        ("span_corruption", {"objective": {"sentinels": 36}}, "vocabulary_size"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    tmp_path: Path, files: dict[str, Any], task: str, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        run_training(tmp_path / "run", settings(files, task, **changes), events=Events([]))
    assert not (tmp_path / "run" / "config.toml").exists()


@pytest.mark.parametrize("task", TASKS)
def test_rows_without_room_are_refused(tmp_path: Path, files: dict[str, Any], task: str) -> None:
    def refused(data: dict[str, Any], told: str, **changes: Any) -> None:
        with pytest.raises((ConfigError, DataError), match=told):
            run_training(tmp_path / "run", settings(data, task, **changes), events=Events([]))

    refused({**files, "batch_tokens": 8}, "batch_tokens")
    refused({**files, "max_length": 1}, "no room")
    refused({**files, "train": [{"source": "a", "target": "b"}]}, "single files")
    learned = {**SHAPE, "positions": "learned", "max_length": 16}
    # Of 31 pieces 5 leave room for 2 sentinels; as many masks as hidden pieces may leave none.
    needed = 29 if task == "span_corruption" else 32
    refused(files, f"need {needed} positions, and the model learns 17", model=learned)


def test_targets_that_fill_more_than_a_batch_are_refused(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    objective = {"mask_share": 0.97, "mean_span": 20}
    chosen = settings({**files, "batch_tokens": 32}, "span_corruption", objective=objective)
    with pytest.raises(ConfigError, match="target of 34"):
        run_training(tmp_path / "run", chosen, events=Events([]))
