"""What people call from Python: one `load`, training on examples in memory, vectors, displays."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.apps import train_from_python
from heedful.cli.main import main
from heedful.data.in_memory import examples, file_spec
from heedful.errors import ConfigError, DataError, ModelError, UserError
from heedful.events import Metric, Note, Recorder
from heedful.interop.hf_files import read_pooling
from heedful.pipelines.encoder_input import frame
from heedful.train.task_rules import TASKS

PAIRS = [("a b c", "x y z"), ("a a", "x x"), ("c b a", "z y x")]
SETTINGS = {
    "model": {
        "width": 32, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "feedforward": 32,
    },
    "tokenizer": {"kind": "characters"},
}  # fmt: skip
FORMS = {
    "tuples": PAIRS,
    "lists": [list(pair) for pair in PAIRS],
    "names": [{"id": "1", "target": b, "source": a} for a, b in PAIRS],
    "names of files": [{"id": "1", "tgt": b, "src": a} for a, b in PAIRS],
    "two columns": [{"en": a, "de": b} for a, b in PAIRS],
    "datasets": [{"translation": {"en": a, "de": b}} for a, b in PAIRS],
}


class Frame:
    """A data frame as pandas has it."""

    columns = ("en", "de")

    def itertuples(self, index):
        assert not index
        return iter(PAIRS)


@pytest.fixture(scope="module")
def encoder():
    return heedful.load("english-masked", device="cpu")


@pytest.mark.parametrize("form", FORMS)
def test_pairs_are_found_in_every_form(form):
    assert list(examples(FORMS[form], ("source", "target"))) == PAIRS
    assert list(examples((each for each in FORMS[form]), ("source", "target"))) == PAIRS


def test_a_data_frame_is_read_row_by_row():
    assert list(examples(Frame(), ("source", "target"))) == PAIRS


@pytest.mark.parametrize(
    "wrong", [[("a",)], ["ab"], [{"a": "b"}], [("a", 3)], [{"a": "1", "b": "2", "c": "3"}], [3], 7]
)
def test_other_examples_are_refused(wrong):
    with pytest.raises(DataError, match=r"example|type"):
        list(examples(wrong, ("source", "target")))


def test_labels_may_be_numbers():
    assert list(examples([("good", 1)], ("text", "label"))) == [("good", "1")]


def test_files_are_told_from_examples():
    assert file_spec("pairs.tsv") == {"file": "pairs.tsv"}
    assert file_spec((Path("a"), Path("b"))) == {"source": "a", "target": "b"}
    assert file_spec(("a", "b")) is None
    assert file_spec(PAIRS) is None


@pytest.mark.parametrize("task", list(train_from_python._NAMES))
def test_tasks_of_examples_are_tasks(task):
    assert task in TASKS


def test_training_on_examples_equals_training_on_a_file_and_resumes(tmp_path):
    seen = []

    def weights(name):
        return (tmp_path / name / "model/model.safetensors").read_bytes()

    def run(name, data, steps):
        summary = heedful.train(
            data, tmp_path / name, settings=SETTINGS, callbacks=[seen.append], max_steps=steps
        )
        assert summary.steps == steps

    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    run("memory", iter(PAIRS), 4)
    assert any(isinstance(event, Metric) for event in seen)
    run("file", file, 4)
    assert weights("file") == weights("memory")
    run("parts", PAIRS, 2)
    assert weights("parts") != weights("memory")
    # Neither the list nor the place is there any more.
    (tmp_path / "parts").rename(tmp_path / "moved")
    heedful.train(out=tmp_path / "moved", resume=True, max_steps=4, callbacks=[])
    assert weights("moved") == weights("memory")
    with pytest.raises(UserError, match="run already"):
        heedful.train([("other", "pairs")], tmp_path / "memory", settings=SETTINGS)
    assert "other" not in (tmp_path / "memory/examples/train.jsonl").read_text("utf-8")
    scores = heedful.evaluate(tmp_path / "memory", PAIRS, beam=1)
    assert set(scores) == {"bleu", "chrf"}
    with pytest.raises(ConfigError, match="began with"):
        heedful.train(PAIRS, tmp_path / "moved", resume=True)


RECORDS = [{"kind": "up", "notes": [0, 1, 2]}, {"kind": "down", "notes": [2, 1]}]


def test_records_are_trained_on_and_scored_in_memory_as_in_a_file(tmp_path, capsys):
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    shape = {"model": {"width": 16, "decoder_layers": 1, "num_heads": 2, "feedforward": 16}}
    asked = {"settings": shape, "callbacks": [], "task": "tokens", "max_steps": 3}
    arrays = [{**record, "notes": np.array(record["notes"])} for record in RECORDS]
    heedful.train(iter(arrays), tmp_path / "memory", valid=RECORDS, **asked)
    heedful.train(file, tmp_path / "file", valid=file, **asked)
    model = heedful.load(tmp_path / "memory", device="cpu")
    scores = heedful.evaluate(model, arrays)
    assert scores == heedful.evaluate(tmp_path / "file", file)
    assert set(scores["fields"]) == {"kind", "notes", "end"}
    assert len(set(scores) & {"loss", "nats_per_value"}) == 1
    assert main(["evaluate", str(tmp_path / "file"), "--data", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"] == scores
    with pytest.raises(DataError, match="record 2"):
        heedful.evaluate(model, [RECORDS[0], {"kind": "up", "notes": [9]}])


def test_the_guide_trains_on_records(tmp_path, monkeypatch):
    guide = Path(__file__).parents[1] / "docs/guides/beyond-text.md"
    *_, code = re.findall(r"```python\n(.*?)```", guide.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    assert json.loads(names["record"])["kind"] == "rising"
    assert names["bits"] < 1.5  # of four notes, 2 by chance


@pytest.mark.parametrize("wrong", [[], ["a"], [RECORDS[0], {"notes": print}], [3], 7])
def test_what_is_no_record_is_refused(tmp_path, wrong):
    with pytest.raises(DataError, match=r"example|records|type"):
        heedful.train(wrong, tmp_path / "run", callbacks=[], task="tokens")


def test_training_looks_at_the_data_and_foretells(tmp_path):
    english = ["The cat is asleep.", "Where is my book?", "We went home early.", "It is raining."]
    german = [
        "Die Katze schläft.",
        "Wo ist mein Buch?",
        "Wir gingen früh heim.",
        "Es regnet heute.",
    ]
    pairs = list(zip(english, german, strict=True)) * 10
    asked = {"settings": {**SETTINGS, "data": {"languages": ["en", "de"]}}, "max_steps": 5}
    with pytest.raises(DataError, match="exchanged"):
        heedful.train([pair[::-1] for pair in pairs], tmp_path / "run", callbacks=[], **asked)
    recorder = Recorder()
    heedful.train(pairs, tmp_path / "run", callbacks=[recorder], **asked)
    assert any("max_steps = 5 end after about" in note for note in recorder.texts(Note))


@pytest.mark.parametrize("model", ["english", "english-masked"])
def test_language_models_are_scored_on_files_as_on_the_same_texts(tmp_path, model, capsys):
    texts = ["The cat sat\non the mat.", "I love cats."]
    file = tmp_path / "texts.txt"
    file.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    expected = heedful.evaluate(model, texts)
    assert heedful.evaluate(model, file, documents="paragraph") == expected
    assert heedful.evaluate(model, str(file)) != expected  # one text
    words = ["evaluate", model, "--text", str(file), "--documents", "paragraph", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)["scores"]
    assert told == pytest.approx({name: told[name] for name in expected} | expected)
    with pytest.raises(DataError, match="one file of text"):
        heedful.evaluate(model, (file, file))


@pytest.mark.parametrize("pooling", ["first", "last", "mean", "max"])
def test_vectors_are_pooled_states(encoder, pooling):
    texts = ["The cat sat", "", "A dog"]
    found = encoder.embed(texts, pooling=pooling)
    for text, vector in zip(texts, found, strict=True):
        if not text:
            assert not vector.any()
            continue
        ids = torch.tensor([frame(encoder.tokenizer, encoder.tokenizer.encode(text)).ids])
        with torch.no_grad():
            states = encoder.model(ids, torch.arange(ids.shape[1])[None])[0].numpy()
        expected = {
            "first": states[0],
            "mean": states.mean(0),
            "max": states.max(0),
            "last": states[-1],
        }[pooling]
        np.testing.assert_allclose(vector, expected, atol=2e-5)
    unit = heedful.embed(encoder, texts[:1], pooling=pooling, normalize=True)
    np.testing.assert_allclose(unit[0], found[0] / np.linalg.norm(found[0]), atol=2e-5)
    with pytest.raises(ConfigError, match="no pooling"):
        encoder.embed(texts, pooling="sum")


def published(folder, pooling, kinds):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    names = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(names))
    return read_pooling(folder)


@pytest.mark.parametrize(
    ("pooling", "kinds", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
         ["Transformer", "Pooling"], {"mode": "mean", "normalize": False}),
        ({"pooling_mode_cls_token": True}, ["Transformer", "Pooling", "Normalize"],
         {"mode": "first", "normalize": True}),
        ({"pooling_mode": "max"}, ["Transformer", "Pooling"], {"mode": "max", "normalize": False}),
    ],
)  # fmt: skip
def test_published_pooling_is_read(tmp_path, pooling, kinds, expected):
    assert published(tmp_path, pooling, kinds) == expected


@pytest.mark.parametrize(
    ("pooling", "kinds"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, ["Pooling"]),
        ({"pooling_mode_lasttoken": True}, ["Pooling"]),
        ({"pooling_mode_mean_tokens": True}, ["Transformer", "Pooling", "Dense"]),
        ({}, ["Pooling"]),
    ],
)
def test_vectors_that_are_more_than_pooled_are_refused(tmp_path, encoder, pooling, kinds):
    found = published(tmp_path, pooling, kinds)
    assert set(found) == {"refusal"}
    other = pickle.loads(pickle.dumps(encoder))
    other.pooling = found
    with pytest.raises(ModelError, match=r"modules|pooled"):
        other.embed(["a text"])
    assert other.embed(["a text"], pooling="mean").shape == (1, encoder.spec.width)


def test_no_directory_of_sentence_transformers_has_no_pooling(tmp_path):
    assert read_pooling(tmp_path) is None


@pytest.mark.parametrize("name", ["en-de", "english", "english-masked", "digits"])
def test_one_load_for_all_kinds(name):
    loaded = heedful.load(name, device="cpu")
    assert name in repr(loaded)
    assert "parameters" in loaded._repr_html_()
    assert all(callable(getattr(loaded, verb)) for verb in loaded.verbs)
    with pytest.raises(AttributeError, match=f"can {loaded.verbs[0]}"):
        loaded.sing()
    if name != "en-de":
        with pytest.raises(ModelError, match="Only translators"):
            heedful.load(name, shortlist=True)
    with pytest.raises(ModelError, match="Give"):
        heedful.embed(loaded if name != "english-masked" else "en-de", ["a"])


def test_a_translation_shows_its_score_and_alignment():
    (found,) = heedful.load("en-de", device="cpu").translate(["A <b> dog runs."], alignment=True)
    assert repr(found).startswith(f"Translation({str(found)!r}, score={found.score:.2f}, alig")
    assert "dog" in found._repr_html_()
    assert "<b>" not in found._repr_html_()


def test_an_error_shows_itself_in_a_line():
    with pytest.raises(UserError) as caught:
        heedful.load("no-such-model")
    assert caught.value._render_traceback_() == [f"{type(caught.value).__name__}: {caught.value}"]


def test_the_package_shows_its_names_and_loads_nothing_heavy():
    code = (
        "import sys, heedful, heedful.nn\n"
        "assert 'torch' not in sys.modules\n"
        "assert not {'Path', 'annotations', 'TYPE_CHECKING'} & set(dir(heedful))\n"
        "import heedful.train.run_settings\n"
        "assert callable(heedful.train) and callable(heedful.evaluate)\n"
        "assert heedful.inspect.read and heedful.nn.Causal()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_types_name_the_parts_that_are_there():
    """One list is read by type checkers, the other by Python."""
    text = Path(heedful.nn.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r"import \w+ as (\w+)$", text, re.M)) <= {*heedful.nn.__all__}
    for name in heedful.nn.__all__:
        assert getattr(heedful.nn, name).__name__ == name
