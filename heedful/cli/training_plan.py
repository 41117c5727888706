"""`heedful plan`: estimates of memory, time and cost of training on many devices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.info import find_spec
from heedful.cli.parser import flag_group
from heedful.cli.text_io import Output, Report
from heedful.errors import ConfigError

if TYPE_CHECKING:
    from heedful.apps.planning.cluster import Cluster
    from heedful.apps.planning.estimates import UpdateBatch
    from heedful.apps.planning.planned_settings import UsualWork

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_NUMBER = re.compile(r"(\d[\d_,]*(?:\.\d+)?)\s*([kmbt]?)", re.IGNORECASE)

_PAIRS_BATCH = 25_000
"""Number of tokens on each side of a batch in Vaswani 2017, section 5.1."""

_PAIRS_LENGTH = 25
"""Approximate mean length of a WMT14 sentence in tokens."""

_TEXTS_BATCH = 1 << 19
"""Half a million tokens: the batch of GPT-3's smallest models (Brown 2020, table 2.1)."""

_TEXTS_LENGTH = 512

_SHOWN = 10

_MOST_DEVICES = 65_536
"""Maximum number of devices; more have too many layouts to enumerate in a minute."""


@flag_group("Devices", 10)
class DeviceFlags:
    """The devices, their links and their price.

    Args:
        devices: Number and kind of devices in each host, such as 8xH100; cpu is a process on this
            machine.
        hosts: Number of identical hosts.
        interconnect: Bandwidth between devices of a host, in GB/s per direction (NVLink 4: 450,
            PCIe 4: 32); that of the data sheet if unset.
        network: Network bandwidth of each host in Gbit/s (8 InfiniBand cards: 3200, Ethernet: 100);
            a typical value for the devices if unset.
        efficiency: Share of the peak rate that matmuls reach in training, between 0 and 1; from
            published measurements if unset.
        overlap: Overlap communication with computation.
        price: Price of a device per hour, in any currency.
    """

    devices: str
    hosts: int = 1
    interconnect: float | None = None
    network: float | None = None
    efficiency: float | None = None
    overlap: Annotated[bool, Parameter(negative="--no-overlap")] = True
    price: float | None = None

    def cluster(self, width: int) -> Cluster:
        """Return the hosts and their devices.

        Args:
            width: hidden size of the model.

        Raises:
            ConfigError: when the devices are unknown, or a number is invalid.
        """
        from heedful.apps.planning.cluster import Cluster, adapted, read_devices

        if self.hosts < 1:
            raise ConfigError(
                f"{self.hosts} hosts are too few", where="--hosts", remedy="Give at least 1"
            )
        if self.price is not None and self.price < 0:
            raise ConfigError(
                f"{self.price:g} is no price", where="--price", remedy="Give at least 0"
            )
        device, per_host = read_devices(self.devices, width=width)
        if per_host * self.hosts > _MOST_DEVICES:
            raise ConfigError(
                f"{per_host * self.hosts:,} devices",
                where="--devices",
                remedy=f"Plan for at most {_MOST_DEVICES:,}",
            )
        share = None if self.network is None else self.network / per_host
        device = adapted(
            device,
            link=self.interconnect,
            network=share,
            efficiency=self.efficiency,
            overlaps=self.overlap,
        )
        return Cluster(device=device, per_host=per_host, hosts=self.hosts)


@flag_group("Work", 20)
class WorkFlags:
    """Training data, its batches and their precision.

    Args:
        tokens: Number of training tokens, such as 300B (k, M, B or T); for pairs, tokens of each
            side.
        batch_tokens: Number of tokens in an update over all devices, such as 4M; for pairs, tokens
            of each side. [default: 25,000 for pairs, 524,288 for text]
        max_length: Length of a sequence in tokens. [default: the maximum of a language model, 25
            for pairs, otherwise 512]
        precision: Precision of matmuls. [default: bf16 if the devices support it]
    """

    tokens: str | None = None
    batch_tokens: str | None = None
    max_length: int | None = None
    precision: Literal["fp32", "bf16", "fp16"] | None = None

    def batch(self, spec: Any, cluster: Cluster, settings: UsualWork) -> UpdateBatch:
        """Return the batch of an update.

        Raises:
            ConfigError: when a number is invalid, or the length exceeds the model's maximum.
        """
        from heedful.apps.planning.estimates import UpdateBatch

        pairs = spec.reads == "pairs"
        usual = _PAIRS_LENGTH if pairs else getattr(spec, "max_length", None) or _TEXTS_LENGTH
        if spec.reads == "images":
            usual = spec.num_states
        length = self.max_length if self.max_length is not None else settings.max_length or usual
        longest = spec.longest_text
        if length < 1 or (longest is not None and length > longest):
            most = "" if longest is None else f" and at most {longest:,}"
            raise ConfigError(
                f"A text of {length:,} tokens",
                where="--max-length",
                remedy=f"Give at least 1{most}",
            )
        positions = settings.batch_tokens or (_PAIRS_BATCH if pairs else _TEXTS_BATCH)
        if self.batch_tokens is not None:
            positions = read_count(self.batch_tokens, "--batch-tokens")
        if positions < length:
            raise ConfigError(
                f"A batch of {positions:,} tokens holds no text of {length:,}",
                where="--batch-tokens",
                remedy="Give more, or shorter texts (--max-length)",
            )
        precision = self.precision or cluster.device.precision
        cluster.device.rate(precision)
        return UpdateBatch(positions=positions, length=length, precision=precision)


