"""The speed benchmarks, without peers: their flags, their arithmetic and what they write."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
SPEED = ROOT / "benchmarks" / "speed"
PROGRAMS = (
    "characters",
    "checkpointing",
    "environments",
    "first_layers",
    "generating",
    "gpt2",
    "gpu",
    "kernels",
    "long_attention",
    "mixers",
    "peers_cli",
    "profile_update",
    "run_all",
    "sparse_attention",
    "startup",
    "text_on_processors",
    "training",
    "translating",
    "versions",
)


def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    environment.pop("HEEDFUL_DATA", None)
    command = [sys.executable, str(SPEED / f"{name}.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"speed_{name}", SPEED / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


turns = load("turns")
harness = load("harness")


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Runs a program in this process, which saves the start of one."""
    monkeypatch.syspath_prepend(str(SPEED))

    def run_it(name, *words, worker=None):
        module = load(name)
        if worker is not None:
            monkeypatch.setattr(module, "Worker", worker)
        monkeypatch.setattr(sys, "argv", [str(SPEED / f"{name}.py"), *words])
        capsys.readouterr()
        module.main()
        return capsys.readouterr()

    return run_it


def test_all_programs_are_listed():
    shared = {"corpus", "harness", "turns"}
    assert {path.stem for path in SPEED.glob("*.py")} == {*PROGRAMS, *shared}


@pytest.mark.parametrize("name", ["training", "peers_cli"])
def test_without_data_a_program_is_skipped(name):
    done = run(name, *(["base"] if name == "training" else []))
    assert (done.returncode, done.stdout) == (0, "")
    assert "--data or HEEDFUL_DATA" in done.stderr


def test_a_wrong_flag_is_refused():
    done = run("startup", "--roundz", "3")
    assert done.returncode == 2
    assert "--roundz" in done.stderr


def test_every_kernel_is_still_measured(tmp_path, run_here):
    words = ["--quick", "--seconds", "0.0001", "--threads", "1"]
    done = run_here("kernels", *words, "--work", str(tmp_path), "--results", str(tmp_path))
    assert "best tokens" in done.out


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speed")
    words = ["--quick", "--rounds", "3", "--only", "matmul fp32", "--threads", "1"]
    done = run("kernels", *words, "--work", str(folder), "--results", str(folder / "results"))
    assert done.returncode == 0, done.stderr
    return done, folder / "results" / "speed-kernels"


def test_the_last_line_is_the_result_that_was_written(kernels):
    done, folder = kernels
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert result["command"].startswith("python benchmarks/speed/kernels.py --quick")
    assert str(folder.parent) not in json.dumps(result)
    assert {"processor", "cores", "torch", "threads", "load"} <= result["machine"].keys()


def test_the_table_has_a_line_for_every_row(kernels):
    done, folder = kernels
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    table = (folder / "table.txt").read_text(encoding="utf-8")
    assert done.stdout.startswith(table)
    names = [line.split("  ")[0] for line in table.splitlines()[1:]]
    assert names == [row["work"] for row in rows]
    assert {row["unit"] for row in rows} == {"GFLOP/s"}


def test_every_run_stands_in_the_result(kernels):
    for row in json.loads(kernels[0].stdout.splitlines()[-1])["rows"]:
        runs = row["ours"]["runs"]
        assert len(runs) == 3
        assert row["ours"]["median"] == pytest.approx(statistics.median(runs), rel=1e-4)
        assert (row["ours"]["lowest"], row["ours"]["highest"]) == (min(runs), max(runs))


def test_all_take_turns_and_each_round_begins_with_another():
    seen: list[str] = []

    def turn(name):
        return lambda number: seen.append(f"{name}{number}") or len(seen)

    figures = turns.alternate({n: turn(n) for n in "abc"}, 3, lambda _: None, settle=0.0)
    assert seen == ["a0", "b0", "c0", "b1", "c1", "a1", "c2", "a2", "b2"]
    assert figures == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=1, max_size=9))
def test_a_ratio_is_that_of_the_rounds(pairs):
    ours, theirs = zip(*pairs, strict=True)
    found = turns.ratio(ours, theirs)
    ratios = sorted(a / b for a, b in pairs)
    assert found["lowest"] == pytest.approx(ratios[0], rel=1e-4)
    assert found["highest"] == pytest.approx(ratios[-1], rel=1e-4)
    assert found["median"] == pytest.approx(statistics.median(ratios), rel=1e-4)


