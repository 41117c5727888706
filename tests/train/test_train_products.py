from __future__ import annotations

import pytest

from heedful.device import Precision, own_products
from heedful.kernels.library import has_gemm
from heedful.train import compute_plan as products
from heedful.train.compute_plan import ProductRates, choose_products, measure_products


@pytest.mark.parametrize(
    ("by_torch", "by_own", "used"), [(100, 130, True), (110, 100, True), (130, 100, False)]
)
def test_the_products_of_faster_updates_are_chosen_and_both_rates_told(
    monkeypatch, by_torch, by_own, used
):
    rates = ProductRates(torch=by_torch, own=by_own)
    monkeypatch.setattr(products, "measure_products", lambda precision, width: rates)
    chosen = choose_products(Precision("bf16", "cpu", reason="measured"), 512)
    assert chosen.own is used
    assert "measured" in chosen.describe()
    assert str(by_torch) in chosen.describe()
    assert str(by_own) in chosen.describe()
    assert ("by own kernels" in chosen.describe()) is used


def test_where_there_is_no_choice_nothing_is_changed():
    for name, device in (("fp16", "cuda"), ("bf16", "cuda"), ("int8", "cpu")):
        precision = Precision(name, device)
        assert measure_products(precision, 512) is None
        assert choose_products(precision, 512) is precision


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_both_are_timed_and_leave_no_trace(name):
    precision = Precision(name, "cpu")
    if not has_gemm({"fp32": "float32", "bf16": "bfloat16"}[name], 512):
        assert measure_products(precision, 64) is None
        return
    rates = measure_products(precision, 64)
    assert rates.torch > 0
    assert rates.own > 0
    assert own_products.get()
