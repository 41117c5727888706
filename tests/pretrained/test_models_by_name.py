"""Models by their names on the hub: real commands against a hub on this machine."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from heedful.apps.serve.served_models import parse_model
from heedful.pretrained.hub import HubName, source_of

from .conftest import MARIAN, Run
from .hub_server import Hub, Repository, contents

TEXT = "a dog runs .\n"


def cache(tmp_path: Path, name: str = MARIAN) -> Path:
    return tmp_path / "hf" / "hub" / f"models--{name.replace('/', '--')}"


def said(result, status: int) -> str:
    """What a command that failed for a person's reason printed."""
    assert result.returncode == status, result.stderr
    assert not result.stdout
    assert "Traceback" not in result.stderr
    assert "should not" not in result.stderr
    return result.stderr


def test_a_name_is_a_model(run: Run, hub: Hub, marian: Path, tmp_path: Path) -> None:
    expected = run("translate", str(marian), input=TEXT).stdout
    assert len(expected.split()) > 2
    assert not hub.requests
    first = run("translate", MARIAN, "--report", "report.json", input=TEXT)
    assert first.stdout == expected
    commit = hub.repositories[MARIAN].refs["main"]
    assert f"{MARIAN} is commit {commit}" in first.stderr
    report = json.loads((tmp_path / "here" / "report.json").read_text())
    assert report["commits"] == {MARIAN: commit}
    hub.requests.clear()
    offline = run("translate", MARIAN, input=TEXT, HF_HUB_OFFLINE="1")
    assert offline.stdout == expected
    assert "HF_HUB_OFFLINE is set" in offline.stderr
    assert commit in offline.stderr
    # The commit itself is in the cache, and nobody needs to be asked.
    pinned = run("score", f"{MARIAN}@{commit}", *pair(tmp_path), HF_ENDPOINT=dead())
    assert pinned.returncode == 0, pinned.stderr
    assert float(pinned.stdout) < 0
    assert "commit" not in pinned.stderr
    assert not hub.requests
    unreachable = run("translate", MARIAN, input=TEXT, HF_ENDPOINT=dead())
    assert unreachable.stdout == expected
    assert "cannot be reached" in unreachable.stderr


def pair(tmp_path: Path) -> list[str]:
    (tmp_path / "here" / "text").write_text(TEXT)
    return ["--source", "text", "--target", "text"]


def dead() -> str:
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_revisions(run: Run, hub: Hub, marian: Path) -> None:
    repository = hub.repositories[MARIAN]
    old = repository.refs["main"]
    before = load_file(marian / "model.safetensors")
    weights = save({name: tensor * 1.5 for name, tensor in before.items()}, {"format": "pt"})
    changed = contents(marian) | {"model.safetensors": weights}
    new = repository.push(changed, "main", "refs/pr/7")
    repository.refs["v1"] = old
    info = [run("info", f"{MARIAN}@{word}", "--json") for word in ("v1", "refs/pr/7")]
    origins = [json.loads(result.stdout)["origin"] for result in info]
    assert [origin["commit"] for origin in origins] == [old, new]
    assert {origin["repository"] for origin in origins} == {MARIAN}
    assert f"{MARIAN}@v1 is commit {old}" in info[0].stderr
    assert "no branch, tag or commit v2" in said(run("info", f"{MARIAN}@v2"), 2)
    unknown = "0" * 40
    assert f"commit {unknown}" in said(run("info", f"{MARIAN}@{unknown}"), 2)


def test_import_names_its_commit(run: Run, hub: Hub, t5: Path, tmp_path: Path) -> None:
    commit = hub.add("google/t5-small", t5).refs["main"]
    result = run("import", "google/t5-small", "--json")
    assert json.loads(result.stdout)["commit"] == commit
    written = tmp_path / "here" / "t5-small"
    origin = json.loads((written / "config.json").read_text())["origin"]
    assert (origin["repository"], origin["commit"]) == ("google/t5-small", commit)
    by_hand = run("import", str(t5), "by-hand")
    assert by_hand.returncode == 0, by_hand.stderr
    weights = [
        (written.with_name(n) / "model.safetensors").read_bytes() for n in ("t5-small", "by-hand")
    ]
    assert weights[0] == weights[1]
    assert "exists already" in said(run("import", "google/t5-small"), 2)
    assert "import OUT" not in said(run("import", str(t5)), 2)


