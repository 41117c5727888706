"""DINOv2 (Oquab 2023): ViT with factors on the channels of each part; its states, no classifier."""

from __future__ import annotations

from heedful.interop.architectures.image_encoders.vit import VitNames

ARCHITECTURE = VitNames(
    model_type="dinov2",
    encoder="Dinov2Model",
    # Their classifier reads the class token and the mean of the others side by side.
    classifier="",
    prefix="dinov2.",
    pooling="first",
    layer={
        "mlp.fc1": "feedforward.up",
        "norm1": "self_attention_norm",
        "norm2": "feedforward_norm",
    },
    layer_scale=True,
    # First values, dropped layers, and what a backbone gives beside its last states.
    inert=(
        *("layerscale_value", "drop_path_rate", "use_mask_token", "apply_layernorm"),
        *("reshape_hidden_states", "out_features", "out_indices", "stage_names"),
        *("_out_features", "_out_indices"),
    ),
).architecture()
