"""The dimensions of a run's grid of processes, from its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from heedful.errors import ConfigError
from heedful.train.run_settings import ParallelSettings, RunSettings


@dataclass(frozen=True)
class Dimensions:
    """The number of processes along each dimension.

    Args:
        data: number of copies of the model, trained on different examples.
        shard: number of processes that hold shards of each parameter and train on different
            examples.
        context: number of processes that share each sequence.
        tensor: number of processes that share each matrix.
    """

    data: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def learners(self) -> int:
        """The number of processes that train on different examples."""
        return self.data * self.shard

    @property
    def only_copies(self) -> bool:
        """True if every process has a whole model and whole sequences."""
        return self.shard == self.tensor == self.context == 1

    def parts_needed(self, batches: int) -> int:
        """Return the smallest number of parts a batch that gives every process equally many.

        Args:
            batches: number of batches of an update.
        """
        # parts · batches has to be a multiple of the learners.
        return self.learners // math.gcd(batches, self.learners)

    @property
    def processes(self) -> int:
        """The number of processes in all dimensions together."""
        return self.data * self.shard * self.context * self.tensor

    @classmethod
    def fit(cls, settings: ParallelSettings, processes: int) -> Dimensions:
        """Derive the dimensions from the settings and the number of started processes.

        Args:
            settings: parallel settings; an unset `data` becomes the quotient of the others.
            processes: number of started processes.

        Raises:
            ConfigError: when the product of the dimensions differs from that number.
        """
        others = settings.shard * settings.context * settings.tensor
        data = settings.data or max(1, processes // others)
        result = cls(data, settings.shard, settings.context, settings.tensor)
        # The product must be exact, as left-over processes would belong to no group.
        if result.processes == processes:
            return result
        # The message shows only dimensions that were set, multiplied out.
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
        """Refuse settings that contradict these dimensions.

        Raises:
            ConfigError: when a setting contradicts a dimension; both are named.
        """
        if settings.checkpoint.sharded and self.shard == self.tensor == 1:
            raise ConfigError(
                "Every process has the whole model (parallel.shard = 1), so there are no parts for "
                "each to write",
                where="checkpoint.sharded",
                remedy="Leave it out (--checkpoint.sharded false), or put the model in shards "
                "(--processes 2 --parallel.shard 2)",
            )
        # Replicas alone (`data`) conflict with nothing, since each process has the whole model.
        several = [name for name in ("shard", "tensor", "context") if getattr(self, name) > 1]
        if not several:
            return
        name = several[0]
        # LoRA's parametrisations, compiled graphs and loss scalers expect whole parameters.
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
