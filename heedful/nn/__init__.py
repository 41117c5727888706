"""Parts of Transformers, for models of one's own: attention, masks, positions, norms, blocks.

For example:

    import heedful.nn

    attention = heedful.nn.SelfAttention(64, heads=4, mask=heedful.nn.Causal())
    attention(x)

One idea a file. A name is imported when it is asked for, so that `heedful.nn.spec` can be read
without loading torch.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.nn.attention.attend import attend as attend
    from heedful.nn.attention.attend import explain as explain
    from heedful.nn.attention.masks import AllOf as AllOf
    from heedful.nn.attention.masks import AnyOf as AnyOf
    from heedful.nn.attention.masks import Causal as Causal
    from heedful.nn.attention.masks import Everything as Everything
    from heedful.nn.attention.masks import Mask as Mask
    from heedful.nn.attention.masks import Prefix as Prefix
    from heedful.nn.attention.masks import SameSegment as SameSegment
    from heedful.nn.attention.masks import Window as Window
    from heedful.nn.attention.masks import Without as Without
    from heedful.nn.attention.multi_head import CrossAttention as CrossAttention
    from heedful.nn.attention.multi_head import SelfAttention as SelfAttention
    from heedful.nn.attention.relative_positions import Alibi as Alibi
    from heedful.nn.attention.sparse_masks import Dilated as Dilated
    from heedful.nn.attention.sparse_masks import Fixed as Fixed
    from heedful.nn.attention.sparse_masks import GlobalTokens as GlobalTokens
    from heedful.nn.attention.sparse_masks import RandomBlocks as RandomBlocks
    from heedful.nn.attention.sparse_masks import Strided as Strided
    from heedful.nn.attention.sparse_masks import Window2d as Window2d
    from heedful.nn.embeddings import TokenEmbedding as TokenEmbedding
    from heedful.nn.feedforward import FeedForward as FeedForward
    from heedful.nn.mixer import Context as Context
    from heedful.nn.mixer import build_part as build_part
    from heedful.nn.norms import RMSNorm as RMSNorm
    from heedful.nn.positions import LearnedPositions as LearnedPositions
    from heedful.nn.positions import Positions as Positions
    from heedful.nn.positions import Rotary as Rotary
    from heedful.nn.positions import SinusoidalPositions as SinusoidalPositions
    from heedful.nn.spec import AttentionSpec as AttentionSpec
    from heedful.nn.spec import FeedForwardSpec as FeedForwardSpec
    from heedful.nn.spec import NormSpec as NormSpec
    from heedful.nn.spec import RotarySpec as RotarySpec

_NAMES = {
    "attention.attend": "attend explain",
    "attention.masks": "AllOf AnyOf Causal Everything Mask Prefix SameSegment Window Without",
    "attention.multi_head": "CrossAttention SelfAttention",
    "attention.relative_positions": "Alibi",
    "attention.sparse_masks": "Dilated Fixed GlobalTokens RandomBlocks Strided Window2d",
    "embeddings": "TokenEmbedding",
    "feedforward": "FeedForward",
    "mixer": "Context build_part",
    "mixer_spec": "AverageAttentionSpec LinearAttentionSpec MambaSpec RWKVSpec S4DSpec SSRUSpec",
    "norms": "RMSNorm",
    "pair_mixer_spec": "TriangleAttentionSpec TriangleMultiplicationSpec",
    "positions": "LearnedPositions Positions Rotary SinusoidalPositions",
    "spec": "AttentionSpec FeedForwardSpec NormSpec RotarySpec",
}
_HOMES = {name: f"heedful.nn.{home}:{name}" for home, all in _NAMES.items() for name in all.split()}
# A block is made of these parts, one layer above them.
_HOMES["TransformerBlock"] = "heedful.models.block:TransformerBlock"

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'heedful.nn' has no attribute {name!r}")
    return globals().setdefault(name, resolve_name(_HOMES[name]))


def __dir__() -> list[str]:
    return __all__
