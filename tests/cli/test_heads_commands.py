"""`heedful heads`, `ablate`, `prune` and `align`: what they print, write and refuse."""

from __future__ import annotations

import json

import pytest
import torch

from heedful import inspect
from heedful.apps import pruning
from heedful.cli.main import main
from heedful.models.build import build_model
from heedful.models.checkpoint import load_model, save_model
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.model_spec import CausalLMSpec
from heedful.models.preset_files import preset_spec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

SOURCES, TARGETS = ["ab cd", "ef", "gh ab"], ["cd ab", "ef gh", "ab"]
STACK = {
    "num_layers": 1,
    "block": {"self_attention": {"num_heads": 2}, "feedforward": {"width": 16}},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("heads")
    pair = train_pair(TokenizerSpec(kind="characters"), ["abcd efgh"] * 3, ["abcd efgh"] * 3)
    size = pair.source.size
    shape = {"width": 8, "encoder_layers": 1, "decoder_layers": 2, "num_heads": 2}
    causal = {**STACK["block"], "self_attention": {"num_heads": 2, "mask": {"kind": "causal"}}}
    texts = {"width": 8, "vocabulary": size, "max_length": 24}
    labelled = {"kind": "sequence", "labels": ("x", "y"), "source": "first"}
    specs = {
        "translator": translator_spec(TranslatorShape(**shape, feedforward=16), size, size),
        "lm": CausalLMSpec.parse({**texts, "decoder": {**STACK, "block": causal}}),
        "classifier": EncoderSpec.parse({**texts, "encoder": STACK, "heads": [labelled]}),
    }
    for name, spec in specs.items():
        torch.manual_seed(0)
        save_model(build_model(spec), pair, place / name, training={"steps": 7})
    for name, lines in {"src": SOURCES, "tgt": TARGETS, "gold": ["0-1 1?0", "0-0", "1-0"]}.items():
        (place / name).write_text("".join(f"{line}\n" for line in lines))
    (place / "short").write_text("ab\n")
    (place / "texts").write_text("ab cd ef\n\ngh gh\n\nabc\n")
    (place / "labels.tsv").write_text("ab\tx\ncd ef\ty\n")
    return place


@pytest.fixture
def run(place, capsys, monkeypatch):
    monkeypatch.chdir(place)

    def run_it(*words):
        capsys.readouterr()
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run_it


PAIRS = ("--source", "src", "--target", "tgt")


def subject_and_examples():
    subject = inspect.load("translator", device="cpu")
    return subject, pruning.examples_of_text(subject, SOURCES, TARGETS)


def test_heads_measures_every_head(run, tmp_path):
    status, out, _ = run("heads", "translator", *PAIRS, "--json", "--report", tmp_path / "r.json")
    assert status == 0
    items = [json.loads(line) for line in out.splitlines()]
    assert [(i["part"], i["layer"], i["head"]) for i in items] == [
        (part, layer, head)
        for part, layers in (("encoder", 1), ("decoder", 2), ("cross", 2))
        for layer in range(layers)
        for head in range(2)
    ]
    subject, examples = subject_and_examples()
    readings = [example.reading for example in examples]
    expected = inspect.measure(subject, readings, "encoder").heads[1].plain()
    assert {k: v for k, v in items[1].items() if k != "part"} == json.loads(json.dumps(expected))
    assert "aligned" in items[-1]["shares"]
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["command"], report["heads"], report["sentences"]) == ("heads", 10, 3)
    status, out, err = run("heads", "lm", "--data", "texts", "--part", "decoder", "--limit", 2)
    assert (status, out) == (0, "")
    assert "of 2 sentences" in err
    assert "previous" in err


def test_heads_reads_a_translators_own_words_without_a_target(run):
    status, out, _ = run("heads", "translator", "--source", "src", "--part", "cross", "--json")
    assert (status, out.count("\n")) == (0, 4)


def test_ablate_tells_the_cost_of_each_part(run, tmp_path):
    words = ("encoder.0.self", "decoder.*.cross", "--bleu", "--samples", "20")
    flags = ("--beam", "1", "--bleu-sentences", "2", "--tokenize", "char")
    report = tmp_path / "report.json"
    status, out, _ = run(
        "ablate", "translator", *words, *flags, *PAIRS, "--json", "--report", report
    )
    assert status == 0
    items = [json.loads(line) for line in out.splitlines()]
    rises = [item["scores"]["loss"]["difference"]["score"] for item in items]
    assert rises == sorted(rises, reverse=True)
    assert {item["what"][0] for item in items} == {
        "encoder.0.self",
        "decoder.0.cross",
        "decoder.1.cross",
    }
    subject, examples = subject_and_examples()
    for item in items:
        with pruning.ablated(subject.model, item["what"]):
            loss = pruning.answer(subject, examples).loss
        assert item["scores"]["loss"]["b"]["score"] == pytest.approx(loss, abs=1e-6)
        assert set(item["scores"]) == {"loss", "accuracy", "bleu"}
    assert json.loads(report.read_text())["effects"] == items
    status, out, err = run("ablate", "translator", *PAIRS, "--samples", "20")
    assert (status, out) == (0, "")
    assert all(head in err for head in pruning.heads(subject.model))


def test_ablate_takes_parts_away_together_or_lists_them(run):
    status, out, _ = run("ablate", "classifier", "--parts")
    assert status == 0
    assert "encoder.0.self.head.1" in out.splitlines()
    words = ("encoder.0.self.head.*", "--together", "--how", "mean", "--data", "labels.tsv")
    status, out, _ = run("ablate", "classifier", *words, "--json", "--samples", "20")
    (item,) = map(json.loads, out.splitlines())
    assert (item["what"], item["how"]) == (
        ["encoder.0.self.head.0", "encoder.0.self.head.1"],
        "mean",
    )
    assert status == 0


