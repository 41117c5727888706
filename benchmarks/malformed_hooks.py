"""One in eight of the right requests that benchmarks/malformed.py makes up gets to a model.

Names of languages and models drawn at random are names of nothing, so that nearly all requests
would end where these are looked up. Loaded by schemathesis.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

import schemathesis

NAMES = json.loads(os.environ["MALFORMED_NAMES"])
"""For each path the values of its requests that name a model or languages."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Put names of models and languages into a request."""
    is_right = case.meta is not None and case.meta.generation.mode.value == "positive"
    if is_right and isinstance(case.body, dict) and zlib.crc32(repr(case.body).encode()) % 8 == 0:
        case.body = {**case.body, **NAMES.get(case.path, {})}
