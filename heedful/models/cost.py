"""What a model costs: parameters, floating-point operations and bytes, without building it.

Everything here is arithmetic on a `TranslatorSpec`, or on a `VisionSpec`; nothing needs torch.
"""

from __future__ import annotations

from heedful.models.cost_flops import (
    DecodingCost,
    TrainingCost,
    Work,
    decoding_cost,
    encoding_work,
    image_work,
    step_work,
    training_cost,
)
from heedful.models.cost_memory import (
    BFLOAT16,
    FLOAT32,
    DecodingMemory,
    Fit,
    TrainingMemory,
    decoding_memory,
    human_bytes,
    largest_batch,
    training_memory,
)
from heedful.models.cost_parameters import Row, count_parameters, parameter_table
from heedful.models.cost_peak import (
    LARGEST_DECODING,
    LARGEST_TRAINING,
    Peak,
    decoding_peak,
    largest,
    training_peak,
)

__all__ = [
    "BFLOAT16",
    "FLOAT32",
    "LARGEST_DECODING",
    "LARGEST_TRAINING",
    "DecodingCost",
    "DecodingMemory",
    "Fit",
    "Peak",
    "Row",
    "TrainingCost",
    "TrainingMemory",
    "Work",
    "count_parameters",
    "decoding_cost",
    "decoding_memory",
    "decoding_peak",
    "encoding_work",
    "human_bytes",
    "image_work",
    "largest",
    "largest_batch",
    "parameter_table",
    "step_work",
    "training_cost",
    "training_memory",
    "training_peak",
]