def test_a_worker_answers_and_refuses(tmp_path):
    log = tmp_path / "worker.log"
    worker = turns.Worker("attention_case.py", log, threads=1)
    try:
        case = {"length": 64, "window": 8, "repeats": 1}
        found = worker.ask("case", **case, kernel="chunked")
        assert found["memory_mb"] >= 0
        assert len(found["seconds"]) == 1
        with pytest.raises(turns.WorkerError, match="nonsense"):
            worker.ask("case", **case, kernel="nonsense")
        assert worker.ask("case", **case, kernel="matmul")["seconds"]
        worker.process.kill()
        with pytest.raises(turns.WorkerError, match="ended"):
            worker.ask("case")
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (("exact", "fast"), ["fast / ctranslate2 int8", "exact / ctranslate2 float32"]),
        (("fast",), ["fast / ctranslate2 int8"]),
    ],
)
def test_float32_is_compared_with_float32_if_it_was_asked_for(monkeypatch, names, pairs):
    monkeypatch.syspath_prepend(str(SPEED))
    translating = load("translating")
    engines = {f"heedful {name}": SimpleNamespace(speed=name) for name in names}
    contest = SimpleNamespace(engines=engines, arguments=SimpleNamespace(label="base"))
    figures = {name: [2.0 if name.endswith("fast") else 1.0] for name in engines}
    figures |= {"ctranslate2 int8": [1.0], "ctranslate2 float32": [1.0]}
    rows = translating.rows_of(contest, SimpleNamespace(name="beam"), figures)
    assert [row["work"] for row in rows] == [f"base, beam: heedful {pair}" for pair in pairs]


def test_limits_and_ratios_are_shown():
    row = {
        "work": "training",
        "unit": "tokens/s",
        "ours": turns.summary([1800.0, 2000.0, 2200.0]),
        "theirs": turns.summary([1000.0, 1000.0, 1000.0]),
        "ratio": turns.ratio([1800.0, 2000.0, 2200.0], [1000.0] * 3),
        "least": 1.8,
        "aim": 2.3,
    }
    heads, line = harness.format_table([row]).splitlines()
    assert heads.split()[-3:] == ["at", "least", "aim"]
    shown = "training tokens/s 2,000 (20 %) 1,000 (0 %) 2.00 1.80-2.20 1.8 2.3"
    assert " ".join(line.split()) == shown


def test_checkpointing_at_equal_losses(tmp_path, run_here):
    words = ["--quick", "--threads", "1", "--only", "dropout", "--precision", "fp32"]
    done = run_here("checkpointing", *words, "--work", str(tmp_path), "--results", str(tmp_path))
    (case,) = json.loads(done.out.splitlines()[-1])["cases"].values()
    assert case["none"]["loss"] == case["selective"]["loss"] == case["full"]["loss"]
    assert all(mode["foreseen_mb"] > 0 and mode["peak_mb"] > 0 for mode in case.values())


@pytest.fixture(scope="module")
def pairs_of_words(tmp_path_factory):
    """A folder with a corpus in the place of Multi30k."""
    folder = tmp_path_factory.mktemp("data")
    raw = folder / "multi30k" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 400), ("test_2016_flickr", 4)):
        for language, word in (("en", "dog"), ("de", "Hund")):
            lines = "".join(f"{word} {n} {word}{n % 7} a{n}\n" for n in range(count))
            with gzip.open(raw / f"{part}.{language}.gz", "wt", encoding="utf-8") as file:
                file.write(lines)
    return folder


def test_runs_of_two_settings_take_turns_over_epochs(pairs_of_words, tmp_path, run_here):
    words = ["tiny", "--data", str(pairs_of_words), "--quick", "--no-peers", "--threads", "1"]
    words += ["--precisions", "fp32", "--set", "data.packed_length=128", "--set", "compile=off"]
    words += ["--set", "data.max_length=64", "--beside", "compile=off", "--work", str(tmp_path)]
    done = run_here("training", *words, "--block", "40")  # an epoch has 17 batches
    result = json.loads(done.out.splitlines()[-1])
    packed, padded = result["contestants"]["heedful fp32"], result["contestants"]["beside fp32"]
    assert len(packed["update_milliseconds"]) == len(padded["update_milliseconds"]) == 1
    assert packed["compile_seconds"] == padded["compile_seconds"] == 0
    first, second, third = result["rows"]
    assert second["work"] == "training tiny, fp32 / compile=off"
    assert second["ours"] == first["ours"]
    assert second["ratio"]["median"] == pytest.approx(
        second["ours"]["median"] / second["theirs"]["median"], rel=1e-3
    )
    assert third["unit"] == "%"


