"""Records that are read by an encoder and answered by a decoder, such as captions of images."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, Unpack

from torch import Tensor

from heedful.data.padding import pad, source_tensors
from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.translator import Translator
from heedful.pipelines.batching import check_is_list, plan_batches, split_on_oom
from heedful.pipelines.text_generation import (
    BATCH_TOKENS,
    Generation,
    GenerationPipeline,
    as_record,
    assembled,
)
from heedful.search.dispatch import search
from heedful.search.grammar import Grammar, RuledModel
from heedful.search.scoring import score_targets
from heedful.search.search_settings import (
    GenerationOptions,
    GenerationSettings,
    Specials,
    check_fits,
    check_width,
)
from heedful.search.step_model import Continuation, State, StepModel
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.tokenizer_pair import TokenizerPair


class Asked(NamedTuple):
    """A record in tokens.

    Args:
        source: ids of the fields that the encoder reads.
        target: ids of the fields that are written, or of their beginning, after a begin token.
        read: the fields that the encoder reads.
    """

    source: list[int]
    target: list[int]
    read: dict[str, Any]


class Answering(Generic[State]):
    """A translator as a `StepModel` of beginnings of targets, for sources that are known.

    Args:
        model: translator.
        begun: its state after the sources were read, from `start`.
    """

    def __init__(self, model: StepModel[State], begun: State) -> None:
        self.model = model
        self.begun = begun

    def start(self, source: Tensor, source_positions: Tensor) -> State:
        """Read the beginnings of targets [B, L], all of one length."""
        state = self.begun
        for column in source.T:
            _, state = self.model.step(state, column[:, None])
        return state

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """See `StepModel`."""
        return self.model.step(state, tokens)

    def reorder(self, state: State, rows: Tensor) -> State:
        return self.model.reorder(state, rows)


class RecordPipeline(GenerationPipeline):
    """An encoder-decoder that completes records, where a language model continues texts.

    Args:
        model: translator, perhaps with its engine.
        tokenizers: fields that are read, and fields that are written.
        **options: `precision` of `GenerationPipeline`.
    """

    kind: ClassVar[type[Any]] = Translator
    answers = True
    verbs = ("generate",)  # records are no streams
    refusal = "This model answers no records"
    remedy = "Give a model that was trained with --task tokens and --tokens.source"

    def __init__(self, model: Any, tokenizers: TokenizerPair, **options: Any) -> None:
        read, written = tokenizers.source, tokenizers.target
        if not isinstance(read, FieldTokenizer) or not isinstance(written, FieldTokenizer):
            raise ModelError(self.refusal, remedy=self.remedy)
        super().__init__(model, written, **options)
        self.read, self.written = read, written

    @classmethod
    def tokenizers_of(cls, tokenizers: TokenizerPair) -> Sequence[Any]:
        return (tokenizers,)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        settings: GenerationSettings | None = None,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        first_name: int = 0,
        **options: Unpack[GenerationOptions],
    ) -> list[Generation]:
        """Complete records; batching changes no result.

        Args:
            prompts: lines of JSON with the fields that the encoder reads, and perhaps the beginning
                of those that are written.
            settings, batch_size, batch_tokens, first_name, **options: arguments of
                `GenerationPipeline.generate`.

        Returns:
            A result for each prompt, in the same order, whose text is the whole record.

        Raises:
            ConfigError: when settings contradict each other or the model.
            DataError: when a prompt is no record, lacks a field that is read, or is too long.
        """
        check_is_list(prompts, "prompts")
        resolved = GenerationSettings.parse({**(settings.plain() if settings else {}), **options})
        for name in ("stop", "coverage_penalty", "json_schema", "regex"):
            if getattr(resolved, name):
                raise ConfigError("A record is written to its end by its fields", where=name)
        check_width([self.spec], resolved)
        row_size = self.spec.embedding.row_size or 1
        # A source of rows is longer in tokens than in positions, to which an answer is compared.
        usual = self.written.longest or self.spec.max_length // row_size
        table = self.spec.num_positions
        asked = [
            self.asked(prompt, f"record {number}", partial=True)
            for number, prompt in enumerate(prompts, start=1)
        ]
        # Beginnings of one length are continued together, so that a step is one for all of them.
        alike: dict[int, list[int]] = defaultdict(list)
        for number, each in enumerate(asked):
            alike[len(each.target)].append(number)
        results: dict[int, Generation] = {}

        def run(settings: GenerationSettings, part: list[int]) -> list[Generation]:
            chosen = [asked[number] for number in part]
            return self._completed(chosen, settings, [first_name + number for number in part])

        with self.computing():
            for begun, numbers in alike.items():
                room = None if table is None else table - begun
                if room is not None and (resolved.max_length or 1) > room:
                    raise ConfigError(
                        f"The record leaves {room} of the {table} positions the model has learned",
                        where=f"record {numbers[0] + 1}",
                        remedy=f"Ask for at most {room} new tokens, or give less of the record",
                    )
                limited = resolved.limited(room, usual)
                batches = plan_batches(
                    [len(asked[number].source) + usual for number in numbers],
                    width=resolved.width,
                    batch_tokens=batch_tokens,
                    batch_size=batch_size,
                )
                parts = [[numbers[place] for place in batch] for batch in batches]
                for part, found in split_on_oom(parts, partial(run, limited)):
                    results.update(zip(part, found, strict=True))
        return [results[number] for number in range(len(prompts))]

    def token_scores(self, asked: Sequence[Asked]) -> list[tuple[float, ...]]:
        """Return the log-probability of each token of whole targets, and of the end token last."""
        engine: Any = self.engine
        specials = Specials(self.written.pad, self.written.bos, self.written.eos)
        targets = [each.target[1:] for each in asked]
        with self.computing():
            return score_targets(engine, *self._sources(asked), targets, specials)

    def asked(self, text: str, where: str, *, partial: bool = False) -> Asked:
        """Encode a record, a line of JSON.

        Args:
            text: the record.
            where: name of the record in errors.
            partial: flag of a beginning: the last fields that are written may be missing.

        Raises:
            DataError: when it is no record of the model's fields, or is too long.
        """
        try:
            source = self.read.encode(text)
            record = json.loads(text)
            known = [field.name for field in self.read.fields]
            rest = record if isinstance(record, dict) else {}
            rest = {name: value for name, value in rest.items() if name not in known}
            target = self.written.encode_record(rest, partial=partial).tolist()
        except DataError as error:
            error.where = error.where or where
            raise
        check_fits([self.spec], source, where)
        check_fits([self.spec], target, where)
        return Asked(source, [self.written.bos, *target], self.read.decode_record(source))

    def _sources(self, asked: Sequence[Asked]) -> tuple[Tensor, Tensor]:
        """Return the ids and positions of sources [B, S]."""
        source, positions = source_tensors([each.source for each in asked], self.read)
        device = self.engine.output_weight.device
        return source.to(device), positions.to(device)

    def _completed(
        self, asked: Sequence[Asked], settings: GenerationSettings, names: Sequence[int]
    ) -> list[Generation]:
        """Complete records whose beginnings have one length."""
        device, rules, limit = self.engine.output_weight.device, self.written, settings.max_length
        assert limit is not None
        engine: Any = self.engine
        answering = Answering(engine, engine.start(*self._sources(asked)))
        grammar = Grammar(rules.states, self.spec.predicted_vocabulary, rules.bos, device)
        continuation: Continuation[Any] = Continuation(
            RuledModel(answering, grammar),
            vocabulary=self.spec.predicted_vocabulary,
            ends=(rules.eos,),
            limit=limit,
        )
        begun, positions = pad([each.target for each in asked], rules.pad)
        found = search(
            continuation,
            begun.to(device),
            positions.to(device),
            settings,
            specials=continuation.specials,
            names=names,
        )
        return [
            self._whole(as_record(assembled(best, None, limit), rules, each.target), each)
            for best, each in zip(found, asked, strict=True)
        ]

    def _whole(self, found: Generation, asked: Asked) -> Generation:
        """Return a result whose text has the fields that were read before those written."""
        text = json.dumps({**asked.read, **json.loads(found.text)}, ensure_ascii=False)
        return replace(
            found, text=text, others=tuple(self._whole(each, asked) for each in found.others)
        )
