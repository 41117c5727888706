from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from sacrebleu.metrics import CHRF
from safetensors.torch import load_file

from heedful.config import read_toml
from heedful.errors import ConfigError, UserError
from heedful.evaluate.corpus_metrics import corpus_scores
from heedful.events import Events, Note, Recorder
from heedful.models.checkpoint import load_model
from heedful.pipelines.translation import TranslationPipeline
from heedful.text.seen_words import SeenWords, word_spans
from heedful.train.checkpoint_contents import WholeTensors
from heedful.train.checkpoints import CheckpointStore
from heedful.train.model_weights import load_weights, using, weights_of
from heedful.train.published_model import Publisher, choose_final_model
from heedful.train.run import run_training
from heedful.train.run_config import locked
from heedful.train.run_settings import RunSettings
from heedful.train.validation import Scores


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, make_settings: Any
) -> tuple[Path, RunSettings, Recorder, Any]:
    run = tmp_path_factory.mktemp("finished") / "run"
    settings = make_settings(
        max_steps=60,
        validation={"every_steps": 20, "metrics": ["bleu", "chrf"], "beam": 2},
        checkpoint={"every_steps": 20},
    )
    recorder = Recorder()
    summary = run_training(run, settings, events=Events([recorder]))
    return run, settings, recorder, summary


def test_run_directory(finished: Any) -> None:
    run, settings, _, _ = finished
    assert RunSettings.parse(read_toml(run / "config.toml")) == settings
    assert {p.name for p in (run / "model").iterdir()} == {
        "config.json",
        "model.safetensors",
        "reading.json",
        "target_words.json",
        "tokenizer.json",
    }
    assert (run / "checkpoints/step-00000060/training.safetensors").exists()


def test_it_learns(finished: Any) -> None:
    recorder = finished[2]
    losses = [float(m.values["loss"]) for m in recorder.metrics()]
    assert len(losses) == 60
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    scores = [float(m.values["loss"]) for m in recorder.metrics("validation")]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_metrics_say_what_is_promised(finished: Any) -> None:
    run, _, _, _ = finished
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first = lines[0]
    assert first["step"] == 1
    assert {"loss", "nll", "lr", "grad_norm", "tokens_per_second", "epoch"} <= first.keys()
    assert first["lr"] == pytest.approx(0.001)
    assert first["total_tokens"] == first["tokens"] > 0
    validation = [line for line in lines if line.get("event") == "validation"]
    assert {"loss", "perplexity", "bits_per_token", "bleu", "chrf"} <= validation[0].keys()
    assert validation[0]["perplexity"] == pytest.approx(2.718281828 ** validation[0]["loss"])
    assert lines[-1]["event"] == "summary"


def test_a_few_translations_are_kept_of_every_validation(finished: Any) -> None:
    run, settings, recorder, _ = finished
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    samples = [line for line in lines if line.get("event") == "samples"]
    assert [line["step"] for line in samples] == [m.step for m in recorder.metrics("validation")]
    valid = settings.data.valid[0]
    sources, references = (
        Path(file).read_text().splitlines() for file in (valid.source, valid.target)
    )
    model, tokenizers = load_model(run / "model")
    load_weights(model, load_file(run / "checkpoints/step-00000060/model.safetensors"))
    texts = TranslationPipeline(model, tokenizers).translate(sources, beam=2)
    names = ("source", "reference", "text")
    said = zip(sources, references, map(str, texts), strict=True)
    every = [dict(zip(names, each, strict=True)) for each in said]
    assert samples[-1]["samples"] == every[::2]  # every other of the twelve

    chrf = CHRF()
    wrong = [each for each in every if each["text"] != each["reference"]]
    wrong.sort(key=lambda each: chrf.corpus_score([each["text"]], [[each["reference"]]]).score)
    assert len(wrong) > 1
    assert samples[-1]["worst"] == wrong[:10]


def test_the_words_of_the_targets_are_kept_with_the_model(finished: Any) -> None:
    run, settings, _, _ = finished
    _, tokenizers = load_model(run / "model")
    target = Path(settings.data.train[0].target).read_text()
    words = {word for *_, word in word_spans(target)}
    assert tokenizers.words == SeenWords.of([target])
    assert tokenizers.words.count == len(words) > 0


def test_summary_is_that_of_the_published_model_through_the_real_decoder(finished: Any) -> None:
    run, settings, _, summary = finished
    assert summary.finished
    assert summary.steps == 60
    assert summary.peak_memory_bytes > 10**7
    assert summary.signatures["bleu"].startswith("nrefs:1|")
    valid = settings.data.valid[0]
    pipeline = TranslationPipeline.load(run, device="cpu", precision="fp32")
    hypotheses = pipeline.translate(
        Path(valid.source).read_text().splitlines(), beam=2, length_penalty=0.6
    )
    references = Path(valid.target).read_text().splitlines()
    scores = corpus_scores([str(h) for h in hypotheses], references, ("bleu", "chrf"))
    assert summary.scores["bleu"] == pytest.approx(scores["bleu"].score)
    assert summary.scores["chrf"] == pytest.approx(scores["chrf"].score)
    pairs = pipeline.score(Path(valid.source).read_text().splitlines(), references)
    tokens = sum(len(pair.token_scores) for pair in pairs)
    nll = -sum(pair.score for pair in pairs)
    assert summary.scores["loss"] == pytest.approx(nll / tokens, rel=1e-4)


