"""Translators as people hold them, and the engines that search and score with them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from heedful.device import Precision, RunningPrecision, resolve_device
from heedful.errors import ModelError, is_of_torch
from heedful.pipelines.batching import Shown
from heedful.pipelines.segment_search import SegmentSearch
from heedful.text.tokenizer_pair import Split, TokenizerPair

# What loads PyTorch is imported where it is used: without it, a translator runs by NumPy.
if TYPE_CHECKING:
    from heedful.engines.inference.prepare import HeldModel
    from heedful.models.checkpoint import ReadModel
    from heedful.models.translator import Translator
    from heedful.search.lexical_shortlist import Shortlist


class HeldTranslators(SegmentSearch, Shown):
    """One or several translators with their tokenizers.

    Arguments and attributes are those of `TranslationPipeline`.
    """

    verbs = ("translate", "score")

    def __init__(
        self,
        models: Translator | HeldModel[Translator] | Sequence[Translator | HeldModel[Translator]],
        tokenizers: TokenizerPair,
        *,
        precision: Precision | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        from heedful.engines.inference.prepare import held

        self._held = held(models if isinstance(models, Sequence) else (models,))
        self.tokenizers = tokenizers
        self._precision = precision
        self.shortlist = shortlist
        self._follow()

    @property
    def models(self) -> tuple[Translator, ...]:
        """The models themselves, which may be changed: each call looks whether they were."""
        return tuple(each.model for each in self._held)

    @property
    def model(self) -> Any:
        """The model itself, or the ensemble of `models`."""
        from heedful.search.step_model import Ensemble

        models = self.models
        return models[0] if len(models) == 1 else Ensemble(models)

    @model.setter
    def model(self, model: Translator) -> None:
        if len(self._held) > 1:
            raise ModelError("An ensemble has several models", remedy="Load a single one")
        self._held = (self._held[0].replaced(model),)
        self._follow()

    def __getstate__(self) -> dict[str, Any]:
        # Copies and other processes make engines of their own.
        made = ("engine", "engines", "_numpy")
        return {name: value for name, value in vars(self).items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._follow()

    @classmethod
    def load(
        cls,
        path: str | Path | Sequence[str | Path],
        *,
        device: str = "auto",
        precision: RunningPrecision = "auto",
        shortlist: bool | str | Path = False,
        split: Split | None = None,
        read: ReadModel | None = None,
        shared: Path | None = None,
    ) -> Self:
        """Load a model directory, or several as an ensemble.

        Args:
            path: a model directory or a run directory (its best model), or several.
            device: auto, cpu, cuda, cuda:1 or mps.
            precision: auto (float32 by the fastest exact method), fp32, bf16,
                fp16 or int8.
            shortlist: True for the shortlist of the (first) model, or the file of another one.
            split: parts of a text that are translated apart: `sentences`, `lines`, or `none`, where
                line breaks become spaces; as the model has learned if unset.
            read: reader of a model directory; of Heedful's own if unset.
            shared: folder in which processes share weights; None for weights of its own.

        Raises:
            ModelError: when there is no model, or models of an ensemble have different tokenizers.
            ConfigError: when the device or precision is not available.
        """
        paths = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
        if not paths:
            raise ModelError("No model given", remedy="Give at least one model directory")
        try:
            from heedful.engines.inference.prepare import HeldModel
            from heedful.models.checkpoint import load_model, load_translator
        except ModuleNotFoundError as error:
            if not is_of_torch(error):
                raise
            plain = {"device": device, "precision": precision, "split": split}
            return cls.torch_free(paths, shortlist, **plain)
        checked: Any = partial(load_translator, read=load_model if read is None else read)
        # Checked before models are read, so that a missing device is reported at once.
        where = resolve_device(device)
        loaded = [checked(p) for p in paths]
        tokenizers = loaded[0][1]
        # Compared only for ensembles: a fingerprint hashes the whole vocabulary, which takes time.
        for other, (_, pair) in list(zip(paths, loaded, strict=True))[1:]:
            if pair.fingerprint != tokenizers.fingerprint:
                raise ModelError(
                    f"Its tokenizers differ from those of {paths[0]}",
                    where=str(other),
                    remedy="An ensemble needs models trained with the same tokenizers",
                )
        tokenizers = tokenizers.splitting(split)
        short = None
        if shortlist is not False:
            from heedful.search.lexical_shortlist import load_shortlist

            short = load_shortlist(shortlist, paths[0], tokenizers)
        # `donate`: nobody else holds the loaded models, so that packed weights may replace theirs.
        models = [
            HeldModel.prepared(model, checked, p, precision, where, shared)
            for p, (model, _) in zip(paths, loaded, strict=True)
        ]
        made = cls(models, tokenizers, shortlist=short)
        made.name = " + ".join(map(str, paths))
        return made

    @classmethod
    def torch_free(
        cls, paths: Sequence[Path], shortlist: bool | str | Path = False, **options: Any
    ) -> Self:
        """Load a translator that needs no PyTorch, and searches without batches.

        Args:
            paths, shortlist: arguments of `load`; there may be one path.
            **options: `device`, `precision` and `split`.

        Raises:
            TorchMissing: when the processor, the model, its device or another option needs PyTorch.
            UserError: when there is no model, or it is damaged.
        """
        from heedful.pipelines.torch_free import TorchFreeSearch, numpy_pipeline

        # Few need its module, so the class is made here; its search comes before ours.
        made: Any = type("TorchFreeTranslation", (TorchFreeSearch, cls), {})
        numpy = numpy_pipeline(paths, shortlist=shortlist, options=options)
        return cast("Self", made(numpy, " + ".join(map(str, paths))))

    def fill(self, texts: Sequence[str], **options: Any) -> Any:
        """Fill the gaps of texts with an encoder-decoder that was trained to, such as T5 or BART.

        Args:
            texts, **options: arguments of `GapPipeline.fill`.

        Returns:
            For each text the candidates of each gap, the most probable first.

        Raises:
            ModelError: when the model fills no gaps, or is an ensemble.
            ConfigError, DataError: as `GapPipeline.fill` does.
        """
        from heedful.pipelines.fillers import gap_pipeline  # few translators do

        if len(self._held) > 1:
            raise ModelError("An ensemble fills no gaps", remedy="Load a single model")
        pipeline = gap_pipeline(
            self._held[0], self.tokenizers, self._precision, where=self.name or "the model"
        )
        return pipeline.fill(texts, **options)
