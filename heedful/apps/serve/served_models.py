"""The models of a server: names, languages, directories, and loaded pipelines.

A model is loaded at the start or at its first request. Where memory is limited, the least recently
used model is unloaded.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from langcodes import tag_is_valid

from heedful.apps.serve.languages import match_language, primary_subtag
from heedful.apps.serve.server_settings import ModelOptions
from heedful.errors import ConfigError, ModelError, suggest
from heedful.interop.model_loading import stored_kind
from heedful.pretrained.catalogue import (
    LANGUAGE_PAIR,
    directory_of,
    languages_of,
    models_at_hand,
    name_of,
    pinned,
)

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.pipelines.glossary import Glossary
    from heedful.pipelines.text_generation import GenerationPipeline
    from heedful.pipelines.translation import TranslationPipeline
    from heedful.text.tokenizer_pair import TokenizerPair

    Pipeline = TranslationPipeline | GenerationPipeline


# In pt-BR-en and en-pt-BR, only letter case shows where the second code begins.
_REGIONAL = "[a-z]{2,3}(?:-[A-Z][a-z]{3})?(?:-(?:[A-WYZ][A-Z]|419|001))?"
_REGIONAL_PAIR = re.compile(f"({_REGIONAL})-({_REGIONAL})")


@dataclass(eq=False)
class ServedModel:
    """A model and its name on the server.

    Args:
        name: name of the model in requests.
        path: directory of the model.
        source, target: language codes of a translator; empty for a language model.
        glossary: terms for its translations, once the model is loaded.
    """

    name: str
    path: Path
    source: str = ""
    target: str = ""
    glossary: Glossary | None = None
    pipeline: Pipeline | None = None
    used: float = 0.0
    loading: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_translator(self) -> bool:
        """True for a model with source and target language."""
        return bool(self.source)

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Codes of source and target; None where they are unknown."""
        return self.source or None, self.target or None

    @property
    def size(self) -> int:
        """Bytes of its files, about the size of its weights in float32."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())


def parse_model(word: str) -> ServedModel:
    """Read an argument of `heedful serve`.

    It is `MODEL`, `NAME=MODEL`, or with languages `SOURCE-TARGET=MODEL` or `SOURCE:TARGET=MODEL`;
    with a colon, codes may be in any case. Without languages a translator has the languages of its
    card, or those at the end of its folder's name.

    Raises:
        ModelError: when there is no such directory.
        ConfigError: when a word beside a colon is no language.
    """
    name, place = _name_and_place(word)
    path = directory_of(Path(place))
    if not path.is_dir():
        raise ModelError(
            "No such model",
            where=place,
            remedy=suggest(place, models_at_hand()) or "Give the directory of a model or a run",
        )
    languages = _named_languages(name) or languages_of(path) or ("", "")
    return ServedModel(name.replace(":", "-") or name_of(path), path, *languages)


def _named_languages(name: str) -> tuple[str, str] | None:
    """Return the languages in a model's name; None for any other name."""
    source, colon, target = name.partition(":")
    if colon:
        for code in (source, target):
            if not tag_is_valid(code):
                raise ConfigError(
                    f"{code!r} is no language code",
                    where=name,
                    remedy="Write codes of BCP 47, as in pt-BR:en=MODEL",
                )
        return source, target
    plain = LANGUAGE_PAIR.fullmatch(name)
    if plain is not None:
        return plain[1], plain[2]
    pair = _REGIONAL_PAIR.fullmatch(name)
    if pair is not None and tag_is_valid(pair[1]) and tag_is_valid(pair[2]):
        return pair[1], pair[2]
    return None


def pinned_model(word: str) -> str:
    """Return an argument of `heedful serve`, with a commit for a model of the hub.

    With the commit all workers use the same model, even after a replacement.

    Raises:
        UserError: when the model cannot be fetched.
    """
    name, place = _name_and_place(word)
    return f"{name}={pinned(place)}".removeprefix("=")


def _name_and_place(word: str) -> tuple[str, str]:
    """Split `NAME=MODEL`; the name is empty where only the model is given."""
    name, separator, place = word.partition("=")
    return (name, place) if separator and not Path(word).exists() else ("", word)


_OPTIONS = ModelOptions()