def test_says_whether_the_average_won(finished: Any) -> None:
    _, _, recorder, summary = finished
    (note,) = [text for text in recorder.texts(Note) if text.startswith("The average of 3")]
    assert ("does not take" in note) == (summary.model == "weights")


class Nearness:
    """A validator to which a model is the better the nearer its weights are to zero.

    What decides says so, what comes before it is equal, and what comes after says the contrary.
    """

    def __init__(self, settings: Any, decisive: str) -> None:
        self.settings = settings
        self.decisive = ("score", "chrf", "loss").index(decisive)

    def sentences(self, *, everything: bool = False) -> int:
        return 12

    def __call__(self, model: Any, *, everything: bool = False) -> Scores:
        size = float(model.output_weight.detach().abs().mean())
        ranks = [0.0] * self.decisive + [-size] + [size] * (2 - self.decisive)
        return Scores({"chrf": ranks[1], "loss": -ranks[2]}, ranks[0], 12)


@pytest.mark.parametrize("decisive", ["score", "chrf", "loss"])
@pytest.mark.parametrize("single", [0.001, 5.0])
def test_the_average_takes_the_place_of_a_worse_model(
    tmp_path: Path, finished: Any, single: float, decisive: str
) -> None:
    settings = finished[1]
    model, tokenizers = load_model(finished[0])
    store = CheckpointStore(tmp_path / "checkpoints", settings.checkpoint)
    store.open()
    weights = {name: tensor.clone() for name, tensor in weights_of(model).items()}
    for step, factor in enumerate((-2.0, 1.0, 4.0), start=1):  # their mean is 1
        scaled = {name: tensor * factor for name, tensor in weights.items()}
        store.save(step, WholeTensors(scaled, {}), {"regular": True, "score": None})
    publisher = Publisher(tmp_path / "model", tokenizers)
    validator = Nearness(settings.validation, decisive)
    with using(model, {name: tensor * single for name, tensor in weights.items()}):
        publisher.publish(model, 1, "weights", validator(model))
    recorder = Recorder()
    choose_final_model(model, store, publisher, validator, Events([recorder]))  # type: ignore[arg-type]
    (note,) = recorder.texts(Note)
    assert ("takes the place" in note) == (single > 1)
    facts = publisher.facts()
    assert facts["kind"] == ("average of 3 checkpoints" if single > 1 else "weights")
    published = load_model(tmp_path / "model")[0].output_weight
    torch.testing.assert_close(published, model.output_weight * min(single, 1.0))
    assert all(torch.equal(t, weights[name]) for name, t in weights_of(model).items())


def test_without_validation_data_the_average_is_published(
    tmp_path: Path, make_settings: Any
) -> None:
    settings = make_settings(data={"valid": []}, max_steps=9)
    summary = run_training(tmp_path / "run", settings, events=Events())
    assert summary.model == "average of 2 checkpoints"
    assert (summary.model_step, summary.scores) == (8, {})


def test_moving_average_is_what_is_validated(tmp_path: Path, make_settings: Any) -> None:
    settings = make_settings(checkpoint={"ema_decay": 0.9, "average": "none"}, max_steps=8)
    summary = run_training(tmp_path / "run", settings, events=Events())
    assert summary.model == "moving average"
    saved = load_file(tmp_path / "run/checkpoints/step-00000008/training.safetensors")
    published = load_file(tmp_path / "run/model/model.safetensors")
    name = "target_embedding.weight"
    assert torch.equal(published[name], saved[f"average/{name}"])


def test_patience_stops_early(tmp_path: Path, make_settings: Any) -> None:
    settings = make_settings(
        schedule={"kind": "constant", "peak_learning_rate": 1e-12},
        validation={"every_steps": 2, "patience": 3, "metrics": ["chrf"], "choose_by": "chrf"},
        max_steps=50,
    )
    summary = run_training(tmp_path / "run", settings, events=Events())
    assert summary.steps == 8  # the first is the best, then three without improvement
    assert "3 validations" in summary.reason


