"""From raw text to translations, for the models and searches that need no PyTorch."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from heedful.engines.lowering import FileWeights, Unsupported
from heedful.engines.numpy_translator import NumpyTranslator
from heedful.errors import UserError
from heedful.kernels.library import has_int8_kernels, kernels
from heedful.models.model_directory import (
    WEIGHTS_FILE,
    find_model_directory,
    load_tokenizers,
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
from heedful.search.search_settings import SearchSettings, Specials, longest_output
from heedful.search.single_sentence import search
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
        """
        if precision not in ("auto", "fp32", "int8") or not _is_processor(device):
            return None
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
            return cls(translator, tokenizers)
        except (Unsupported, UserError):
            return None

    def serves(self, texts: Sequence[str]) -> bool:
        """Whether texts are so few that this is the fastest way to translate them."""
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
            warn: told about long lines and cut translations.

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
        """Whether the longest pieces of a text have positions."""
        spec, source = self._translator.spec, self._tokenizers.source
        positions = spec.embedding.positions.max_length
        frame = len(source.first) + len(source.last)
        return positions is None or spec.max_length + frame <= positions


def searches(settings: SearchSettings) -> bool:
    """Whether nothing but a plain search is asked for."""
    return not (settings.sampling or settings.coverage_penalty or settings.no_repeat_ngram)


def _is_processor(device: str) -> bool:
    """Whether that device is the processor, for certain."""
    if device != "auto":
        return device == "cpu"
    return sys.platform == "linux" and not any(Path(each).exists() for each in _ACCELERATORS)


def _have_threads() -> bool:
    """Load the threads of PyTorch, which kernels share with it if it is loaded later."""
    if "torch" in sys.modules:
        return True
    found = importlib.util.find_spec("torch")
    for folder in (found and found.submodule_search_locations) or ():
        for file in sorted(Path(folder, "lib").glob("libgomp*.so*")):
            try:
                ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
            return True
    return False
