"""Labels by the likelihood of label words, and scores of texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import heedful
from heedful.apps.evaluation.label_words import LabelPrompt, classify_by_likelihood, read_examples
from heedful.apps.evaluation.text_likelihood import pseudo_likelihood, text_likelihood
from heedful.apps.evaluation.text_scores import score_texts
from heedful.cli.main import main
from heedful.errors import ConfigError, DataError
from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import save_model
from heedful.models.encoder import EncoderModel
from heedful.models.encoder_spec import MaskedLMHeadSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

TEXT = "a warm film and a cold film: it is good, it is bad.\n"
LABELS = ("bad", "good")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    tokenizer = train_tokenizer(TokenizerSpec(kind="characters"), [TEXT] * 3)
    options = {"width": 16, "decoder_layers": 1, "encoder_layers": 1, "num_heads": 2}
    shape = TranslatorShape.parse({**options, "feedforward": 16, "positions": "learned"})
    torch.manual_seed(3)
    hidden = tokenizer.for_encoder()
    head = (MaskedLMHeadSpec(),)
    causal = CausalLM(causal_lm_spec(shape, tokenizer.size, 60)).eval()
    masked = EncoderModel(encoder_spec(shape, hidden.size, 60, head)).eval()
    for name, model, own in (("causal", causal, tokenizer), ("masked", masked, hidden)):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5 * torch.randn_like(parameter))
        save_model(model, TokenizerPair(own, own), folder / name)
    return folder


def log_probability(pipeline, prompt: str, answer: str) -> float:
    """A pass for every character of the answer, each after what stands before it."""
    tokenizer, total = pipeline.tokenizer, 0.0
    seen = [tokenizer.bos, *tokenizer.encode(prompt)]
    for token in tokenizer.encode(prompt + answer)[len(seen) - 1 :]:
        states = pipeline.model(torch.tensor([seen]), torch.arange(len(seen))[None])
        total += float(pipeline.model.logits(states)[0, -1].double().log_softmax(-1)[token])
        seen.append(token)
    return total


@torch.no_grad()
@pytest.mark.parametrize("calibrated", [False, True])
def test_probabilities_are_those_of_the_words(models: Path, calibrated: bool) -> None:
    pipeline = heedful.load(models / "causal", device="cpu")
    examples = (("cold", "bad"),)
    prompt = LabelPrompt(LABELS, "{text} is {label}.", examples, 1, calibrated=calibrated)
    found = classify_by_likelihood(pipeline, ["warm", " ", "a film"], prompt)
    assert found[1] == []
    for text, labels in ((("warm"), found[0]), ("a film", found[2])):
        before = "cold is bad.\n"
        scores = torch.tensor(
            [
                log_probability(pipeline, f"{before}{text} is", f" {word}.")
                - calibrated * log_probability(pipeline, f"{before} is", f" {word}.")
                for word in LABELS
            ]
        )
        expected = dict(zip(LABELS, scores.softmax(0).tolist(), strict=True))
        assert {each.label: each.probability for each in labels} == pytest.approx(
            expected, abs=1e-4
        )
        assert labels[0].probability >= labels[1].probability


def test_examples_that_do_not_fit_are_left_out_with_a_warning(models: Path) -> None:
    pipeline = heedful.load(models / "causal", device="cpu")
    examples = tuple((f"{'a' * 12}", label) for label in LABELS)
    said: list[str] = []
    fewer = LabelPrompt(LABELS, examples=examples, shots=2)
    none = LabelPrompt(LABELS)
    text = "a warm film and a cold film"
    found = classify_by_likelihood(pipeline, [text], fewer, warn=said.append)
    assert found == classify_by_likelihood(pipeline, [text], none)
    assert said[0].startswith("1 of 1 texts have fewer than 2 examples")


@given(text=st.text(min_size=1), end=st.sampled_from(["", ".", " {x}"]))
def test_a_prompt_is_the_template_with_its_two_slots(text: str, end: str) -> None:
    question = LabelPrompt(LABELS, "» {text} is {label}" + end).question(text, "good")
    assert question.text(question.answer) == f"» {text} is good{end}"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"template": "{label} {text}"}, "and then"),
        ({"template": "{text} {text} {label}"}, "once"),
        ({"labels": ("bad", "bad")}, "two labels"),
        ({"shots": 1}, "0 examples"),
    ],
)
def test_prompts_that_cannot_be(options: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        LabelPrompt(**{"labels": LABELS, **options})  # type: ignore[arg-type]


def test_examples_have_known_labels(tmp_path: Path) -> None:
    file = tmp_path / "examples.tsv"
    file.write_text("a film\tgood\ncold\tugly\n", encoding="utf-8")
    with pytest.raises(DataError, match="ugly") as refused:
        read_examples(file, LABELS)
    assert refused.value.where == f"{file}:2"


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_scores_add_up_to_the_likelihood(models: Path, kind: str) -> None:
    pipeline = heedful.load(models / kind, device="cpu")
    texts = ["a warm film", TEXT * 3, "cold"]  # the second is longer than a window
    scores = score_texts(pipeline, texts, batch_tokens=100)
    measure = text_likelihood if kind == "causal" else pseudo_likelihood
    whole = measure(pipeline, texts)
    assert sum(each.score for each in scores) == pytest.approx(-whole.negative_log_likelihood)
    assert sum(len(each.token_scores) for each in scores) == whole.tokens
    ends = 1 if kind == "causal" else 0
    assert [len(each.token_scores) - len(each.tokens) for each in scores] == [ends] * 3


def test_the_command_scores_texts(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("a warm film\n\n", encoding="utf-8")
    assert main(["score", str(models / "masked"), str(file), "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(first["tokens"]) > 3
    assert second == {"score": 0.0, "tokens": []}
    assert main(["score", str(models / "causal")]) == 2
    assert "two files of pairs" in capsys.readouterr().err


def test_the_command_labels_texts(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["classify", str(models / "causal"), "a film"]
    assert main([*words, "--labels", *LABELS, "--json", "--calibrate"]) == 0
    found = json.loads(capsys.readouterr().out)["labels"]
    assert {each["label"] for each in found} == set(LABELS)
    for flags, message in (
        ([], "no labels of its own"),
        (["--labels", *LABELS, "--shots", "2"], "nothing to show"),
    ):
        assert main([*words, *flags]) == 2
        assert message in capsys.readouterr().err
    assert main(["classify", str(models / "masked"), "a film", "--calibrate"]) == 2
    assert "labels of its own" in capsys.readouterr().err
