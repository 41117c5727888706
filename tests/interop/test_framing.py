"""Post-processors taken apart give what the `tokenizers` library puts together."""

from __future__ import annotations

import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from heedful.errors import ModelError
from heedful.interop.hf_tokenizers import read_frame
from heedful.text.imported_tokenizer import Frame, ImportedTokenizer
from heedful.text.tokenizer import framed

VOCABULARY = {name: id for id, name in enumerate(["a", "b", "[CLS]", "[SEP]", "<s>", "[UNK]"])}
SPECIAL = {"pad": 5, "bos": 4, "eos": 3, "unk": 5}
BYTES = processors.ByteLevel(trim_offsets=True)


def template(single: str, pair: str | None) -> processors.TemplateProcessing:
    tokens = [(name, VOCABULARY[name]) for name in ("[CLS]", "[SEP]", "<s>")]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)


CASES = [
    None,
    BYTES,
    processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
    processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
    template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    template("$A [SEP]", "$A [SEP] $B [SEP]"),
    template("<s> [CLS] $A", "<s> [CLS] $A [SEP] <s> $B"),
    processors.Sequence([BYTES, template("<s> $A", "<s> $A <s> $B")]),
    processors.Sequence([BYTES]),
]


@pytest.mark.parametrize("processor", CASES, ids=str)
def test_frames_are_those_of_the_library(processor) -> None:
    library = tokenizers.Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    if processor is not None:
        library.post_processor = processor
    state = json.loads(library.to_str())
    frame = read_frame(state["post_processor"], where="tokenizer.json")
    ours = ImportedTokenizer(SPECIAL, frame, state)
    one, two = ours.encode("a b"), ours.encode("b")
    assert framed(ours, one) == library.encode("a b").ids
    if frame.between is None:
        with pytest.raises(ModelError, match="two texts"):
            framed(ours, one, two)
    else:
        assert framed(ours, one, two) == library.encode("a b", "b").ids


def test_a_pair_framed_otherwise_is_not_taken_for_one() -> None:
    library = tokenizers.Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    library.post_processor = template("[CLS] $A [SEP]", "<s> $A [SEP] $B [SEP]")
    state = json.loads(library.to_str())["post_processor"]
    assert read_frame(state, where="tokenizer.json") == Frame((2,), (3,), None)


@pytest.mark.parametrize(
    "processor",
    [
        {"type": "Surprise"},
        {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
        {
            "type": "Sequence",
            "processors": [{"type": "BertProcessing", "sep": ["s", 3], "cls": ["c", 2]}] * 2,
        },
    ],
)
def test_others_are_refused(processor) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json.*post-processor"):
        read_frame(processor, where="tokenizer.json")
