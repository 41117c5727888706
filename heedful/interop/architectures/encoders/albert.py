"""ALBERT (Lan 2020): BERT with one layer for all, and narrow embeddings that a map widens.

The layers become copies, each with weights of its own, so an ALBERT that was trained further is no
ALBERT any more, and is refused as one.
"""

from __future__ import annotations

from dataclasses import replace

from heedful.interop.architectures.encoders.bert import NAMES

ARCHITECTURE = replace(
    NAMES,
    model_type="albert",
    classes={
        "AlbertModel": (),
        "AlbertForMaskedLM": ("masked_lm",),
        "AlbertForPreTraining": ("masked_lm", "next_sentence"),
        "AlbertForSequenceClassification": ("sequence",),
        "AlbertForTokenClassification": ("token",),
        "AlbertForQuestionAnswering": ("span",),
    },
    prefix="albert.",
    head_layers={
        "masked_lm": {"dense": "predictions.dense", "norm": "predictions.LayerNorm"},
        # Of the order of two sentences: class 1 is a pair in the wrong order.
        "next_sentence": {"output": "sop_classifier.classifier"},
        "sequence": {"output": "classifier"},
        "token": {"output": "classifier"},
        "span": {"output": "qa_outputs"},
    },
    vocabulary="predictions",
    layers="encoder.albert_layer_groups.0.albert_layers.0",
    layer={
        "attention.query": "self_attention.query",
        "attention.key": "self_attention.key",
        "attention.value": "self_attention.value",
        "attention.dense": "self_attention.output",
        "attention.LayerNorm": "self_attention_norm",
        "ffn": "feedforward.up",
        "ffn_output": "feedforward.down",
        "full_layer_layer_norm": "feedforward_norm",
    },
    shares_layers=True,
    projection="encoder.embedding_hidden_mapping_in",
    always_projected=True,
    pooler="pooler",
    sequence_dropout="classifier_dropout_prob",
    inert=("classifier_dropout_prob",),
    usual={
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    # More than one layer's weights; every published model has one group of one layer.
    fixed={"num_hidden_groups": 1, "inner_group_num": 1},
).architecture()
