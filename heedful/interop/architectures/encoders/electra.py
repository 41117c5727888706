"""ELECTRA (Clark 2020): the encoder, and the generator that fills masks."""

from __future__ import annotations

from dataclasses import replace

from heedful.interop.architectures.encoders.bert import NAMES

ARCHITECTURE = replace(
    NAMES,
    model_type="electra",
    classes={
        "ElectraModel": (),
        "ElectraForMaskedLM": ("masked_lm",),
        "ElectraForSequenceClassification": ("sequence",),
        "ElectraForTokenClassification": ("token",),
        "ElectraForQuestionAnswering": ("span",),
    },
    prefix="electra.",
    head_layers={
        "masked_lm": {
            "dense": "generator_predictions.dense",
            "norm": "generator_predictions.LayerNorm",
        },
        "sequence": {"dense": "classifier.dense", "output": "classifier.out_proj"},
        "token": {"output": "classifier"},
        "span": {"output": "qa_outputs"},
    },
    vocabulary="generator_lm_head",
    plain_vocabulary=True,
    sequence_source="first",
    sequence_activation="gelu",
    lm_activation="gelu",
    projection="embeddings_project",
    inert=("summary_last_dropout",),
).architecture()
