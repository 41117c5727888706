"""Quality of outputs: corpus metrics, accuracy, perplexity, and tests between two systems.

`heedful.evaluate(...)` is `heedful.apps.evaluation.model_scores.evaluate`.
"""

import sys
from pkgutil import resolve_name
from types import ModuleType
from typing import Any


class _Evaluation(ModuleType):
    # As `heedful.train`: one name is a package and what people call.
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return resolve_name("heedful.apps.evaluation.model_scores:evaluate")(*args, **kwargs)


sys.modules[__name__].__class__ = _Evaluation
