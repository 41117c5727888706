"""The models in the browser: the engine in JavaScript gives what the package gives, by node."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.apps.pruning.ablation import heads as every_head
from heedful.apps.studio.export.site import words_that_are_no_names
from heedful.apps.studio.pages import PAGES
from heedful.apps.studio.pages.image_page import EXAMPLES, example_image
from heedful.apps.studio.workspace import Workspace
from heedful.errors import UserError
from heedful.inspect.attention_maps import parts_of
from heedful.inspect.readings import read, tensors
from heedful.inspect.subject import Subject, capture, inference
from heedful.models.build import build_model
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.pretrained.catalogue import models_at_hand
from heedful.text.normalization import TextNormalizer
from heedful.text.seen_words import SeenWords
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node, which runs the engine, is not here")

SENTENCES = (
    "The cat sat on the mat because it was tired.",
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
    "I love cats.",
    "I saw the man with the telescope.",
    "The bank is closed today.",
    "She sat on the bank of the river.",
    "Where is the station?",
    "Tom doesn't want to go to school tomorrow.",
    "We have been waiting for you since half past seven this morning.",
    "Could you please tell me what time it is?",
    "My brother's friend bought 3 apples, 12 eggs and a loaf of bread.",
    "If it rains, we'll stay at home.",
    "The children who live next door are very noisy.",
    "He said: I don't know.",
    "It costs 25 dollars, doesn't it?",
    "Mary speaks French better than German.",
    "“Come in,” she said.",
    "Nobody knew that the old house on the hill had been sold.",
    "Don't touch that!",
    "The soup is too hot to eat.",
    "I'd rather read a book than watch television.",
    "In 1989 the wall came down, and everything changed.",
    "The café near the Zürich opera serves crème brûlée.",
    "Her naïve façade didn't fool anyone.",
    "He lives in 北京 now.",
    "THE END",
    "well ... maybe",
    "A",
    "The professor explained the difficult theory to his students twice.",
)
PARTS = {"first": SENTENCES[:4], "others": SENTENCES[4:]}
UNSEEN = (
    "ae1 \u00e9\u0301\u0308\u0323\u00a0\u00ad\u200b\u200c\u200d\u200f\u2066\ufeff"
    "\u0e01\u0e31\u05d0\u4e2d\u304b\u3099\u1100\u1161"
)
"""Characters that rules of spelling change, and those beside which they do."""
UNTRAINED: dict[str, dict[str, Any]] = {
    "rotary": {
        "normalization": "nfc",
        "positions": "rotary",
        "norm": "rms",
        "activation": "swiglu",
        "num_kv_heads": 2,
    },
    "post": {"positions": "learned", "norm_placement": "post", "activation": "gelu", "bias": False},
    "apart": {"positions": "sinusoidal", "norm_placement": "pre", "share_embeddings": "none"},
}
AT_HAND = ("en-de", "english", "english-masked")


class Engine:
    """A process of node that answers requests."""

    def __init__(self, folder: Path) -> None:
        source = Path(str(resources.files("heedful.apps.studio") / "static" / "engine"))
        shutil.copytree(source, folder / "engine")
        place = Workspace([models_at_hand()["en-de"].path]).place("en-de")
        names = json.dumps(words_that_are_no_names(place))
        (folder / "names.json").write_text(names, encoding="utf-8")
        # The files are modules for a browser; node wants to be told.
        (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
        driver = Path(__file__).parent / "engine" / "driver.mjs"
        command = [str(NODE), str(driver), str(folder / "engine")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def ask(self, model: Path | None, operation: str, **request: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = json.dumps({"model": model and str(model), "operation": operation, **request})
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        assert "\n" not in reply.get("what", ""), reply["what"]  # the trace of a mistake
        return reply


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("engine"))
    with made.process:  # leaving it closes the pipes, at which node ends
        yield made


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The models at hand, and small untrained ones of other parts in 8 bits."""
    root = tmp_path_factory.mktemp("models")
    return {name: models_at_hand()[name].path for name in AT_HAND} | {
        name: _write(root / name, {**options}) for name, options in UNTRAINED.items()
    }


