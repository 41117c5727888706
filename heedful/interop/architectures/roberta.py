"""RoBERTa (Liu 2019)."""

from __future__ import annotations

from heedful.interop.architectures.bert import BertNames

ARCHITECTURE = BertNames(
    model_type="roberta",
    classes={
        "RobertaModel": (),
        "RobertaForMaskedLM": ("masked_lm",),
        "RobertaForSequenceClassification": ("sequence",),
        "RobertaForTokenClassification": ("token",),
        "RobertaForQuestionAnswering": ("span",),
    },
    prefix="roberta.",
    head_layers={
        "masked_lm": {"dense": "lm_head.dense", "norm": "lm_head.layer_norm"},
        "sequence": {"dense": "classifier.dense", "output": "classifier.out_proj"},
        "token": {"output": "classifier"},
        "span": {"output": "qa_outputs"},
    },
    vocabulary="lm_head",
    sequence_source="first",
    lm_activation="gelu",
    padding_rows=True,
).architecture()