@pytest.mark.parametrize("kind", ["rnn-fixed", "mamba"])
def test_a_model_without_heads_is_compared_by_sublayers(run, place, kind):
    pair = load_model(place / "translator")[1]
    size, model = pair.source.size, place / kind
    if kind == "mamba":
        causal = {"self_attention": {"kind": "mamba"}, "feedforward": {"width": 16}}
        stack = {"num_layers": 1, "block": causal}
        spec = CausalLMSpec.parse({"width": 8, "vocabulary": size, "decoder": stack})
        data = ("--data", "texts")
    else:
        spec, data = preset_spec(kind, size), PAIRS
    save_model(build_model(spec), pair, model)
    status, out, err = run("ablate", model, *data, "--samples", "5", "--json")
    assert status == 0, err
    names = [json.loads(line)["what"] for line in out.splitlines()]
    assert names
    assert not any("head" in name for each in names for name in each)


def test_prune_writes_a_smaller_model(run, place, tmp_path):
    out_dir, report = tmp_path / "small", tmp_path / "report.json"
    status, out, err = run(
        "prune", "translator", out_dir, *PAIRS, "--heads-left", "6", "--report", report
    )
    assert (status, out) == (0, "")
    assert "6 of 10 heads" in err
    told = json.loads(report.read_text())
    assert [point["heads_left"] for point in told["points"]] == [10, 9, 8, 7, 6]
    assert len(told["removed"]) == 4
    assert told["parameters"] < told["parameters_before"]
    model, pair = load_model(out_dir)
    assert not set(pruning.heads(model)) & set(told["removed"])
    _, examples = subject_and_examples()
    answers = pruning.answer(inspect.Subject(model, pair), examples)
    assert answers.loss == pytest.approx(told["points"][-1]["loss"], abs=1e-6)
    training = json.loads((out_dir / "config.json").read_text())["training"]
    assert training["steps"] == 7
    assert training["pruned"]["removed"] == told["removed"]
    again = ("evaluate", out_dir, "--source", "src", "--reference", "tgt", "--json")
    assert run(*again)[0] == 0
    assert run("info", out_dir, "--json")[0] == 0
    status, _, err = run("export", out_dir, tmp_path / "hf", "--format", "hf")
    assert status == 2
    assert "kept_heads" in err
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("bound", ["--within-loss", "--within-bleu"])
def test_prune_keeps_what_the_bound_asks_for(run, tmp_path, bound):
    flags = ("--method", "gradient", bound, "0.01", "--beam", "1")
    status, out, _ = run("prune", "translator", tmp_path / "small", *PAIRS, *flags, "--json")
    told = json.loads(out)
    score = bound.removeprefix("--within-")
    whole, *points = told["points"]
    worse = [abs(p[score] - whole[score]) for p in points if p["heads_left"] >= told["heads_left"]]
    signs = {"loss": 1, "bleu": -1}[score]
    assert status == 0
    assert all(signs * (p[score] - whole[score]) <= 0.01 for p in points[: len(worse)])
    assert len(points) in (len(worse), len(worse) + 1)


def test_align_gives_a_line_of_links_for_each_pair(run, tmp_path):
    status, out, err = run("align", "translator", *PAIRS, "--gold", "gold")
    subject, examples = subject_and_examples()
    found = inspect.align_words(subject, [example.reading for example in examples])
    assert status == 0
    assert out.splitlines() == [pair.pharaoh for pair in found.pairs]
    gold = [inspect.parse_pharaoh(line) for line in ("0-1 1?0", "0-0", "1-0")]
    rate = inspect.alignment_error_rate(
        [pair.links for pair in found.pairs], [g[0] for g in gold], [g[1] for g in gold]
    )
    assert f"Alignment error rate: {rate:.1%}." in err
    file, report = tmp_path / "links", tmp_path / "report.json"
    words = ("--reverse", "translator", "-o", file, "--json", "--report", report)
    status, out, _ = run("align", "translator", *PAIRS, *words)
    assert (status, out) == (0, "")
    items = [json.loads(line) for line in file.read_text().splitlines()]
    assert [" ".join(item["source_words"]) for item in items] == SOURCES
    assert json.loads(report.read_text())["forward"]["criterion"] == "agreement"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("heads", "translator"), "--source FILE --target FILE"),
        (("heads", "lm"), "--data FILE"),
        (("heads", "lm", *PAIRS), "no translator"),
        (("heads", "lm", "--data", "texts", "--part", "cross"), "no cross attention"),
        (("heads", "translator", *PAIRS, "--limit", "0"), "--limit 0"),
        (("ablate", "translator", "--source", "src"), "--target FILE"),
        (("ablate", "translator", "decoder.9.cross", *PAIRS), "Near ones: decoder."),
        (("ablate", "lm", "--data", "texts", "--bleu"), "Only translators"),
        (("ablate", "translator", "**.scale", "--how", "mean", *PAIRS), "can only be off"),
        (("ablate", "translator", "--source", "src", "--target", "short"), "3 lines"),
        (
            ("prune", "translator", "new", *PAIRS, "--heads-left", "3", "--within-loss", "1"),
            "--heads-left N",
        ),
        (("prune", "translator", "new", *PAIRS, "--heads-left", "11"), "11 cannot be left"),
        (("prune", "translator", "lm", *PAIRS, "--heads-left", "3"), "exists already"),
        (("prune", "lm", "new", "--data", "texts", "--within-bleu", "1"), "Only translators"),
        (("align", "lm", *PAIRS), "no translator"),
        (("align", "translator", *PAIRS, "--gold", "short"), "1 lines of links"),
    ],
)
def test_what_is_refused(run, place, words, says):
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
    assert not (place / "new").exists()
