"""The result of `heedful plan` as plain data and as tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from heedful.apps.planning.plans import reason
from heedful.cli.text_io import engineering, say, show_table, show_values
from heedful.models.cost import human_bytes

if TYPE_CHECKING:
    from heedful.apps.planning.cluster import Cluster
    from heedful.apps.planning.estimates import TrainingPlan, UpdateBatch
    from heedful.apps.planning.model_costs import ModelCosts

_SECONDS_A_DAY = 86_400


@dataclass(frozen=True)
class PlanAnswer:
    """The estimated plans, their costs and the chosen plan."""

    costs: ModelCosts
    cluster: Cluster
    batch: UpdateBatch
    tokens: int | None
    price: float | None
    plans: list[TrainingPlan]
    chosen: TrainingPlan

    def days(self, plan: TrainingPlan) -> float | None:
        """Return the days of training on the requested tokens."""
        if self.tokens is None:
            return None
        return self.tokens / plan.positions_per_second / _SECONDS_A_DAY

    def money(self, plan: TrainingPlan) -> float | None:
        """Return the price of the training days on all devices."""
        days = self.days(plan)
        if days is None or self.price is None:
            return None
        return days * 24 * self.cluster.devices * self.price

    def facts(self, most: int | None) -> dict[str, Any]:
        """Return the answer as plain data.

        Args:
            most: maximum number of plans to list; all if None.
        """
        costs, device = self.costs, self.cluster.device
        return {
            "parameters": costs.parameters,
            "operations": {
                "forward_per_token": round(costs.forward_per_position),
                "training_per_token": round(costs.training_per_position),
                "six_per_parameter": 6 * costs.parameters,
                "forward_of_a_text": asdict(costs.forward),
            },
            "cluster": {
                "device": device.title,
                "per_host": self.cluster.per_host,
                "hosts": self.cluster.hosts,
                "devices": self.cluster.devices,
                "memory_bytes": device.memory,
                "rate": device.rate(self.batch.precision),
                "products_share": device.products[self.batch.precision],
                "products_source": device.products_from[self.batch.precision],
                "source": device.source,
            },
            "batch": asdict(self.batch),
            "tokens": self.tokens,
            "chosen": self._plan_facts(self.chosen),
            "plans": [self._plan_facts(each) for each in self.plans[:most]],
            "plans_in_all": len(self.plans),
        }

    def _plan_facts(self, plan: TrainingPlan) -> dict[str, Any]:
        return {
            **plan.layout._asdict(),
            "checkpointing": plan.checkpointing,
            "accumulate": plan.accumulate,
            "fits": plan.memory.fits,
            "memory_bytes": {**plan.memory.parts, "needed": plan.memory.needed},
            "messages": [asdict(each) for each in plan.messages],
            "compute_seconds": asdict(plan.compute),
            "seconds_per_update": plan.seconds,
            "tokens_per_second": plan.positions_per_second,
            "utilization": plan.utilization,
            "days": self.days(plan),
            "money": self.money(plan),
            "reason": reason(plan, self.chosen),
        }

    def show(self, name: str, most: int | None) -> None:
        """Print the plans as tables."""
        costs, batch, device = self.costs, self.batch, self.cluster.device
        counted, six = costs.training_per_position, 6 * costs.parameters
        say(f"{name}: {costs.parameters:,} parameters; {self.cluster.describe()}")
        say(
            f"Training takes {engineering(counted, 'FLOP')} a token in texts of {batch.length:,} "
            f"(6 times the parameters: {engineering(six, 'FLOP')})"
        )
        say(
            f"Matmuls reach {device.products[batch.precision]:.0%} of "
            f"{engineering(device.rate(batch.precision), 'FLOP/s')} in {batch.precision} "
            f"({device.products_from[batch.precision]})"
        )
        self._show_plans(self.plans[:most])
        self._show_chosen()

    def _show_plans(self, plans: list[TrainingPlan]) -> None:
        chosen = self.chosen
        if chosen not in plans:
            plans = [chosen, *plans]
        figures = list(self._figures(chosen))
        rows = [
            (
                ("→ " if plan is chosen else "  ") + plan.layout.describe(),
                plan.checkpointing,
                reason(plan, chosen),
                *self._figures(plan).values(),
            )
            for plan in plans
        ]
        show_table(
            f"Plans: updates of {self.batch.positions:,} tokens, {len(plans)} of {len(self.plans)}",
            ("layout", "checkpointing", "", *figures),
            rows,
            numbers=len(figures),
            faint=[number for number, plan in enumerate(plans) if not plan.memory.fits],
        )

    def _figures(self, plan: TrainingPlan) -> dict[str, str]:
        """Return a plan's values by column; days and cost only if tokens and price are known."""
        cells = {
            "accumulate": str(plan.accumulate),
            "memory": human_bytes(plan.memory.needed),
            "update": _time(plan.seconds),
            "tokens/s": engineering(plan.positions_per_second),
            "utilization": f"{plan.utilization:.0%}",
        }
        if (days := self.days(plan)) is not None:
            cells["days"] = f"{days:,.1f}"
        if (money := self.money(plan)) is not None:
            cells["money"] = f"{money:,.0f}"
        return cells

    def _show_chosen(self) -> None:
        memory, compute = self.chosen.memory, self.chosen.compute
        title = self.chosen.layout.describe()
        parts = {part: size for part, size in memory.parts.items() if size}
        parts |= {"needed": memory.needed, "available": memory.available}
        show_values(f"{title}: memory of each device", ("for", "bytes"), parts, human_bytes)
        rows = [(name, "", _time(time), _time(time)) for name, time in asdict(compute).items()]
        rows += [
            (each.kind, human_bytes(round(each.sent)), _time(each.seconds), _time(each.shown))
            for each in self.chosen.messages
        ]
        rows.append(("update", "", "", _time(self.chosen.seconds)))
        show_table(
            f"{title}: an update on each device",
            ("for", "sent", "time", "not hidden"),
            rows,
            numbers=3,
        )


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1000 * seconds:,.1f} ms"
