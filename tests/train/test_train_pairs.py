"""An Evoformer's blocks through the trainer: pairs of short chains as tagged sentences."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.data.text_corpus import TaggedReader
from heedful.errors import ConfigError, DataError, UserError
from heedful.events import Events
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings

from .conftest import short_run

SIDE = 4
SHAPE = {
    "width": 16,
    "num_heads": 2,
    "encoder_layers": 1,
    "feedforward": 32,
    "positions": "learned",
    "evoformer": {"side": SIDE},
}


def write_graphs(path: Path, seed: int, count: int, side: int = SIDE) -> str:
    """Graphs whose edges i → j are words, tagged by whether a third node k has i → k → j."""
    draw, lines = random.Random(seed), []
    for _ in range(count):
        edges = [[draw.random() < 0.4 for _ in range(side)] for _ in range(side)]
        pairs = list(itertools.product(range(side), repeat=2))
        tags = [any(edges[i][k] and edges[k][j] for k in range(side)) for i, j in pairs]
        row = {
            "tokens": ["edge" if edges[i][j] else "none" for i, j in pairs],
            "tags": ["path" if tag else "cut" for tag in tags],
        }
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))
    return str(path)


def settings(train: str, valid: str, task: Any = "tag", **changes: Any) -> RunSettings:
    data = {"train": [{"file": train}], "valid": [{"file": valid}], "max_length": SIDE**2 + 2}
    data["batch_tokens"] = 1024
    return short_run(task, SHAPE | changes.pop("model", {}), data, changes)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("graphs")
    return write_graphs(folder / "g.jsonl", 1, 800), write_graphs(folder / "v.jsonl", 2, 60)


@pytest.fixture(scope="module")
def run(files: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    schedule = {"warmup_steps": 20, "peak_learning_rate": 0.02, "kind": "cosine"}
    changes = {"max_steps": 80, "schedule": schedule, "model": {"dropout": 0.0}}
    run_training(folder, settings(*files, **changes), events=Events([]))
    return folder


def test_an_edge_learns_from_the_other_two_of_its_triangles(
    run: Path, files: tuple[str, str]
) -> None:
    tagger = heedful.load(run)
    graphs = [json.loads(line) for line in Path(files[1]).read_text().splitlines()]
    found = tagger.tag([graph["tokens"] for graph in graphs])
    pairs = [
        (tagged.label, tag)
        for row, graph in zip(found, graphs, strict=True)
        for tagged, tag in zip(row, graph["tags"], strict=True)
    ]
    # The more frequent tag alone is right in about half.
    assert sum(label == tag for label, tag in pairs) > 0.9 * len(pairs)


def test_texts_of_another_size_are_named_with_a_remedy(
    run: Path, files: tuple[str, str], tmp_path: Path
) -> None:
    tagger = heedful.load(run)
    with pytest.raises(DataError, match=r"line 2: .*16 pairs .* 4 residues, .* 9 tokens.*side = 3"):
        tagger.tag(["edge " * 16, "edge " * 9])
    with pytest.raises(DataError, match=r"16 pairs .* has 17 tokens"):
        tagger.tag(["edge " * 17])
    small = write_graphs(tmp_path / "small.jsonl", 3, 3, side=3)
    with pytest.raises(DataError, match=r"small.jsonl:1: .* 16 pairs .* has 9 tokens"):
        run_training(tmp_path / "run", settings(files[0], small), events=Events([]))
    # A run that begins with the model reads the model's chains, whatever its settings leave out.
    begun = settings(small, small, init=str(run / "model"))
    without = begun.model_copy(update={"model": begun.model.model_copy(update={"evoformer": None})})
    with pytest.raises(DataError, match=r"small.jsonl:1: .* 16 pairs .* has 9 tokens"):
        run_training(tmp_path / "begun", without, events=Events([]))


@pytest.mark.parametrize(
    ("task", "changes", "reason"),
    [
        ("tag", {"model": {"positions": "rotary"}}, "known by self-attention only"),
        ("tag", {"model": {"window": 3}}, "window is of blocks of attention; the model's are an"),
        ("tag", {"model": {"recurrent": {}}}, "recurrent layers and an Evoformer's"),
        ("tag", {"model": {"evoformer": {}}}, "evoformer.side"),
        ("tag", {"model": {"evoformer": {"side": 5}}}, r"25 pairs, and 18 tokens hold 16 .* 27"),
        ("tag", {"model": {"num_heads": 3}}, "width 16 is not a multiple of num_heads 3"),
        (
            "tag",
            {"model": {"evoformer": None, "encoder_mixer": "triangle_attention"}},
            r"one of the four mixers .* model\.evoformer\.side",
        ),
        ("masked_lm", {}, r"evoformer.*masked_lm|masked_lm.*evoformer"),
    ],
)
def test_options_that_contradict_it_are_refused_with_the_reason(
    task: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    side = changes.get("model", {}).get("evoformer") or {"side": SIDE}
    file = write_graphs(tmp_path / "g.jsonl", 1, 40, side.get("side", SIDE))
    with pytest.raises(UserError, match=reason):
        run_training(tmp_path / "run", settings(file, file, task, **changes), events=Events([]))


def test_another_side_than_that_of_the_initial_model_is_refused(
    run: Path, files: tuple[str, str], tmp_path: Path
) -> None:
    changes = {"init": str(run / "model"), "model": {"evoformer": {"side": 5}}}
    with pytest.raises(ConfigError, match=r"evoformer.side is 5, and the model's 4"):
        run_training(tmp_path / "run", settings(*files, **changes), events=Events([]))


def test_the_guide_draws_chains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/beyond-text.md").read_text("utf-8")
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", guide, re.S) if "chains.jsonl" in c]
    (command,) = [c for c in re.findall(r"```bash\n(.*?)```", guide, re.S) if "evoformer" in c]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    for file in re.findall(r"\w+\.jsonl", command):
        for chain in TaggedReader(Path(file)):
            assert len(chain.words) == 8**2
            assert [chain.tags[9 * residue] for residue in range(8)] == ["0"] * 8
    assert "--model.evoformer.side 8" in command