@flag_group("Layout", 30)
class LayoutFlags:
    """Settings of a layout; unset ones are chosen for each plan.

    Args:
        checkpointing: Activation checkpointing: recompute nothing, everything but matmuls
            (selective) or whole blocks (full). [default: the fastest that fits]
        accumulate: Number of batches that each device accumulates in an update. [default: as few as
            fit]
    """

    checkpointing: Literal["none", "selective", "full"] | None = None
    accumulate: int | None = None


def plan(
    spec: str,
    /,
    *,
    devices: DeviceFlags,
    work: WorkFlags = WorkFlags(),
    layout: LayoutFlags = LayoutFlags(),
    vocabulary: int | None = None,
    all: bool = False,
    output: Output = Output(),
) -> None:
    """Estimate memory, time and cost of training on many devices, and choose a layout.

    All combinations of data, sharded (FSDP), tensor and context parallelism are estimated: memory
    by part, communication, seconds per update, tokens per second, the share of the devices' peak
    rate spent on the model's own operations (model FLOPs utilization), days and cost. The fastest
    layout that fits is chosen, and the table says why others were not chosen. Estimates were within
    25 % of most published and measured runs of tuned software.

    For example:

        heedful plan transformer-big --devices 8xP100 --batch-tokens 25k --tokens 7.5B
        heedful plan llama-7b --devices 8xA100 --hosts 32 --batch-tokens 4M --tokens 1T --price 2

    Args:
        spec: Model to plan for: a preset, a TOML file with settings of a run or a table [spec], a
            model, run or Hugging Face directory, or the name of a model.
        vocabulary: Vocabulary size of a preset; not for models, which have their own.
        all: Show all plans instead of the best ten.
    """
    from heedful.apps.planning.cluster import NUMBER_BYTES
    from heedful.apps.planning.model_costs import model_costs
    from heedful.apps.planning.planned_settings import UsualWork, read_settings
    from heedful.apps.planning.plans import CHECKPOINTING, PlanQuestion, choose
    from heedful.cli.plan_tables import PlanAnswer

    flags = vars(devices) | vars(work) | vars(layout)
    given = {name: value for name, value in flags.items() if value is not None}
    report = Report("plan", output, given, spec=spec)
    if Path(spec).suffix == ".toml":
        model, usual = read_settings(Path(spec), vocabulary)
    else:
        model, usual = find_spec(spec, vocabulary)[0], UsualWork()
    tokens = usual.tokens if work.tokens is None else read_count(work.tokens, "--tokens")
    cluster = devices.cluster(model.width)
    batch = work.batch(model, cluster, usual)
    if layout.accumulate is not None and layout.accumulate < 1:
        raise ConfigError(
            f"{layout.accumulate} batches are too few",
            where="--accumulate",
            remedy="Give at least 1",
        )
    costs = model_costs(model, batch.length, NUMBER_BYTES[batch.precision])
    kinds = CHECKPOINTING if layout.checkpointing is None else (layout.checkpointing,)
    plans = PlanQuestion(
        costs=costs,
        cluster=cluster,
        batch=batch,
        checkpointing=kinds,
        accumulate=layout.accumulate,
    ).plans()
    answer = PlanAnswer(costs, cluster, batch, tokens, devices.price, plans, choose(plans))
    if not output.json:
        answer.show(spec, None if all else _SHOWN)
    report.finish(answer.facts(None if all else _SHOWN))


def read_count(words: str, flag: str) -> int:
    """Return a number of tokens written with a unit: 25k, 4M, 300B, 1.4T.

    Args:
        words: digits with an optional unit.
        flag: name of the flag, for the error message.

    Raises:
        ConfigError: when the text is no number above 0.
    """
    match = _NUMBER.fullmatch(words.strip())
    digits = "" if match is None else match[1].replace(",", "").replace("_", "")
    count = 0 if match is None else round(float(digits) * _UNITS[match[2].lower()])
    if count < 1:
        raise ConfigError(
            f"{words!r} is no number of tokens",
            where=flag,
            remedy="Write a number above 0, with k, M, B or T for thousands to trillions",
        )
    return count
