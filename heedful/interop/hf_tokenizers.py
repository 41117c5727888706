"""Import of the tokenizer of a Hugging Face directory, from any of its file formats."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, normalizers, processors

from heedful.errors import ModelError
from heedful.interop.config_fields import Fields
from heedful.interop.hf_files import read_bytes, read_json_file
from heedful.interop.sentencepiece_files import from_sentencepiece
from heedful.interop.vocabulary_files import (
    from_byte_pairs,
    from_clip_pairs,
    from_wordpiece,
    lowercase_steps,
    read_ids,
    separate_words,
)
from heedful.text.imported_tokenizer import Frame, ImportedTokenizer
from heedful.text.pretokenization import MARK
from heedful.text.tokenizer import read_text
from heedful.text.tokenizer_pair import CHAT_FILE, ENGLISH, Reading, TokenizerPair
from heedful.text.tokenizers_library import library_errors

FAST_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
TARGET_DIRECTORY = "target_tokenizer"
"""Subdirectory with the target's tokenizer of a translator with two tokenizers."""
_SENTENCEPIECE_FILES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
_MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")
# Their classes move the ids of all pieces, each in its own way.
_OTHER_IDS = ("camembert", "m2m_100", "mbart", "pegasus", "xlm-roberta", "xlm-roberta-xl")
_CLIP_ENDS = {"bos": "<|startoftext|>", "eos": "<|endoftext|>"}
# Default of `extra_ids` in transformers' T5Tokenizer.
_T5_SENTINELS = 100