def _write(directory: Path, options: dict[str, Any]) -> Path:
    kind = "byte-bpe" if options["positions"] == "rotary" else "bpe"
    rule = options.pop("normalization", "nfc-2")
    spec = TokenizerSpec(kind=kind, vocabulary_size=320, words="punctuation", normalization=rule)
    tokenizers = train_pair(spec, SENTENCES, SENTENCES)
    small = {"width": 32, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4}
    shape = TranslatorShape.parse({**small, "feedforward": 48, "max_length": 64, **options})
    torch.manual_seed(3)
    size = tokenizers.source.size
    if options["positions"] == "rotary":
        model = build_model(causal_lm_spec(shape, size, 64))
    else:
        model = build_model(translator_spec(shape, size, tokenizers.target.size))
    with torch.no_grad():  # first weights give a flat distribution, in which all words are alike
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    save_model(
        model, TokenizerPair(tokenizers.source, tokenizers.target), directory, storage="int8"
    )
    return directory


@pytest.fixture(scope="module")
def workspace_of(paths: dict[str, Path]) -> Workspace:
    return Workspace([*paths.values()])


def subject_of(workspace: Workspace, name: str) -> Subject:
    loaded = workspace.place(name).load()
    return Subject(loaded.model, loaded.tokenizers)


@pytest.mark.parametrize("name", [*AT_HAND, "rotary", "post"])
@given(
    text=st.text(st.characters(categories=["L", "M", "N", "P", "S", "Z", "Cc"]), max_size=24)
    | st.text(UNSEEN, max_size=12)
    | st.lists(
        st.sampled_from([*SENTENCES, " ", "  ", "ß", "…", "!!", "[MASK]", "▁", "🙂", "12"])
    ).map(" ".join)
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_text_has_the_same_tokens(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace, name: str, text: str
) -> None:
    tokenizer = subject_of(workspace_of, name).source
    theirs = engine.ask(paths[name], "tokens", text=text)
    ids, spans = tokenizer.encode_spans(text)
    assert theirs["ids"] == ids
    assert theirs["pieces"] == tokenizer.pieces(ids)
    spelled = TextNormalizer(getattr(tokenizer, "normalization", "none")).normalized(text)
    assert theirs["spelled"] == spelled
    if spelled == text:  # otherwise the package counts characters as typed, the engine as spelled
        assert [tuple(each) for each in theirs["spans"]] == spans
    assert theirs["text"] == tokenizer.decode(ids)
    if tokenizer.mask is not None:
        assert theirs["masked"] == tokenizer.encode_masked(text, "[MASK]")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", [*AT_HAND, *UNTRAINED])
def test_logits_and_attention_are_those_of_the_model(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace, name: str, part: str
) -> None:
    subject = subject_of(workspace_of, name)
    translates = subject.model.spec.reads == "pairs"
    for text in PARTS[part]:
        second = {"second": text, "given": "typed"} if translates else {}
        reading = read(subject, text, text if translates else None)
        inputs = tensors(subject, [reading])
        theirs = engine.ask(paths[name], "pass", request={"text": text, **second})
        model: Any = subject.model
        with inference(model):
            states = model(*inputs)
            project = model.logits if model.spec.generates else model.masked_lm_logits
            logits = project(states)[0].numpy()
        np.testing.assert_allclose(unpacked(theirs["logits"], logits), logits, rtol=0, atol=1e-3)
        wanted = [
            f"{'decoder' if part == 'cross' else part}.*.{'cross' if part == 'cross' else 'self'}"
            for part in parts_of(model)
        ]
        own = capture(
            model,
            inputs,
            [*(f"{each}.weights" for each in wanted), *(f"{s}.*.output" for s in model.stacks())],
        )
        for address, value in own.items():
            found = unpacked(theirs["tensors"][address], value[0])
            tolerance = 1e-4 if address.endswith("weights") else 1e-3
            np.testing.assert_allclose(found, value[0], rtol=0, atol=tolerance, err_msg=address)


def decoded(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


def unpacked(text: str, like: np.ndarray) -> np.ndarray:
    return decoded(text, "<f4").reshape(like.shape)


CALLS = {f"{page.name}/{name}": call for page in PAGES for name, call in page.calls.items()}


def check_answer(
    engine: Engine, paths: dict[str, Path], workspace: Workspace, address: str, name: str, body: Any
) -> Any:
    """Ask both for a call, and compare them; return what the studio answers."""
    call = CALLS[address]
    request = call.request.parse({"model": name, **body})
    page, _, what = address.partition("/")
    theirs = engine.ask(paths[name], "answer", page=page, name=what, body=body)
    try:
        own = json.loads(json.dumps(call.answer(request, workspace)))
    except UserError as error:
        own, theirs["result"] = {"what": error.what}, {"what": theirs["what"]}
    own.pop("checks", None)  # a translation in the page is not checked
    assert "result" in theirs, theirs
    assert_alike(theirs["result"], own, f"{address} of {name}")
    return own


def assert_alike(theirs: Any, own: Any, where: str) -> None:
    """Equal keys, texts and whole numbers; other numbers within 1e-4."""
    if isinstance(own, dict):
        assert theirs.keys() == own.keys(), where
        for key, value in own.items():
            if key == "float32":
                arrays = decoded(theirs[key], "<f4"), decoded(value, "<f4")
                np.testing.assert_allclose(arrays[0], arrays[1], rtol=0, atol=1e-4, err_msg=where)
            elif key == "shades":  # a weight may lie at the edge of two shades
                shades = decoded(theirs[key], "u1").astype(int) - decoded(value, "u1")
                assert np.abs(shades).max(initial=0) <= 1, where
            elif key == "vectors":  # of three decimals, each rounded to one of two neighbours
                np.testing.assert_allclose(theirs[key], value, rtol=0, atol=1.1e-3, err_msg=where)
            else:
                assert_alike(theirs[key], value, f"{where}.{key}")
    elif isinstance(own, list):
        assert len(theirs) == len(own), where
        for number, pair in enumerate(zip(theirs, own, strict=True)):
            assert_alike(*pair, f"{where}[{number}]")
    elif isinstance(own, float):
        # Numbers that agree to 1e-9 may be rounded to neighbours in the fourth decimal, which are
        # 1.00000000000003e-4 apart.
        assert theirs == pytest.approx(own, rel=1e-4, abs=1e-4 + 1e-12), where
    else:
        assert theirs == own, where


ODD = (
    "",
    "12 345",
    "I see. You're right! Shall we go?",
    "One.\nTwo.",
    "北京",
    "well. then go",
    "Dr. Smith came. He left.",
)
"""Texts without a sentence, or with several."""


@pytest.mark.parametrize("part", PARTS)
def test_translations_are_those_of_the_page(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace, part: str
) -> None:
    bodies = [{"text": text, "n_best": 1} for text in PARTS[part]]
    bodies += [{"text": text} for text in (ODD if part == "others" else ODD[2:4])]
    for body in [*bodies, {"text": SENTENCES[3], "prefix": "Katzen", "length_penalty": 2.0}]:
        own = check_answer(engine, paths, workspace_of, "translate/text", "en-de", body)
        assert own["translations"]


def test_twelve_words_take_less_than_a_second(engine: Engine, paths: dict[str, Path]) -> None:
    text = "She sat on the bank of the river with her old friend."
    asked = {"page": "translate", "name": "text", "body": {"text": text}}
    times = [engine.ask(paths["en-de"], "answer", **asked)["milliseconds"] for _ in range(3)]
    assert min(times) < 1000  # of the processor: other processes do not count


TEXT = "She sat on the bank of the river."
ASKED: dict[str, tuple[dict[str, Any], ...]] = {
    "attention/show": ({"text": TEXT}, {"text": TEXT, "layer": 0, "heads": [1, 2]}, {"text": ""}),
    "attention/overview": (
        {"text": TEXT},
        {"text": " ".join([TEXT] * 8), "given": "typed", "second": TEXT * 4},
    ),
    "attention/influence": (
        {"text": TEXT},
        {"text": TEXT, "stack": "encoder", "block": 0},
        {"text": TEXT, "block": 99},
        {"text": " ".join([TEXT] * 20)},
    ),
    "attention/neurons": ({"text": TEXT, "head": 1, "row": 3}, {"text": TEXT, "row": 99}),
    "block/flow": ({"text": TEXT}, {"text": TEXT, "layer": 0}, {"text": TEXT, "stack": "encoder"}),
    "block/stream": ({"text": TEXT}, {"text": TEXT, "stack": "encoder"}),
    "decoding/step": (
        {"text": TEXT},
        {"text": TEXT, "chosen": [9, 20, 30], "layer": 1, "head": 2, "top_k": 5, "seed": 7},
        {"text": TEXT, "chosen": [40], "temperature": 0.7, "top_p": 0.9, "min_p": 0.01, "seed": 3},
        {"text": TEXT, "chosen": [40, 41], "temperature": 5, "seed": 2**52 + 1},
        {"text": TEXT, "chosen": [99999]},
        {"text": TEXT, "chosen": [9, 2]},  # the end of a translation; no language model chooses it
    ),
    "decoding/greedy": ({"text": TEXT}, {"text": TEXT, "chosen": [9, 20]}),
    "decoding/beam": ({"text": TEXT}, {"text": TEXT, "beam": 2, "n_best": 2, "max_length": 4}),
    "everywhere/text": ({"text": TEXT}, {"text": "A"}),
    "steps/follow": (
        {"text": TEXT, "head": 1, "row": 3},
        {"text": TEXT, "part": "decoder", "layer": 0, "row": 2},
        {"text": TEXT, "part": "cross", "head": 3, "row": 1},
        {"text": " ".join([TEXT] * 3), "head": 2, "row": 17},
        {"text": TEXT, "row": 99},
        {"text": ""},
    ),
    "tour/walk": (
        {"text": TEXT},
        {"text": TEXT, "chosen": [20], "layer": 1, "head": 2},
        {"text": "The [MASK] sat on the mat."},
        {"text": TEXT * 9},
    ),
    "translate/why": (
        {"line": TEXT, "before": "Sie saß", "word": "an"},
        {"line": TEXT, "before": "  Sie ", "against": 50},
        {"line": TEXT, "tokens": [9, 20], "token": 30, "against": 31},
        {"line": TEXT, "tokens": [9, 20], "token": 30, "word": "an"},
        {"line": TEXT, "token": 99999},
        {"line": TEXT, "before": "a", "word": " "},
        {"line": "word " * 150},
    ),
    "translate/inside": (
        {"line": TEXT, "before": "Sie saß", "word": "an", "against": 50},
        {"line": TEXT, "tokens": [9, 20], "token": 30},
    ),
    "translate/again": (
        {"line": TEXT, "silent": [2, 5], "beam": 2},
        {"line": TEXT, "silent": [1, 7, 8, 9], "beam": 1},
        {"line": "A", "silent": [0, 1, 2]},
        {"line": TEXT, "silent": [99]},
    ),
}


@pytest.mark.parametrize("name", [*AT_HAND, *UNTRAINED])
@pytest.mark.parametrize("address", ASKED)
def test_answers_are_those_of_the_page(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace, name: str, address: str
) -> None:
    for body in ASKED[address]:
        check_answer(engine, paths, workspace_of, address, name, body)


@pytest.mark.parametrize("name", ["en-de", "english"])
def test_the_end_ends_a_text(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace, name: str
) -> None:
    model: Any = workspace_of.place(name).load().model
    end = 2 if name == "en-de" else len(model.output_weight)  # a language model's is past its table
    for address in ("decoding/step", "tour/walk"):
        own = check_answer(
            engine, paths, workspace_of, address, name, {"text": TEXT, "chosen": [9, end]}
        )
        assert own["ended"]


DRAWING = np.array(
    [[0] * 10, [0, 9, 250, 255, 255, 255, 255, 240, 12, 0]]
    + [[0] * 6 + [100, 255, 60, 0]] * 3
    + [[0] * 5 + [180, 220, 3, 0, 0]] * 3
    + [[0, 0, 0, 40, 255, 90, 0, 0, 0, 0]] * 2
).repeat(3, 0).repeat(3, 1)[1:29, 1:29].tolist()  # fmt: skip
"""A seven, in the size of the model's images."""
PICTURES = ({"drawing": DRAWING}, {"example": "three"})


@pytest.mark.parametrize("picture", PICTURES, ids=["drawing", "example"])
def test_a_picture_is_seen_as_by_the_page(
    engine: Engine, tmp_path: Path, picture: dict[str, Any]
) -> None:
    model = tmp_path / "digits"
    shutil.copytree(models_at_hand()["digits"].path, model)
    examples = {name: example_image(name, 28).tolist() for name in EXAMPLES}
    (model / "pictures.json").write_text(json.dumps(examples), encoding="utf-8")
    paths, workspace = {"digits": model}, Workspace([model])
    asked: dict[str, tuple[dict[str, Any], ...]] = {
        "image/look": (
            {},
            {"patch": 20},
            {"patch": 24, "layer": 1, "head": 2},
            {"layer": 2, "rollout": True},
            {"patch": 3, "rollout": True},
            {"patch": 49},
        ),
        "image/erase": ({},),
        "everywhere/image": ({},),
    }
    for address, bodies in asked.items():
        for body in bodies:
            check_answer(engine, paths, workspace, address, "digits", body | picture)


def test_other_pictures_are_left_to_the_studio(engine: Engine) -> None:
    path = models_at_hand()["digits"].path
    for body in ({"drawing": [[0, 255]]}, {"example": "nothing"}):
        found = engine.ask(path, "answer", page="image", name="look", body=body)
        assert found["result"] is None


NUMBERS = st.floats(-9, 9, allow_nan=False, width=16)


@given(data=st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_typed_numbers_attend_as_in_the_page(engine: Engine, data: st.DataObject) -> None:
    size = st.integers(1, 4)
    rows, keys, width, wide = (data.draw(size) for _ in range(4))

    def matrix(down: int, across: int) -> list[list[float]]:
        row = st.lists(NUMBERS, min_size=across, max_size=across)
        return data.draw(st.lists(row, min_size=down, max_size=down))

    masks = ("everything", "causal", " ", "window(2)", "causal & strided(2) | prefix(1)")
    mask = data.draw(st.sampled_from((*masks, "prefix(0)")))
    bias = data.draw(st.sampled_from(["none", "alibi"]))
    body: dict[str, Any] = {"mask": mask, "bias": bias}
    if data.draw(st.booleans()):
        body |= {"scale": data.draw(NUMBERS)}
    if data.draw(st.booleans()):
        body |= {"x": matrix(rows, keys), "q": matrix(keys, width), "k": matrix(keys, width)}
        body |= {"v": matrix(keys, wide)}
    else:
        body |= {"q": matrix(rows, width), "k": matrix(keys, width), "v": matrix(keys, wide)}
    call = CALLS["steps/attend"]
    own = json.loads(json.dumps(call.answer(call.request.parse(body), Workspace([]))))
    theirs = engine.ask(None, "answer", page="steps", name="attend", body=body)
    assert_alike(theirs["result"], own, json.dumps(body))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"q": [[1, 2], [3]]}, "rows of Q are not of the same length"),
        ({"q": [[1, 2, 3]]}, "queries have 3 numbers and keys 2"),
        ({"v": [[1]]}, "there are 2 keys and 1 values"),
        ({"x": [[1]]}, "tokens have 1 numbers, so each weight matrix needs 1 rows"),
    ],
)
def test_typed_numbers_that_do_not_fit_are_refused(
    engine: Engine, changed: dict[str, Any], told: str
) -> None:
    body = {"q": [[1, 2]], "k": [[1, 2], [3, 4]], "v": [[1], [2]]} | changed
    with pytest.raises(UserError, match=re.escape(told)):
        CALLS["steps/attend"].request.parse(body)
    assert told in engine.ask(None, "answer", page="steps", name="attend", body=body)["what"]


