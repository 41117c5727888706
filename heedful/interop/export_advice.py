"""Advice on the settings that keep a model from being one of another project's architectures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from heedful.models.model_spec import CommonSpec

_PLACEMENTS = {"before": "pre", "after": "post"}
_TRANSFORMER = {
    "--model.mixer": "attention",
    "--model.encoder-mixer": "attention",
    "--model.network": "feedforward",
}
# Differences that vanish with a flag; the others, a soft cap or an epsilon, stay whatever is set.
_FLAGGED = re.compile(
    r"(norm\.kind|norm_placement|final_norm\.\w+|activation|bias|residual|pooling|memory|tied|max_length"
    r"|share_embeddings|num_kv_heads|relative_values|global_tokens"
    r"|(positions|rotary|\w*position_bias|mask|experts)(\.\w+)*) is "
)
_MOST = 4


def options_of(spec: CommonSpec) -> dict[str, str]:
    """Return the flags of `heedful train` that a model follows from, as far as they show in it.

    Values that differ among layers are joined by commas; an option that is not set is missing.
    """
    found: dict[str, set[str]] = {}

    def note(flag: str, value: object) -> None:
        if value is not None:
            name = flag if "." in flag else f"model.{flag}"
            found.setdefault(f"--{name}", set()).add(str(value).lower())

    embedding = getattr(spec, "embedding", None)
    if embedding is not None and embedding.positions.kind != "none":
        note("positions", embedding.positions.kind)
    # Two tables of one kind follow from a rewrite; `all` leads to them.
    note("share-embeddings", "all" if spec.sharing == "inputs" else spec.sharing)
    note("memory", getattr(spec, "memory", None))
    note("images.pooling", getattr(spec, "pooling", None))
    for side, stack in spec.stacks().items():
        mixer = "encoder-mixer" if side == "encoder" else "mixer"
        if stack.shared_position_bias is not None:
            note("positions", stack.shared_position_bias.kind)
        for sublayer in stack.sublayers():
            part = sublayer.part
            note("norm", sublayer.norm.kind)
            placement = sublayer.norm_placement
            note("norm-placement", _PLACEMENTS.get(placement, placement))
            note("residual", sublayer.residual)
            if part.kind == "feedforward":
                note("activation", part.activation)
                note("bias", part.bias)
                note("num-experts", part.experts and part.experts.num_experts)
            elif part.kind != "attention":
                note("network" if part.is_network else mixer, part.kind)
            else:
                note(mixer, "attention")
                note("bias", part.bias)
                note("positions", "rotary" if part.rotary else None)
                note("positions", part.position_bias and part.position_bias.kind)
                note("relative-values", part.relative_values)
                note("global-tokens", part.global_tokens)
                if part.num_kv_heads != part.num_heads:
                    note("num-kv-heads", part.num_kv_heads)
                for mask in part.mask.conjuncts:
                    if mask.kind not in ("everything", "causal", "segment"):
                        note("window" if mask.kind == "window" else "mask", mask.kind)
    if "--model.positions" not in found and embedding is not None:
        note("positions", "none")
    return {flag: ", ".join(sorted(values)) for flag, values in found.items()}


def without_flag(differences: Sequence[str]) -> list[str]:
    """Return the differences that no flag takes away, from lines `PATH is … here and … there`."""
    return [
        line
        for line in differences
        if line.startswith("embedding.norm") or not _FLAGGED.search(line)
    ]


def flags_to_change(spec: CommonSpec, nearest: CommonSpec | None) -> list[str]:
    """Return the flags that make a model of ours one of theirs, with the values to set.

    Args:
        spec: spec of the model.
        nearest: spec that the architecture makes of it; None for parts that it has no words for,
            which are those of other models than Transformers.
    """
    ours = options_of(spec)
    if nearest is None:
        theirs = {flag: _TRANSFORMER.get(flag, value) for flag, value in ours.items()}
    else:
        theirs = options_of(nearest)
    flags = []
    for flag in sorted(ours.keys() | theirs.keys()):
        if ours.get(flag) == theirs.get(flag):
            continue
        # Of several values among the layers there, the one that none here has.
        values = [value for value in theirs.get(flag, "").split(", ") if value]
        others = [value for value in values if value not in ours.get(flag, "").split(", ")]
        flags.append(f"{flag} {(others or values)[0]}" if values else f"no {flag}")
    return flags


def refusal(name: str, flags: list[str], reasons: list[str]) -> str:
    """Return a sentence about what the nearest architecture lacks, of at most three lines.

    Args:
        name: its `model_type`.
        flags: flags to change.
        reasons: differences that no flag takes away, which are named first.
    """
    listed, kept = ("where", reasons) if reasons else ("a model with", flags)
    more = len(kept) - _MOST
    rest = f" and {more} more" if more > 0 else ""
    return (
        f"No architecture of transformers computes this model; the nearest is {name}, "
        f"{listed} {', '.join(each[:90] for each in kept[:_MOST])}{rest}"
    )
