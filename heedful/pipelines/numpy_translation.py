"""Translation without PyTorch, for a few texts and plain beam search.

`search` is the algorithm of `heedful.search.beam`, which explains when it ends, for one sentence.
The two loops stay apart. This one may not import PyTorch, as loading it takes longer than the whole
translation. Its lists take 57 µs a step (beam 4, 8,000 tokens) where tensors for a batch of one
take 147 µs; a batch of 32 in lists would take 32 times as long.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

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
from heedful.errors import UserError, lacks_torch
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
    has_parts,
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
from heedful.text.tokenizer_pair import Split, TokenizerPair

if TYPE_CHECKING:
    from heedful.device import RunningPrecision
    from heedful.models.translator import Translator

MOST_LINES = 8
"""Maximum number of lines: a small model translates them in less time than PyTorch takes to load.
More sentences take longer one after the other, as here, than in a batch."""

MOST_CHARACTERS = 2000
"""Maximum number of characters of all lines, for the same reason."""

_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


class NumpyTranslationPipeline:
    """A translator of a few texts, sentence by sentence.

    Args:
        translator: the model.
        tokenizers: tokenizers of source and target.
        keeps_parts: False to read addresses, placeholders and the like as all other text.

    Attributes:
        specials: special tokens of the target.

    Raises:
        Unsupported: when the model has fewer learned positions than the longest segment needs.
    """

    def __init__(
        self,
        translator: NumpyTranslator,
        tokenizers: TokenizerPair,
        *,
        keeps_parts: bool = True,
    ) -> None:
        self.translator = translator
        self.tokenizers = tokenizers
        self._keeps_parts = keeps_parts
        target = tokenizers.target
        self.specials = Specials(pad=target.pad, bos=target.bos, eos=target.eos)
        # The longest segment, with its special tokens, needs as many learned positions.
        spec, source = translator.spec, tokenizers.source
        positions = spec.embedding.positions.max_length
        frame = len(source.first) + len(source.last)
        if positions is not None and spec.max_length + frame > positions:
            raise Unsupported

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        device: str = "auto",
        precision: RunningPrecision = "auto",
        split: Split | None = None,
        keeps_parts: bool = True,
    ) -> Self | None:
        """Load a model directory, or the best model of a run directory, if it runs without PyTorch.

        Args:
            path: the directory.
            device: device, see `heedful.load`.
            precision: precision, see `heedful.load`.
            split: parts of a text that are translated apart, see `heedful.load`.
            keeps_parts: False to read addresses, placeholders and the like as all other text.

        Returns:
            The pipeline; None if `heedful.load` has to load the model, or to report its fault.

        Raises:
            UserError: when a model of the hub cannot be fetched.
        """
        path = locate(path)  # outside of `try`: an error of the hub is raised at once
        try:
            return cls.read(
                path, device=device, precision=precision, split=split, keeps_parts=keeps_parts
            )
        # `heedful.load` will report the same fault, or read a model that this class does not
        # support.
        except (Unsupported, UserError):
            return None

    @classmethod
    def read(
        cls,
        path: Path,
        *,
        device: str = "auto",
        precision: RunningPrecision = "auto",
        split: Split | None = None,
        keeps_parts: bool = True,
    ) -> Self:
        """Load a model as `load` does.

        Raises:
            Unsupported: when it needs PyTorch.
            UserError: when there is no model, or it is damaged.
        """
        if precision not in ("auto", "fp32", "int8") or not _is_processor(device):
            raise Unsupported
        directory = find_model_directory(path)
        facts = read_facts(directory)
        int8 = precision == "int8"
        spec: Any = facts.spec
        if spec.kind != "translator" or not _have_threads() or kernels() is None:
            raise Unsupported
        if int8 and not has_int8_kernels():
            raise Unsupported
        with verified(directory, facts.digests):
            with FileWeights(directory / WEIGHTS_FILE, int8=int8) as weights:
                translator = NumpyTranslator(spec, weights)
                weights.finish()
            tokenizers = load_tokenizers(directory, spec)
        assert tokenizers is not None
        # Only the search in PyTorch can keep reserved tokens out of hypotheses.
        if tokenizers.unwritten:
            raise Unsupported
        return cls(translator, tokenizers.splitting(split), keeps_parts=keeps_parts)

    @classmethod
    def sharing(cls, model: Translator, tokenizers: TokenizerPair) -> Self | None:
        """Make a pipeline that shares a loaded model's weights.

        Args:
            model: translator for which `can_share` is true.
            tokenizers: tokenizers of source and target.

        Returns:
            The pipeline; None if the model needs operations of PyTorch.
        """
        from heedful.engines.inference.cpu_model import share_weights

        try:
            return cls(share_weights(model), tokenizers)
        except Unsupported:
            return None

    def serves(self, texts: Sequence[str]) -> bool:
        """Return True if texts are so few and short that this is the fastest way to translate.

        Texts with protected parts are not served: they need an alignment.
        """
        if len(texts) > MOST_LINES or sum(map(len, texts)) > MOST_CHARACTERS:
            return False
        return not (self._keeps_parts and any(map(has_parts, texts)))

    def translate(
        self,
        texts: Sequence[str],
        settings: SearchSettings,
        *,
        first_line: int = 1,
        warn: Warn | None = None,
    ) -> list[Translation]:
        """Translate texts as `TranslationPipeline.translate` does.

        Args:
            texts: any strings.
            settings: settings of the search, for which `searches` is true.
            first_line: number of the first text, for warnings.
            warn: receiver of a sentence about long lines and cut translations.

        Raises:
            ConfigError: when settings contradict the model.
            ModelError: when the model's scores are NaN.
        """
        assert searches(settings)
        source, target = self.tokenizers.source, self.tokenizers.target
        most = self.translator.spec.max_length
        cut = cut_texts(
            texts,
            source,
            most,
            self.tokenizers.reads,
            warn=warn,
            first_line=first_line,
            copies=self._keeps_parts,
        )
        longest = longest_output([self.translator.spec], settings)
        translations = [
            assemble(
                text,
                [
                    SegmentResult.copy_of(each.text)
                    if each.is_copied
                    else self.find(each, settings, longest)
                    for each in text.segments
                ],
                target,
            )
            for text in cut
        ]
        if warn is not None:
            warn_of_cuts(translations, first_line, warn)
        return translations

    def find(
        self, segment: Segment, settings: SearchSettings, longest: int | None
    ) -> SegmentResult:
        """Return the best translations of a segment.

        Args:
            segment: segment of a text.
            settings: settings of the search, for which `searches` is true.
            longest: maximum number of tokens of a translation, from `longest_output`.
        """
        several = settings.n_best > 1
        hypotheses = search(
            self.translator,
            framed(self.tokenizers.source, segment.ids),
            settings,
            self.specials,
            longest=longest,
            kept=settings.beam if several else 1,
        )
        if several:
            hypotheses = distinct_texts(hypotheses, self.tokenizers.target)[: settings.n_best]
        return SegmentResult(hypotheses)


def can_share(model: Translator) -> bool:
    """Return True if the C kernels support all of a loaded model, and it has no hooks."""
    from heedful.engines.inference.cpu_model import is_untouched

    return is_untouched(model)


def searches(settings: SearchSettings) -> bool:
    """Return True for plain greedy and beam search."""
    special = settings.coverage_penalty or settings.no_repeat_ngram or settings.alternatives
    return not (settings.sampling or special)


def _is_processor(device: str) -> bool:
    """Return True if the device is certainly the CPU."""
    if device != "auto" or lacks_torch():
        return device in ("cpu", "auto")
    # PyTorch lists the devices, but is not loaded here. The device file of a driver shows that
    # there may be an accelerator.
    return sys.platform == "linux" and not any(Path(each).exists() for each in _ACCELERATORS)


def _have_threads() -> bool:
    """Load PyTorch's OpenMP library, which the kernels use; return False if it is not found."""
    # If kernels used another OpenMP library, a process with PyTorch would have two, each with its
    # threads.
    if "torch" in sys.modules:
        return True
    if lacks_torch():
        _loaded("libgomp.so.1")  # the system's; without it the kernels have one thread
        return True
    result = importlib.util.find_spec("torch")
    for folder in (result and result.submodule_search_locations) or ():
        if any(map(_loaded, sorted(map(str, Path(folder, "lib").glob("libgomp*.so*"))))):
            return True
    return False


