"""Parts from outside the package: those of the guide, installed as a distribution in a folder."""

from __future__ import annotations

import json
import math
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import heedful
import heedful.inspect
from heedful import registry
from heedful.apps.evaluation.bootstrap import paired_bootstrap
from heedful.apps.studio.mixer_costs import mixer_costs, mixer_names
from heedful.cli.main import main
from heedful.config import Config
from heedful.engines.inference.support import explain
from heedful.errors import ConfigError, ModelError
from heedful.evaluate.corpus_metrics import corpus_scores
from heedful.evaluate.registered_metric import RegisteredMetric
from heedful.evaluate.task_metrics import scores_by_name
from heedful.events import Event, Events
from heedful.inspect.block_flow import block_flow
from heedful.interop.hugging_face import export_model, import_model
from heedful.models.build import build_model
from heedful.models.checkpoint import load_model, save_model
from heedful.models.cost import count_parameters, text_work
from heedful.models.model_spec import parse_spec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.models.stack_spec import SubLayerSpec
from heedful.nn.mixer_spec import CommonPartSpec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer
from heedful.train.run_config import recorded, resolve_settings
from heedful.train.run_settings import RunSettings
from heedful.train.tasks.pipeline_scores import answer_scores, tag_scores
from heedful.train.trackers import TrackedRun, Tracker, trackers_of

