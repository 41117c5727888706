"""Memory, communication and time of an update of one layout.

A training step consists of matmuls, which a device computes at a share of its peak rate; of passes
over activations, which are bound by memory bandwidth; and of messages, some of which overlap with
computation. The share of the rate and the number of passes are the only fitted constants; the runs
that plans are compared with (`docs/measured/plans.md`) were not used for the fit.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from heedful.apps.planning.cluster import CPU, NUMBER_BYTES, Cluster, Precision
from heedful.apps.planning.layouts import Layout, Traffic, all_reduce_bytes, gather_bytes, traffic
from heedful.apps.planning.model_costs import ModelCosts
from heedful.engines.cost_memory import PRIMITIVES, PROCESS, SLACK, logit_bytes, loss_bytes
from heedful.nn.work import FLOAT32

Checkpointing = Literal["none", "selective", "full"]

PASSES = 13.0
"""Number of memory transfers of each byte kept for the backward pass: it is written, read by the
next operation and read in the backward pass; its gradient and temporary copies are transferred
too."""

_OPTIMIZER_PASSES = 7
"""Adam reads weight, gradient and two moments, and writes weight and moments."""

_GPU_PROCESS = 1_500_000_000
"""Bytes of a CUDA context and NCCL's buffers."""

_BUCKETS = 2 * (25 << 20)
"""Bytes of two gradient buckets that are being sent, of 25 MiB each as in DDP."""

_PREFETCHED = 2
"""Number of blocks whose weights are gathered at a time: the current and the next block."""