def _loaded(file: str) -> bool:
    """Load a library, whose functions the kernels then find; return False if that fails."""
    try:
        ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


class _Candidate(NamedTuple):
    """A live hypothesis extended by one token.

    Args:
        log_prob: summed log-probability; −∞ where there is no candidate.
        parent: index of the extended hypothesis.
        token: id of the new token.
        score: log-probability of the new token.
    """

    log_prob: float
    parent: int
    token: int
    score: float


@dataclass(frozen=True)
class _Ending:
    """A hypothesis that has ended.

    Args:
        rank: normalised score.
        log_prob: summed log-probability.
        length: number of tokens, the end token not counted.
        beam: index among the live hypotheses of that length.
        score: log-probability of the end token.
        wanted: False if the end was forced at the maximum length.
    """

    rank: float
    log_prob: float
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
    """Return the best translations of a sentence, best first.

    Args:
        translator: the model.
        source: token ids, special tokens included.
        settings: settings of the search.
        specials: ids of the target's special tokens.
        longest: maximum number of target tokens that learned positions allow; None if unlimited.
        kept: number of hypotheses to return.

    Raises:
        ModelError: when the model's scores are NaN.
    """
    # As in `heedful.search.dispatch`: learned positions also bound a length that the user asks for.
    limit = settings.longest(len(source))
    limit = limit if longest is None else min(limit, longest)
    width, eos = settings.beam, specials.eos
    # An imported model may have one token for both the begin and the end of a sequence.
    never = {specials.pad, specials.bos} - {eos}
    longest_norm = length_norm(limit + 1.0, settings.length_penalty)
    text = translator.begin(source)
    tokens, log_probs = [specials.bos], [0.0]
    steps: list[list[_Candidate]] = []
    best: list[_Ending] = []
    while True:
        age = len(steps)
        scores = text.step(tokens)
        # Computed before the constraints: forbidding a token must not raise the probability of
        # others.
        logsumexp = row_logsumexp(scores)
        wanted = [True] * len(tokens)
        # At this length the end is forced: `wanted` tells whether the model itself would end here.
        if age == limit:
            wanted = [bool(result == eos) for result in scores.argmax(1)]
        _constrain(scores, age, never, settings, eos, must_end=age >= limit)
        result = _continuations(scores, logsumexp, log_probs, 2 * width if width > 1 else 1)
        norm = length_norm(age + 1.0, settings.length_penalty)
        ended = [
            _Ending(log_prob / norm, log_prob, age, parent, score, wanted[parent])
            for log_prob, parent, token, score in result
            if token == eos and log_prob > -math.inf
        ]
        best = sorted(best + ended, key=lambda ending: -ending.rank)[:kept]
        live = [each for each in result if each.token != eos]
        # Ended hypotheses fill up the beam with log-probability −∞, as in `live_candidates`.
        live += [each._replace(log_prob=-math.inf) for each in result if each.token == eos]
        live = live[:width]
        steps.append(live)
        worst = best[-1].rank if len(best) == kept else -math.inf
        # This also ends a search without a live hypothesis: both sides are −∞, and `<` is false.
        if not worst < live[0].log_prob / longest_norm:
            return [_hypothesis(steps, each) for each in best]
        parents = [each.parent for each in live]
        # Caches need no reordering if every hypothesis keeps its row.
        if parents != list(range(len(tokens))):
            text.choose(parents)
        tokens, log_probs = [each.token for each in live], [each.log_prob for each in live]


