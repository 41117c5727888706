"""RoBERTa (Liu 2019): BERT without next-sentence prediction."""

from __future__ import annotations

from heedful.interop.architectures.encoders.bert import BertNames


def roberta_names(model_type: str, name: str, *, pre_norm: bool = False) -> BertNames:
    """Return the names of an encoder with RoBERTa's heads and positions.

    Args:
        model_type: name of the architecture in config.json.
        name: beginning of the names of its classes.
        pre_norm: flag of norms before the sub-layers.
    """
    return BertNames(
        model_type=model_type,
        classes={
            f"{name}Model": (),
            f"{name}ForMaskedLM": ("masked_lm",),
            f"{name}ForSequenceClassification": ("sequence",),
            f"{name}ForTokenClassification": ("token",),
            f"{name}ForQuestionAnswering": ("span",),
        },
        # The classes of its relatives keep the name of this attribute.
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
        pre_norm=pre_norm,
    )


ARCHITECTURE = roberta_names("roberta", "Roberta").architecture()