@dataclass(frozen=True, kw_only=True)
class UpdateBatch:
    """The batch of an update over all devices.

    Args:
        positions: number of tokens, padding included; for sentence pairs, tokens of each side.
        length: tokens of a sequence.
        precision: precision of matmuls.
    """

    positions: int
    length: int
    precision: Precision


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Peak memory of one device during an update, in bytes.

    Args:
        weights: weights in float32.
        gradients: gradients in float32.
        optimizer: Adam's two moments in float32.
        casts: weights in the precision of matmuls.
        gathered: gathered weights and gradients of blocks, and gradient buckets.
        activations: activations kept for the backward pass, and the largest temporary results.
        loss: chunk of logits and gradients in the fused loss.
        slack: fragmentation.
        process: memory of a process before it holds a model.
        available: bytes of the device's memory.
    """

    weights: float
    gradients: float
    optimizer: float
    casts: float
    gathered: float
    activations: float
    loss: float
    slack: float
    process: float
    available: int

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by purpose."""
        return {name: round(size) for name, size in asdict(self).items() if name != "available"}

    @property
    def needed(self) -> int:
        """The bytes of an update in total."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """True if the device has enough memory."""
        return self.needed <= self.available


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Seconds of computation in an update, on one device.

    Args:
        products: matmuls of forward and backward pass.
        passes: memory-bound passes over activations.
        again: recomputation of activations that were not stored.
        optimizer: the update of the weights.
    """

    products: float
    passes: float
    again: float
    optimizer: float

    @property
    def seconds(self) -> float:
        """The seconds of all computation."""
        return self.products + self.passes + self.again + self.optimizer


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A layout with its costs.

    Args:
        layout: number of devices in each dimension.
        checkpointing: kind of activation checkpointing.
        accumulate: number of batches that each device processes in an update.
        memory: bytes on one device.
        compute: seconds of computation on one device.
        messages: communication of one device.
        positions: tokens of an update on all devices, padding included.
        utilization: FLOPs of the model in an update, divided by the peak FLOPs of the devices in
            that time.
    """

    layout: Layout
    checkpointing: Checkpointing
    accumulate: int
    memory: DeviceMemory
    compute: Compute
    messages: tuple[Traffic, ...]
    positions: int
    utilization: float

    @property
    def shown(self) -> float:
        """Seconds of an update that devices wait for messages."""
        return sum(each.shown for each in self.messages)

    @property
    def seconds(self) -> float:
        """Seconds of an update."""
        return self.compute.seconds + self.shown

    @property
    def positions_per_second(self) -> float:
        """Positions a second on all devices."""
        return self.positions / self.seconds


def estimate(
    costs: ModelCosts,
    cluster: Cluster,
    batch: UpdateBatch,
    layout: Layout,
    *,
    checkpointing: Checkpointing = "none",
    accumulate: int = 1,
) -> TrainingPlan:
    """Estimate an update.

    Args:
        costs: costs of the model at the batch's length and precision.
        cluster: hosts and their devices.
        batch: batch of an update.
        layout: number of devices in each dimension.
        checkpointing: kind of activation checkpointing.
        accumulate: number of batches that each device processes in an update."""
    step = _Step(costs, cluster, batch, layout, checkpointing, accumulate)
    compute = step.compute()
    messages = tuple(each for each in step.messages() if each.sent)
    seconds = compute.seconds + sum(each.shown for each in messages)
    able = cluster.devices * cluster.device.rate(batch.precision) * seconds
    return TrainingPlan(
        layout=layout,
        checkpointing=checkpointing,
        accumulate=accumulate,
        memory=step.memory(),
        compute=compute,
        messages=messages,
        positions=batch.positions,
        utilization=batch.positions * costs.training_per_position / able,
    )


@dataclass(frozen=True)
class _Step:
    """The terms of an estimate for one update."""

    costs: ModelCosts
    cluster: Cluster
    batch: UpdateBatch
    layout: Layout
    checkpointing: Checkpointing
    accumulate: int

    @property
    def positions(self) -> float:
        """Positions of a batch on one device."""
        return self.batch.positions / (self.layout.batches * self.layout.context * self.accumulate)

    @property
    def number_bytes(self) -> int:
        return NUMBER_BYTES[self.batch.precision]

    @property
    def block_operations(self) -> float:
        """Operations of all blocks in a forward pass of a batch on one device."""
        work = self.costs.forward
        per_position = (work.weights + work.attention) / self.costs.length
        return self.positions * per_position / self.layout.tensor

    def products(self) -> float:
        """Seconds of the forward matmuls of a batch, at least the time to read the weights."""
        device = self.cluster.device
        output = self.positions * self.costs.forward.output / self.costs.length
        computed = (self.block_operations + output) / self._rate
        weights = self.costs.parameters_of(self.layout.tensor) * self.number_bytes
        return max(computed, weights / device.bandwidth)

    def passes(self) -> float:
        """Seconds of memory transfers of a batch's activations, forward and backward."""
        kept = self.costs.blocks.kept.divided(self.layout.tensor)
        return PASSES * self.positions * kept / self.cluster.device.bandwidth

    def compute(self) -> Compute:
        """Return the seconds of an update on one device."""
        costs, bandwidth = self.costs, self.cluster.device.bandwidth
        logits = costs.vocabulary * costs.predicted * self.number_bytes
        around = PASSES * self.positions * (costs.embedded + logits) / bandwidth
        again = 0.0
        if self.checkpointing != "none":
            again = self.passes() / 3
        if self.checkpointing == "full":
            again += self.block_operations / self._rate
        held = costs.parameters_of(self.layout.tensor) / self.layout.shard
        return Compute(
            products=self.accumulate * 3 * self.products(),
            passes=self.accumulate * (self.passes() + around),
            again=self.accumulate * again,
            optimizer=_OPTIMIZER_PASSES * held * FLOAT32 / bandwidth,
        )

    @property
    def _rate(self) -> float:
        return self.cluster.device.reached(self.batch.precision)

    def messages(self) -> list[Traffic]:
        """Return the communication of an update."""
        compute = self.compute()
        computing = compute.seconds - compute.optimizer
        return [*self._gradients(computing), *self._divided(compute)]

    def _gradients(self, computing: float) -> list[Traffic]:
        """Return the communication of gradients and weights between copies and shards of the model.

        Args:
            computing: seconds of the update's forward and backward passes.
        """
        layout, cluster, batches = self.layout, self.cluster, self.accumulate
        held = self.costs.parameters_of(layout.tensor)
        copies = layout.copies_group(cluster.per_host)
        shards = layout.shard_group(cluster.per_host)
        backward, blocks = computing * 2 / 3, self.costs.blocks.layers
        return [
            traffic(
                "gradients, summed over copies",
                all_reduce_bytes(copies.size, held / layout.shard * FLOAT32),
                copies,
                cluster,
                calls=blocks,
                behind=backward / batches,  # gradients of earlier batches are summed on the device
            ),
            traffic(
                "weights, gathered from shards",
                2 * batches * gather_bytes(layout.shard, held * self.number_bytes),
                shards,
                cluster,
                calls=2 * batches * blocks,
                behind=computing,
            ),
            traffic(
                "gradients, scattered to shards",
                batches * gather_bytes(layout.shard, held * FLOAT32),
                shards,
                cluster,
                calls=batches * blocks,
                behind=backward,
            ),
        ]

    def _divided(self, compute: Compute) -> list[Traffic]:
        """Return the messages of tensor parallelism and of context parallelism."""
        costs, layout, cluster = self.costs, self.layout, self.cluster
        positions = self.accumulate * self.positions
        # One sum in the forward pass, one in the backward pass, and one more if blocks are
        # recomputed.
        sums = 3 if self.checkpointing == "full" else 2
        exchanged = sums * costs.blocks.exchanged * positions
        # Keys and values pass around the ring in both passes, their gradients in the backward pass.
        passed = 3 * (layout.context - 1) * costs.blocks.keys_values * positions
        attention = costs.forward.attention / max(1, costs.forward.total)
        return [
            traffic(
                "activations, summed over parts of matrices",
                all_reduce_bytes(layout.tensor, exchanged),
                layout.tensor_group(cluster.per_host),
                cluster,
                calls=self.accumulate * sums * costs.blocks.exchanges,
            ),
            traffic(
                "keys and values, passed round",
                passed,
                layout.context_group(cluster.per_host),
                cluster,
                calls=self.accumulate * 2 * (layout.context - 1) * costs.blocks.layers,
                behind=attention * compute.products,
            ),
        ]

    def memory(self) -> DeviceMemory:
        """Return the peak memory of one device during an update."""
        costs, layout, device = self.costs, self.layout, self.cluster.device
        held = costs.parameters_of(layout.tensor)
        mine = held / layout.shard
        casts = gathered = 0.0
        # Weights outside the blocks are gathered once and kept, since the loss needs their
        # gradient.
        blocks = costs.blocks.parameters
        beside = costs.parameters - blocks
        if layout.shard > 1:
            largest = costs.largest.parameters - costs.largest.divisible * (1 - 1 / layout.tensor)
            gathered = (_PREFETCHED * largest + beside) * self.number_bytes + largest * FLOAT32
        elif self.number_bytes < FLOAT32 and device.name != CPU:
            casts = (held - beside) * self.number_bytes
        if layout.data * layout.context > 1:
            gathered += min(_BUCKETS, 2 * mine * FLOAT32)
        positions = round(self.positions)
        predicted = round(positions * costs.predicted)
        loss = 0
        if costs.vocabulary:
            kind = "cpu" if device.name == CPU else "cuda"
            loss = logit_bytes(costs.vocabulary, predicted, self.number_bytes, kind)
            loss += loss_bytes(costs.width, costs.vocabulary, predicted, self.number_bytes)
        activations = positions * (self._kept() + costs.embedded + costs.passing)
        model = 4 * FLOAT32 * mine + casts + gathered
        on_cpu = device.name == CPU
        return DeviceMemory(
            weights=FLOAT32 * mine,
            gradients=FLOAT32 * mine,
            optimizer=2 * FLOAT32 * mine,
            casts=casts,
            gathered=gathered,
            activations=activations,
            loss=loss,
            slack=SLACK * (model + activations + loss),
            process=PROCESS + PRIMITIVES[False] if on_cpu else _GPU_PROCESS,
            available=device.memory,
        )

    def _kept(self) -> float:
        """Return the bytes of a position's activations in all blocks."""
        blocks, tensor = self.costs.blocks, self.layout.tensor
        kinds = {"none": blocks.kept, "selective": blocks.products, "full": blocks.inputs}
        kept = kinds[self.checkpointing].divided(tensor)
        if self.checkpointing == "none":
            return kept
        return kept + self.costs.largest.kept.divided(tensor)  # the block that is being recomputed
