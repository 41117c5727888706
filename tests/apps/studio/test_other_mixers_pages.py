"""Every page with models of other mixers: it shows them, or says kindly why it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from heedful.apps.studio import token_influence
from heedful.apps.studio.app import build_app
from heedful.apps.studio.workspace import Workspace
from heedful.models.build import build_model
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

from .conftest import WORDS, Visit

TEXT = "the cat sat"
BLOCKS = {"num_heads": 2, "feedforward": 32}
BAHDANAU = {"cell": "gru", "attention": "additive", "feeding": "context", "readout": "maxout"}
WRITERS: dict[str, dict[str, Any]] = {
    "mamba": {"mixer": "mamba"},
    "rwkv": {"mixer": "rwkv", "network": "channel_mix"},
    "ssru": {"mixer": "ssru"},
    "s4d": {"mixer": "s4d"},
    "cosine": {"mixer": "linear_attention", "features": "cosine"},
    "hybrid": {"mixer": "mamba", "attention_every": 2},
}
TRANSLATORS: dict[str, dict[str, Any]] = {
    "average": BLOCKS | {"mixer": "average_attention"},
    "hybrid_translator": BLOCKS | {"mixer": "ssru", "attention_every": 2},
    "linformer": BLOCKS | {"encoder_mixer": "linformer"},
    "bahdanau": {"recurrent": BAHDANAU},
    "fixed": {"recurrent": {}},
    "convs2s": {"convolution": {}},
}
NO_WEIGHTS = {"mamba", "rwkv", "ssru", "s4d", "fixed"}
NO_SOFTMAX = NO_WEIGHTS | {"cosine", "bahdanau", "convs2s"}
NO_TOUR = NO_SOFTMAX | {"linformer"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Untrained models, in which no tensor is at its neutral start."""
    root = tmp_path_factory.mktemp("mixers")
    pair = train_pair(TokenizerSpec(vocabulary_size=60), WORDS * 3, WORDS * 3)
    for name, options in (WRITERS | TRANSLATORS).items():
        sizes = {"width": 16, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
        if name in WRITERS:
            sizes |= {"positions": "none", **BLOCKS}
        shape = TranslatorShape.parse({**sizes, "max_length": 48, **options})
        torch.manual_seed(1)
        spec = (
            causal_lm_spec(shape, pair.target.size, 48)
            if name in WRITERS
            else translator_spec(shape, pair.source.size, pair.target.size)
        )
        model = build_model(spec)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        save_model(model, pair, root / name)
    return [root / name for name in WRITERS | TRANSLATORS]


@pytest.fixture(scope="module")
def client(models: list[Path]) -> Iterator[TestClient]:
    app = build_app(Workspace(models))
    with TestClient(app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as made:
        yield made


@pytest.fixture(params=[*WRITERS, *TRANSLATORS])
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def ask(client: TestClient, name: str) -> Callable[..., Any]:
    """Calls a page for the model, and gives the answer; the words where it says why not."""

    def asked(call: str, refused: bool = False, **settings: Any) -> Any:
        body = {"model": name, "text": TEXT, **settings}
        response = client.post(f"/api/{call}", json=body)
        content = response.json()
        assert response.status_code == (400 if refused else 200), (call, settings, content)
        if refused:
            assert content["remedy"], content
            return content["what"]
        return content

    return asked


def stacks(name: str) -> list[str]:
    return ["decoder"] if name in WRITERS else ["encoder", "decoder"]


def test_attention(ask: Callable[..., Any], name: str) -> None:
    found = ask("attention/show")
    shows = {
        "cosine": ["decoder"],
        "hybrid": ["decoder"],
        "average": ["encoder", "cross"],
        "hybrid_translator": ["encoder", "decoder", "cross"],
        "linformer": ["decoder", "cross"],
        "bahdanau": ["cross"],
        "convs2s": ["cross"],
    }.get(name, [])
    assert [part["part"] for part in found["parts"]] == shows
    why = ask("attention/overview", name in NO_WEIGHTS)
    assert name not in NO_WEIGHTS or "attention weights" in why
    why = ask("attention/neurons", name in NO_SOFTMAX)
    assert name not in NO_SOFTMAX - NO_WEIGHTS or "without a softmax" in why
    if name == "hybrid":  # of two blocks the second
        assert (found["parts"][0]["blocks"], found["address"]) == ([1], "decoder.1.self")


def test_names_of_heads(client: TestClient, name: str) -> None:
    corpus = "\n".join(["the cat sat", "a dog ran", "on the mat"])
    response = client.post("/api/attention/labels", json={"model": name, "corpus": corpus})
    if name in NO_WEIGHTS:
        assert "attention weights" in response.json()["what"]
    else:
        assert response.status_code == 200, response.json()
        assert response.json()["count"] > 0


@pytest.mark.parametrize("block", [0, 1])
def test_who_hears_whom(ask: Callable[..., Any], name: str, block: int) -> None:
    for stack in stacks(name):
        if block == 1 and (name, stack) in (("bahdanau", "decoder"), ("fixed", "decoder")):
            continue  # all layers are one block
        found = ask("attention/influence", stack=stack, block=block)
        count = len(found["pieces"])
        assert [len(row) for row in found["changes"]] == [count] * count
        assert max(map(max, found["changes"])) > 0
        assert (found["stack"], found["block"]) == (stack, block)
        if stack == "decoder":
            assert not any(found["after"][1:])
            assert all(
                value == 0 for i, row in enumerate(found["changes"]) for value in row[i + 1 :]
            )
        has_weights = {
            "cosine": True,
            "hybrid": block == 1,
            "hybrid_translator": stack == "encoder" or block == 1,
            "average": stack == "encoder",
            "linformer": stack == "decoder",
        }.get(name, False)
        assert (found["weights"] is not None) == has_weights
        assert found["about"].endswith(".")


def test_a_text_too_long_to_fall_silent_is_refused(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_influence, "LONGEST", 3)
    body = {"model": "mamba", "text": TEXT}
    response = client.post("/api/attention/influence", json=body)
    assert response.status_code == 400
    assert "can be left out one by one" in response.json()["what"]


def test_the_block_and_the_stream(ask: Callable[..., Any], name: str) -> None:
    for stack in stacks(name):
        parts = ask("block/flow", stack=stack)["parts"]
        words = " ".join(part["about"] for part in parts)
        mixer = {
            "mamba": "A state space whose decay",
            "rwkv": "an average of values that fades with time",
            "ssru": "one forget gate",
            "s4d": "A diagonal state space",
            "cosine": "times a cosine and a sine of its position",
            "average": "The average of all tokens so far",
            "linformer": "a fixed number of sums",
            "bahdanau": "Recurrent layers that decode",
            "fixed": "Recurrent layers that decode",
            "convs2s": "A convolution over neighbouring tokens",
        }.get(name, "")
        alone = {"average": "decoder", "linformer": "encoder", "bahdanau": "decoder"}.get(name)
        if stack == (alone or "decoder"):
            assert mixer in words
        stream = ask("block/stream", stack=stack)
        assert len(stream["shares"]) == len(stream["sublayers"]) + 2


def test_the_tour(ask: Callable[..., Any], name: str) -> None:
    found = ask("tour/walk", name in NO_TOUR, text="a cat")
    if name in NO_TOUR:
        assert "softmax" in found
        assert "its parts are" in found
        return
    opened = [1] if name == "hybrid" else [0, 1]
    assert (found["can_open"], found["layer"]) == (opened, opened[0])
    if name == "hybrid":
        assert "Block 1 of the decoder" in ask("tour/walk", True, text="a cat", layer=0)


def test_steps(ask: Callable[..., Any], name: str) -> None:
    found = ask("steps/follow", name in NO_SOFTMAX)
    if name == "hybrid":
        assert found["blocks"] == [1]


def test_decoding(ask: Callable[..., Any], name: str) -> None:
    chosen = ask("decoding/greedy")["chosen"][:3]
    found = ask("decoding/step", chosen=chosen)
    has_own = name in ("cosine", "hybrid", "hybrid_translator", "linformer")
    assert (found["weights"] is not None) == has_own
    assert (found["cross"] is not None) == (name in TRANSLATORS and name != "fixed")
    sizes = [each["bytes"] for each in found["kept"]]
    if name in ("hybrid", "hybrid_translator", "linformer"):
        assert sizes == sorted(sizes)
        assert len(sizes) == 1 or sizes[-1] > sizes[0]
    elif name != "convs2s":  # a state is of one size, but for the padding of a convolution
        assert len(set(sizes)) == 1
    assert sizes[-1] > 0
    ask("decoding/beam", beam=2, max_length=4)
    if name == "hybrid_translator":  # its first block has cross-attention only
        first = ask("decoding/step", chosen=chosen, layer=0)
        assert first["weights"] is None
        assert first["cross"] is not None
        assert found["layers"] == [0, 1]
    why = ask("decoding/step", True, layer=7)
    assert "no attention to show" in why


def test_other_pages(client: TestClient, ask: Callable[..., Any], name: str) -> None:
    ask("everywhere/text")
    for stack in stacks(name):
        reach = ask("paths/own", stack=stack)["reach"]
        assert all(value >= 0 for value in reach["mean"])
    if name not in TRANSLATORS:
        return
    found = ask("translate/text")
    best = found["translations"][0]
    assert bool(best["matrix"]) == (name != "fixed" and bool(best["text"]))
    assert any("one vector" in each for each in found["warnings"]) == (name == "fixed")
    words = [part for part in best["target"] if part["word"] is not None]
    assert len(words) == len(best["text"].split())
    body = {"model": name, "line": TEXT}
    assert client.post("/api/translate/alternatives", json=body).status_code == 200


def test_in_a_browser(
    models: list[Path],
    serve: Callable[[list[Path]], str],
    visit_at: Callable[[str], Visit],
    axe: str,
) -> None:
    chosen = [path for path in models if path.name in ("mamba", "fixed", "convs2s")]
    visit = visit_at(serve(chosen))
    page = visit.open(f"attention?model=mamba&text={TEXT}")
    assert "exchange information by mamba" in page.locator(".result").first.inner_text()
    assert not page.get_by_text("Names of the heads").is_visible()
    heard = page.locator("figure", has_text="What each token hears")
    assert float(visit.numbers_of(heard, 0)[1].replace("hidden", "0")) == 0
    assert not page.locator("figure", has_text="Attention weights of the same").is_visible()
    visit.check_everyone_can_use_it(axe)
    page = visit.open(f"decoding?model=fixed&text={TEXT}")
    page.get_by_text("What the model keeps from step to step").click()
    assert "recurrent decoder" in page.locator("figure", has_text="What is remembered").inner_text()
    assert "all that is known of it is one vector" in page.locator(".step").inner_text()
    assert not page.locator(".side summary", has_text="Attention that is drawn").is_visible()
    page = visit.open(f"block?model=convs2s&text={TEXT}&part=input")
    assert "it has no norms" in page.locator(".sentence").last.inner_text()
    assert "null" not in page.locator(".detail").inner_text()
    assert page.locator(".problem").count() == 0