ROLES = ("pad", "bos", "eos", "unk", "cls", "sep", "mask")
_USUAL_NAMES = {
    "pad": ("<pad>", "[PAD]"),
    "bos": ("<s>", "<|endoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
}
"""Usual names of special tokens, for directories whose files do not name them."""


class TokenizerSettings:
    """Settings from tokenizer_config.json and its companions; `ModelError`s name wrong fields."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        self.directory = directory
        self._config = config
        self.config = Fields(config, str(directory / "config.json"))
        content = read_json_file(directory / SETTINGS_FILE) or {}
        self.fields = Fields(content, str(directory / SETTINGS_FILE))
        special = read_json_file(directory / "special_tokens_map.json") or {}
        self.names: dict[str, str] = {}
        # tokenizer_config.json is the newer file of the two and comes last, so it wins.
        for source in (special, content):
            for role in ROLES:
                name = _name(source.get(f"{role}_token"))
                if name is not None:
                    self.names[role] = name
        self.added = _added_tokens(directory, content)

    def name(self, role: str, library: tokenizers.Tokenizer) -> str | None:
        """Return the name of a role's special token, or None if the vocabulary lacks it."""
        names = (self.names[role],) if role in self.names else _USUAL_NAMES[role]
        return next((name for name in names if library.token_to_id(name) is not None), None)

    def id(self, role: str, library: tokenizers.Tokenizer) -> int | None:
        """Return the id of a role's token, by its name or else from the model's config.json."""
        name = self.name(role, library)
        if name is not None:
            return library.token_to_id(name)
        return self.config_id(f"{role}_token_id")

    def config_id(self, key: str) -> int | None:
        """Return an id from config.json, the first one of a list."""
        # Chat models may list several tokens as `eos_token_id`; there is one EOS here.
        several = self._config.get(key)
        if isinstance(several, list):
            return next((id for id in several if type(id) is int), None)
        return self.config.optional_integer(key)


def read_tokenizers(directory: Path, config: Mapping[str, Any]) -> TokenizerPair:
    """Read the tokenizers of a model: one for both sides, or one for source and target each.

    Args:
        directory: directory with tokenizer.json, vocab.txt, vocab.json and merges.txt, or
            SentencePiece models; its subdirectory `target_tokenizer` holds a separate target
            tokenizer.
        config: content of the model's config.json.

    Raises:
        ModelError: when there is no tokenizer, or one of its files is damaged or missing.
    """
    settings = TokenizerSettings(directory, config)
    if (directory / _MARIAN_FILES[0]).exists():
        return _read_marian(settings)
    source = _read_one(settings)
    if not (directory / TARGET_DIRECTORY).is_dir():
        return TokenizerPair(source, source, chat=_chat_template(settings))
    target = _read_one(TokenizerSettings(directory / TARGET_DIRECTORY, config))
    return TokenizerPair(source, target)


def _chat_template(settings: TokenizerSettings) -> str | None:
    """Return the template of conversations: a file of its own, or one in tokenizer_config.json."""
    file = settings.directory / CHAT_FILE
    if file.exists():
        return read_text(file)
    found = settings.fields.get("chat_template")
    if isinstance(found, list):  # several by their names
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _read_one(settings: TokenizerSettings) -> ImportedTokenizer:
    library, frame = _read_library(settings)
    return ImportedTokenizer(_special_ids(library, settings), frame, _state(library))


def _read_library(settings: TokenizerSettings) -> tuple[tokenizers.Tokenizer, Frame]:
    directory = settings.directory
    # The newest format comes first: it is complete, and older files may lie beside it.
    if (directory / FAST_FILE).exists():
        library = _read_fast(directory / FAST_FILE)
        # The flag asks for special tokens in a text to be split like any other characters.
        if not settings.fields.flag("split_special_tokens", False):
            _mark_special(library, settings, only_named=True)
    elif (directory / "vocab.txt").exists():
        unk = settings.names.get("unk", "[UNK]")
        library = from_wordpiece(directory / "vocab.txt", settings.fields, unk)
        _mark_special(library, settings)
        _frame_by(library, settings, "cls", "sep", processors.BertProcessing)
    elif (directory / "merges.txt").exists():
        library = _read_byte_pairs(settings)
    else:
        return _read_sentencepiece(settings)
    separate_words(library)
    # A tokenizer with [CLS] and [SEP] keeps its class's frame, whatever add_bos_token says.
    if not {"cls", "sep"} <= settings.names.keys():
        requested = _requested_frame(settings, library)
        if requested is not None:
            return library, requested
    where = str(directory / FAST_FILE)
    return library, read_frame(_state(library).get("post_processor"), where=where)


def _read_byte_pairs(settings: TokenizerSettings) -> tokenizers.Tokenizer:
    vocabulary, merges = (settings.directory / name for name in ("vocab.json", "merges.txt"))
    if settings.config.text("model_type", "") == "clip":
        library, ends = from_clip_pairs(vocabulary, merges), _CLIP_ENDS
        settings.names = {**_CLIP_ENDS, **settings.names}
    else:
        library = from_byte_pairs(vocabulary, merges, settings.fields)
        ends = {"bos": "<s>", "eos": "</s>"}
    _mark_special(library, settings)
    if all(library.token_to_id(name) is not None for name in ends.values()):
        _frame_by(library, settings, "bos", "eos", processors.RobertaProcessing)
    return library


def _read_sentencepiece(settings: TokenizerSettings) -> tuple[tokenizers.Tokenizer, Frame]:
    files = [settings.directory / name for name in _SENTENCEPIECE_FILES]
    file = next((file for file in files if file.exists()), None)
    if file is None:
        raise ModelError(
            f"There is no tokenizer: neither {FAST_FILE}, vocab.txt, vocab.json with merges.txt, "
            f"{' nor '.join(_SENTENCEPIECE_FILES)}",
            where=str(settings.directory),
            remedy="Copy the tokenizer's files beside the model's",
        )
    model_type = settings.config.text("model_type", "")
    if model_type in _OTHER_IDS:
        raise ModelError(
            f"The pieces of {file.name} have other ids in this architecture than in the file",
            where=str(settings.directory),
            remedy="Let transformers write tokenizer.json: "
            "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)",
        )
    # T5's SentencePiece model has 32,000 pieces; the sentinels are added by the tokenizer's class.
    usual = _T5_SENTINELS if model_type == "t5" else 0
    extra = settings.fields.integer("extra_ids", usual)
    # A damaged number must not make billions of tokens.
    if extra > settings.config.integer("vocab_size", _T5_SENTINELS):
        raise settings.fields.wrong("extra_ids", "there are more than the model's vocabulary has")
    if model_type == "siglip":
        # Its class pads by the end token, whatever the file calls padding.
        settings.names.setdefault("pad", _USUAL_NAMES["eos"][0])
    library, model = from_sentencepiece(
        file,
        extra=extra,
        legacy=settings.fields.flag("legacy", False),
        before=_siglip_steps(settings.fields) if model_type == "siglip" else (),
    )
    _mark_special(library, settings)
    requested = _requested_frame(settings, library)
    if requested is not None:
        return library, requested
    # If no setting decides, the usual frames hold: LLaMA puts <s> before a text; T5, whose
    # vocabulary has no <s>, puts </s> after it.
    bos, eos = settings.id("bos", library), settings.id("eos", library)
    if model.bos >= 0 and bos is not None:
        return library, Frame((bos,), (), (bos,))
    return library, Frame((), (eos,), (eos,)) if eos is not None else Frame()


def _siglip_steps(fields: Fields) -> list[normalizers.Normalizer]:
    """Return what SigLIP's tokenizer does before SentencePiece: no capitals and no punctuation."""
    return [
        normalizers.Replace(MARK, " "),
        # Theirs puts the mark before a text itself, so that spaces at the beginning stay.
        normalizers.Prepend(MARK),
        *(lowercase_steps() if fields.flag("do_lower_case", True) else ()),
        normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), ""),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Replace(Regex(f"[ {MARK}]+$"), ""),
    ]


