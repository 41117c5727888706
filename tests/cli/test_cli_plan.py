"""`heedful plan`: its figures agree with each other, and people's mistakes are explained."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from heedful.cli.training_plan import read_count
from heedful.errors import ConfigError

ROOT = Path(__file__).parents[2]


def planned(run, *words: object) -> dict[str, Any]:
    done = run("plan", *words, "--json")
    assert done.status == 0, done.err
    return json.loads(done.lines[0])


def test_the_figures_agree_with_each_other(run) -> None:
    words = ("--devices", "8xA100", "--hosts", 4, "--batch-tokens", "1M", "--tokens", "10B")
    answer = planned(run, "gpt2-xl", *words, "--price", "2.5", "--all")
    chosen = answer["chosen"]
    assert answer["plans_in_all"] == len(answer["plans"]) > 10
    for plan in answer["plans"]:
        assert plan["data"] * plan["shard"] * plan["tensor"] * plan["context"] == 32
        memory = dict(plan["memory_bytes"])
        assert memory.pop("needed") == sum(memory.values())
        assert plan["tokens_per_second"] == pytest.approx(1e6 / plan["seconds_per_update"])
        assert plan["days"] == pytest.approx(10e9 / plan["tokens_per_second"] / 86400)
        assert plan["money"] == pytest.approx(plan["days"] * 24 * 32 * 2.5)
        busy = sum(plan["compute_seconds"].values())
        waiting = sum(each["shown"] for each in plan["messages"])
        assert plan["seconds_per_update"] == pytest.approx(busy + waiting)
        rate = answer["operations"]["training_per_token"] * plan["tokens_per_second"]
        assert plan["utilization"] == pytest.approx(rate / (32 * 312e12), rel=1e-6)
        if plan["fits"]:
            assert plan["seconds_per_update"] >= 0.95 * chosen["seconds_per_update"]
    assert chosen in answer["plans"]
    assert answer["parameters"] == 1_557_611_200
    assert answer["operations"]["six_per_parameter"] == 6 * answer["parameters"]


def test_the_table_names_the_plan_and_the_reasons(run) -> None:
    done = run("plan", "transformer-base", "--devices", "8xA100", "--tokens", "1B")
    assert done.status == 0
    assert done.out == ""
    assert "→ shard 8" in done.err
    assert "optimizer updates" in done.err
    assert "slower" in done.err
    assert "gradients, summed over copies" in done.err
    assert "10 of" in done.err


def test_settings_of_a_run_say_the_model_and_its_work(run, tmp_path: Path) -> None:
    settings = tmp_path / "run.toml"
    settings.write_text(
        'preset = "small"\nmax_steps = 1000\n[data]\nbatch_tokens = 4000\n'
        "[optimizer]\naccumulate = 2\n[model]\nnum_heads = 8\n"
    )
    answer = planned(run, settings, "--devices", "a100")
    assert answer["batch"]["positions"] == 8000
    assert answer["tokens"] == 8_000_000
    assert planned(run, settings, "--devices", "a100", "--tokens", "5k")["tokens"] == 5000
    assert planned(run, "small", "--devices", "a100")["parameters"] == answer["parameters"]
    settings.write_text('task = "causal_lm"\npreset = "tiny"\n[data]\nmax_length = 96\n')
    assert planned(run, settings, "--devices", "a100")["batch"]["length"] == 96


def test_a_file_may_hold_a_spec(run, tmp_path: Path) -> None:
    text = (
        (ROOT / "heedful/models/presets/gpt2.toml")
        .read_text()
        .replace("num_layers = 12", "num_layers = 24")
    )
    (tmp_path / "deep.toml").write_text(text)
    deep = planned(run, tmp_path / "deep.toml", "--devices", "h100")
    usual = planned(run, "gpt2", "--devices", "h100")
    assert deep["parameters"] - usual["parameters"] == 12 * 7_087_872


def test_a_trained_model_is_a_spec(run, model: Path) -> None:
    assert planned(run, model, "--devices", "2xl4")["parameters"] < 50_000


def test_a_model_that_predicts_no_tokens(run) -> None:
    answer = planned(run, "vit-b-16", "--devices", "2xl4", "--hosts", 2)
    assert answer["chosen"]["memory_bytes"]["loss"] == 0
    assert answer["batch"]["length"] == 197


def test_this_machine_is_a_device(run) -> None:
    answer = planned(run, "tiny", "--devices", "cpu", "--batch-tokens", "4096")
    assert answer["cluster"]["source"] == "measured now"
    assert answer["chosen"]["memory_bytes"]["process"] > 300e6


def test_what_is_given_decides(run) -> None:
    words = ("gpt2", "--devices", "8xA100")
    usual = planned(run, *words)["chosen"]
    full = planned(run, *words, "--checkpointing", "full")
    assert {plan["checkpointing"] for plan in full["plans"]} == {"full"}
    four = planned(run, *words, "--accumulate", 4)
    assert {plan["accumulate"] for plan in four["plans"]} == {4}
    slow = planned(run, *words, "--efficiency", "0.2")
    assert slow["cluster"]["products_share"] == 0.2
    assert slow["chosen"]["utilization"] < 0.2 < usual["utilization"]
    fp32 = planned(run, *words, "--precision", "fp32")
    assert fp32["chosen"]["seconds_per_update"] > 5 * usual["seconds_per_update"]
    waits = planned(run, *words, "--no-overlap")["chosen"]
    assert waits["seconds_per_update"] > usual["seconds_per_update"]
    assert all(each["shown"] == each["seconds"] for each in waits["messages"])
    apart = planned(run, *words, "--hosts", 2, "--network", "1")["chosen"]
    near = planned(run, *words, "--hosts", 2)["chosen"]
    assert apart["seconds_per_update"] > near["seconds_per_update"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("gpt2 --devices 8xH10", 2, "Did you mean 'h100'"),
        ("gpt2 --devices 8xv100 --precision bf16", 2, "Take fp32 or fp16"),
        ("gpt2 --devices l4 --tokens many", 2, "--tokens: 'many' is no number of tokens"),
        ("gpt2 --devices l4 --tokens 0", 2, "is no number of tokens"),
        ("gpt2 --devices l4 --batch-tokens 100", 2, "holds no text of 1,024"),
        ("gpt2 --devices l4 --max-length 2000", 2, "at most 1,024"),
        ("gpt2 --devices l4 --max-length 0", 2, "at least 1"),
        ("gpt2 --devices l4 --hosts 0", 2, "--hosts: 0 hosts are too few"),
        ("gpt2 --devices l4 --accumulate 0", 2, "--accumulate: 0 batches"),
        ("gpt2 --devices l4 --price -1", 2, "--price: -1 is no price"),
        ("gpt2 --devices l4 --network 0", 2, "--network: 0 is not above 0"),
        ("gpt2 --devices l4 --vocabulary 5", 2, "vocabulary of its own"),
        ("gpt2 --devices 8xl4 --hosts 10000", 2, "80,000 devices. Plan for at most 65,536"),
        ("gpt3 --devices l4", 1, "No plan fits"),
        ("gpt2 --devices 1000xA100 --batch-tokens 2048", 2, "2 texts are too few"),
        ("nothing-here --devices l4", 2, "or take a preset"),
        ("nothing.toml --devices l4", 2, "No such configuration file"),
        ("gpt2", 2, "--devices"),
    ],
)
def test_mistakes_are_explained(run, words: str, status: int, message: str) -> None:
    done = run("plan", *words.split())
    assert done.status == status, done.err
    assert message in done.err
    assert "Traceback" not in done.err


def test_mistakes_in_files_are_explained(run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    for text, message in (
        ("width = ", "Not TOML"),
        ("[model]\nwidht = 5", "width"),
        ("[spec]\nkind = 'poem'", "poem"),
        ("data = 5", "data"),
    ):
        bad.write_text(text)
        done = run("plan", bad, "--devices", "l4")
        assert done.status == 2, (text, done.err)
        assert message in done.err
        assert "bad.toml" in done.err


def worked_examples() -> list[tuple[str, list[str]]]:
    """Commands of the guide, each with the lines that it says they print."""
    text = (ROOT / "docs/guides/plan.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)\n```\n\n```text\n(.*?)```", text, re.DOTALL)
    return [(command, lines.splitlines()) for command, lines in blocks]


def test_there_are_worked_examples() -> None:
    assert len(worked_examples()) == 4


@pytest.mark.parametrize(("command", "lines"), worked_examples())
def test_worked_examples_of_the_guide_print_what_it_says(
    run, command: str, lines: list[str]
) -> None:
    done = run(*shlex.split(command)[1:])
    assert done.status == 0, done.err
    printed = " ".join(done.err.split())
    for line in lines:
        assert line in printed


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("25k", 25_000),
        ("4M", 4_000_000),
        ("300B", 300_000_000_000),
        ("1.4T", 1_400_000_000_000),
        ("524,288", 524_288),
        ("1_000", 1000),
        ("7 b", 7_000_000_000),
    ],
)
def test_numbers_of_tokens(words: str, count: int) -> None:
    assert read_count(words, "--tokens") == count


@pytest.mark.parametrize("words", ["", "k", "-1", "1e9", "0.1", "5G", "inf", "1.2.3"])
def test_no_numbers_of_tokens(words: str) -> None:
    with pytest.raises(ConfigError):
        read_count(words, "--tokens")