def test_epochs_end_a_run(tmp_path: Path, make_settings: Any) -> None:
    settings = make_settings(max_epochs=2, optimizer={"accumulate": 5}, data={"valid": []})
    recorder = Recorder()
    summary = run_training(tmp_path / "run", settings, events=Events([recorder]))
    assert summary.epochs == 2
    pairs = [text for text in recorder.texts(Note) if text.startswith("batches:")]
    per_epoch = int(pairs[0].split()[1])
    assert per_epoch % 5, "the case of interest: the last update has fewer batches"
    assert summary.steps == -(-2 * per_epoch // 5)
    # two epochs show every target token and end token exactly twice
    train = Path(settings.data.train[0].target or "").read_text().split("\n")[:-1]
    assert summary.target_tokens == 2 * sum(len(line.split()) + 1 for line in train)


def test_minutes_end_a_run_and_add_up(tmp_path: Path, make_settings: Any) -> None:
    settings = make_settings(max_minutes=1e-4, data={"valid": []})
    summary = run_training(tmp_path / "run", settings, events=Events())
    assert 0 < summary.steps < 20
    assert "max_minutes" in summary.reason
    again = run_training(tmp_path / "run", settings, resume=True, events=Events())
    assert again.steps == summary.steps


def test_an_existing_run_is_not_overwritten(finished: Any) -> None:
    run, settings, _, _ = finished
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="already") as caught:
        run_training(run, settings, events=Events())
    assert "--resume" in str(caught.value)
    assert caught.value.exit_status == 2
    assert (run / "metrics.jsonl").read_bytes() == before


def test_other_peoples_directories_are_not_overwritten(tmp_path: Path, make_settings: Any) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(UserError, match="not a run"):
        run_training(tmp_path, make_settings(), events=Events())
    assert not (tmp_path / "config.toml").exists()


def test_a_finished_run_can_be_resumed_and_stays_as_it_is(finished: Any) -> None:
    run, settings, _, summary = finished
    before = (run / "model/model.safetensors").read_bytes()
    again = run_training(run, settings, resume=True, events=Events())
    assert (run / "model/model.safetensors").read_bytes() == before
    assert again.scores == summary.scores


def test_an_unwritable_place_is_found_out_first(tmp_path: Path, make_settings: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write") as caught:
        run_training(tmp_path / "file" / "run", make_settings(), events=Events())
    assert caught.value.exit_status == 2


HOLD = """
import sys
from pathlib import Path
from heedful.models.checkpoint import load_model
from heedful.train.model_weights import using, weights_of
from heedful.train.checkpoints import CheckpointStore
from heedful.train.published_model import choose_final_model
from heedful.train.run_config import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_cannot_share_a_run(tmp_path: Path, make_settings: Any) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="Another process"):
            run_training(tmp_path, make_settings(), events=Events())
        holder.kill()
    with locked(tmp_path):
        pass  # the system let go of a killed process's lock


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precision": "fp16"}, "fp16 is not supported on cpu"),
        ({"device": "cuda:7"}, "no device"),
        ({"validation": {"metrics": ["bleu"], "tokenize": "13b"}}, "Unknown tokenizer"),
        (
            {"model": {"positions": "learned", "max_length": 16}, "data": {"max_length": 17}},
            "17 is more than the 16 positions",
        ),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_training(
    tmp_path: Path, make_settings: Any, change: dict[str, Any], message: str
) -> None:
    if change.get("device") and torch.cuda.device_count() > 7:
        pytest.skip("there is such a device")
    recorder = Recorder()
    with pytest.raises(ConfigError, match=message):
        run_training(
            tmp_path,
            make_settings(device="cpu", **change)
            if "device" not in change
            else make_settings(**change),
            events=Events([recorder]),
        )
    assert recorder.metrics() == []
    # and the mended settings can be used in the same directory
    assert run_training(
        tmp_path, make_settings(max_steps=1, data={"valid": []}), events=Events()
    ).finished


def test_bpe_dropout_cuts_training_text_differently(tmp_path: Path, make_settings: Any) -> None:
    tokens = {}
    for probability in (0.0, 0.5):
        recorder = Recorder()
        settings = make_settings(
            objective={"bpe_dropout": probability}, max_steps=3, data={"valid": []}
        )
        run_training(tmp_path / str(probability), settings, events=Events([recorder]))
        tokens[probability] = [int(m.values["tokens"]) for m in recorder.metrics()]
    assert all(more > plain for plain, more in zip(tokens[0.0], tokens[0.5], strict=True))


def test_few_sentences_while_training_and_all_at_the_end(
    tmp_path: Path, make_settings: Any
) -> None:
    settings = make_settings(validation={"max_sentences": 3}, max_steps=8)
    summary = run_training(tmp_path / "run", settings, events=Events())
    config = json.loads((tmp_path / "run/model/config.json").read_text())
    assert config["training"]["sentences"] == 12
    assert config["training"]["scores"] == summary.scores


def test_only_a_better_model_takes_the_place(tmp_path: Path, finished: Any) -> None:
    pipeline = TranslationPipeline.load(finished[0], device="cpu", precision="fp32")
    publisher = Publisher(tmp_path / "model", pipeline.tokenizers)
    model = pipeline.models[0]

    def offer(step: int, score: float, sentences: int = 5) -> bool:
        return publisher.offer(model, step, "weights", Scores({}, score, sentences))

    assert publisher.facts() == {}
    assert [offer(1, 3.0), offer(2, 2.0), offer(3, 3.0), offer(4, 4.0)] == [
        True,
        False,
        False,
        True,
    ]
    assert publisher.facts()["step"] == 4
    assert offer(5, 1.0, sentences=9), "scores over other sentences cannot be compared"
