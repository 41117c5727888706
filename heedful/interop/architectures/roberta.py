"""RoBERTa (Liu 2019): BERT without next-sentence prediction."""

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
        # The head has a dense layer of its own, because there is no trained pooler.
        "sequence": {"dense": "classifier.dense", "output": "classifier.out_proj"},
        "token": {"output": "classifier"},
        "span": {"output": "qa_outputs"},
    },
    vocabulary="lm_head",
    sequence_source="first",
    # Hard-coded in their head, so another `hidden_act` does not change it.
    lm_activation="gelu",
    # 514 rows for 512 positions: rows 0 and 1 are never used.
    padding_rows=True,
).architecture()
