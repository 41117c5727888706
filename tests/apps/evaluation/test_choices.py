"""Choices among given answers, against log-probabilities summed one token at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import heedful
from heedful.apps.evaluation.choices import ChoiceQuestion, choose, read_questions, with_examples
from heedful.cli.main import main
from heedful.errors import DataError
from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

WORDS = "der rote Ball rollt über das grüne Feld und der blaue"


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("choices") / "writer"
    tokenizer = train_tokenizer(TokenizerSpec(kind="characters"), [WORDS] * 3)
    shape = TranslatorShape(
        width=16, decoder_layers=1, num_heads=2, feedforward=16, positions="learned"
    )
    torch.manual_seed(3)
    model = CausalLM(causal_lm_spec(shape, tokenizer.size, 60)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    save_model(model, TokenizerPair(tokenizer, tokenizer), directory)
    return directory


def log_probability(pipeline, prompt: str, answer: str) -> float:
    """A pass for every character of the answer, each after what stands before it."""
    tokenizer, total = pipeline.tokenizer, 0.0
    seen = [tokenizer.bos, *tokenizer.encode(prompt)]
    for token in tokenizer.encode(answer):
        states = pipeline.model(torch.tensor([seen]), torch.arange(len(seen))[None])
        total += float(pipeline.model.logits(states)[0, -1].double().log_softmax(-1)[token])
        seen.append(token)
    return total


@torch.no_grad()
def test_the_likeliest_answer_is_chosen(writer: Path) -> None:
    pipeline = heedful.load(writer, device="cpu")
    answers = ("rollt", "rot", "und das Feld", "Ball über das")
    prompts = ("der rote Ball", "das grüne Feld und", "blau")
    expected, per_byte = [], []
    for prompt in prompts:
        sums = [log_probability(pipeline, prompt, f" {answer}") for answer in answers]
        expected.append(max(range(4), key=sums.__getitem__))
        means = [value / len(answer.encode()) for value, answer in zip(sums, answers, strict=True)]
        per_byte.append(max(range(4), key=means.__getitem__))
    assert expected != per_byte
    for batch in (1, 50, 4000):
        right = [ChoiceQuestion(p, answers, e, "") for p, e in zip(prompts, expected, strict=True)]
        assert choose(pipeline, right, batch_tokens=batch).accuracy.score == 1.0
        right = [ChoiceQuestion(p, answers, e, "") for p, e in zip(prompts, per_byte, strict=True)]
        scores = choose(pipeline, right, batch_tokens=batch)
        assert scores.accuracy_per_byte.score == 1.0
        assert scores.accuracy.score < 1.0
        assert scores.chance == 0.25


TEXT = st.text("ab c", min_size=1, max_size=6).filter(str.strip)


@given(TEXT, st.lists(TEXT, min_size=2, max_size=4), st.data())
def test_solved_examples_stand_before_a_question(prompt, choices, data) -> None:
    answer = data.draw(st.integers(0, len(choices) - 1))
    questions = [ChoiceQuestion(prompt, tuple(choices), answer, "")]
    solved = [ChoiceQuestion(f"{n}", ("x", "y"), n % 2, "") for n in range(5)]
    for shots in range(6):
        (asked,) = with_examples(questions, solved, shots, seed=2)
        assert asked.choices == tuple(choices)
        assert asked.prompt.endswith(prompt)
        blocks = asked.prompt.removesuffix(prompt).split("\n\n")[:-1]
        assert len(blocks) == shots == len(set(blocks))
        assert set(blocks) <= {f"{n} {'xy'[n % 2]}" for n in range(5)}


def test_files_of_several_forms_are_read(tmp_path: Path) -> None:
    lines = [
        {"prompt": "2 + 2 =", "choices": ["3", "4"], "answer": 1},
        {"ctx": "2 + 2 =", "endings": ["three", "four"], "label": "1"},
        {"question": "2 + 2 =", "options": ["three", "four"], "gold": "four"},
        {"prompt": "2 + 2 =", "choices": ["3", "4"], "answer": "4"},
    ]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert [each.answer for each in read_questions(file)] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "no object"),
        ('{"prompt": "a", "choices": ["b", "c"]}', "no answer"),
        ('{"prompt": "a", "choices": ["b"], "answer": 0}', "two or more"),
        ('{"prompt": "a", "choices": ["b", ""], "answer": 0}', "two or more"),
        ('{"prompt": "a", "choices": ["b", "c"], "answer": 2}', "none of the 2 choices"),
        ('{"prompt": "a", "choices": ["b", "c"], "answer": true}', "none of the 2 choices"),
        ('{"prompt": "a", "choices": ["b", "c"], "answer": "d"}', "none of the 2 choices"),
        ('{"prompt": 1, "choices": ["b", "c"], "answer": 0}', "no text"),
    ],
)
def test_wrong_questions_are_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "questions.jsonl"
    good = '{"prompt": "a", "choices": ["b", "c"], "answer": 0}\n'
    file.write_text(good + line, encoding="utf-8")
    with pytest.raises(DataError, match=message) as raised:
        read_questions(file)
    assert "questions.jsonl:2" in str(raised.value)


def test_the_command_counts_right_choices(writer: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "questions.jsonl"
    line = {"prompt": "der rote", "choices": ["Ball", "Feld"], "answer": 0}
    file.write_text((json.dumps(line) + "\n") * 3, encoding="utf-8")
    command = ["evaluate", str(writer), "--choices", str(file), "--json", "--device", "cpu"]
    assert main(command) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["questions"] == 3
    assert alone["chance"] == 0.5
    assert main([*command, "--examples", str(file), "--shots", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["questions"] == 3
    for wrong, named in (
        (["--shots", "2"], "--examples FILE"),
        (["--examples", str(file), "--shots", "9"], "fewer shots"),
        (["--examples", str(file), "--shots", "3", "--text", str(file)], "Leave one out"),
    ):
        assert main([*command, *wrong]) == 2
        assert named in capsys.readouterr().err
    long = {**line, "prompt": "der rote Ball " * 8}
    file.write_text(json.dumps(long), encoding="utf-8")
    assert main(command) == 2
    assert "questions.jsonl:1" in capsys.readouterr().err