def _read_marian(settings: TokenizerSettings) -> TokenizerPair:
    """Read Marian's two SentencePiece models, with the ids of their pieces from vocab.json."""
    directory = settings.directory
    for name in _MARIAN_FILES:
        if not (directory / name).exists():
            raise ModelError(
                f"The directory lacks {name}", where=str(directory), remedy="Copy all files"
            )
    separate = settings.fields.flag("separate_vocabs", False)
    files = {"source": "vocab.json", "target": "target_vocab.json" if separate else "vocab.json"}
    tokenizers_by_side: dict[str, ImportedTokenizer] = {}
    for side, vocabulary_file in files.items():
        # Segmentation comes from SentencePiece, but ids from Marian's own vocabulary.
        ids = read_ids(directory / vocabulary_file)
        library, _ = from_sentencepiece(directory / f"{side}.spm")
        names = {role: settings.names.get(role, _USUAL_NAMES[role][0]) for role in _MARIAN_ROLES}
        for role, name in names.items():
            if name not in ids:
                raise ModelError(
                    f"The vocabulary has no piece {name}, the token for {role}",
                    where=str(directory / vocabulary_file),
                    remedy="Use the files that were saved together",
                )
        library.add_special_tokens(
            [AddedToken(name, special=True, normalized=False) for name in names.values()]
        )
        library.add_tokens(
            [t for id, t in settings.added if not t.special and ids.get(t.content) == id]
        )
        special = {role: ids[name] for role, name in names.items()}
        # Marian has no BOS token: the decoder starts from <pad>.
        start = settings.config_id("decoder_start_token_id")
        special["bos"] = special["pad"] if start is None else start
        frame = Frame((), (special["eos"],))
        tokenizers_by_side[side] = ImportedTokenizer(special, frame, _state(library), ids)
    source, target = tokenizers_by_side["source"], tokenizers_by_side["target"]
    # OPUS, on which such models were trained, holds pairs of sentences.
    language = (
        settings.fields.text("source_lang") if settings.fields.has("source_lang") else ENGLISH
    )
    reading = Reading("sentences", language)
    # Equal tokenizers make a joint pair, which is stored once.
    is_joint = source.fingerprint == target.fingerprint
    return TokenizerPair(source, source if is_joint else target, reading=reading)


_MARIAN_ROLES = ("pad", "eos", "unk")


