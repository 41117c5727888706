"""The small models and directories that the tests of `heedful.interop` make."""

from ...interop.conftest import _make_model, theirs

__all__ = ["_make_model", "theirs"]
