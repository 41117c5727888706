"""Windows, global tokens and random blocks beside `transformers`' BigBird, random weights.

BigBird knows blocks where our masks know positions: tokens of a block get one position here, its
number. Its last block is global as the first one is, so they count from the last: 1 for the first
block, 0 for the last, which is next to no other that is not global.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import BigBirdConfig
from transformers.models.big_bird import modeling_big_bird

from heedful.nn.attention.masks import AnyOf, Window
from heedful.nn.attention.sparse_masks import GlobalTokens, RandomBlocks
from heedful.nn.mixer import Context, build_part
from heedful.nn.positions import Positions
from heedful.nn.spec import AttentionSpec

WIDTH, HEADS, BLOCK, BLOCKS, RANDOM = 8, 2, 2, 11, 2
LENGTH = BLOCK * BLOCKS
GLOBAL = GlobalTokens(count=2)
WINDOW = Window(size=2)
# Theirs counts a key twice that is drawn and seen anyway. It draws no such block; of our seeds this
# is the first that does not.
DRAWN = RandomBlocks(size=1, count=RANDOM, length=BLOCKS, seed=83_836)


def drawn_blocks() -> Tensor:
    """Random blocks of keys that each block but the first and the last sees, [BLOCKS − 2, RANDOM].

    Both in BigBird's numbers, which are one less than our positions.
    """
    positions = torch.arange(BLOCKS)[None]
    shown = Positions.of_self(positions).visible(DRAWN).view(BLOCKS, BLOCKS)
    drawn = shown[2:].nonzero()[:, 1].view(BLOCKS - 2, RANDOM)
    query = torch.arange(2, BLOCKS)[:, None]
    assert (drawn > 1).all()
    assert ((drawn - query).abs() > 1).all()
    return drawn - 1


def their_attention() -> Any:
    """BigBird's attention; its random blocks are ours, the same for each head."""
    config = BigBirdConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        block_size=BLOCK,
        num_random_blocks=RANDOM,
        max_position_embeddings=LENGTH,
    )
    torch.manual_seed(1)
    theirs = modeling_big_bird.BigBirdBlockSparseAttention(config).double().eval()
    theirs._bigbird_block_rand_mask_with_head = lambda **_: [drawn_blocks().numpy()] * HEADS
    return theirs


def test_sparse_attention_is_that_of_bigbird() -> None:
    theirs = their_attention()
    spec = AttentionSpec(num_heads=HEADS, mask=AnyOf(parts=(WINDOW, GLOBAL, DRAWN)))
    ours = build_part(WIDTH, spec).double().eval()
    with torch.no_grad():
        linears = [theirs.query, theirs.key, theirs.value]
        ours.projection.weight.copy_(torch.cat([each.weight for each in linears]))
        ours.projection.bias.copy_(torch.cat([each.bias for each in linears]))
        ours.output.weight.copy_(torch.eye(WIDTH))
        ours.output.bias.zero_()
        x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
        real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 3]])
        masks = modeling_big_bird.BigBirdModel.create_masks_for_block_sparse_attn(
            real.double(), BLOCK
        )
        blocked, band, query, key = masks
        expected = theirs(x, band, query, key, blocked, blocked)[0]
        positions = (torch.arange(LENGTH) // BLOCK + 1) % BLOCKS
        found = ours(x, Context(Positions.of_self(positions.where(real, -1))))
    torch.testing.assert_close(found[real], expected[real])
