"""BERT's directories (Devlin 2019)."""

from __future__ import annotations

from heedful.interop.text_encoder import Family

MODEL_TYPES = ("bert",)
FORMS = ()

_FAMILY = Family(
    model_type="bert",
    classes={
        "BertModel": (),
        "BertForMaskedLM": ("masked_lm",),
        "BertForPreTraining": ("masked_lm", "next_sentence"),
        "BertForNextSentencePrediction": ("next_sentence",),
        "BertForSequenceClassification": ("sequence",),
        "BertForTokenClassification": ("token",),
        "BertForQuestionAnswering": ("span",),
    },
    prefix="bert.",
    head_layers={
        "masked_lm": {
            "dense": "cls.predictions.transform.dense",
            "norm": "cls.predictions.transform.LayerNorm",
        },
        "next_sentence": {"output": "cls.seq_relationship"},
        "sequence": {"output": "classifier"},
        "token": {"output": "classifier"},
        "span": {"output": "qa_outputs"},
    },
    vocabulary="cls.predictions",
    sequence_source="pooled",
    lm_activation=None,
    padding_rows=False,
)

read_config = _FAMILY.read_config
write_config = _FAMILY.write_config
table = _FAMILY.table
differences = _FAMILY.differences
fits = _FAMILY.fits
