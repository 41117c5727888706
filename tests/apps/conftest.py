"""The small models that the tests of `heedful.inspect` make."""

from ..inspect.conftest import toys

__all__ = ["toys"]
