"""Structured output: whatever a model prefers, its text fits the schema or the expression."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.cli.generation.drafts import with_schema
from heedful.errors import ConfigError, ModelError
from heedful.models.causal_lm import CausalLM
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.search.search_settings import GenerationSettings
from heedful.search.structured_output import regex_grammar, schema_grammar
from heedful.text.imported_tokenizer import Frame, ImportedTokenizer
from heedful.text.token_bytes import token_bytes
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

from ..examples import slow_examples

pytest.importorskip("llguidance", reason="pip install 'heedful[structured]'")
jsonschema = pytest.importorskip("jsonschema", reason="schemas are checked by jsonschema")

SHAPE = TranslatorShape(width=16, decoder_layers=1, num_heads=2, feedforward=16, dropout=0.0)
LINES = ['{"name": "Zoë", "age": 4} [true, null, -1.5e3] doing', "the cat sat on the map: ab ba \\"]
# Every string, number and list has an end, so that random weights come to one.
WORD = {"type": "string", "maxLength": 6}
SCHEMAS: list[Any] = [
    {"enum": ["red", "green", 7, None, {"a": [1]}]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {
        "type": "object",
        "properties": {"name": WORD, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"pet": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/pet"}]}},
        "required": ["pet"],
        "additionalProperties": False,
        "$defs": {"pet": {"type": "array", "items": WORD, "maxItems": 2}},
    },
]
EXPRESSIONS = [r"[ab]{3}(the| cat)", r"(-|)[0-9]{1,4}(\.[0-9]{2})?", r"Zo[eë]\s?[^a-z\n]{1,3}"]
KINDS = ("characters", "bpe", "unigram", "byte-bpe", "sentencepiece", "gpt2")


@functools.cache
def tokenizer(kind: str) -> TextTokenizer:
    if kind not in ("sentencepiece", "gpt2"):
        size = {"byte-bpe": 300, "characters": 200}.get(kind, 90)
        spec = TokenizerSpec(kind=kind, vocabulary_size=size)
        return train_tokenizer(spec, LINES * 4)
    import tokenizers

    library = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=kind != "gpt2"))
    specials = ["<unk>", "<s>", "</s>"]
    if kind == "gpt2":
        library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    else:
        library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
        kinds = tokenizers.decoders
        steps = [
            kinds.Replace("▁", " "),
            kinds.ByteFallback(),
            kinds.Fuse(),
            kinds.Strip(" ", 1, 0),
        ]
        library.decoder = kinds.Sequence(steps)
        specials += [f"<0x{byte:02X}>" for byte in range(256)]
        alphabet = []
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=len(specials) + 330, special_tokens=specials, initial_alphabet=alphabet,
        show_progress=False,
    )  # fmt: skip
    library.train_from_iterator(LINES * 4, trainer)
    state = json.loads(library.to_str())
    # Bytes are ordinary pieces, which `decode` shows.
    state["added_tokens"] = [t for t in state["added_tokens"] if not t["content"].startswith("<0x")]
    special = {"pad": 2, "bos": 1, "eos": 2, "unk": 0}
    return ImportedTokenizer(special, Frame(first=(1,)), state)


def pipeline(kind: str, seed: int) -> GenerationPipeline:
    words = tokenizer(kind)
    torch.manual_seed(seed)
    # Three rows more than tokens: models are often filled up to a round number.
    spec = causal_lm_spec(SHAPE, words.size + 3, 400)
    return GenerationPipeline(CausalLM(spec).eval(), words)


@given(
    kind=st.sampled_from(KINDS), seed=st.integers(0, 5), schema=st.sampled_from(SCHEMAS),
    way=st.sampled_from([{}, {"beam": 3}, {"sampling": True, "n_best": 2}]),
    prompt=st.sampled_from(["", "the cat", 'a "']),
)  # fmt: skip
@settings(max_examples=slow_examples(40), deadline=None)
def test_a_schema_is_kept(kind: str, seed: int, schema: Any, way: Any, prompt: str) -> None:
    model = pipeline(kind, seed)
    (found,) = model.generate([prompt], json_schema=json.dumps(schema), max_length=250, **way)
    for one in found.n_best:
        assert one.ended == "end"
        jsonschema.validate(json.loads(one.text), schema)


@given(
    kind=st.sampled_from(KINDS), seed=st.integers(0, 5), regex=st.sampled_from(EXPRESSIONS),
    prompt=st.sampled_from(["the cat", "a"]),
)  # fmt: skip
@settings(max_examples=slow_examples(30), deadline=None)
def test_an_expression_is_matched(kind: str, seed: int, regex: str, prompt: str) -> None:
    model = pipeline(kind, seed)
    found = model.generate([prompt, "ab"], regex=regex, max_length=40)
    for one in found:
        assert re.fullmatch(regex, one.text), one.text
    assert "".join(model.stream(prompt, regex=regex, max_length=40)) == found[0].text


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_of_the_text(kind: str) -> None:
    words = tokenizer(kind)
    contents = token_bytes(words)
    text = LINES[0] if kind != "bpe" else "the cat"
    ids = words.encode(text)
    assert b"".join(contents[id] for id in ids).decode().removeprefix(" ") == words.decode(ids)


def test_a_text_is_cut_at_its_longest_length() -> None:
    model = pipeline("byte-bpe", 1)
    schema = json.dumps(SCHEMAS[2])
    (found,) = model.generate(["a"], json_schema=schema, max_length=4)
    assert (found.ended, len(found.tokens)) == ("length", 4)
    (whole,) = model.generate(["a"], json_schema=schema, max_length=250)
    assert whole.tokens[:4] == found.tokens


def test_a_vocabulary_without_the_characters_is_named() -> None:
    spec = TokenizerSpec(kind="characters", vocabulary_size=30)
    words = train_tokenizer(spec, ["the cat sat"])
    model = GenerationPipeline(CausalLM(causal_lm_spec(SHAPE, words.size, 40)).eval(), words)
    for form in ({"json_schema": '{"type": "object"}'}, {"regex": "cat?s? and"}):
        with pytest.raises(ModelError, match="No token"):
            model.generate(["the"], **form)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ('{"type":\n "object",\n}', r"^s:3: .*no JSON"),
        ('{"type": "object",\n "properties": {"a": {"type":\n "strin"}}}', r"^s:3: .*strin"),
        ('{"allOf": [],\n "if": {}}', r"^s:2: .*Unimplemented"),
        ('{"$ref": "https://example.com/x"}', "cannot be followed"),
        ("[" * 100_000, "deeply"),
        (" " * 300_000, "characters"),
    ],
)
def test_wrong_schemas_name_their_line(schema: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        schema_grammar(schema, "s")


@pytest.mark.parametrize("regex", ["[a-z", "(?=a)b", "(" * 5000])
def test_wrong_expressions_are_refused(regex: str) -> None:
    with pytest.raises(ConfigError, match="cannot be followed"):
        regex_grammar(regex)


def test_contradictions_and_missing_files_are_refused() -> None:
    with pytest.raises(ConfigError, match="give one"):
        GenerationSettings.parse({"json_schema": "{}", "regex": "a"})
    with pytest.raises(ConfigError, match="no_repeat_ngram"):
        GenerationSettings.parse({"json_schema": "{}", "no_repeat_ngram": 2})
    with pytest.raises(Exception, match="The schema cannot be read"):
        with_schema(GenerationSettings.parse({"json_schema": "nowhere.json"}))