def row_logsumexp(scores: Floats) -> Floats:
    """Return log Σ exp of each row of scores [W, V], as [W] float64."""
    logsumexp = empty((len(scores),), np.float64)
    if not kernels().heedful_logsumexp(address(scores), *scores.shape, address(logsumexp)):
        raise not_numbers()
    return logsumexp


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
    scores: Floats, logsumexp: Floats, log_probs: Sequence[float], count: int
) -> list[_Candidate]:
    """Return the `count` best continuations of all hypotheses, best first."""
    hypotheses, size = scores.shape
    so_far = np.array(log_probs, np.float64)  # [W]
    result, token_scores = empty((count,), np.float64), empty((count,))
    parents, tokens = empty((2, count), np.int64)  # [C] each
    room = workspace(12 * hypotheses * min(count, size))
    kernels().heedful_topk(
        *(address(scores), address(logsumexp), address(so_far)),
        *(1, hypotheses, size, count),
        *(address(result), address(parents), address(tokens), address(token_scores)),
        address(room),
    )
    columns = (each.tolist() for each in (result, parents, tokens, token_scores))
    return [_Candidate(*each) for each in zip(*columns, strict=True)]


def _hypothesis(steps: Sequence[Sequence[_Candidate]], ending: _Ending) -> Hypothesis:
    """Follow the back pointers from an ending to its hypothesis."""
    path: list[_Candidate] = []
    # Live hypotheses do not store their tokens, so the path is read backwards from the end.
    beam = ending.beam
    for live in reversed(steps[: ending.length]):
        path.append(live[beam])
        beam = live[beam].parent
    path.reverse()
    return Hypothesis(
        tokens=tuple(each.token for each in path),
        score=ending.log_prob,
        normalized_score=ending.rank,
        token_scores=(*(each.score for each in path), ending.score),
        finished=ending.wanted,
    )
