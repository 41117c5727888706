"""`heedful generate` through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import heedful
from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import save_model
from heedful.models.model_directory import renew_digests
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

SHAPE = TranslatorShape(width=16, decoder_layers=1, num_heads=2, feedforward=32, dropout=0.0)


def write_writer(directory: Path, positions: str = "sinusoidal") -> Path:
    """A language model without training, which writes letters, tabs, backslashes and line ends."""
    tokenizer = train_tokenizer(TokenizerSpec(kind="characters"), ["ab\t\\\n"])
    torch.manual_seed(5)
    shape = SHAPE.model_copy(update={"positions": positions})
    model = CausalLM(causal_lm_spec(shape, tokenizer.size, 32))
    save_model(model, TokenizerPair(tokenizer, tokenizer), directory)
    return directory


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_writer(tmp_path_factory.mktemp("writers") / "one")


def unescaped(line: str) -> str:
    meaning = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\\\": "\\"}
    return re.sub(r"\\.", lambda found: meaning[found[0]], line)


def test_a_line_for_each_prompt_whatever_it_writes(run, writer: Path) -> None:
    flags = ("--max-length", 40, "--temperature", 5, "--seed", 1)
    done = run("generate", writer, *flags, stdin=b"a\n\nb\\\nab\n")
    assert done.status == 0
    assert len(done.lines) == 4
    asked = run("generate", writer, *flags, "--json", stdin=b"a\n\nb\\\nab\n")
    texts = [json.loads(line)["text"] for line in asked.lines]
    assert [unescaped(line) for line in done.lines] == texts
    assert any("\n" in text for text in texts)
    assert any("\t" in text for text in texts)
    assert any("\\" in text for text in texts)


@pytest.mark.parametrize("flags", [(), ("--stream",)])
def test_unknown_characters_are_named_once(run, writer: Path, flags) -> None:
    done = run("generate", writer, "--prompt", "a東b京東", "--max-length", "2", *flags)
    assert done.status == 0
    assert done.err.count("3 characters unknown to the model") == 1
    assert "東 京" in done.err
    assert "unknown" not in run("generate", writer, "--prompt", "abba", "--max-length", "2").err


def test_prompt_stream_and_python_agree(run, writer: Path) -> None:
    flags = ("--max-length", 12, "--temperature", 2, "--seed", 7)
    plain = run("generate", writer, "--prompt", "ab", *flags)
    streamed = run("generate", writer, "--prompt", "ab", *flags, "--stream")
    (line,) = plain.lines
    assert streamed.out == unescaped(line) + "\n"
    (found,) = heedful.load(writer).generate(
        ["ab"], max_length=12, sampling=True, temperature=2.0, seed=7
    )
    assert found.text == unescaped(line)
    assert len(found.tokens) <= 12


def test_temperature_zero_is_greedy(run, writer: Path) -> None:
    flags = ("--prompt", "ab", "--max-length", 12)
    greedy = run("generate", writer, *flags, "--beam", 1)
    assert greedy.lines != [""]
    for seed in (1, 2):
        drawn = run("generate", writer, *flags, "--temperature", 0, "--seed", seed)
        assert (drawn.status, drawn.out) == (0, greedy.out)


@pytest.mark.parametrize("flag", ["--beam", "--n-best"])
def test_absurd_widths_are_refused(run, writer: Path, flag: str) -> None:
    sampling = ("--sampling",) if flag == "--n-best" else ()
    done = run("generate", writer, "--prompt", "ab", flag, 10**9, *sampling)
    assert done.status == 2
    name = flag.removeprefix("--").replace("-", "_")
    assert f"{name} = {10**9}" in done.err


def test_n_best_gives_candidates_best_first(run, writer: Path) -> None:
    words = ("--prompt", "a", "--beam", 3, "--n-best", 3, "--max-length", 4, "--length-penalty", 0)
    (line,) = run("generate", writer, *words).lines
    (item,) = run("generate", writer, *words, "--json").lines
    best = json.loads(item)["n_best"]
    assert [unescaped(text) for text in line.split("\t")] == [one["text"] for one in best]
    assert [one["score"] for one in best] == sorted((one["score"] for one in best), reverse=True)
    assert len({one["text"] for one in best}) == 3


def test_report_and_output_file(run, writer: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("a\nb\n")
    paths = ("-i", tmp_path / "prompts", "-o", tmp_path / "out", "--report", tmp_path / "report")
    assert run("generate", writer, *paths, "--max-length", 3).status == 0
    assert len((tmp_path / "out").read_text().splitlines()) == 2
    report = json.loads((tmp_path / "report").read_text())
    assert report["prompts"] == 2
    assert report["tokens"] <= 6


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--prompt", "a", "-i", "x"), "not both"),
        (("--stream",), "--prompt"),
        (("--prompt", "a", "--stream", "--beam", "2"), "stream"),
        (("--prompt", "a", "--max-lenght", "2"), "--max-length"),
        (("-i", "nowhere"), "nowhere"),
    ],
)
def test_mistakes_are_told_in_a_paragraph(run, writer: Path, words, told: str) -> None:
    done = run("generate", writer, *words)
    assert done.status == 2
    assert told in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_a_text_too_long_for_learned_positions_is_told_before_anything(run, tmp_path: Path) -> None:
    writer = write_writer(tmp_path / "writer", "learned")
    done = run("generate", writer, "--prompt", "ab", "--max-length", 200)
    assert done.status == 2
    assert "33" in done.err


def test_each_verb_names_the_kind_of_model_it_needs(run, writer: Path, model: Path) -> None:
    wrong = run("translate", writer, stdin=b"a\n")
    assert (wrong.status, "no translator" in wrong.err) == (2, True)
    wrong = run("generate", model, "--prompt", "a")
    assert (wrong.status, "continues no text" in wrong.err) == (2, True)


def test_a_conversation_is_answered_by_the_template_of_the_model(run, tmp_path: Path) -> None:
    directory = write_writer(tmp_path / "chats")
    (directory / "chat_template.jinja").write_text("{{ messages[-1].content }}b{{ bos_token }}")
    renew_digests(directory)
    flags = ("--max-length", 6, "--json")
    (said,) = run("generate", directory, "ab", "--chat", *flags).lines
    pipeline = heedful.load(directory)
    prompt = pipeline.chat_prompt([{"role": "user", "content": "ab"}])
    (expected,) = pipeline.generate([prompt], max_length=6)
    assert json.loads(said)["text"] == expected.text
    # The template's begin token is a token, which no plain prompt can spell.
    assert expected.score != pipeline.generate([str(prompt)], max_length=6)[0].score
    file = tmp_path / "asked.jsonl"
    message = {"role": "user", "content": "ab"}
    file.write_text(
        json.dumps({"messages": [message]}) + "\n" + json.dumps({"prompt": "ab"}) + "\n"
    )
    assert run("generate", directory, "--messages", file, *flags).lines == [said, said]
    streamed = run("generate", directory, "ab", "--chat", "--stream", "--max-length", 6)
    assert streamed.out == expected.text + "\n"
    file.write_text(json.dumps({"messages": [message]}) + "\n{}\n")
    wrong = run("generate", directory, "--messages", file)
    assert wrong.status == 2
    assert "asked.jsonl:2" in wrong.err
    both = run("generate", directory, "ab", "--messages", file)
    assert both.status == 2
    assert "whole input" in both.err


def test_a_model_of_texts_has_no_conversations(run, writer: Path) -> None:
    done = run("generate", writer, "ab", "--chat")
    assert done.status == 2
    assert "no chat template" in done.err
