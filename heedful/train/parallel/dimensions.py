"""The dimensions along which the processes of a run are arranged, from its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heedful.errors import ConfigError

if TYPE_CHECKING:
    from heedful.train.run_settings import ParallelSettings, RunSettings


@dataclass(frozen=True)
class Dimensions:
    """Numbers of processes along each dimension.

    Args:
        data: copies of the model, which learn from different examples.
        shard: processes that keep a shard of each parameter of a copy, and learn from different
            examples.
        context: processes that have a part of each text.
        tensor: processes that multiply a part of each matrix.
    """

    data: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def learners(self) -> int:
        """Processes that learn from different examples."""
        return self.data * self.shard

    @property
    def only_copies(self) -> bool:
        """True where every process has a whole model and whole texts."""
        return self.shard == self.tensor == self.context == 1

    def parts_needed(self, batches: int) -> int:
        """The smallest number of parts of each batch with which all have equally much to do.

        Args:
            batches: of an update.
        """
        return self.learners // math.gcd(batches, self.learners)

    @property
    def processes(self) -> int:
        """Their product."""
        return self.data * self.shard * self.context * self.tensor

    @classmethod
    def fit(cls, settings: ParallelSettings, processes: int) -> Dimensions:
        """Fit the settings to the processes that there are.

        Args:
            settings: of the run; `data` takes what the others leave if unset.
            processes: how many there are.

        Raises:
            ConfigError: when the product is another one.
        """
        others = settings.shard * settings.context * settings.tensor
        data = settings.data or max(1, processes // others)
        result = cls(data, settings.shard, settings.context, settings.tensor)
        if result.processes == processes:
            return result
        named = ("data", "shard", "tensor", "context")
        product = " × ".join(
            f"{name} {getattr(result, name)}"
            for name in named
            if getattr(result, name) > 1 or (getattr(settings, name) is not None and name == "data")
        )
        if "×" in product:
            product += f" = {others if settings.data is None else result.processes}"
        started = f"{processes} process{'es are' if processes > 1 else ' is'} started"
        if settings.data is None:
            raise ConfigError(
                f"{started}, which is no multiple of {product}",
                where="parallel",
                remedy=f"Start {others} processes or a multiple (--processes {others})",
            )
        raise ConfigError(
            f"{started}, but {product}",
            where="parallel",
            remedy=f"Start {result.processes} (--processes {result.processes}), or leave out "
            "parallel.data, which then takes what the others leave",
        )

    def check(self, settings: RunSettings) -> None:
        """Refuse settings that do not go together with these dimensions.

        Raises:
            ConfigError: naming them.
        """
        if settings.checkpoint.sharded and self.shard == self.tensor == 1:
            raise ConfigError(
                "Every process has the whole model (parallel.shard = 1), so there are no parts for "
                "each to write",
                where="checkpoint.sharded",
                remedy="Leave it out (--checkpoint.sharded false), or put the model in shards "
                "(--processes 2 --parallel.shard 2)",
            )
        several = [name for name in ("shard", "tensor", "context") if getattr(self, name) > 1]
        if not several:
            return
        name = several[0]
        conflicts = {
            "lora.rank": settings.lora.rank > 0,
            "compile": settings.compile == "on",
            "precision": settings.precision == "fp16",
        }
        for setting, conflict in conflicts.items():
            if conflict:
                raise ConfigError(
                    "This has not been built for models or texts in parts "
                    f"(parallel.{name} = {getattr(self, name)})",
                    where=setting,
                    remedy="Leave it out, or use copies (parallel.data) alone",
                )