def test_other_words_are_those_of_the_page(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace
) -> None:
    for body in ({"line": TEXT}, {"line": TEXT, "before": "Sie saß", "count": 3}, {"line": " "}):
        check_answer(engine, paths, workspace_of, "translate/alternatives", "en-de", body)


LOST = (
    ("My grandmother bought a telescope in Reykjavik.", "Meine Großmutter kaufte in Reykjavik."),
    ("“Don't!” – 🙂 said (the) well-known man …", "„Nicht!“, sagte der Mann."),
    ("Hello.", "Hallo."),
    ("I saw 3 apples in 北京市大学 today", "Ich sah heute Äpfel."),
    ("", ""),
    ("One line.\nAnother line.", "Eine."),
    ("word " * 70, "Wort"),
)


@pytest.mark.parametrize("name", ["en-de", "post", "apart"])
def test_lost_words_are_those_of_the_page(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace, name: str
) -> None:
    for text, translation in LOST:
        body = {"text": text, "translation": translation}
        own = check_answer(engine, paths, workspace_of, "translate/lost", name, body)
        assert bool(own["words"]) == (text in (LOST[0][0], LOST[1][0], LOST[3][0]))


NAMES = (
    ("Heidelberg is a small town.", "Eridelberg ist eine kleine Stadt."),
    ("I saw Wojciech and Aleksandra in May.", "Im Mai sah ich Wojemkie und Alekandel."),
    ("I saw Wojciech in the Congo and on Mondays.", "Ich sah Wojemkies im Kongro und Mondays."),
    ("We love Milan.\nShe lives in São Paulo.", "Wir lieben Mailand.\nSie lebt in São Paule 🙂."),
    ("🙂 “Ouagadougou is hot.”", "🙂 „Ouagadugou ist heiß.“"),
    ("The Heidelberg castle.", "Das Heidelberger Schloss."),
    ("I like Celtic music. Dogs bark.", "Ich mag Celtmusik. Doges bellen."),
    ("Mr McAllister met Ms Straßburger.", "Herr McAlister traf Frau Strassbürger."),
    ("NASA and Sir Ian love Naples.", "NASE und Sire Ina lieben Rekykavik."),
    ("Tom.", "Ёлка."),
)