class ServedModels:
    """The models of a server.

    Args:
        models: models with different names.
        options: options of all models.
        observe_prompt: receiver of the number of tokens of each prompt, and of those at hand.

    Raises:
        ConfigError, ModelError: when two models have the same name, or a glossary belongs to no
            model.
    """

    def __init__(
        self,
        models: Iterable[ServedModel],
        options: ModelOptions = _OPTIONS,
        observe_prompt: Callable[[int, int], None] = lambda asked, found: None,
    ) -> None:
        self.options = options
        self._observe_prompt = observe_prompt
        self.by_name: dict[str, ServedModel] = {}
        for model in models:
            if model.name in self.by_name:
                raise ConfigError(
                    f"Two models have the name {model.name!r}",
                    where=f"{self.by_name[model.name].path} and {model.path}",
                    remedy="Give one of them another name: NAME=MODEL",
                )
            self.by_name[model.name] = model
        for name in options.glossaries:
            self.find(name)
        self._choosing = threading.Lock()

    def checked(self) -> Self:
        """Return these models, or refuse one that cannot be served, without loading any.

        Raises:
            ModelError: when a directory holds no model, or one of another kind.
        """
        for model in self:
            kind = stored_kind(model.path)
            if kind not in (None, "translator", "causal_lm"):
                raise ModelError(
                    f"A model of the kind {kind!r} cannot be served",
                    where=model.name,
                    remedy="Give a translator or a language model",
                )
        return self

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self.by_name.values())

    def load_all(self) -> None:
        """Load models in the given order, as many as fit in memory.

        Raises:
            ModelError, ConfigError: when a model cannot be loaded, or is a translator without
                languages.
        """
        for model in self:
            if self._fits(model):
                self.get(model.name)

    def get(self, name: str) -> Pipeline:
        """Return a model's pipeline; load it if it is not in memory.

        Raises:
            ModelError: when there is no model of this name, or it cannot be loaded any more.
        """
        pipeline = self.at_hand(name)
        if pipeline is not None:
            return pipeline
        model = self.find(name)
        # With limited memory, models load one at a time: two at once could exceed the limit.
        with (
            model.loading,
            self._choosing if self.options.most_bytes is not None else nullcontext(),
        ):
            if model.pipeline is None:
                self._make_room(model)
                model.pipeline = self._load(model)
            return model.pipeline

    def at_hand(self, name: str) -> Pipeline | None:
        """Return a model's pipeline, or None if it is not in memory.

        Raises:
            ModelError: when there is no model of this name.
        """
        model = self.find(name)
        model.used = time.monotonic()
        return model.pipeline

    def find(self, name: str) -> ServedModel:
        """Return the model of a name.

        Raises:
            ModelError: when there is none.
        """
        model = self.by_name.get(name)
        if model is None:
            raise ModelError(
                f"There is no model {name[:80]!r} here",
                where="model",
                remedy=suggest(name[:80], self.by_name),
            )
        return model

    def pairs(self) -> dict[tuple[str, str], ServedModel]:
        """Return the first translator of each pair of source and target language."""
        pairs: dict[tuple[str, str], ServedModel] = {}
        for model in self:
            if model.is_translator:
                pairs.setdefault((model.source, model.target), model)
        return pairs

    def languages(self) -> list[str]:
        """Return the codes of all languages, sources first."""
        pairs = self.pairs()
        return list(dict.fromkeys([*(a for a, _ in pairs), *(b for _, b in pairs)]))

    def route(self, source: str, target: str) -> list[ServedModel]:
        """Return the translators from one language to another: one, or two over a pivot language.

        Args:
            source: code of a language, matched with those of the models.
            target: code of a language, likewise.

        Raises:
            ModelError: when no translators connect the languages.
        """
        pairs = self.pairs()
        wanted = f"{source[:20]} to {target[:20]}"
        source = match_language(source, [code for code, _ in pairs]) or source
        target = match_language(target, self.targets(source)) or target
        if (source, target) in pairs:
            return [pairs[source, target]]
        for first, pivot in pairs:
            if first == source and (pivot, target) in pairs:
                return [pairs[source, pivot], pairs[pivot, target]]
        known = ", ".join(f"{a}-{b}" for a, b in pairs) or "none"
        raise ModelError(
            f"No model translates from {wanted}",
            where="source and target",
            remedy=f"Language pairs here: {known}",
        )

    def targets(self, source: str) -> list[str]:
        """Return the languages that a language can be translated to, directly or over a pivot."""
        pairs = self.pairs()
        direct = [b for a, b in pairs if a == source]
        over = [c for pivot in direct for b, c in pairs if b == pivot and c != source]
        return sorted({*direct, *over})

    def _load(self, model: ServedModel) -> Pipeline:
        # Imported here, since the parent process only needs names.
        from heedful.interop.model_loading import load_any
        from heedful.pipelines.read_once import ReadOnce
        from heedful.pipelines.text_generation import GenerationPipeline
        from heedful.pipelines.translation import TranslationPipeline

        once = ReadOnce(model.path, load_any)

        def read(path: Path) -> tuple[AnyModel, TokenizerPair | None]:
            network, tokenizers = once(path)
            if model.is_translator and tokenizers is not None and tokenizers.reading is None:
                # Sentences are split by the rules of the source language on this server.
                reading = replace(tokenizers.reads, language=primary_subtag(model.source))
                tokenizers = replace(tokenizers, reading=reading)
            return network, tokenizers

        options: dict[str, Any] = {
            "device": self.options.device,
            "precision": self.options.precision,
            "read": read,
            "shared": self.options.shared,
        }
        spec = once.spec
        if spec.generates and spec.reads == "texts":
            model.source = model.target = ""
            writer = GenerationPipeline.load(model.path, **options)
            if most := self.options.prefix_bytes:
                writer.keep_prefixes(most, self._observe_prompt)
            return writer
        if spec.reads == "pairs" and not model.is_translator:
            raise ConfigError(
                "The languages of this translator are unknown",
                where=str(model.path),
                remedy="Name them before the model, as in en-de=MODEL, or with a colon if a code "
                "has a script or region, as in pt-BR:en=MODEL",
            )
        translator = TranslationPipeline.load(model.path, split=self.options.split, **options)
        if (file := self.options.glossaries.get(model.name)) is not None:
            from heedful.pipelines.glossary import Glossary

            soft = self.options.soft_terms
            model.glossary = Glossary.read(file, soft=soft, languages=model.languages)
            translator.check_glossary(model.glossary)
        from heedful.apps.quality.stated_writing import as_stated

        return as_stated(translator, **self.options.consistency, languages=model.languages)

    def _fits(self, model: ServedModel) -> bool:
        if self.options.most_bytes is None:
            return True
        others = [m for m in self if m.pipeline is not None and m is not model]
        return sum(m.size for m in others) + model.size <= self.options.most_bytes

    def _make_room(self, model: ServedModel) -> None:
        """Unload the least recently used models until another one fits."""
        oldest = sorted((m for m in self if m.pipeline is not None), key=lambda m: m.used)
        for other in oldest:
            if self._fits(model):
                return
            other.pipeline = None
