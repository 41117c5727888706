"""Chat templates: which tokens are answers, and what a template of others may do."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import DataError
from heedful.text.chat_template import (
    BOS,
    EOS,
    ChatTemplate,
    check_messages,
    encode_marked,
    encode_whole,
)
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.cache
def tokenizer() -> Tokenizer:
    texts = ["User:\nann likes red, bob likes blue\nAssistant:\nred <|im_start|>"] * 20
    return train_tokenizer(TokenizerSpec(kind="byte-bpe", vocabulary_size=300), texts, print)


def said(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


def answers_of(template: ChatTemplate, messages: list[dict[str, str]]) -> str:
    text, own = template.with_answers(messages, "chats.jsonl:1")
    return "".join(c for c, is_own in zip(text, own, strict=True) if is_own)


def test_answers_reach_to_the_end_of_their_turns() -> None:
    chat = said("who?", "ann", "and?", "bob")
    assert answers_of(ChatTemplate(), chat) == f"ann{EOS}bob{EOS}"
    assert answers_of(ChatTemplate(CHATML), chat) == "ann<|im_end|>bob<|im_end|>"


words = st.text("abé <>|\n", min_size=1).filter(str.strip)


@given(st.lists(words, min_size=2, max_size=6), st.sampled_from([None, CHATML]))
def test_a_model_is_asked_by_the_tokens_before_its_answer(
    texts: list[str], source: str | None
) -> None:
    template, chat = ChatTemplate(source), said(*texts[: len(texts) // 2 * 2])
    ids, learned = encode_whole(tokenizer(), *template.with_answers(chat, "chats.jsonl:1"))
    assert len(ids) == len(learned)
    assert learned[-1]
    prompt = template.prompt(chat[:-1])
    asked, _ = encode_marked(tokenizer(), prompt, [False] * len(prompt))
    # The characters that are learned last are those of the last answer.
    last = max((n for n, is_own in enumerate(learned) if not is_own), default=0) + 1
    assert tokenizer().decode(ids[:last]) == tokenizer().decode([tokenizer().bos, *asked])


def test_begin_and_end_are_tokens_except_the_first_begin() -> None:
    text = f"{BOS}ann{EOS}{BOS}red"
    ids, learned = encode_marked(tokenizer(), text, [each == "r" for each in text])
    known = tokenizer()
    ann, red = known.encode("ann"), known.encode("red")
    assert ids == [*ann, known.eos, known.bos, *red]
    assert learned[: len(ann) + 2] == [False] * (len(ann) + 2)


def test_nobody_spells_the_end_token() -> None:
    with pytest.raises(DataError, match="reserves"):
        check_messages(said("a", f"b{EOS}{BOS}"), "chats.jsonl:7")


def test_a_template_that_rewrites_turns_is_named_with_the_line() -> None:
    template = ChatTemplate("{{ messages | length }}" + CHATML)
    with pytest.raises(DataError, match="writes turn 2 otherwise") as raised:
        template.with_answers(said("a", "b", "c", "d"), "chats.jsonl:3")
    assert "chats.jsonl:3" in str(raised.value)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'x'.rjust(999999999) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
        "{{ f(60) }}",
        "{% set n = namespace(x='xx') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}"
        "{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='xx') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}"
        "{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='xx') %}{% for a in range(60) %}{% set n.x %}{{ n.x }}{{ n.x }}"
        "{% endset %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='xx') %}{% for a in range(60) %}"
        "{% set n.x = n.x.replace('x', n.x) %}{% endfor %}{{ n.x }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('no system messages') }}",
        "{% if %}",
    ],
)
def test_a_template_of_others_does_little(source: str) -> None:
    with pytest.raises(DataError, match="The chat template cannot be used"):
        ChatTemplate("\n" + source).prompt(said("hello"))


def test_an_error_of_a_template_names_its_line() -> None:
    with pytest.raises(DataError) as raised:
        ChatTemplate("{{ bos_token }}\n\n{{ raise_exception('no tools') }}", "t.jinja").prompt([])
    assert "no tools" in str(raised.value)
    assert raised.value.where == "t.jinja:3"
