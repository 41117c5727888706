"""The models of a run on answers: the one that is trained, and the frozen reference beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import nn

from heedful.errors import ConfigError
from heedful.interop.model_loading import load_any
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.text.chat_template import ChatTemplate
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.lora import merged
from heedful.train.run_settings import RunSettings
from heedful.train.task import Setup
from heedful.train.tasks.conversation_files import chat_template


def conversing(setup: Setup) -> tuple[ChatTemplate, TokenizerPair]:
    """Return the chat template of a run that begins with a trained model, and its tokenizers.

    Raises:
        ConfigError: when there is no initial model.
    """
    if setup.settings.init is None:
        raise ConfigError(
            f"The task {setup.settings.task} changes a language model that answers already",
            where="init",
            remedy="Name it by --init, such as a run of --task causal_lm on conversations",
        )

    def no_model() -> TokenizerPair:
        raise AssertionError("there is an initial model")

    template = chat_template(setup)
    return template, replace(setup.tokenizers(no_model), chat=template.source)


def causal_model(setup: Setup, tokenizers: TokenizerPair) -> Callable[[], nn.Module]:
    """Return a function that builds the language model with its initial weights."""
    settings = setup.settings

    def new_model() -> nn.Module:
        size = tokenizers.source.size
        spec = causal_lm_spec(settings.model, size, settings.data.max_length)
        return setup.new_model(spec, tokenizers)

    return new_model


def reference_model(
    settings: RunSettings, tokenizers: TokenizerPair, new_model: Callable[[], nn.Module]
) -> nn.Module:
    """Return the frozen reference: the one of the settings, or the model as it begins.

    Args:
        settings: settings of the training run.
        tokenizers: tokenizers of the run.
        new_model: maker of the model with its initial weights.

    Raises:
        ModelError: when there is no such model.
        ConfigError: when it is no language model with the same vocabulary.
    """
    name = settings.objective.reference
    if name is None:
        # LoRA's updates are zero at first, so the model as it begins is the reference.
        return merged(new_model())
    model, own = load_any(Path(name))
    # Its probabilities are compared token by token.
    if model.spec.kind != "causal_lm" or own is None or _pieces(own) != _pieces(tokenizers):
        raise ConfigError(
            f"The reference {name} is no language model with the vocabulary of the run",
            where="objective.reference",
            remedy="Name a model with the tokenizer of the initial one, or leave it out",
        )
    return model


def _pieces(tokenizers: TokenizerPair) -> str:
    return tokenizers.source.fingerprint
