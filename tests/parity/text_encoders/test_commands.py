"""What the commands for encoders say of raw text, against the softmax of `transformers`' logits."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from tokenizers import pre_tokenizers

import heedful

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
LABELS = {"id2label": {0: "no", 1: "perhaps", 2: "yes"}}
NAMES = ("no", "perhaps", "yes")
PIECES = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "on", "mat"),
    *("who", "cafe", ".", "?"),
]
QUESTION, CONTEXT = "Who sat?", "The  CAFÉ cats sat on the mat. Who?"


def labels_of(kind: str) -> dict:
    """Names of labels; a model that answers has two scores and no labels."""
    return {} if kind.endswith("QuestionAnswering") else LABELS


def write_bert(kind: str, directory, text_encoders):
    """A toy BERT with its vocabulary, and its tokenizer."""
    import transformers

    config = transformers.BertConfig(vocab_size=len(PIECES), **SIZES, **labels_of(kind))
    model = text_encoders.write_toy(getattr(transformers, kind), config, directory)
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    ids = {piece: id for id, piece in enumerate(PIECES)}
    return model, transformers.BertTokenizer(ids, do_lower_case=True)


def write_roberta(kind: str, directory, text_encoders):
    """A toy RoBERTa whose pieces are bytes, and its tokenizer."""
    import transformers

    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġc"]
    ids = {piece: id for id, piece in enumerate(pieces)}
    config = transformers.RobertaConfig(
        vocab_size=len(pieces), type_vocab_size=1, **SIZES, **labels_of(kind)
    )
    model = text_encoders.write_toy(getattr(transformers, kind), config, directory)
    (directory / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (directory / "merges.txt").write_text("#version: 0.2\nĠ c\n", encoding="utf-8")
    return model, transformers.RobertaTokenizer(ids, [("Ġ", "c")])


WRITERS = {"Bert": write_bert, "Roberta": write_roberta}


@torch.no_grad()
def probabilities(model, tokenizer, *texts, dim=-1):
    """Their probabilities of one input, and its ids."""
    encoded = tokenizer(*texts, return_tensors="pt")
    out = model(**encoded)
    logits = out.logits if "logits" in out else torch.stack([out.start_logits, out.end_logits], -1)
    return logits[0].softmax(dim), encoded["input_ids"][0].tolist()


def near(found, expected) -> None:
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(params=WRITERS)
def write(request, tmp_path, text_encoders):
    """Writes a directory of theirs; gives our pipeline, their model and their tokenizer."""

    def write_it(task: str):
        kind = f"{request.param}For{task}"
        theirs = WRITERS[request.param](kind, tmp_path, text_encoders)
        return heedful.load(tmp_path, device="cpu"), *theirs

    return write_it


def test_filled(write) -> None:
    ours, model, tokenizer = write("MaskedLM")
    text = "the [MASK] sat [MASK] ."
    spelled = text.replace("[MASK]", tokenizer.mask_token)
    expected, ids = probabilities(model, tokenizer, spelled)
    places = [place for place, id in enumerate(ids) if id == tokenizer.mask_token_id]
    (masks,) = ours.fill([text], top=7)
    assert len(masks) == len(places) == 2
    for place, candidates in zip(places, masks, strict=True):
        best = expected[place].topk(7)
        near([candidate.probability for candidate in candidates], best.values)
        assert [c.token for c in candidates] == ours.tokenizer.pieces(best.indices.tolist())


@pytest.mark.parametrize("texts", [("The cats sat.",), ("The cats sat.", "who?")])
def test_classified(write, texts) -> None:
    ours, model, tokenizer = write("SequenceClassification")
    expected, _ = probabilities(model, tokenizer, *texts)
    (labels,) = ours.classify([texts[0] if len(texts) == 1 else texts])
    found = {label.label: label.probability for label in labels}
    near([found[name] for name in NAMES], expected)
    assert labels[0].label == NAMES[int(expected.argmax())]


def test_tagged(write) -> None:
    ours, model, tokenizer = write("TokenClassification")
    words = ["The", "cats", "sat."]
    encoded = tokenizer(" ".join(words), return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        expected = model(**encoded).logits[0].softmax(-1)
    (found,) = ours.tag([" ".join(words)])
    assert [word.token for word in found] == words
    begins = [0, 4, 9]
    for word, begin in zip(found, begins, strict=True):
        place = next(  # what begins the word, or the space before it
            place
            for place, (start, end) in enumerate(offsets)
            if end > begin or (begin and end > begin - 1)
        )
        near(word.probability, expected[place].max())
        assert word.label == NAMES[int(expected[place].argmax())]


def test_answered(write) -> None:
    ours, model, tokenizer = write("QuestionAnswering")
    expected, ids = probabilities(model, tokenizer, QUESTION, CONTEXT, dim=0)
    encoded = tokenizer(QUESTION, CONTEXT, return_offsets_mapping=True)
    assert encoded["input_ids"] == ids
    context = [place for place, text in enumerate(encoded.sequence_ids()) if text == 1]
    (found,) = ours.answer([(QUESTION, CONTEXT)], max_answer=6)
    starts, ends = expected.unbind(-1)
    first, last = max(
        ((i, j) for i, j in itertools.product(context, repeat=2) if 0 <= j - i < 6),
        key=lambda span: float(starts[span[0]] * ends[span[1]]),
    )
    near(found.probability, starts[first] * ends[last])
    offsets = encoded["offset_mapping"]
    cut = CONTEXT[offsets[first][0] : offsets[last][1]]
    assert found.text == cut.strip() == CONTEXT[found.start : found.end]
