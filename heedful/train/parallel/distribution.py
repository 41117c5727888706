"""A model spread over the processes that train it: copies, shards, or parts of its matrices.

The model is built as ever and knows nothing of this. `distribute` changes it in place with the
engines of PyTorch: DistributedDataParallel for copies (Li 2020; `copies.py`), `fully_shard` for
parameters in shards (ZeRO: Rajbhandari 2020; FSDP2) and DTensor plans for matrices of which each
process multiplies a part (`shards.py`, `tensor_plan.py`). Weights, moments and averages keep their
names; `whole` gives them in one piece. A checkpoint is read under any plan, whichever wrote it
(`saved_tensors.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.device_mesh import init_device_mesh

from heedful.train.context_parallel import check_context
from heedful.train.parallel.copies import Copies
from heedful.train.parallel.shares import Share
from heedful.train.update import Distribution

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from heedful.train.objective import Objective
    from heedful.train.parallel.team import Team
    from heedful.train.run_settings import RunSettings

_COMPARED = 4
"""Processes whose runs one process can repeat to the last bit: so many, or half of them."""


def distribute(
    model: nn.Module,
    objective: Objective,
    settings: RunSettings,
    team: Team,
    twin: Callable[[], nn.Module],
) -> tuple[Distribution, Share]:
    """Spread a model over the processes of a run.

    Args:
        model: with its first weights, the same on all processes; changed in place.
        objective: its loss.
        settings: of the run, with the number of parts.
        team: the processes, connected.
        twin: makes a model like this one.

    Returns:
        The model spread out, and what this process learns from.

    Raises:
        ConfigError: when the model cannot be spread so.
    """
    size = team.dimensions
    cut = settings.parallel.parts or 1
    if team.alone:
        alone = Distribution(model, objective)
        if settings.parallel.parts is not None:
            alone.partial_sums = _COMPARED
        return alone, Share(parts=cut)

    def check() -> None:
        check_context(model, size.context, settings.objective)
        if size.tensor > 1:
            from heedful.train.parallel.tensor_plan import check_matrices  # half a second to load

            check_matrices(model, size.tensor)

    team.only_main(check)  # so that it is said once, and none waits for those that are gone
    device = next(model.parameters()).device
    names = ("data", "shard", "context", "tensor")
    shape = (size.data, size.shard, size.context, size.tensor)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    team.limit_waits(mesh)
    place = {name: mesh.get_local_rank(name) for name in names}
    # Sums over shards come first: those processes are the ones that `PartialSums` adds first.
    index = place["shard"] * size.data + place["data"]
    share = Share(index, size.learners, cut, (place["context"], size.context))
    context = mesh["context"] if size.context > 1 else None
    if size.shard == size.tensor == 1:
        return Copies(model, objective, team, context), share
    from heedful.train.parallel.shards import split_over  # half a second to load

    return split_over(model, objective, team, mesh, context, twin), share
