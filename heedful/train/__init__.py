"""Training of models: `heedful.train(...)` is `heedful.apps.train_from_python.train`.

This file imports nothing of the package, so that the settings load quickly.
"""

import sys
from pkgutil import resolve_name
from types import ModuleType
from typing import Any


class _Training(ModuleType):
    # The name of a package and of what people call: importing a module of it sets the name anew.
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return resolve_name("heedful.apps.train_from_python:train")(*args, **kwargs)


sys.modules[__name__].__class__ = _Training