def test_misspelled_names_are_those_of_the_page(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace
) -> None:
    found = []
    for text, translation in NAMES:
        body = {"text": text, "translation": translation}
        own = check_answer(engine, paths, workspace_of, "translate/lost", "en-de", body)
        found += [(translation[e["start"] : e["end"]], e["name"]) for e in own["names"]]
    assert found[:2] == [("Eridelberg", "Heidelberg"), ("Wojemkie", "Wojciech")]
    assert ("Ouagadugou", "Ouagadougou") in found
    assert not {"Celtic", "Dogs", "Mondays", "Milan"} & {name for _, name in found}


@given(
    st.text(st.characters(categories=["L"]), min_size=4, max_size=200).filter(
        # Browsers have no case folding, which differs from small letters in rare ones.
        lambda word: word.casefold() == word.lower().replace("ß", "ss")
    )
)
@settings(max_examples=60, deadline=None)
def test_words_count_as_seen_as_in_the_package(engine: Engine, word: str) -> None:
    words = SeenWords.of([word, "Haus", "Katze"])
    theirs = [
        engine.ask(None, "seen", words=words.plain(), word=each)["result"]
        for each in (word, f"{word}a")
    ]
    assert theirs == [word in words, f"{word}a" in words]


@pytest.mark.parametrize("name", [*AT_HAND[:2], "rotary", "post", "apart"])
def test_a_result_without_heads_is_that_of_the_page(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace, name: str
) -> None:
    model = workspace_of.place(name).load().model
    heads = [*every_head(model)[::2], every_head(model)[-1]]
    body = {"line": TEXT, "heads": heads, "silent": [2], "beam": 2}
    check_answer(engine, paths, workspace_of, "translate/again", name, body)
    asked = {"page": "translate", "name": "again", "body": {"line": TEXT, "heads": ["decoder.99"]}}
    assert "no head decoder.99" in engine.ask(paths[name], "answer", **asked)["what"]