def test_training_begins_with_a_commit(run: Run, hub: Hub, bert: Path, tmp_path: Path) -> None:
    commit = hub.add("bert-base-uncased", bert).refs["main"]
    text = tmp_path / "here" / "text"
    text.write_text("the dog runs on a mat .\na cat sat on the mat .\n" * 20)
    words = [
        "--task",
        "masked_lm",
        "--train",
        "text",
        "--valid",
        "text",
        "--data.batch-tokens",
        "64",
    ]
    words += [
        "--data.max-length",
        "32",
        "--validation.every-steps",
        "2",
        "--checkpoint.every-steps",
        "2",
    ]
    begun = run("train", "run", "--init", "bert-base-uncased", *words, "--max-steps", "2")
    assert begun.returncode == 0, begun.stderr
    folder = tmp_path / "here" / "run"
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["init"] == f"bert-base-uncased@{commit}"
    origin = json.loads((folder / "model" / "config.json").read_text())["origin"]
    assert origin["commit"] == commit
    # Somebody pushes another model; the run goes on with its own, and asks nobody.
    hub.repositories["bert-base-uncased"].push({"config.json": b"{}"})
    hub.requests.clear()
    resumed = run("train", "run", "--resume", "--init", "bert-base-uncased", "--max-steps", "4")
    assert resumed.returncode == 0, resumed.stderr
    assert tomllib.loads((folder / "config.toml").read_text())["init"] == config["init"]
    assert not hub.requests


PICKLES = {"config.json": b"{}", "pytorch_model.bin": b"\x80", "tf_model.h5": b"h5"}


@pytest.mark.parametrize(
    ("word", "repository", "variables", "status", "message"),
    [
        ("nobody/nothing", None, {}, 2, "No such model directory here, and no model of this name"),
        ("nothing", None, {}, 2, "no model of this name on the hub .* take a model at hand"),
        ("en-dee", None, {}, 2, "did you mean the model at hand en-de"),
        ("run/en-dee", None, {}, 2, r"Check the path \(there is run/en-de\)"),
        ("a/b", {"error": (403, "GatedRepo")}, {}, 2, "accept conditions.* `hf auth login`"),
        ("a/b", {"error": (404, "RepoNotFound")}, {}, 2, "no model of this name"),
        ("a/b", {"error": (403, "")}, {}, 2, r"refuses access \(403\)"),
        ("a/b", {"error": (418, "")}, {}, 1, "answers with an error: .*418"),
        ("a/b", {"error": (503, "")}, {}, 2, "cannot be reached .*503"),
        ("a/b", PICKLES, {}, 2, "weights are pytorch_model.bin, tf_model.h5.*a/b@refs/pr/NUMBER"),
        ("a/b", {"config.json": b"{}"}, {}, 2, "nor other weights"),
        ("a/b", {"model.safetensors": b"x" * 40}, {}, 2, "config.json"),
        ("a/b", None, {"HF_HUB_OFFLINE": "1"}, 2, "nor a whole copy .* HF_HUB_OFFLINE is set"),
        ("a/b", None, {"HF_ENDPOINT": "http://127.0.0.1:9"}, 2, "127.0.0.1:9 cannot be reached"),
        ("a/b", None, {"HF_ENDPOINT": "nonsense"}, 2, "nonsense"),
        (MARIAN, None, {"HF_HUB_CACHE": "run/file"}, 1, "stored: .*HF_HUB_CACHE"),
    ],
)
def test_refusals(
    run: Run, hub: Hub, tmp_path, word, repository, variables, status, message
) -> None:
    (tmp_path / "here" / "run" / "en-de").mkdir(parents=True)
    (tmp_path / "here" / "run" / "file").touch()
    if repository is not None:
        is_fault = "error" in repository
        hub.repositories[word] = Repository(**(repository if is_fault else {}))
        if not is_fault:
            hub.repositories[word].push(repository)
    result = run("info", word, **variables)
    assert re.search(message, said(result, status)), result.stderr
    assert word in result.stderr
    assert not list(tmp_path.glob("hf/**/*.bin"))


def test_a_download_that_breaks_off(run: Run, hub: Hub, tmp_path: Path) -> None:
    hub.repositories[MARIAN].cut = "model.safetensors"
    broken = said(run("translate", MARIAN, input=TEXT), 1)
    assert "did not come whole" in broken
    assert "Try again" in broken
    assert "nor a whole copy" in said(run("translate", MARIAN, HF_HUB_OFFLINE="1"), 2)
    hub.repositories[MARIAN].cut = ""
    assert run("translate", MARIAN, input=TEXT).stdout.strip()


def test_bytes_that_changed_on_the_way(run: Run, hub: Hub) -> None:
    hub.repositories[MARIAN].swapped = "model.safetensors"
    assert "SHA-256" in said(run("translate", MARIAN, input=TEXT), 2)


