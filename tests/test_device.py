from __future__ import annotations

import pytest
import torch

from heedful import device as module
from heedful.device import (
    MatmulRates,
    Precision,
    best_seconds,
    measure_matmul,
    resolve_device,
    resolve_precision,
)
from heedful.errors import ConfigError

CPU = torch.device("cpu")


def test_devices() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_device("auto").type in ("cpu", "cuda", "mps")
    for name in ("tpu", "meta", "cuda:99"):
        with pytest.raises(ConfigError):
            resolve_device(name)


def test_a_missing_device_names_those_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"no device 'cuda:7'\. Use auto or cpu, or check"):
        resolve_device("cuda:7")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"Use auto, cpu, cuda:0 or cuda:1, or check"):
        resolve_device("cuda:7")


def test_half_precision_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match="fp16"):
        resolve_precision("fp16", CPU)


@pytest.mark.parametrize(
    ("rates", "exact", "name", "onednn"),
    [
        (MatmulRates(200, 450, 900), False, "bf16", True),
        (MatmulRates(200, 450, 900), True, "fp32", True),
        (MatmulRates(200, 450, 470), False, "fp32", True),
        (MatmulRates(200, 210, 150), False, "fp32", False),
        (MatmulRates(200, None, None), False, "fp32", False),
    ],
)
def test_auto_chooses_what_was_measured_to_pay(
    monkeypatch: pytest.MonkeyPatch, rates: MatmulRates, exact: bool, name: str, onednn: bool
) -> None:
    monkeypatch.setattr(module, "measure_matmul", lambda width: rates)
    chosen = resolve_precision("auto", CPU, exact=exact)
    assert (chosen.name, chosen.onednn) == (name, onednn)
    assert "200" in chosen.describe()


def test_a_precision_asked_for_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_matmul", None)
    assert resolve_precision("bf16", CPU).name == "bf16"
    assert not resolve_precision("fp32", CPU).onednn


def test_measurement_is_plausible_and_leaves_no_trace() -> None:
    before = _route()
    rates = measure_matmul(64)
    assert rates.fp32 > 0
    assert measure_matmul(64) is rates
    assert _route() == before


def test_autocast_and_the_matmul_route_are_restored() -> None:
    before = _route()
    precision = Precision("bf16", "cpu", onednn=hasattr(torch.backends.mkldnn, "matmul"))
    layer = torch.nn.Linear(4, 4)
    with precision.autocast():
        assert layer(torch.ones(2, 4)).dtype == torch.bfloat16
        if precision.onednn:
            assert _route() == "bf16"
    assert _route() == before
    with Precision("fp32", "cpu").autocast():
        assert layer(torch.ones(2, 4)).dtype == torch.float32


def test_the_onednn_route_is_offered_only_where_it_is_exact() -> None:
    """Against float64: bfloat16 products would err by about 0.1 here, float32 by about 1e-4."""
    if measure_matmul(256).onednn is None:
        pytest.skip("no such route on this processor")
    generator = torch.Generator().manual_seed(1)
    for rows, inner, columns in ((40, 128, 64), (64, 1024, 96), (8, 2048, 33)):
        x = torch.randn(rows, inner, generator=generator)
        weight = torch.randn(columns, inner, generator=generator)
        with Precision("fp32", "cpu", onednn=True).matmul():
            found = torch.nn.functional.linear(x, weight)
        error = (found.double() - x.double() @ weight.double().T).abs().max()
        assert error < 1e-3


def _route() -> str | None:
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    return getattr(matmul, "fp32_precision", None)


def test_each_ways_fastest_turn_counts(monkeypatch):
    clock, order = [0.0], []
    durations = {"a": iter([5.0, 2.0, 3.0]), "b": iter([1.0, 4.0, 0.5])}
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])

    def way(name):
        order.append(name)
        clock[0] += next(durations[name])

    found = best_seconds({name: lambda name=name: way(name) for name in durations}, turns=3)
    assert found == {"a": 2.0, "b": 0.5}
    assert order == ["a", "b"] * 3
