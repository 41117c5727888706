"""Recurrent networks, which the Transformer replaced: each state is made from the one before.

The baseline without attention: all that a token can know of an earlier one has come through every
state between them.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Cell = Literal["rnn", "lstm", "gru"]
"""Elman's (1990), with tanh; Hochreiter and Schmidhuber's (1997); Cho's (2014)."""

_MODULES: dict[Cell, type[nn.RNN] | type[nn.LSTM] | type[nn.GRU]] = {
    "rnn": nn.RNN,
    "lstm": nn.LSTM,
    "gru": nn.GRU,
}
_KEEPING_GATE: dict[Cell, int] = {"lstm": 1, "gru": 1}
"""Which of a cell's stacked maps is the gate that keeps the state: LSTM's forget, GRU's update."""


class RecurrentEncoder(nn.Module):
    """Layers of a recurrent cell over batches of padded rows.

    Input maps start Xavier-uniform and state maps orthogonal, gate by gate (Saxe 2014), so that a
    signal neither grows nor shrinks by the maps alone.

    Args:
        width: of tokens and states, D.
        num_layers: each reads the states of the one below.
        cell: which.
        keep_bias: at the start, of the gate that keeps the state; 1 lets a signal live for some
            steps from the first update on (Gers 2000; Jozefowicz 2015). A plain `rnn` has none.
    """

    def __init__(
        self, width: int, num_layers: int, cell: Cell = "lstm", *, keep_bias: float = 1.0
    ) -> None:
        super().__init__()
        self.cell = cell
        self.layers = _MODULES[cell](width, width, num_layers, batch_first=True)
        for name, parameter in self.layers.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
                # There are two biases, which are added: one of them does.
                if name.startswith("bias_ih") and cell in _KEEPING_GATE:
                    gate = _KEEPING_GATE[cell]
                    nn.init.constant_(parameter[gate * width : (gate + 1) * width], keep_bias)
                continue
            for gate_map in parameter.split(width):
                if name.startswith("weight_ih"):
                    nn.init.xavier_uniform_(gate_map)
                else:
                    nn.init.orthogonal_(gate_map)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Read every row in the order of its positions.

        Args:
            x: [B, L, D].
            positions: [B, L] int64; −1 is padding, wherever it stands.

        Returns:
            The last layer's states [B, L, D], each at its token's place; 0 where there is padding.
        """
        real = positions >= 0
        far = positions.new_tensor(torch.iinfo(positions.dtype).max)
        order = torch.where(real, positions, far).argsort(dim=1, stable=True)
        index = order[..., None].expand_as(x)
        # A row of nothing is read as one token of padding, and cleared with all other padding.
        lengths = real.sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(
            x.gather(1, index), lengths, batch_first=True, enforce_sorted=False
        )
        read = self.layers(packed)[0]
        states, _ = pad_packed_sequence(read, batch_first=True, total_length=x.shape[1])
        placed = torch.zeros_like(states).scatter(1, index, states)
        return placed * real[..., None]
