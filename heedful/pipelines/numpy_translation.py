"""Raw text in, translations out, without PyTorch: for a few texts and plain beam search.

`search` is `heedful.search.beam`, which says why it ends when it does, for one sentence. The two
loops stay apart: this one may not import PyTorch, whose loading takes longer than all the rest, and
its lists take 57 µs a step (beam 4, 8,000 tokens) where tensors for a batch of one take 147 µs; a
batch of 32 in lists would take 32 times as long.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from heedful.engines.inference.lowering import (
    FileWeights,
    Floats,
    Unsupported,
    address,
    empty,
    workspace,
)
from heedful.engines.inference.numpy_translator import NumpyTranslator
from heedful.errors import UserError
from heedful.kernels.library import has_int8_kernels, kernels
from heedful.models.model_directory import (
    WEIGHTS_FILE,
    find_model_directory,
    load_tokenizers,
    locate,
    read_facts,
    verified,
)
from heedful.pipelines.text_splitting import (
    Segment,
    SegmentResult,
    Translation,
    Warn,
    assemble,
    cut_texts,
    distinct_texts,
    warn_of_cuts,
)
from heedful.search.search_settings import (
    Hypothesis,
    SearchSettings,
    Specials,
    length_norm,
    longest_output,
    not_numbers,
)
from heedful.text.tokenizer import framed
from heedful.text.tokenizer_pair import TokenizerPair

if TYPE_CHECKING:
    from heedful.device import RunningPrecision

MOST_LINES = 8
"""Of so many, a small model's translations take less time than loading PyTorch; one after the
other, as here, those of more sentences take longer than together."""

MOST_CHARACTERS = 2000

_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


class NumpyTranslationPipeline:
    """A translator of a few texts, sentence by sentence.

    Args:
        translator: the model.
        tokenizers: of source and target.

    Raises:
        Unsupported: when the longest pieces of a text would have no positions.
    """

    def __init__(self, translator: NumpyTranslator, tokenizers: TokenizerPair) -> None:
        self._translator = translator
        self._tokenizers = tokenizers
        target = tokenizers.target
        self._specials = Specials(pad=target.pad, bos=target.bos, eos=target.eos)
        if not self._reads_all():
            raise Unsupported

    @classmethod
    def load(
        cls, path: Path, *, device: str = "auto", precision: RunningPrecision = "auto"
    ) -> Self | None:
        """Load a model directory, or a run directory's best model, if it needs no PyTorch here.

        Args:
            path: the directory.
            device: as for `heedful.load`.
            precision: the same.

        Returns:
            None where `heedful.load` is to be asked, which can do more and says what is wrong.

        Raises:
            UserError: and its kinds, when a model of the hub cannot be fetched.
        """
        if precision not in ("auto", "fp32", "int8") or not _is_processor(device):
            return None
        path = locate(path)  # what is wrong with a name of the hub is said once
        try:
            directory = find_model_directory(path)
            facts = read_facts(directory)
            spec = facts.spec
            if spec.kind != "translator" or not _have_threads() or kernels() is None:
                return None
            int8 = precision == "int8"
            if int8 and not has_int8_kernels():
                return None
            with verified(directory, facts.digests):
                with FileWeights(directory / WEIGHTS_FILE, int8=int8) as weights:
                    translator = NumpyTranslator(spec, weights)
                    weights.finish()
                tokenizers = load_tokenizers(directory, spec)
            assert tokenizers is not None
            if tokenizers.unwritten:
                return None
            return cls(translator, tokenizers)
        except (Unsupported, UserError):
            return None

    def serves(self, texts: Sequence[str]) -> bool:
        """Return True for so few texts that this is the fastest way to translate them."""
        return len(texts) <= MOST_LINES and sum(map(len, texts)) <= MOST_CHARACTERS

    def translate(
        self,
        texts: Sequence[str],
        settings: SearchSettings,
        *,
        first_line: int = 1,
        warn: Warn | None = None,
    ) -> list[Translation]:
        """As `TranslationPipeline.translate`, for searches it `searches`.

        Args:
            texts: any strings.
            settings: of the search.
            first_line: number of the first text, for warnings.
            warn: called with a sentence about long lines and cut translations.

        Raises:
            ConfigError: when settings contradict the model.
            ModelError: when it gives no numbers.
        """
        assert searches(settings)
        source, target = self._tokenizers.source, self._tokenizers.target
        most = self._translator.spec.max_length
        cut = cut_texts(texts, source, most, warn=warn, first_line=first_line)
        longest = longest_output([self._translator.spec], settings)
        translations = [
            assemble(text, [self.find(each, settings, longest) for each in text.segments], target)
            for text in cut
        ]
        if warn is not None:
            warn_of_cuts(translations, first_line, warn)
        return translations

    def find(
        self, segment: Segment, settings: SearchSettings, longest: int | None
    ) -> SegmentResult:
        """The best translations of a piece of a text, from `longest_output` of these settings."""
        several = settings.n_best > 1
        hypotheses = search(
            self._translator,
            framed(self._tokenizers.source, segment.ids),
            settings,
            self._specials,
            longest=longest,
            kept=settings.beam if several else 1,
        )
        if several:
            hypotheses = distinct_texts(hypotheses, self._tokenizers.target)[: settings.n_best]
        return SegmentResult(hypotheses)

    def _reads_all(self) -> bool:
        """Return True if the longest pieces of a text have positions."""
        spec, source = self._translator.spec, self._tokenizers.source
        positions = spec.embedding.positions.max_length
        frame = len(source.first) + len(source.last)
        return positions is None or spec.max_length + frame <= positions


def searches(settings: SearchSettings) -> bool:
    """Return True for plain greedy and beam search."""
    special = settings.coverage_penalty or settings.no_repeat_ngram or settings.alternatives
    return not (settings.sampling or special)


def _is_processor(device: str) -> bool:
    """Return True if the device is certainly the processor."""
    if device != "auto":
        return device == "cpu"
    return sys.platform == "linux" and not any(Path(each).exists() for each in _ACCELERATORS)


def _have_threads() -> bool:
    """Load the threads of PyTorch, which kernels share with it if it is loaded later."""
    if "torch" in sys.modules:
        return True
    result = importlib.util.find_spec("torch")
    for folder in (result and result.submodule_search_locations) or ():
        for file in sorted(Path(folder, "lib").glob("libgomp*.so*")):
            try:
                ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
            return True
    return False


class _Candidate(NamedTuple):
    """One more token of a live hypothesis.

    Args:
        total: summed log-probability; −∞ where there is no candidate.
        parent: which hypothesis is continued.
        token: with what.
        score: the log-probability of that.
    """

    total: float
    parent: int
    token: int
    score: float


@dataclass(frozen=True)
class _Ending:
    """A hypothesis that has ended.

    Args:
        rank: its normalised score.
        total: its summed log-probability.
        length: its tokens, the end not counted.
        beam: which live hypothesis of that length it was.
        score: log-probability of the end.
        wanted: whether the model itself would have ended there.
    """

    rank: float
    total: float
    length: int
    beam: int
    score: float
    wanted: bool


def search(
    translator: NumpyTranslator,
    source: Sequence[int],
    settings: SearchSettings,
    specials: Specials,
    *,
    longest: int | None,
    kept: int,
) -> list[Hypothesis]:
    """The best translations of a sentence, best first.

    Args:
        translator: the model.
        source: ids, special tokens included.
        settings: of the search.
        specials: ids of the target's special tokens.
        longest: most tokens that can be written, if positions end somewhere.
        kept: how many hypotheses are wanted.

    Raises:
        ModelError: when the model gives no numbers.
    """
    limit = settings.longest(len(source))
    limit = limit if longest is None else min(limit, longest)
    width, eos = settings.beam, specials.eos
    never = {specials.pad, specials.bos} - {eos}
    longest_norm = length_norm(limit + 1.0, settings.length_penalty)
    text = translator.begin(source)
    tokens, totals = [specials.bos], [0.0]
    steps: list[list[_Candidate]] = []
    best: list[_Ending] = []
    while True:
        age = len(steps)
        scores = text.step(tokens)
        excess = _excess(scores)
        wanted = [True] * len(tokens)
        if age == limit:
            wanted = [bool(result == eos) for result in scores.argmax(1)]
        _constrain(scores, age, never, settings, eos, must_end=age >= limit)
        result = _continuations(scores, excess, totals, 2 * width if width > 1 else 1)
        norm = length_norm(age + 1.0, settings.length_penalty)
        ended = [
            _Ending(total / norm, total, age, parent, score, wanted[parent])
            for total, parent, token, score in result
            if token == eos and total > -math.inf
        ]
        best = sorted(best + ended, key=lambda ending: -ending.rank)[:kept]
        live = [each for each in result if each.token != eos]
        live += [each._replace(total=-math.inf) for each in result if each.token == eos]
        live = live[:width]
        steps.append(live)
        worst = best[-1].rank if len(best) == kept else -math.inf
        if not worst < live[0].total / longest_norm:
            return [_hypothesis(steps, each) for each in best]
        parents = [each.parent for each in live]
        if parents != list(range(len(tokens))):
            text.choose(parents)
        tokens, totals = [each.token for each in live], [each.total for each in live]


def _excess(scores: Floats) -> Floats:
    """Return log Σ exp of each row of scores [W, V], as [W] float64."""
    excess = empty((len(scores),), np.float64)
    if not kernels().heedful_logsumexp(address(scores), *scores.shape, address(excess)):
        raise not_numbers()
    return excess


def _constrain(
    scores: Floats,
    age: int,
    never: set[int],
    settings: SearchSettings,
    eos: int,
    *,
    must_end: bool,
) -> None:
    """Set the scores of forbidden tokens to −∞, in place."""
    if must_end:
        end = scores[:, eos].copy()
        scores[...] = -math.inf
        scores[:, eos] = end
        return
    for token in never:
        scores[:, token] = -math.inf
    if age < settings.min_length:
        scores[:, eos] = -math.inf


def _continuations(
    scores: Floats, excess: Floats, totals: Sequence[float], count: int
) -> list[_Candidate]:
    """The best continuations of all hypotheses, as many as asked for, best first."""
    hypotheses, size = scores.shape
    so_far = np.array(totals, np.float64)
    result, token_scores = empty((count,), np.float64), empty((count,))
    parents, tokens = empty((2, count), np.int64)
    room = workspace(12 * hypotheses * min(count, size))
    kernels().heedful_topk(
        *(address(scores), address(excess), address(so_far)),
        *(1, hypotheses, size, count),
        *(address(result), address(parents), address(tokens), address(token_scores)),
        address(room),
    )
    columns = (each.tolist() for each in (result, parents, tokens, token_scores))
    return [_Candidate(*each) for each in zip(*columns, strict=True)]


def _hypothesis(steps: Sequence[Sequence[_Candidate]], ending: _Ending) -> Hypothesis:
    """Follow the back pointers from an ending to its hypothesis."""
    path: list[_Candidate] = []
    beam = ending.beam
    for live in reversed(steps[: ending.length]):
        path.append(live[beam])
        beam = live[beam].parent
    path.reverse()
    return Hypothesis(
        tokens=tuple(each.token for each in path),
        score=ending.total,
        normalized_score=ending.rank,
        token_scores=(*(each.score for each in path), ending.score),
        finished=ending.wanted,
    )
