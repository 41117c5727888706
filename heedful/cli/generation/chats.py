"""Prompts of `heedful generate`: texts as they are, conversations, and files that are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from heedful.cli.parser import flag_group
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.pipelines.text_generation import GenerationPipeline


@flag_group("Conversations", 17)
class ChatFlags:
    """Answers of a model that was trained on conversations, by its chat template.

    Args:
        chat: Take each text as what a user says, and write the answer.
        messages: File of conversations to answer, lines of JSON with messages.
    """

    chat: bool = False
    messages: Path | None = None

    def source(self, input: Path | None, prompt: str | None) -> Path | None:
        """Return the file of the input: that of the conversations, or the given one.

        Raises:
            UserError: when there are conversations and another input.
        """
        if self.messages is None:
            return input
        if input is not None or prompt is not None:
            raise UserError(
                "Conversations are the whole input",
                where="heedful generate",
                remedy="Leave out the text and -i, or --messages",
            )
        return self.messages


@flag_group("Speech", 18)
class SpeechFlags:
    """Facts of sounds that a model of them is given.

    Args:
        language: Code of the language that is spoken, such as de; recognized if unset.
        task: Write what is said in its language (transcribe), or in English (translate); transcribe
            if unset.
    """

    language: str | None = None
    task: Literal["transcribe", "translate"] | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The flags that are set, as arguments of `TranscriptionPipeline.generate`."""
        both = {"language": self.language, "task": self.task}
        return {name: value for name, value in both.items() if value is not None}


def prompts_of(
    pipeline: GenerationPipeline,
    lines: list[str],
    first: int,
    conversation: ChatFlags,
    warn: Callable[[str], object],
) -> list[str]:
    """Return what a model continues for lines of the input, and warn of unknown characters.

    Args:
        pipeline: language model.
        lines: prompts, or conversations.
        first: number of lines before these.
        conversation: flags of conversations.
        warn: receiver of a warning.

    Raises:
        DataError: when a line is no conversation, with its number.
        ModelError: when a model of texts is to answer conversations.
    """
    # Imported on use: the flags above are read without a tokenizer's library.
    from heedful.cli.generation.file_prompts import with_sounds
    from heedful.data.text_file import parse_json
    from heedful.text.chat_template import REMEDY, check_messages
    from heedful.text.unknown_characters import describe_unknown

    if conversation == ChatFlags() and pipeline.spec.reads == "sounds":
        return lines  # names of files, which no tokenizer reads
    if conversation == ChatFlags():
        prompts = with_sounds(pipeline, lines, first)
        if message := describe_unknown(pipeline.tokenizer, prompts):
            warn(message)
        return prompts
    is_file, answered = conversation.messages is not None, []
    for number, line in enumerate(lines, start=first + 1):
        where = f"{conversation.messages or 'prompt'}:{number}"
        item = parse_json(line, where, REMEDY) if is_file else {"prompt": line}
        answered.append(check_messages(item, where))
    said = [each["content"] for messages in answered for each in messages]
    if message := describe_unknown(pipeline.tokenizer, said):
        warn(message)
    return [pipeline.chat_prompt(messages) for messages in answered]
