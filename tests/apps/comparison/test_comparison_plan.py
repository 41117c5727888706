"""Which configurations can be compared, and what is asked for twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.apps.comparison.plan import (
    ComparisonPlan,
    extend_plan,
    load_plan,
    make_plan,
    parse_sweep,
    sweep_variants,
    variants_of,
    with_usual,
)
from heedful.errors import ConfigError, UserError


def plan_of(
    *configs: Path, seeds: int = 2, flops: float | None = None, **overrides
) -> ComparisonPlan:
    return make_plan(variants_of(configs, overrides), seeds, flops)


def test_every_variant_has_every_seed(write, tmp_path: Path) -> None:
    plan = plan_of(write("a"), write("b", model={"width": 16}), seeds=3, seed=5)
    runs = plan.runs(tmp_path)
    assert [(run.variant.name, run.seed) for run in runs] == [
        ("a", 5), ("b", 5), ("a", 6), ("b", 6), ("a", 7), ("b", 7)
    ]  # fmt: skip
    assert len({run.directory for run in runs}) == 6
    assert all(run.settings.seed == run.seed for run in runs)
    assert plan.scores == ("loss",)
    assert "40 updates" in plan.budget()


def other_text(tmp_path: Path) -> dict:
    (tmp_path / "other.txt").write_text("text\n")
    return {"data": {"train": [{"file": str(tmp_path / "other.txt")}]}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": {"kind": "bpe"}}, "tokenizer.kind: The tokenizers differ"),
        ({"data": {"documents": "line"}}, "data.documents: The data differ"),
        ({"max_steps": 50}, "max_steps: The budgets differ: a has 40, b has 50"),
        ({"max_epochs": 2}, "max_epochs: The budgets differ"),
        ({"task": "masked_lm"}, "task: The scores of different tasks"),
        ({"data": {"batch_tokens": "auto"}}, None),
    ],
)
def test_what_must_not_differ_is_named_with_a_remedy(write, changes, message) -> None:
    configs = (write("a"), write("b", **changes))
    if message is None:
        assert plan_of(*configs)
        return
    with pytest.raises(ConfigError, match=message) as error:
        plan_of(*configs)
    assert error.value.remedy


def test_other_training_data_are_refused_or_replaced(write, tmp_path: Path, settings) -> None:
    configs = (write("a"), write("b", **other_text(tmp_path)))
    with pytest.raises(ConfigError, match=r"The data differ.*--train"):
        plan_of(*configs)
    assert plan_of(*configs, data={"train": settings["data"]["train"]})
    # The context may differ: no text is left out for it.
    assert plan_of(write("a"), write("c", data={"max_length": 32}))


def test_there_is_a_score_to_compare_by(write) -> None:
    with pytest.raises(ConfigError, match="no common score"):
        plan_of(write("a", data={"valid": []}))
    with pytest.raises(UserError, match="nothing to compare"):
        plan_of()


def test_the_same_name_twice(write, tmp_path: Path) -> None:
    first, second = write("one/a"), write("two/a")
    with pytest.raises(ConfigError, match="Two configurations are called 'a'"):
        plan_of(first, second)
    with pytest.raises(ConfigError, match="no such file and no such preset"):
        plan_of(Path("tinny"))


def test_a_sweep_is_a_comparison_of_values(write) -> None:
    assert parse_sweep("model.num-heads=2,4") == ("model.num_heads", [2, 4])
    assert parse_sweep("model.positions=rotary, alibi")[1] == ["rotary", "alibi"]
    assert parse_sweep("model.bias=true,false")[1] == [True, False]
    for wrong in ("model.width", "model.width=", "=3", "model.width=1,,2"):
        with pytest.raises(ConfigError, match="a setting and its values"):
            parse_sweep(wrong)
    variants = sweep_variants(write("a"), "model.width", [8, 16], {"max_steps": 9})
    assert [each.name for each in variants] == ["model.width=8", "model.width=16"]
    assert [each.settings.model.width for each in variants] == [8, 16]
    assert {each.settings.max_steps for each in variants} == {9}
    with pytest.raises(ConfigError, match=r"Did you mean 'width'"):
        sweep_variants(write("a"), "model.widht", [8], {})
    with pytest.raises(ConfigError, match="twice"):
        sweep_variants(write("a"), "model.width", [8, 8], {})
    with pytest.raises(ConfigError, match="Seeds are no variants"):
        sweep_variants(write("a"), "seed", [1, 2], {})


def test_a_plan_is_read_as_it_was_written_and_grows(write, tmp_path: Path) -> None:
    assert load_plan(tmp_path) is None
    asked = plan_of(write("a"))
    begun = ComparisonPlan(tuple(with_usual(each, tmp_path) for each in asked.variants), 2)
    begun.save(tmp_path)
    before = load_plan(tmp_path)
    assert before is not None
    assert before.variants[0].plain() == begun.variants[0].plain()
    grown = extend_plan(
        before, plan_of(write("a"), write("b", model={"width": 16}), seeds=4), tmp_path
    )
    assert [each.name for each in grown.variants] == ["a", "b"]
    assert grown.seeds == 4
    with pytest.raises(ConfigError, match=r"begun with another model\.width"):
        extend_plan(before, plan_of(write("a", model={"width": 16})), tmp_path)
    with pytest.raises(ConfigError, match="budget was"):
        extend_plan(before, plan_of(write("a"), flops=1e9), tmp_path)
    (tmp_path / "comparison.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_plan(tmp_path)


def test_curves_have_points_and_batches_a_size(write, tmp_path: Path, settings) -> None:
    del settings  # every_steps = 10 of the configuration stays
    (variant,) = variants_of([write("a")], {})
    assert with_usual(variant, tmp_path).settings.validation.every_steps == 10
    with pytest.raises(ConfigError, match="memory that is free"):
        plan_of(write("a"), data={"batch_tokens": "auto"})
    with pytest.raises(ConfigError, match="At least one run"):
        plan_of(write("a"), seeds=0)
