"""Models of records in the studio: what a page shows is what the library computes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import heedful
from heedful.apps.acting import coins, rooms
from heedful.apps.studio.app import build_app
from heedful.apps.studio.record_samples import FUTURES
from heedful.apps.studio.workspace import Workspace, WorkspaceDirectory
from heedful.cli.main import main
from heedful.inspect import load
from heedful.inspect.attention_maps import attention
from heedful.inspect.readings import read
from heedful.pretrained.catalogue import Card, models_at_hand

RECORDS = {n: m for n, m in models_at_hand().items() if m.card().task == "tokens"}
DRAWN = "digit-pixels"


def needs(name: str) -> Card:
    """The card of a model at hand; a package without it skips the test."""
    if name not in RECORDS:
        pytest.skip(f"{name} is not at hand")
    return RECORDS[name].card()


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    workspace = Workspace([each.path for each in models_at_hand().values()])
    with TestClient(build_app(workspace), base_url="http://127.0.0.1:8765") as made:
        yield made


def asked(client: TestClient, call: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/everywhere/{call}", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_sample_is_cut_completed_and_looked_into(client: TestClient, name: str) -> None:
    text = RECORDS[name].card().examples[0].text
    found = asked(client, "complete", model=name, record=text)
    fields = heedful.load(name).tokenizer
    given = fields.encode_prompt(text)
    kept = found["begun"]["kept"]
    assert [id for _, id, _ in found["begun"]["tokens"]] == given[:kept]
    assert found["vocabulary"] == fields.size
    assert [each["form"] for each in found["fields"]] == [each.write() for each in fields.fields]
    whole = found["samples"][-1]
    ids = [id for _, id, _ in whole["tokens"]]
    assert len(ids) == fields.longest - 2
    assert fields.decode_record(ids) == json.loads(whole["record"])
    assert ids == fields.encode_record(json.loads(whole["record"])).tolist()
    token = len(ids) - 1
    last = asked(client, "weights", model=name, record=whole["record"], token=token)
    assert len(last["shares"]) == len(ids)
    assert last["shares"][-1] == 0  # a token is not seen before it is written
    assert sum(last["shares"]) + last["begin"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_models_of_records_are_small_and_stand_apart(name: str) -> None:
    model = RECORDS[name]
    assert model.size < 1.2e6
    place = WorkspaceDirectory(name, model.path)
    assert place.kind() == "records"
    assert place.plain()["limits"] == list(model.card().limits)
    # The first fields of an example are a prompt of `heedful generate`.
    fields = heedful.load(name).tokenizer
    assert fields.encode_prompt(model.card().examples[-1].text)


def test_weights_are_those_of_the_head(client: TestClient) -> None:
    record = needs(DRAWN).examples[0].text
    subject = load(RECORDS[DRAWN].path)
    rows = attention(subject, read(subject, record), "decoder", layers=[1], heads=[2]).mean()
    found = asked(client, "weights", model=DRAWN, record=record, token=100, layer=1, head=2)
    np.testing.assert_allclose([found["begin"], *found["shares"]], rows[100], atol=1e-5)
    # What else could stand there: the probabilities of the place's field, its own token too.
    subject = load(RECORDS[DRAWN].path)
    fields: Any = subject.source
    ids = fields.encode_prompt(record)
    with torch.inference_mode():
        states = subject.model(torch.tensor([[fields.bos, *ids]]))
        logits = subject.model.logits(states)[0, 100]
    start = fields.starts["pixels"]
    chances = logits[start : start + fields.fields[-1].size].softmax(-1).numpy()
    best = chances.argsort()[::-1]
    told = found["candidates"]
    assert [each["label"] for each in told[:5]] == [str(code) for code in best[:5]]
    np.testing.assert_allclose([each["probability"] for each in told[:5]], chances[best[:5]], 1e-3)
    assert [each["label"] for each in told if each["own"]] == [str(ids[100] - start)]
    mean = asked(client, "weights", model=DRAWN, record=record, token=100)
    rows = attention(subject, read(subject, record), "decoder", layers=[2]).mean()
    np.testing.assert_allclose(mean["shares"], rows[100][1:], atol=1e-5)


def test_a_seed_draws_the_same_again(client: TestClient) -> None:
    body = {"model": DRAWN, "record": needs(DRAWN).examples[0].text, "keep": 150}
    one, same, other = (asked(client, "complete", **body, seed=seed) for seed in (3, 3, 4))
    assert one == same
    assert one["samples"] != other["samples"]
    assert one["samples"][0]["tokens"][:150] == other["samples"][0]["tokens"][:150]
    surest = [asked(client, "complete", **body, temperature=0, seed=seed) for seed in (3, 4)]
    assert surest[0] == surest[1]


def test_the_world_answers_in_a_room(client: TestClient) -> None:
    text = needs("room-actor").examples[0].text
    steps = asked(client, "complete", model="room-actor", record=text)["samples"]
    assert 1 <= len(steps) <= rooms.LONGEST
    room = rooms.read_room(**json.loads(text))
    for step in steps:
        record = json.loads(step["record"])
        assert record["picture"] == room.picture()
        assert step["kept"] == len(step["tokens"]) - 1
        room = room.after(record["action"])


def test_the_world_answers_among_coins(client: TestClient) -> None:
    needs("coin-player")
    place = coins.Game((2, 2)).place
    text = json.dumps({"moments": [4, place]})
    (sample,) = asked(client, "complete", model="coin-player", record=text)["samples"]
    game, left = coins.Game((2, 2)), 4
    for rest, at, action in json.loads(sample["record"])["moments"]:
        assert (rest, at) == (max(left, 0), game.place)
        if action >= coins.FIRST_ACTION:
            game, reward = game.after(action - coins.FIRST_ACTION)
            left -= reward
    assert sample["drawing"]["coins"] == len(coins.COINS) - len(game.left)


def test_a_series_has_futures(client: TestClient) -> None:
    text = needs("seasonal-series").examples[0].text
    (sample,) = asked(client, "complete", model="seasonal-series", record=text)["samples"]
    drawing = sample["drawing"]
    assert (drawing["from"], len(drawing["values"])) == (96, 120)
    assert all(low <= high for low, high in zip(drawing["low"], drawing["high"], strict=True))
    assert len(drawing["median"]) == 24
    assert FUTURES >= 40


@pytest.mark.parametrize(
    ("call", "body", "said"),
    [
        ("complete", {"model": "en-de", "record": "{}"}, "continues no records"),
        ("complete", {"model": "digits", "record": "{}"}, "continues no records"),
        ("complete", {"model": DRAWN, "record": '{"label": "x"}'}, "has no value 'x'"),
        ("complete", {"model": DRAWN, "record": '{"pixel": [1]}'}, "pixel"),
        ("complete", {"model": DRAWN, "record": "[1"}, "JSON"),
        ("complete", {"model": DRAWN, "record": "{}", "temperature": 9}, "temperature"),
        (
            "weights",
            {"model": DRAWN, "record": '{"label": "1"}', "token": 9},
            "no row with index 9",
        ),
        (
            "weights",
            {"model": DRAWN, "record": '{"label": "1"}', "token": 0, "head": 6},
            "head with index 6",
        ),
        ("complete", {"model": "room-actor", "record": '{"picture": [1]}'}, "picture"),
        ("complete", {"model": "coin-player", "record": '{"moments": [99]}'}, "99"),
        ("spoken", {"word": "tow"}, "two"),
    ],
)
def test_wrong_requests(client: TestClient, call: str, body: dict[str, Any], said: str) -> None:
    if body.get("model") in ("room-actor", "coin-player", DRAWN):
        needs(body["model"])
    answer = client.post(f"/api/everywhere/{call}", json=body)
    assert answer.status_code == 400
    assert said in answer.text


def test_a_model_of_records_at_hand_goes_on_from_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    needs(DRAWN)
    assert main(["generate", DRAWN, '{"label": "3"}', "--sampling", "--seed", "1"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["label"] == "3"
    assert np.array(record["pixels"]).shape == (14, 14)
    assert main(["models", DRAWN]) == 0
    assert f'heedful generate {DRAWN} --prompt \'{{"label":' in capsys.readouterr().out
    assert main(["info", DRAWN]) == 0
