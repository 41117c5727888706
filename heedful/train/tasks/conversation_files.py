"""Files of a language model, which hold texts or conversations, and the chat template of these."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from heedful.data.chat_corpus import ChatReader, has_conversations
from heedful.data.text_corpus import DocumentReader
from heedful.data.text_file import TextFile
from heedful.errors import ConfigError, DataError
from heedful.text.chat_template import REMEDY, ChatTemplate
from heedful.train.task import Setup
from heedful.train.tasks.encoder_task import document_readers
from heedful.train.warm_start import initial_text_model


def chat_template(setup: Setup) -> ChatTemplate:
    """Return the template of a run's conversations: of the settings, the initial model, or ours.

    Raises:
        DataError: when the file cannot be read or is no template.
    """
    path = setup.settings.data.chat_template
    if setup.saved_tokenizers is not None:  # of a resumed run
        return setup.saved_tokenizers.chat_template
    if path is not None:
        return ChatTemplate("".join(f"{line}\n" for line in TextFile(Path(path))), path)
    if setup.settings.init is not None:
        return initial_text_model(setup.settings)[1].chat_template
    return ChatTemplate()


def text_readers(
    setup: Setup, role: Literal["train", "valid"], template: ChatTemplate, *, chats: bool = False
) -> list[DocumentReader | ChatReader]:
    """Open the training or validation files, of texts or of conversations.

    Args:
        setup: setup of the task.
        role: use of the files.
        template: template of conversations.
        chats: flag that the run learns from conversations.

    Raises:
        DataError: when some are conversations and others are texts.
    """
    found: list[DocumentReader | ChatReader] = []
    for reader in document_readers(setup, role):
        is_chat = has_conversations(reader.path)
        found.append(ChatReader(reader.path, template) if is_chat else reader)
        chats = chats or is_chat
    if odd := [each for each in found if isinstance(each, ChatReader) != chats]:
        raise DataError(
            "A run learns from conversations or from texts, and this file holds texts",
            where=str(odd[0].path),
            remedy=REMEDY,
        )
    return found


def are_conversations(
    setup: Setup, readers: Sequence[DocumentReader | ChatReader], *, has_memory: bool
) -> bool:
    """Return True if training files are conversations; all or none are.

    Args:
        setup: setup of the task.
        readers: training files; empty for a stream, which has texts.
        has_memory: flag that the model reads one long text by segments.

    Raises:
        ConfigError: when the model cannot read conversations, or texts have a chat template.
    """
    chats = bool(readers) and isinstance(readers[0], ChatReader)
    if chats and has_memory:
        raise ConfigError(
            "A conversation is read as a whole, so there is no earlier segment to remember",
            where="model.memory",
            remedy="Leave it out, and raise data.max_length for longer conversations",
        )
    if not chats and setup.settings.data.chat_template is not None:
        raise ConfigError(
            "The files are texts, which need no chat template",
            where="data.chat_template",
            remedy="Leave it out, or give lines of JSON with messages",
        )
    return chats