@pytest.mark.parametrize("name", ["en-de", "rotary", "post", "apart"])
@pytest.mark.parametrize("against", [None, 31])
def test_integrated_gradients_are_those_of_the_page(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace, name: str, against: int | None
) -> None:
    body = {"line": "Go.", "tokens": [9], "token": 30, "against": against, "way": "gradients"}
    check_answer(engine, paths, workspace_of, "translate/why", name, body)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"positions": "t5"}, "encoder.shared_position_bias"),
        ({"positions": "learned", "window": 3}, "encoder.self_attention.mask"),
        ({"positions": "learned", "encoder_mixer": "linear_attention"}, "encoder.mixer.kind"),
    ],
)
def test_a_model_of_other_parts_is_refused(
    engine: Engine, tmp_path: Path, options: dict[str, Any], where: str
) -> None:
    made = _write(tmp_path / "model", {**options})
    refused = engine.ask(made, "answer", page="tour", name="walk", body={"text": TEXT})
    assert "cannot be computed here" in refused["what"]
    assert refused["where"] == where


def test_what_is_not_computed_has_no_answer(engine: Engine, paths: dict[str, Path]) -> None:
    for page, name, body in (
        ("attention", "labels", {"text": TEXT}),
        ("translate", "text", {"text": "See https://example.com/a_(b) {name}"}),
        ("schedule", "curve", {}),
    ):
        asked = {"page": page, "name": name, "body": body}
        assert engine.ask(paths["en-de"], "answer", **asked)["result"] is None
