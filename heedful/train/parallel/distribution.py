"""A model spread over several processes: copies, shards, or parts of its matrices.

The model is built as usual and does not know of this. `distribute` changes it in place with
PyTorch's engines: DistributedDataParallel for copies (Li 2020; `copies.py`), `fully_shard` for
sharded parameters (ZeRO: Rajbhandari 2020; FSDP2) and DTensor plans for split matrices
(`shards.py`, `tensor_plan.py`). Weights, moments and averages keep their names; `full_tensors`
gathers them in one piece. A checkpoint can be read under any distribution (`training_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from heedful.errors import ConfigError
from heedful.nn.batch_norm import has_batch_norm
from heedful.train.objective import Objective
from heedful.train.parallel.copies import Copies
from heedful.train.parallel.shares import Share, check_context
from heedful.train.parallel.team import Team
from heedful.train.run_settings import RunSettings
from heedful.train.update import Distribution

# With `parallel.parts` one process sums gradients in the order of up to this many processes, which
# takes up to three more gradients of memory.
_COMPARED = 4


def check_batch_norm(model: nn.Module) -> None:
    """Refuse models for several processes whose passes measure a batch.

    Args:
        model: model to train.

    Raises:
        ConfigError: when the model has batch normalisation.
    """
    if has_batch_norm(model):
        raise ConfigError(
            "Batch normalisation would measure another batch in each process, so that copies of "
            "the model would differ",
            where="images.network = resnet",
            remedy="Train in one process, or choose images.network = vit",
        )


def distribute(
    model: nn.Module,
    objective: Objective,
    settings: RunSettings,
    team: Team,
    twin: Callable[[], nn.Module],
) -> tuple[Distribution, Share]:
    """Spread a model over the processes of a run.

    Args:
        model: model with its initial weights, the same on all processes; changed in place.
        objective: loss of the model.
        settings: settings of the run, with the number of parts.
        team: connected processes of the run.
        twin: function that makes another model of the same kind.

    Returns:
        The distributed model, and the share of each batch that this process trains on.

    Raises:
        ConfigError: when the model cannot be distributed in this way.
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
        check_batch_norm(model)
        if size.tensor > 1:
            # DTensor takes half a second to load.
            from heedful.train.parallel.tensor_plan import check_matrices

            check_matrices(model, size.tensor)

    # Checked on one process, so that the error is reported once and no process waits for others.
    team.only_main(check)
    device = next(model.parameters()).device
    names = ("data", "shard", "context", "tensor")
    shape = (size.data, size.shard, size.context, size.tensor)
    # The last dimension varies fastest, so ranks that share matrices are neighbours on a machine.
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    team.limit_waits(mesh)
    place = {name: mesh.get_local_rank(name) for name in names}
    # Learners of one shard group are numbered far apart: their gradients are summed first, and
    # `PartialSums` first adds parts that are half of the list apart.
    index = place["shard"] * size.data + place["data"]
    share = Share(index, size.learners, cut, (place["context"], size.context))
    context = mesh["context"] if size.context > 1 else None
    if size.shard == size.tensor == 1:
        return Copies(model, objective, team, context), share
    from heedful.train.parallel.shards import split_over  # loads DTensor

    return split_over(model, objective, team, mesh, context, twin), share