def _read_fast(file: Path) -> tokenizers.Tokenizer:
    def unreadable(message: str) -> ModelError:
        return ModelError(
            f"The tokenizer cannot be read: {message}",
            where=str(file),
            remedy="The file is damaged, or of a newer kind than the installed tokenizers package",
        )

    with library_errors(unreadable):
        return tokenizers.Tokenizer.from_str(read_bytes(file).decode())


def _mark_special(
    library: tokenizers.Tokenizer, settings: TokenizerSettings, *, only_named: bool = False
) -> None:
    """Register special tokens, so that their names in a text are encoded as single tokens."""
    for id, token in settings.added:
        # The library numbers new tokens from the end, so a gap would shift all later ids.
        if library.token_to_id(token.content) is None and id != _size(library):
            raise ModelError(
                f"The added token {token.content!r} has id {id}, and the vocabulary "
                f"{_size(library)} pieces",
                where=settings.fields.where,
                remedy="Use the tokenizer files that were saved together",
            )
        library.add_tokens([token])
    # Tokens that are registered already keep their flags, e.g. `lstrip`.
    known = {token.content for token in library.get_added_tokens_decoder().values()}
    for role in ROLES:
        name = settings.names.get(role) if only_named else settings.name(role, library)
        if name is not None and name not in known and library.token_to_id(name) is not None:
            library.add_special_tokens([AddedToken(name, special=True, normalized=False)])
            known.add(name)


def _frame_by(
    library: tokenizers.Tokenizer,
    settings: TokenizerSettings,
    first: str,
    last: str,
    processor: type[processors.BertProcessing] | type[processors.RobertaProcessing],
) -> None:
    ends = {role: settings.names.get(role) for role in ("cls", "sep")}
    cls = ends["cls"] or settings.name(first, library)
    sep = ends["sep"] or settings.name(last, library)
    ids = [library.token_to_id(name) if name else None for name in (sep, cls)]
    if cls is None or sep is None or ids[0] is None or ids[1] is None:
        raise ModelError(
            "The vocabulary lacks the tokens that frame a text",
            where=str(settings.directory),
            remedy="Copy tokenizer_config.json and special_tokens_map.json too",
        )
    # The end token comes first in both of these constructors.
    library.post_processor = processor((sep, ids[0]), (cls, ids[1]))


def _requested_frame(settings: TokenizerSettings, library: tokenizers.Tokenizer) -> Frame | None:
    """Return the frame by add_bos_token and add_eos_token; None if neither is set."""
    fields = settings.fields
    if not fields.has("add_bos_token") and not fields.has("add_eos_token"):
        return None
    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    bos, eos = settings.id("bos", library), settings.id("eos", library)
    if fields.flag("add_bos_token", False) and bos is not None:
        first = (bos,)
    if fields.flag("add_eos_token", False) and eos is not None:
        last = (eos,)
    # Two texts are separated by the end of the first and the beginning of the second.
    return Frame(first, last, (*last, *first))


def _special_ids(library: tokenizers.Tokenizer, settings: TokenizerSettings) -> dict[str, int]:
    """Return ids of a model's special tokens; a missing one gets the id of the nearest role."""
    ids = {role: settings.id(role, library) for role in ROLES}
    model = _state(library)["model"]
    # BPE and WordPiece store the name of the unknown token, unigram models its id.
    if model.get("unk_token") is not None:
        ids["unk"] = library.token_to_id(model["unk_token"])
    elif model.get("unk_id") is not None:
        ids["unk"] = model["unk_id"]
    # Encoders like BERT end a text by [SEP].
    eos = _first(ids["eos"], ids["sep"])
    if eos is None:
        raise ModelError(
            "Nothing says which token ends a text",
            where=str(settings.directory),
            remedy=f"Name it as eos_token in {SETTINGS_FILE}",
        )
    start = settings.config_id("decoder_start_token_id")
    special = {
        # GPT-2 has no padding token; positions mark padding here, so any id serves.
        "pad": _first(ids["pad"], eos),
        "bos": _first(start, ids["bos"], ids["cls"], eos),
        "eos": eos,
        "unk": _first(ids["unk"], eos),
        "mask": ids["mask"],
    }
    return {role: id for role, id in special.items() if id is not None}