GUIDE = Path(__file__).parents[1] / "docs/guides/your-own-parts.md"
WORDS = ["one", "two", "three", "four", "five"]
DATA = {"train": [{"source": "a", "target": "b"}]}
SIZES = {"width": 32, "encoder_layers": 1, "decoder_layers": 2, "num_heads": 2, "feedforward": 48}


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry in which nothing is registered, for one test."""
    monkeypatch.setattr(registry, "_entries", {family: {} for family in registry.FAMILIES})
    monkeypatch.setattr(registry, "_loaded", set())


def install(folder: Path, name: str, code: str, points: str) -> None:
    """Install a distribution as pip does: a module, and a folder of what is known of it."""
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    about = folder / f"{name}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{points}\n")


@pytest.fixture
def installed(clean: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (declared,) = blocks("toml")
    assert f'[project.entry-points."{registry.GROUP}"]\nmy_parts = "my_parts"' in declared
    folder = tmp_path / "site"
    folder.mkdir()
    install(folder, "my_parts", "".join(blocks("python")), "my_parts = my_parts")
    monkeypatch.syspath_prepend(str(folder))
    yield tmp_path
    sys.modules.pop("my_parts", None)


def write_pairs(directory: Path) -> list[str]:
    draw = random.Random(1)
    lines = [draw.choices(WORDS, k=draw.randint(1, 5)) for _ in range(60)]
    for name, sign in (("source", 1), ("target", -1)):
        text = "".join(" ".join(line[::sign]) + "\n" for line in lines)
        (directory / name).write_text(text)
    return [str(directory / name) for name in ("source", "target")]


def flags(**options: Any) -> list[str]:
    sizes = {f"--model.{name.replace('_', '-')}": value for name, value in SIZES.items()}
    return [str(word) for pair in (sizes | options).items() for word in pair]


def test_a_reader_of_a_distribution_reads_records(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, numbers = str(installed / "run"), installed / "numbers.txt"
    numbers.write_text("3 4 6 5\n1 1 2\n")
    words = ["train", run, "--task", "tokens", "--tokens.reader", "steps", "--max-steps", "2"]
    words += ["--train", str(numbers), "--valid", str(numbers), "--device", "cpu"]
    assert main([*words, *flags()]) == 0
    assert "Fields: first:4:1, steps:11:any" in capsys.readouterr().err
    assert main(["evaluate", run, "--data", str(numbers), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]["fields"]
    assert {name: each["values"] for name, each in scores.items()} == {
        "first": 2,
        "steps": 5,
        "end": 2,
    }


def test_parts_of_a_distribution_train_translate_and_are_looked_into(
    installed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pairs = str(installed / "run"), write_pairs(installed)
    assert "my_parts" not in sys.modules
    words = ["train", run, "--train", *pairs, "--max-steps", "3", "--device", "cpu"]
    words += ["--valid", *pairs, "--validation.metrics", "word_recall", "chrf"]
    words += ["--validation.choose-by", "word_recall", "--trackers", "table"]
    chosen = {"--model.mixer": "fading", "--model.positions": "slope", "--tokenizer.kind": "words"}
    chosen |= {"--task": "sparse_translation", "--objective.label-smoothing": 0}
    assert main([*words, *flags(**chosen)]) == 0
    assert "my_parts" in sys.modules
    spec = json.loads((installed / "run/model/config.json").read_text())["model"]
    parts = [each["part"] for each in spec["decoder"]["pattern"][0]["sublayers"]]
    assert parts[0] == {"kind": "fading", "bias": True}
    attention = spec["encoder"]["pattern"][0]["sublayers"][0]["part"]
    assert attention["position_bias"] == {"kind": "slope"}
    assert json.loads((installed / "run/model/tokenizer.json").read_text())["kind"] == "words"

    lines = (installed / "run/metrics.jsonl").read_text().splitlines()
    figures = [json.loads(line) for line in lines]
    recall = figures[-1]["word_recall"]
    assert 0 <= recall <= 100
    losses = [line.split(",") for line in (installed / "run/losses.csv").read_text().splitlines()]
    assert figures[-1]["perplexity"] > 1  # as in the task whose rules it has
    updates = [each for each in figures if "event" not in each]
    assert losses == [[str(each["step"]), str(each["loss"])] for each in updates]
    assert len(updates) == 3
    assert all(each["loss"] > each["nll"] + 1e-4 for each in updates)  # the size of the weights

    translator = heedful.load(run, device="cpu")
    texts = ["one two three", "five"]
    translations = translator.translate(texts, beam=3)
    assert translator.translate(texts[1:], beam=3) == translations[1:]
    capsys.readouterr()
    assert main(["info", run]) == 0
    assert main(["inspect", run, "one two", "--device", "cpu"]) == 0
    subject = heedful.inspect.load(run, device="cpu")
    reading = heedful.inspect.read(subject, texts[0], target="three two one")
    about = [part.about for part in block_flow(subject, reading, "decoder", 0).parts]
    assert any("A running average of tokens that fades" in each for each in about)
    heard = heedful.inspect.influence(subject, reading, "decoder", 0)
    assert heard.kind == "fading"
    shape = TranslatorShape.parse(SIZES | {"mixer": "fading"})
    costs = mixer_costs(translator_spec(shape, 20, 20), shape, 8)["mixers"]
    assert ("Fading average", "decoder") in [(each["name"], each["stack"]) for each in costs]
    choice = {"name": "fading", "label": "Fading average", "writes": True}
    assert mixer_names()[-1] == choice


def test_a_mixer_decodes_saves_and_costs_as_others_do(installed: Path) -> None:
    shape = TranslatorShape.parse(SIZES | {"mixer": "fading", "positions": "slope", "bias": False})
    spec = causal_lm_spec(shape.model_copy(update={"attention_every": 2}), 20, 16)
    kinds = [block.mixers()[0].kind for block in spec.decoder.blocks]
    assert kinds == ["fading", "attention"]
    assert parse_spec(spec.plain(), where="config.json") == spec
    model = build_model(spec).eval()
    assert count_parameters(spec) == sum(each.numel() for each in model.parameters())
    assert text_work(spec, 8).total > text_work(spec, 7).total > 0
    ids, at = torch.randint(20, (2, 6)), torch.arange(6).expand(2, 6)
    whole = model.logits(model(ids, at))
    state = model.start(ids[:, :1], at[:, :1])
    for place in range(1, 6):
        logits, state = model.step(state, ids[:, place : place + 1])
        torch.testing.assert_close(logits[:, 0], whole[:, place], rtol=1e-4, atol=1e-5)
    tokenizer = train_tokenizer(TokenizerSpec(kind="words", vocabulary_size=9), ["a b c d"] * 2)
    lonely = shape.model_copy(update={"positions": "none"})
    save_model(
        build_model(causal_lm_spec(lonely, tokenizer.size, 16)),
        TokenizerPair(tokenizer, tokenizer),
        installed / "saved",
    )
    again, pair = load_model(installed / "saved")
    assert again.spec.decoder.block.mixers()[0].kind == "fading"
    assert pair is not None
    assert pair.source.fingerprint == tokenizer.fingerprint


def test_an_engine_names_a_part_that_it_does_not_know(installed: Path) -> None:
    shape = TranslatorShape.parse(SIZES | {"mixer": "fading"})
    assert "FadingSpec is unknown to the engine" in explain(translator_spec(shape, 20, 20))


def test_a_tokenizer_masks_and_tells_places(installed: Path) -> None:
    tokenizer = train_tokenizer(TokenizerSpec(kind="words", vocabulary_size=7), ["b a a c a b"])
    assert tokenizer.size == 7
    ids, spans = tokenizer.encode_spans("a  b x")
    assert (ids, spans) == ([4, 5, tokenizer.unk], [(0, 1), (3, 4), (5, 6)])
    assert tokenizer.decode([1, *ids, 2]) == "a b \u2047"
    masked = tokenizer.for_encoder()
    assert masked.mask == 7 == masked.size - 1
    assert masked.encode_masked("a [MASK] b", "[MASK]") == [4, 7, 5]
    assert masked.token(7) == "<mask>"
    again = type(masked).from_json(masked.to_json())
    assert again.fingerprint == masked.fingerprint != tokenizer.fingerprint
    assert tokenizer.with_sentinels(2).sentinels == (7, 8)
    with pytest.raises(ConfigError, match="no merges to leave out"):
        tokenizer.encode_dropout("a", 0.1, 1)
    with pytest.raises(ModelError, match="the version is another"):
        type(masked).from_json('{"schema_version": 2, "kind": "words"}')


def test_an_architecture_is_read_and_written(installed: Path) -> None:
    shape = TranslatorShape.parse(
        SIZES | {"positions": "rotary", "norm": "rms", "norm_placement": "pre", "bias": False}
        | {"activation": "swiglu"}
    )  # fmt: skip
    spec = causal_lm_spec(shape, 12, 16)
    tokenizer = train_tokenizer(TokenizerSpec(kind="characters"), ["abcdefgh"])
    model = build_model(spec.with_vocabularies(source=tokenizer.size, target=tokenizer.size))
    save_model(model, TokenizerPair(tokenizer, tokenizer), installed / "ours")
    export_model(installed / "ours", installed / "theirs")
    path = installed / "theirs/config.json"
    config = json.loads(path.read_text())
    assert config["model_type"] == "llama"
    path.write_text(json.dumps(config | {"model_type": "parrot"}))
    imported = import_model(installed / "theirs")
    assert imported.origin["model_type"] == "parrot"
    ids, at = torch.randint(4, 12, (1, 6)), torch.arange(6)[None]
    theirs, ours = (each.eval()(ids, at) for each in (imported.model, model))
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)
    save_model(imported.model, imported.tokenizers, installed / "in", origin=imported.origin)
    export_model(installed / "in", installed / "out")
    assert json.loads((installed / "out/config.json").read_text())["model_type"] == "parrot"


@pytest.fixture
def firsts(clean: None) -> type[RegisteredMetric]:
    """A metric of all tasks but translation: the share of outputs that are the first reference."""

    @heedful.register
    class Firsts(RegisteredMetric):
        name = "firsts"
        tasks = ("classify", "images", "tag", "answer")

        def statistics(self, output: Any, references: Sequence[Any]) -> tuple[float, int]:
            return float(list(output) == list(references[0])), 1

        def score(self, sums: Sequence[float]) -> float:
            return sums[0] / sums[1]

    return Firsts


def test_a_metric_of_labels_chooses_a_classifier(firsts: Any, tmp_path: Path) -> None:
    texts = tmp_path / "texts.tsv"
    texts.write_text("".join(f"{word} two\t{word}\n" for word in ("good", "bad") * 10))
    words = ["train", str(tmp_path / "run"), "--task", "classify", "--max-steps", "2"]
    words += ["--train", str(texts), "--valid", str(texts), "--device", "cpu"]
    words += ["--validation.metrics", "accuracy", "firsts", "--validation.choose-by", "firsts"]
    assert main([*words, *flags(**{"--tokenizer.kind": "characters"})]) == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    figures = json.loads(lines[-1])
    assert figures["firsts"] == figures["accuracy"] == 0.5


def test_a_metric_scores_tags_and_answers(firsts: Any) -> None:
    word = SimpleNamespace
    pipeline: Any = SimpleNamespace(
        tag=lambda _: [[word(label="N"), word(label="V")], [word(label="N")]],
        answer=lambda _: [word(text="here"), word(text="there")],
    )
    sentences: Any = [word(words=(), tags=("N", "V")), word(words=(), tags=("V",))]
    scores = tag_scores(pipeline, sentences, ["accuracy", "firsts"])
    assert scores == {"accuracy": pytest.approx(2 / 3), "firsts": 0.5}
    questions: Any = [
        word(question="", context="", answers=[word(text=text) for text in texts])
        for texts in (["here"], ["over there", "there"])
    ]
    assert answer_scores(pipeline, questions, ["exact_match", "firsts"]) == {
        "exact_match": 1.0,
        "firsts": 0.5,
    }


def test_a_metric_that_fails_is_named(firsts: Any) -> None:
    firsts.tasks = ("translation",)
    for sums, reason in ((lambda _: 1 / 0, "ZeroDivisionError"), (lambda _: math.nan, "is nan")):
        firsts.score = staticmethod(sums)
        with pytest.raises(ConfigError, match=f"The metric firsts fails: .*{reason}") as error:
            corpus_scores(["a"], ["a"], ["firsts"])
        assert error.value.where is not None
        assert error.value.where.endswith("Firsts")
        with pytest.raises(ConfigError, match=reason):
            scores_by_name(["firsts"], {}, ["a"], [["a"]])
    firsts.statistics = None
    with pytest.raises(ConfigError, match="The metric firsts fails: TypeError"):
        paired_bootstrap(["a"], ["a"], ["a"], ["firsts"])


def test_a_metric_of_other_tasks_is_refused(firsts: Any) -> None:
    validation = {"metrics": ["firsts"], "choose_by": "loss"}
    settings = RunSettings.parse({"validation": validation, "data": DATA})
    with pytest.raises(ConfigError, match="firsts cannot be measured in the task translation"):
        settings.check_for_task()
    with pytest.raises(ConfigError, match="scores no translations, but outputs of classify"):
        corpus_scores(["a"], ["a"], ["firsts"])


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"task": "sparse"}, "task: no task is called 'sparse'.*Known: translation, causal_lm"),
        ({"validation": {"metrics": ["blue"]}}, "no metric is called 'blue'.*Known: bleu, chrf"),
        ({"validation": {"choose_by": "blue"}}, "no metric is called 'blue'.*Known: loss, bleu"),
        ({"trackers": ["table"]}, "no tracker is called 'table'.*Known: tensorboard"),
    ],
)
def test_an_unknown_name_in_the_settings_of_a_run(values: dict[str, Any], reason: str) -> None:
    for parse in (RunSettings.parse, lambda each: resolve_settings(None, None, each)):
        with pytest.raises(ConfigError, match=reason):
            parse(values)
    with pytest.raises(ConfigError, match="Unknown metric: no metric is called 'blue'"):
        corpus_scores(["a"], ["a"], ["blue"])


@pytest.mark.usefixtures("clean")
def test_a_tracker_may_refuse_a_run_and_is_closed(tmp_path: Path) -> None:
    told: list[str] = []

    @heedful.register
    class Shop(Tracker):
        name = "shop"
        is_open = False

        def __init__(self, run: TrackedRun) -> None:
            self.run = run

        @classmethod
        def check(cls) -> None:
            if not cls.is_open:
                raise ConfigError("The shop is shut")

        def handle(self, event: Event) -> None:
            told.append(type(event).__name__)

        def close(self) -> None:
            told.append(f"closed after {self.run.after}, seed {self.run.settings['seed']}")

    settings = RunSettings.parse({"trackers": ["shop", "shop"], "seed": 7, "data": DATA})
    with pytest.raises(ConfigError, match="The shop is shut"):
        trackers_of(settings)
    Shop.is_open = True
    trackers_of(settings)

    def work() -> None:
        with recorded(tmp_path, Events(), 3, settings) as events:
            events.note("open")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    # Named twice, it is made once.
    assert told == ["Note", "closed after 3, seed 7"]


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"mixer": "fadin"}, r"mixer: no mixer is called 'fadin'.*Known: attention, .*rwkv"),
        ({"positions": "slop"}, "no position bias is called 'slop'.*Known: sinusoidal"),
    ],
)
def test_an_unknown_name_says_what_is_known_and_how_to_register(
    values: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as error:
        TranslatorShape.parse(values)
    assert "heedful.register" in error.value.what
    assert registry.GROUP in error.value.what


@pytest.mark.usefixtures("clean")
def test_an_unknown_kind_in_a_file_is_named_with_its_place() -> None:
    spec = translator_spec(TranslatorShape(), 9, 9).plain()
    spec["decoder"]["pattern"][0]["sublayers"][0]["part"] = {"kind": "fading", "bias": True}
    with pytest.raises(ConfigError, match="no mixer is called 'fading'") as error:
        parse_spec(spec, where="config.json")
    assert error.value.what.startswith("decoder.pattern.0.sublayers.0.part: no mixer")
    assert error.value.what.endswith("convolution, feedforward")  # nothing follows the known names
    with pytest.raises(ConfigError, match="no tokenizer is called 'word'"):
        TokenizerSpec.parse({"kind": "word"})


def test_a_wrong_setting_of_a_registered_part_is_named(installed: Path) -> None:
    part = {"kind": "fading", "bia": True}
    with pytest.raises(ConfigError, match=r"Unknown setting.*bia"):
        SubLayerSpec.parse({"name": "mixer", "part": part})


@pytest.mark.usefixtures("clean")
def test_names_are_given_once() -> None:
    class Own(CommonPartSpec):
        module = "nowhere:Own"
        label = "Own"
        kind: str = "ssru"

    with pytest.raises(ConfigError, match="There is a mixer called 'ssru' already"):
        heedful.register(Own)

    def other(name: str) -> type[CommonPartSpec]:
        class Other(Own):
            kind: str = "other"

        Other.__qualname__ = name
        return Other

    heedful.register(other("A"))
    heedful.register(other("A"))  # a cell of a notebook that runs again
    with pytest.raises(ConfigError, match="'other' already"):
        heedful.register(other("B"))
    with pytest.raises(ConfigError, match="cannot be registered"):
        heedful.register(Config)  # type: ignore[type-var]


@pytest.mark.usefixtures("clean")
def test_a_plugin_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "broken_parts", "raise RuntimeError('no luck')", "x = broken_parts:Thing")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="x = broken_parts:Thing cannot be loaded: no luck") as e:
        TranslatorShape.parse({"mixer": "thing"})
    assert e.value.where == "broken_parts, entry points of heedful.plugins"


@pytest.mark.usefixtures("clean")
def test_an_entry_point_may_name_the_part_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
from typing import Literal
from heedful.nn.mixer_spec import CommonPartSpec

class Silent(CommonPartSpec):
    module = "silent_parts:nothing"
    label = "Silence"
    kind: Literal["silent"] = "silent"
"""
    install(tmp_path, "silent_parts", code, "silent = silent_parts:Silent")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert TranslatorShape.parse({"mixer": "silent"}).mixer == "silent"
    assert [name for name, _ in registry.registered("mixer")] == ["silent"]
    sys.modules.pop("silent_parts")
