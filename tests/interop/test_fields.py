from __future__ import annotations

import pytest

from heedful.errors import ModelError
from heedful.interop.config_fields import Fields

CONFIG = {
    "n": 3,
    "x": 0.5,
    "yes": True,
    "name": "gelu_new",
    "none": None,
    "rope": {"factor": 2},
    "texts": ["a", "b"],
    "nan": float("nan"),
    "id2label": {"0": "NEG", "1": "POS"},
    "holes": {"0": "NEG", "2": "POS"},
}
FIELDS = Fields(CONFIG, "dir/config.json")


def test_values() -> None:
    assert FIELDS.integer("n") == 3
    assert FIELDS.integer("none", 7) == FIELDS.integer("missing", 7) == 7
    assert FIELDS.number("n") == 3.0
    assert FIELDS.number("x", 1.0) == 0.5
    assert FIELDS.flag("yes", False) is True
    assert FIELDS.flag("none", False) is False
    assert FIELDS.text("name") == "gelu_new"
    assert FIELDS.choice("name", {"gelu_new": 1}) == 1
    assert FIELDS.choice("missing", {"relu": 2}, "relu") == 2
    assert FIELDS.optional_integer("none") is None
    assert FIELDS.texts("texts") == ("a", "b")
    assert FIELDS.texts("none") == ()
    assert FIELDS.labels() == ("NEG", "POS")
    assert Fields({"num_labels": 3}, "").labels() == ("LABEL_0", "LABEL_1", "LABEL_2")
    inner = FIELDS.table("rope")
    assert inner is not None
    assert inner.integer("factor") == 2
    assert FIELDS.table("none") is None
    FIELDS.refuse_unless("n", [3, 4], 0)
    FIELDS.refuse_unless("none", [None], None)
    FIELDS.refuse_unless("missing", [True], True)


@pytest.mark.parametrize(
    ("read", "key"),
    [
        (lambda f: f.integer("missing"), "missing"),
        (lambda f: f.integer("none"), "none"),
        (lambda f: f.integer("x"), "x"),
        (lambda f: f.integer("yes"), "yes"),
        (lambda f: f.integer("name"), "name"),
        (lambda f: f.number("yes"), "yes"),
        (lambda f: f.number("nan"), "nan"),
        (lambda f: f.number("name"), "name"),
        (lambda f: f.flag("n"), "n"),
        (lambda f: f.text("n"), "n"),
        (lambda f: f.texts("name"), "name"),
        (lambda f: f.table("texts"), "texts"),
        (lambda f: f.choice("name", {"gelu": 1}), "gelu_new"),
        (lambda f: f.choice("n", {"gelu": 1}), "n"),
        (lambda f: f.refuse_unless("n", [4], 4), "3"),
        (lambda f: f.refuse_unless("yes", [1], 1), "yes"),
        (lambda f: f.refuse_unless("missing", [1], 2), "missing"),
        (lambda f: Fields({"id2label": CONFIG["holes"]}, f.where).labels(), "id2label"),
        (lambda f: f.table("rope").text("factor"), "rope"),
    ],
)
def test_mistakes_name_key_and_file(read, key: str) -> None:
    with pytest.raises(ModelError, match=key) as error:
        read(FIELDS)
    assert "dir/config.json" in str(error.value)


def test_known_values_are_listed_and_none_is_suggested() -> None:
    with pytest.raises(ModelError, match=r'"gelu_new".*knows gelu_ne, relu') as error:
        FIELDS.choice("name", {"gelu_ne": 1, "relu": 2})
    assert "Did you mean" not in str(error.value)