def _first(*ids: int | None) -> int | None:
    return next((id for id in ids if id is not None), None)


def _added_tokens(directory: Path, content: Mapping[str, Any]) -> list[tuple[int, AddedToken]]:
    """Return tokens that were added to a vocabulary after training, in the order of their ids."""
    older = read_json_file(directory / "added_tokens.json") or {}
    tokens = {id: AddedToken(name, normalized=False) for name, id in older.items()}
    # `added_tokens_decoder` replaced added_tokens.json and holds the flags as well, so it wins.
    for id, token in (content.get("added_tokens_decoder") or {}).items():
        tokens[int(id)] = AddedToken(
            token["content"],
            **{
                flag: bool(token[flag])
                for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")
                # Flags that a file leaves out keep the library's defaults.
                if flag in token
            },
        )
    return sorted(tokens.items(), key=lambda item: item[0])


def _name(value: object) -> str | None:
    # A special token is stored as its name or as an object with flags.
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _size(library: tokenizers.Tokenizer) -> int:
    # The number of tokens would be too small for vocabularies whose ids have gaps.
    return max(library.get_vocab(with_added_tokens=True).values()) + 1


def _state(library: tokenizers.Tokenizer) -> dict[str, Any]:
    # Padding and truncation are settings of a training script; batches are padded elsewhere here.
    library.no_padding()
    library.no_truncation()
    state: dict[str, Any] = json.loads(library.to_str())
    return state


def read_frame(processor: Mapping[str, Any] | None, *, where: str) -> Frame:
    """Return the ids that a post-processor puts around a text and between two texts.

    Args:
        processor: JSON state of the post-processor; None for none.
        where: name of its file, for the error message.

    Raises:
        ModelError: when the post-processor does something else.
    """
    if processor is None:
        return Frame()
    kind = processor.get("type")
    # Byte-level processing only trims the offsets of tokens.
    if kind == "ByteLevel":
        return Frame()
    if kind == "Sequence":
        frames = [read_frame(part, where=where) for part in processor["processors"]]
        used = [frame for frame in frames if frame != Frame()]
        if len(used) > 1:
            raise _unknown_frame("several templates", where)
        return used[0] if used else Frame()
    if kind in ("BertProcessing", "RobertaProcessing"):
        sep, cls = (int(processor[name][1]) for name in ("sep", "cls"))
        # RoBERTa separates two texts by </s></s> (Liu 2019).
        between = (sep,) if kind == "BertProcessing" else (sep, sep)
        return Frame((cls,), (sep,), between)
    if kind == "TemplateProcessing":
        return _from_template(processor, where)
    raise _unknown_frame(f"type {kind!r}", where)


def _from_template(processor: Mapping[str, Any], where: str) -> Frame:
    single = _template_parts(processor["single"], processor["special_tokens"])
    pair = _template_parts(processor["pair"], processor["special_tokens"])
    if len(single) != 2:
        raise _unknown_frame("a template that holds a text more or less than once", where)
    first, last = single
    # Pairs are only supported where they begin and end like a single text.
    fits = len(pair) == 3 and (pair[0], pair[2]) == (first, last)
    return Frame(first, last, pair[1] if fits else None)


def _template_parts(
    template: Sequence[Mapping[str, Any]], tokens: Mapping[str, Any]
) -> list[tuple[int, ...]]:
    """Return the ids before, between and after the texts of a template."""
    parts: list[tuple[int, ...]] = [()]
    for item in template:
        if "Sequence" in item:
            parts.append(())
        else:
            parts[-1] += tuple(tokens[item["SpecialToken"]["id"]]["ids"])
    return parts


def _unknown_frame(what: str, where: str) -> ModelError:
    return ModelError(
        f"The tokenizer's post-processor cannot be imported: {what}",
        where=where,
        remedy="Frames of special tokens before, between and after texts can be",
    )