@pytest.fixture
def envs(tmp_path):
    """Environments of which that of Hugging Face is this one."""
    names = ["torch", "transformers"]
    recipes = tomllib.loads((SPEED / "peers.toml").read_text(encoding="utf-8"))
    digest = hashlib.sha256(json.dumps(recipes["huggingface"]).encode()).hexdigest()
    python = tmp_path / "envs" / "huggingface" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    ready = {"recipe": digest, "versions": {name: version(name) for name in names}}
    (python.parents[1] / "ready.json").write_text(json.dumps(ready))
    return tmp_path / "envs"


def test_prompts_are_continued_beside_hugging_face(tmp_path, envs, run_here):
    words = ["--device", "cpu", "--quick", "--threads", "1", "--work", str(tmp_path)]
    done = run_here("generating", *words, "--envs", str(envs))
    result = json.loads(done.out.splitlines()[-1])
    assert [row["work"] for row in result["rows"]] == [
        f"batch {batch}: heedful bf16 / huggingface bf16{cache}"
        for batch in (1, 3)
        for cache in ("", ", static cache")
    ]
    # The weights are the same: greedy continuations differ by rounding alone.
    assert result["identical_percent"]["batch 1"]["huggingface bf16"] == 100
    assert result["contestants"]["heedful bf16"]["parameters"] > 0


@pytest.mark.parametrize("part", ["beside", "drafts", "prefixes"])
def test_text_is_written_on_processors(tmp_path, run_here, part):
    words = [part, "--quick", "--threads", "1", "--work", str(tmp_path)]
    result = json.loads(run_here("text_on_processors", *words).out.splitlines()[-1])
    assert all(row["ratio"]["median"] > 0 for row in result["rows"])
    if part == "beside":
        # The weights are the same.
        assert result["equal_tokens"]["writing"]["huggingface fp32"] == 1
    if part == "drafts":
        found = result["drafts"]["12 layers by 1, factor 0: draft"]
        assert found == {"accepted_share": 1.0, "equal_texts": "2 of 2"}


def test_a_given_pair_writes_what_the_larger_one_writes(tmp_path, run_here):
    run_here("first_layers", "english", str(tmp_path / "first"))
    (tmp_path / "prompts.txt").write_text("The cat\nI went to\n")
    words = ["--pair", "english", str(tmp_path / "first"), "--prompts"]
    words += [str(tmp_path / "prompts.txt"), "--quick", "--threads", "1", "--work", str(tmp_path)]
    result = json.loads(run_here("text_on_processors", "drafts", *words).out.splitlines()[-1])
    assert result["benchmark"] == "speed-text-drafts-pair"
    assert set(result["drafts"]) == {"given pair: draft", "given pair: lookup"}
    assert all(each["equal_texts"] == "2 of 2" for each in result["drafts"].values())


def test_what_a_gpu_is_to_run_runs_here(pairs_of_words, tmp_path):
    words = ["--data", str(pairs_of_words), "--device", "cpu", "--small", "--no-peers"]
    words += ["--only", "gpt2", "translate", "generate", "--work", str(tmp_path), "--threads", "1"]
    done = run("gpu", *words)
    assert done.returncode == 0, done.stderr
    results = {path.name for path in (tmp_path / "results").iterdir()}
    assert results == {
        "speed-gpu-cpu",
        "speed-gpt2-cpu",
        "speed-translating-tiny",
        "speed-generating-cpu",
    }
    parts = [line.split(":")[0] for line in done.stdout.splitlines()[1:] if line]
    assert list(dict.fromkeys(parts)) == ["gpt2", "translate", "generate"]
    assert done.stdout.count("seconds to begin") >= 3
    assert " met" not in done.stdout.splitlines()[0]  # figures of small models mean nothing


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """The module and a folder in which it finds its programs."""
    monkeypatch.syspath_prepend(str(SPEED))
    module = load("gpu")
    monkeypatch.setattr(module, "HERE", tmp_path)
    return module, tmp_path


def table_of(gpu, monkeypatch, capsys, *words):
    """What the module prints and its exit status."""
    module, folder = gpu
    flags = ["--data", str(folder), "--device", "cpu", "--work", str(folder)]
    flags += ["--results", str(folder / "results"), *words]
    monkeypatch.setattr(sys, "argv", [str(SPEED / "gpu.py"), *flags])
    with pytest.raises(SystemExit) as ended:
        module.main()
    return capsys.readouterr().out, ended.value.code