def test_a_full_disk(run: Run, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    message = said(run("translate", MARIAN, input=TEXT, preparation=limit), 1)
    assert "There is no room" in message
    assert "HF_HUB_CACHE" in message


def test_only_files_of_models_are_fetched(run: Run, hub: Hub, bert: Path, tmp_path: Path) -> None:
    evil = b"raise SystemExit('executed')"
    config = json.loads((bert / "config.json").read_text())
    config |= {"auto_map": {"AutoModel": "modeling_evil.Evil"}, "trust_remote_code": True}
    names = ("modeling_evil.py", "pytorch_model.bin", "../../evil.json", "/evil/config.json")
    names += ("onnx/model.safetensors", "target_tokenizer/../../evil.json", ".git/config", "a.pkl")
    files = (
        contents(bert) | dict.fromkeys(names, evil) | {"config.json": json.dumps(config).encode()}
    )
    commit = hub.add("evil/bert").push(files)
    result = run("fill", "evil/bert", "the [MASK] sat")
    assert "executed" not in result.stderr
    got = contents(cache(tmp_path, "evil/bert") / "snapshots" / commit)
    assert got.keys() == contents(bert).keys()
    assert not list(tmp_path.rglob("*evil.*"))
    assert not any("evil." in request or ".bin" in request for request in hub.requests)


def test_a_server_that_names_files_elsewhere(run: Run, hub: Hub, tmp_path: Path) -> None:
    hub.repositories[MARIAN].tag_of_file["vocab.json"] = "../../../../escaped"
    assert "outside the hub's cache" in said(run("info", MARIAN), 2)
    assert not list(tmp_path.rglob("escaped*"))


def test_a_link_that_leads_elsewhere(run: Run, hub: Hub, bert: Path, tmp_path: Path) -> None:
    commit = hub.repositories[MARIAN].refs["main"]
    snapshot = cache(tmp_path) / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(bert / "model.safetensors")
    word = f"{MARIAN}@{commit}"
    assert "outside the hub's cache" in said(run("info", word, HF_HUB_OFFLINE="1"), 2)


def test_what_is_on_the_disk_comes_first(run: Run, hub: Hub, marian: Path, tmp_path: Path) -> None:
    local = tmp_path / "here" / MARIAN
    local.parent.mkdir()
    local.symlink_to(marian)
    assert run("translate", MARIAN, input=TEXT).stdout.strip()
    assert not hub.requests


def test_without_the_library(run: Run, tmp_path: Path) -> None:
    (tmp_path / "huggingface_hub.py").write_text("raise ImportError")
    paths = f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"
    message = said(run("translate", "a/b", PYTHONPATH=paths), 2)
    assert "No such model directory here" in message
    assert "pip install 'heedful[hub]'" in message


def test_a_shortlist_is_not_written_into_the_cache(run: Run, tmp_path: Path) -> None:
    assert "--output FILE" in said(run("shortlist", MARIAN, *pair(tmp_path)), 2)
    assert not list(tmp_path.rglob("shortlist*"))


def test_a_server_knows_a_model_by_its_name(marian: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Helsinki-NLP--opus-mt-en-de" / "snapshots" / ("ab" * 20)
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(marian)
    assert source_of(snapshot) == {"repository": MARIAN, "commit": "ab" * 20}
    served = parse_model(str(snapshot))
    assert (served.name, served.source, served.target) == ("opus-mt-en-de", "en", "de")


@given(st.from_regex(r"[\w./@~-]{1,30}", fullmatch=True))
def test_names_are_no_way_out_of_the_cache(word: str) -> None:
    name = HubName.parse(word)
    if name is None:
        return
    parts = f"{name.repository}/{name.revision or 'main'}".split("/")
    assert all(part not in ("", ".", "..") for part in parts[:-1])
    assert ".." not in word
    assert len(name.repository.split("/")) <= 2


@pytest.mark.parametrize(
    "word",
    [
        "/a/b",
        "../b",
        "a/b/c",
        "a//b",
        "a/",
        "a/b@",
        "~/b",
        "a b",
        ".a/b",
        "a/..",
        "a--b/c",
        "a\\b",
        "",
    ],
)
def test_paths_that_are_no_names(word: str) -> None:
    assert HubName.parse(word) is None


def test_parts_of_names() -> None:
    assert HubName.parse(Path("a/b@refs/pr/1")) == HubName("a/b", "refs/pr/1")
    assert HubName.parse("bert-base-uncased") == HubName("bert-base-uncased")
