"""DistilBERT (Sanh 2019): BERT with half of the layers and without segments."""

from __future__ import annotations

from heedful.interop.architectures.encoders.bert import BertNames

ARCHITECTURE = BertNames(
    model_type="distilbert",
    classes={
        "DistilBertModel": (),
        "DistilBertForMaskedLM": ("masked_lm",),
        "DistilBertForSequenceClassification": ("sequence",),
        "DistilBertForTokenClassification": ("token",),
        "DistilBertForQuestionAnswering": ("span",),
    },
    prefix="distilbert.",
    head_layers={
        "masked_lm": {"dense": "vocab_transform", "norm": "vocab_layer_norm"},
        "sequence": {"dense": "pre_classifier", "output": "classifier"},
        "token": {"output": "classifier"},
        "span": {"output": "qa_outputs"},
    },
    vocabulary="vocab_projector",
    plain_vocabulary=True,
    sequence_source="first",
    sequence_activation="relu",
    sequence_dropout="seq_classif_dropout",
    lm_activation=None,
    padding_rows=False,
    keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    layers="transformer.layer",
    layer={
        "attention.q_lin": "self_attention.query",
        "attention.k_lin": "self_attention.key",
        "attention.v_lin": "self_attention.value",
        "attention.out_lin": "self_attention.output",
        "sa_layer_norm": "self_attention_norm",
        "ffn.lin1": "feedforward.up",
        "ffn.lin2": "feedforward.down",
        "output_layer_norm": "feedforward_norm",
    },
    segments=False,
    # The table of positions is read whatever it began with; the other two are dropout.
    inert=("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout"),
    fixed_epsilon=1e-12,
).architecture()
