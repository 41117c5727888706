"""All plans for a model on a cluster, the recommended plan, and the reasons against the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from heedful.apps.planning.cluster import Cluster
from heedful.apps.planning.estimates import Checkpointing, TrainingPlan, UpdateBatch, estimate
from heedful.apps.planning.layouts import Layout, layouts
from heedful.apps.planning.model_costs import ModelCosts
from heedful.errors import ConfigError, RunError
from heedful.models.cost import human_bytes

CHECKPOINTING: tuple[Checkpointing, ...] = ("none", "selective", "full")

EVEN = 0.03
"""Relative difference of time below which two plans count as equally fast."""

_WORTH_SAYING = 0.01
"""Smallest share of the time of an update that is reported as a cause."""


@dataclass(frozen=True, kw_only=True)
class PlanQuestion:
    """A model to train on a cluster.

    Args:
        costs: costs of the model at the batch's length and precision.
        cluster: hosts and their devices.
        batch: batch of an update.
        checkpointing: kinds of activation checkpointing to try.
        accumulate: number of batches that each device processes in an update; the fewest that fit
            if unset.
    """

    costs: ModelCosts
    cluster: Cluster
    batch: UpdateBatch
    checkpointing: tuple[Checkpointing, ...] = CHECKPOINTING
    accumulate: int | None = None

    def refusal(self, layout: Layout) -> str:
        """Return the reason why a layout is not possible; empty if it is.

        Args:
            layout: layout of all devices of the cluster.
        """
        costs, batch = self.costs, self.batch
        if layout.tensor > self.cluster.per_host or self.cluster.per_host % layout.tensor:
            return f"tensor {layout.tensor} does not divide the devices of a host"
        if layout.tensor > 1 and costs.undivided:
            return f"tensor parallelism cannot divide {costs.undivided[0]}"
        for name, number in costs.divisors.items():
            if number % layout.tensor:
                return f"tensor {layout.tensor} does not divide {number} {name}"
        if layout.context > 1:
            if costs.refuses_context:
                return costs.refuses_context
            # Each device gets a chunk from the beginning and one from the end, to balance causal
            # attention.
            if batch.length % (2 * layout.context):
                return (
                    f"context {layout.context} needs texts of a multiple of "
                    f"{2 * layout.context} tokens"
                )
        texts = batch.positions // batch.length
        if texts < layout.batches * (self.accumulate or 1):
            return f"{texts:,} texts are too few for {layout.batches:,} devices with some each"
        return ""

    def plans(self) -> list[TrainingPlan]:
        """Return the best plan of every layout: fitting plans by their time, then others by memory.

        Raises:
            ConfigError: when no layout is possible.
        """
        refusals: dict[str, None] = {}
        found = []
        for layout in layouts(self.cluster.devices):
            refusal = self.refusal(layout)
            if refusal:
                refusals[refusal] = None
            else:
                # The fastest plan that fits, or else the plan with the least memory.
                kinds = (self._fewest(layout, kind) for kind in self.checkpointing)
                found.append(min(kinds, key=_rank))
        if not found:
            raise ConfigError(
                f"{self.cluster.devices} devices cannot share this work: {next(iter(refusals))}",
                where="--devices",
                remedy="Use larger batches (--batch-tokens) or another number of devices",
            )
        return sorted(found, key=_rank)

    def _fewest(self, layout: Layout, kind: Checkpointing) -> TrainingPlan:
        """Return the fitting plan with the fewest batches per update, or else with the most."""
        plan = None
        for accumulate in self._accumulations(layout):
            plan = estimate(
                self.costs,
                self.cluster,
                self.batch,
                layout,
                checkpointing=kind,
                accumulate=accumulate,
            )
            if plan.memory.fits:
                break
        assert plan is not None
        return plan

    def _accumulations(self, layout: Layout) -> Iterator[int]:
        if self.accumulate is not None:
            yield self.accumulate
            return
        most = self.batch.positions // self.batch.length // layout.batches
        accumulate = 1
        while accumulate < most:
            yield accumulate
            accumulate *= 2
        yield max(1, most)


def choose(plans: Sequence[TrainingPlan]) -> TrainingPlan:
    """Return the recommended plan: the simplest of the plans that are about as fast as the fastest.

    Args:
        plans: plans in the order of `PlanQuestion.plans`.

    Raises:
        RunError: when no plan fits.
    """
    best = plans[0]
    if not best.memory.fits:
        raise RunError(
            f"No plan fits: {best.layout.describe()} needs least, "
            f"{human_bytes(best.memory.needed)} on each device, which has "
            f"{human_bytes(best.memory.available)}",
            where="--devices",
            remedy="Use more devices or hosts, devices with more memory, shorter texts "
            "(--max-length), or leave --checkpointing and --accumulate open",
        )
    even = [
        plan for plan in plans if plan.memory.fits and plan.seconds <= best.seconds * (1 + EVEN)
    ]
    return min(even, key=_simplicity)


def reason(plan: TrainingPlan, chosen: TrainingPlan) -> str:
    """Return a sentence that gives the reason for or against a plan.

    Args:
        plan: plan to explain.
        chosen: recommended plan.
    """
    memory = plan.memory
    if not memory.fits:
        over = human_bytes(memory.needed - memory.available)
        largest = max(memory.parts, key=memory.parts.__getitem__)
        return f"does not fit: {over} too much on each device, most of it {largest}"
    causes = _causes(plan, chosen)
    if plan is chosen:
        hidden = "computing hides its messages" if plan.messages else "nothing is sent"
        return causes[0] if causes else hidden
    slower = plan.seconds / chosen.seconds - 1
    if abs(slower) <= EVEN:
        return f"as fast, and {_difference(plan, chosen)}"
    return f"{slower:.0%} slower" + (f": {', and '.join(causes)}" if causes else "")


def _causes(plan: TrainingPlan, chosen: TrainingPlan) -> list[str]:
    """Return the reasons why a plan takes more time than the recommended one."""
    causes = []
    least = _WORTH_SAYING * plan.seconds
    waits = max(plan.messages, key=lambda each: each.shown, default=None)
    if waits is not None and waits.shown > least:
        causes.append(f"{waits.shown / plan.seconds:.0%} of the time waits for {waits.kind}")
    mine, theirs = plan.compute, chosen.compute
    if mine.again > theirs.again + least:
        causes.append(f"{mine.again / plan.seconds:.0%} computes activations again")
    if mine.passes > theirs.passes + least:
        causes.append("norms are computed on all devices of a matrix")
    if mine.optimizer > theirs.optimizer + least:
        causes.append("the optimizer updates more weights on each device")
    return causes


def _difference(plan: TrainingPlan, chosen: TrainingPlan) -> str:
    """Return what makes a plan more complex than the recommended plan, which is as fast."""
    if plan.checkpointing != chosen.checkpointing:
        return f"checkpointing is {plan.checkpointing}"
    names = [
        name
        for name, count in plan.layout._asdict().items()
        if count > getattr(chosen.layout, name)
    ]
    return f"more is divided: {', '.join(names)}" if names else "it takes more batches"


def _rank(plan: TrainingPlan) -> tuple[bool, float, float]:
    fits = plan.memory.fits
    return (not fits, plan.seconds if fits else plan.memory.needed, plan.memory.needed)


def _simplicity(plan: TrainingPlan) -> tuple[int, int, int, int, float]:
    layout = plan.layout
    kinds = sum(count > 1 for count in layout)
    return (
        layout.context * layout.tensor,
        kinds,
        CHECKPOINTING.index(plan.checkpointing),
        layout.shard,
        plan.seconds,
    )