WRITES = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--results") + 1]) / "speed-generating-cpu"
folder.mkdir(parents=True)
figure = {"median": 3.0, "lowest": 3.0, "highest": 3.0, "spread_percent": 0.0}
row = {"unit": "tokens/s", "ours": figure, "theirs": figure, "ratio": figure}
row["work"] = "batch 1: heedful bf16 / huggingface bf16, static cache, compiled"
facts = {"heedful bf16": {"warm_up_seconds": 2.5, "gpu_memory_mb": 400}}
(folder / "result.json").write_text(json.dumps({"rows": [row], "contestants": facts}))
"""


def test_a_part_that_fails_stops_no_other(gpu, monkeypatch, capsys):
    (gpu[1] / "gpt2.py").write_text("raise MemoryError('no room')")
    (gpu[1] / "generating.py").write_text(WRITES)
    table, status = table_of(gpu, monkeypatch, capsys, "--only", "gpt2", "generate")
    assert status == 1
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert lines[0].endswith("ratio lowest-highest asked met")
    assert lines[1] == "gpt2: failed: exit status 1: MemoryError: no room"
    assert lines[2].endswith("compiled tokens/s 3 (0 %) 3 (0 %) 3.00 3.00-3.00 >= 1.5 yes")
    assert lines[3:5] == [
        "generate: heedful bf16: seconds to begin s 2.5 (0 %)",
        "generate: heedful bf16: peak memory of the GPU MB 400 (0 %)",
    ]
    assert [line.partition(" minutes ")[2] for line in lines[-2:]] == [
        f"({gpu[0].PARTS['gpt2'].minutes} on an H100); 1 failed",
        f"({gpu[0].PARTS['generate'].minutes} on an H100)",
    ]


def test_a_part_that_takes_too_long_is_ended_with_its_workers(gpu, monkeypatch, capsys):
    script = "import os, pathlib, subprocess, sys, time\n"
    script += "child = subprocess.Popen(['sleep', '600'], stderr=subprocess.DEVNULL)\n"
    script += "pathlib.Path(__file__).with_name('child').write_text(str(child.pid))\n"
    script += "time.sleep(600)\n"
    (gpu[1] / "gpt2.py").write_text(script)
    words = ("--only", "gpt2", "--minutes", "0.05")
    table, status = table_of(gpu, monkeypatch, capsys, *words)
    assert status == 1
    assert "gpt2: failed: it took longer than it may" in table
    child = Path("/proc") / (gpu[1] / "child").read_text() / "stat"
    ends = time.monotonic() + 10
    while child.exists() and " Z " not in child.read_text() and time.monotonic() < ends:
        time.sleep(0.05)
    assert not child.exists() or " Z " in child.read_text()


def test_a_result_of_before_is_not_taken_for_one_of_now(gpu, monkeypatch, capsys):
    before = gpu[1] / "results" / "speed-gpt2-cpu" / "result.json"
    before.parent.mkdir(parents=True)
    before.write_text('{"rows": []}')
    os.utime(before, (1, 1))
    (gpu[1] / "gpt2.py").write_text("import sys; print('skipped: no GPU', file=sys.stderr)")
    table, status = table_of(gpu, monkeypatch, capsys, "--only", "gpt2")
    assert status == 1
    assert "gpt2: failed: it left no result: skipped: no GPU" in table


@pytest.mark.parametrize(
    ("part", "work", "values", "verdict"),
    [
        ("gpt2", "heedful compiled / nanoGPT", {"ratio": 1.0}, (">= 1, aim 1.15", "yes")),
        ("gpt2", "heedful compiled, full checkpointing / nanoGPT", {"ratio": 1.0}, None),
        ("gpt2", "heedful compiled: seconds to begin", {"ours": 15.1}, ("<= 15", "no")),
        ("train", "compiled: training big, bf16", {"ratio": 1.19}, (">= 1.2", "no")),
        ("train", "eager: training big, bf16", {"ours": 1e5}, (">= 1.3", "?")),
        ("train", "eager: heedful bf16: share of the bf16 matmul rate", {"ours": 50}, None),
        ("packed", "packed: training big, bf16 / compile=on", {"ratio": 1.1}, (">= 1", "yes")),
        ("packed", "packed: training big, bf16", {"ours": 1e5}, None),
        ("tiny", "tiny: heedful bf16: an update", {"ours": 9.0}, (">= 5 x before", "?")),
        (
            "translate",
            "one at a time, beam 5: a / huggingface",
            {"ratio": 5},
            (">= 5", "yes"),
        ),
    ],
)
def test_what_is_asked_of_a_row(gpu, part, work, values, verdict):
    row = {key: {"median": value} for key, value in values.items()}
    found = [asked for asked in gpu[0].ASKED if asked.is_about(part, work)]
    assert [(each.describe(), each.verdict(row)) for each in found] == [verdict] * bool(verdict)


@pytest.mark.parametrize("small", [False, True])
def test_programs_of_the_parts_know_their_flags(monkeypatch, gpu, run_here, capsys, small):
    module, folder = gpu
    arguments = SimpleNamespace(
        quick=small, device="cuda", data=folder, nanogpt=folder, batch_tokens=9
    )
    known: dict[str, str] = {}
    for program in (each for part in module.PARTS for each in module.programs(part, arguments)):
        script = program.words[0].removesuffix(".py")
        if script not in known:
            with pytest.raises(SystemExit):
                run_here(script, "--help")
            known[script] = capsys.readouterr().out
        flags = {word.split("=")[0] for word in program.words if word.startswith("--")}
        assert all(f"{flag} " in known[script] for flag in flags), (script, flags)


def test_a_language_model_beside_the_recipe_of_nanogpt(tmp_path, run_here):
    words = ["--device", "cpu", "--quick", "--threads", "1", "--work", str(tmp_path)]
    done = run_here("gpt2", *words, "--results", str(tmp_path / "results"))
    result = json.loads(done.out.splitlines()[-1])
    ours, peer = result["contestants"].values()
    assert ours["parameters"] == pytest.approx(peer["parameters"], rel=0.01)  # norms have biases
    first, second, _ = result["rows"]
    assert first["ours"]["median"] / first["theirs"]["median"] == pytest.approx(
        first["ratio"]["median"], rel=1e-3
    )
    assert second["unit"] == "%"


def test_the_cost_curve_of_mixers(tmp_path, run_here):
    words = ("--quick", "--width", "32", "--heads", "2", "--threads", "1", "--only")
    started, closed = [], []
    process = turns.Worker("mixer_case.py", tmp_path / "worker.log", threads=1)

    def worker(script, log, threads=2):
        """One process for all: each takes two seconds to start."""
        started.append(script)
        return SimpleNamespace(ask=process.ask, close=lambda: closed.append(script))

    def measured(names):
        done = run_here("mixers", *words, names, "--work", str(tmp_path), worker=worker)
        return json.loads(done.out.splitlines()[-1])["curves"]["with gradients"]

    try:
        done = run_here(
            "mixers", *words, "attention,linear_attention", "--work", str(tmp_path), worker=worker
        )
        assert (
            started == closed == ["mixer_case.py"] * (1 + 2 * 2 * 2)
        )  # names; mixer, length, pass
        before = json.loads(done.out.splitlines()[-1])["curves"]["with gradients"]
        again = measured("linear_attention")
    finally:
        process.close()
    assert again["attention"] == before["attention"]
    assert again["linear_attention"] != before["linear_attention"]
    result = json.loads(done.out.splitlines()[-1])
    assert set(result["curves"]["forward"]) == {"attention", "linear_attention"}
    found = result["curves"]["with gradients"]["linear_attention"]["256"]
    assert found["parameters"] == 4 * (32 * 32 + 32)
    assert found["causal"]
    assert len(found["seconds"]) == 1
    folder = tmp_path / "results" / "speed-mixers"
    table = (folder / "table.md").read_text(encoding="utf-8")
    assert [line.split(" | ")[0] for line in table.splitlines() if "attention" in line] == [
        *["| mixer", "| attention", "| linear attention"] * 2
    ]
    assert all((folder / f"{value}.svg").stat().st_size for value in ("seconds", "memory_mb"))


def test_exponents_and_crossings_of_curves():
    mixers = load("mixers")

    def curve(power, factor=1.0):
        lengths = (512, 1024, 2048, 4096)
        return {n: {"seconds": [factor * n**power], "memory_mb": n} for n in lengths}

    assert mixers.exponent(curve(2), "seconds") == 2.0
    assert mixers.exponent(curve(2), "memory_mb") == 1.0
    assert mixers.overtakes(curve(1, 1500), curve(2)) == 2048
    assert mixers.overtakes(curve(1, 9000), curve(2)) is None
