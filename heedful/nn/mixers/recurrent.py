"""Recurrent layers, which the Transformer replaced: each state is computed from the one before.

Information from an earlier token passes through every state between the two tokens.

Shapes: B sentences, W beams, L length, D model width; N sequences of up to M tokens; P vectors of
a state (two for LSTM), H width of a direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from heedful.config import Cell, Direction
from heedful.device import full_precision
from heedful.errors import ModelError
from heedful.nn.mixer import Context, MakeCache, ScanState
from heedful.nn.mixer_spec import RecurrentSpec
from heedful.nn.positions import Positions
from heedful.nn.work import FLOAT32, Saved, Work, weight_work

_MODULES: dict[Cell, type[nn.RNN] | type[nn.LSTM] | type[nn.GRU]] = {
    "rnn": nn.RNN,
    "lstm": nn.LSTM,
    "gru": nn.GRU,
}
_KEEPING_GATE: dict[Cell, int] = {"lstm": 1, "gru": 1}
"""Index of the gate that keeps the state among a cell's maps: LSTM's forget, GRU's update gate."""

_SAVED: dict[Cell, int] = {"rnn": 3, "lstm": 19, "gru": 9}
"""Elements of a channel that one token keeps for the gradients, as measured. LSTM's are those of
oneDNN's kernel, which serves sequences of equal lengths; those of different lengths keep 9."""

_SAVED_BY_STEP: dict[Cell, int] = {"rnn": 2, "lstm": 7, "gru": 7}
"""The same elements where a step is called for each token."""


@dataclass(frozen=True)
class Runs:
    """The sequences of a batch as recurrent layers read them: in order, separate, without padding.

    Args:
        index: [N, M] int64, the slot b · L + l of each token; arbitrary past a sequence's end.
        lengths: [N] int64, number of tokens of each sequence, perhaps 0.
        row: [N] int64, the row of the batch that holds each sequence.
    """

    index: Tensor
    lengths: Tensor
    row: Tensor

    @classmethod
    def of(cls, positions: Positions) -> Runs:
        """Return the sequences of the queries: one for each row, several in packed rows."""
        segments = positions.query_segment
        return positions.derive("runs", lambda: _runs(positions.query, segments))

    @property
    def is_real(self) -> Tensor:
        """Mask of real tokens [N, M] bool, false past a sequence's end."""
        return torch.arange(self.index.shape[1], device=self.index.device) < self.lengths[:, None]

    def reversed(self) -> Runs:
        """Return the sequences from their last token to their first."""
        places = torch.arange(self.index.shape[1], device=self.index.device)
        # Mirrored within each length, so that padding stays at the end.
        mirrored = (self.lengths[:, None] - 1 - places).clamp(min=0)
        return Runs(self.index.gather(1, mirrored), self.lengths, self.row)

    def take(self, x: Tensor) -> Tensor:
        """Gather the tokens of the sequences, [B, L, D] to [N, M, D]."""
        return x.flatten(0, 1)[self.index]

    def place(self, states: Tensor, like: Tensor) -> Tensor:
        """Scatter [N, M, D'] to [B, L, D'] in the layout of `like`, 0 for padding."""
        count = like.shape[0] * like.shape[1]
        # Elements past a sequence's end go to an extra slot, which is cut off.
        index = torch.where(self.is_real, self.index, count).flatten()
        slots = states.new_zeros(count + 1, states.shape[-1])
        placed: Tensor = slots.index_copy(0, index, states.flatten(0, 1))[:count]
        padded: Tensor = placed.unflatten(0, like.shape[:2])
        return padded


def _runs(positions: Tensor, segments: Tensor | None) -> Runs:
    real = positions >= 0
    if segments is None:
        far = positions.new_tensor(torch.iinfo(positions.dtype).max)
        # Ordered by position with padding last, wherever padding stands in the row.
        order = torch.where(real, positions, far).argsort(dim=1, stable=True)
        rows = torch.arange(len(positions), device=positions.device)
        return Runs(order + rows[:, None] * positions.shape[1], real.sum(1), rows)
    slots = real.flatten().nonzero()[:, 0]
    # A sequence is a pair of row and segment: numbers of segments repeat from row to row.
    pairs = torch.stack([slots // positions.shape[1], segments.flatten()[slots]])
    distinct, sequence, counts = torch.unique(pairs, dim=1, return_inverse=True, return_counts=True)
    order = positions.flatten()[slots].argsort(stable=True)
    order = order[sequence[order].argsort(stable=True)]  # by sequence, then by position
    index = pad_sequence(list(slots[order].split(counts.tolist())), batch_first=True)
    return Runs(index, counts, distinct[0])


class RecurrentLayers(nn.Module):
    """One or more layers of a cell, over whole sequences or one step at a time.

    Input maps start Xavier-uniform and state maps orthogonal, gate by gate (Saxe 2014), so that a
    signal neither grows nor shrinks by the maps alone. The reset gate of a GRU multiplies the
    mapped state, as in PyTorch and cuDNN, and not the state before it is mapped.

    Args:
        in_width: last dimension of the input.
        width: last dimension of the states, of both directions together.
        cell: kind of cell.
        direction: direction of reading.
        keep_bias: initial bias of the gate that keeps the state; with 1 a signal survives some
            steps from the first update on (Gers 2000; Jozefowicz 2015). A plain `rnn` has none.
        num_layers: number of layers, each of which reads the states of the one below.
    """

    def __init__(
        self,
        in_width: int,
        width: int,
        cell: Cell,
        *,
        direction: Direction = "forward",
        keep_bias: float = 1.0,
        num_layers: int = 1,
    ) -> None:
        super().__init__()
        both = direction == "both"
        self.cell = cell
        self.direction = direction
        self.width = width // 2 if both else width
        self.vectors = 2 if cell == "lstm" else 1
        self.layers = _MODULES[cell](
            in_width, self.width, num_layers, batch_first=True, bidirectional=both
        )
        for name, parameter in self.layers.named_parameters():
            # Orthogonal initialisation decomposes a matrix, which a meta tensor does not have.
            if not parameter.is_meta:
                self._initialize(name, parameter, keep_bias)

    def _initialize(self, name: str, parameter: nn.Parameter, keep_bias: float) -> None:
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            # PyTorch adds two biases, of the input's and the state's map; one of them is enough.
            if name.startswith("bias_ih") and self.cell in _KEEPING_GATE:
                first = _KEEPING_GATE[self.cell] * self.width
                nn.init.constant_(parameter[first : first + self.width], keep_bias)
            return
        for gate_map in parameter.split(self.width):
            if name.startswith("weight_ih"):
                nn.init.xavier_uniform_(gate_map)
            else:
                nn.init.orthogonal_(gate_map)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, in which states are computed at any precision of matmuls."""
        return cast("Tensor", self.layers.weight_hh_l0).dtype

    def no_state(self, rows: int, device: torch.device) -> Tensor:
        """Return the state before the first token, [rows, P, H]: zeros of the weights' dtype."""
        return torch.zeros((rows, self.vectors, self.width), dtype=self.dtype, device=device)

    def sequence(self, x: Tensor, runs: Runs, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Read every sequence from its first token to its last, or in the other direction.

        Args:
            x: [B, L, D].
            runs: sequences of x.
            start: [B, P, H], the state before each row; zeros if None.

        Returns:
            States [B, L, D'] of the last layer, each in its token's slot, 0 for padding; and, for a
            single forward layer, the state [B, P, H] after each row.
        """
        if self.direction == "backward":
            runs = runs.reversed()
        if start is None:
            start = self.no_state(x.shape[0], x.device)
        if not runs.index.numel():
            return x.new_zeros(*x.shape[:2], self.layers.hidden_size), start
        hidden = None
        if self.layers.num_layers == 1 and not self.layers.bidirectional:
            parts = [each[None].contiguous() for each in start[runs.row].unbind(1)]
            hidden = tuple(parts) if self.vectors == 2 else parts[0]
        # PyTorch packs no empty sequences: they are read as one padding token, whose state is
        # unused.
        lengths = runs.lengths.clamp(min=1).cpu()
        with full_precision(x):
            tokens = runs.take(x).to(self.dtype)
            # Packed, so that the last state is that of each sequence's last token, not of padding.
            packed = pack_padded_sequence(tokens, lengths, batch_first=True, enforce_sorted=False)
            read, after = self.layers(packed, hidden)
        states, _ = pad_packed_sequence(read, batch_first=True, total_length=runs.index.shape[1])
        placed = runs.place(states, x).to(x.dtype)
        if hidden is None:
            return placed, start
        last = torch.stack([each[0] for each in (after if self.vectors == 2 else (after,))], 1)
        kept = runs.lengths > 0
        return placed, start.index_copy(0, runs.row[kept], last[kept])

    def advance(self, x: Tensor, state: Tensor) -> Tensor:
        """Read one token of each row with a single forward layer.

        Args:
            x: [R, D].
            state: [R, P, H].

        Returns:
            The state after it, [R, P, H]; its first vector is the output.
        """
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        weights = [cast("Tensor", getattr(self.layers, name)) for name in names]
        with full_precision(x):
            x = x.to(state.dtype)
            if self.cell == "lstm":
                return torch.stack(torch.lstm_cell(x, state.unbind(1), *weights), 1)
            step = torch.gru_cell if self.cell == "gru" else torch.rnn_tanh_cell
            return step(x, state[:, 0], *weights)[:, None]

    def work(self) -> Work:
        """Return the operations of one token."""
        return Work(weights=weight_work(self.layers))

    def saved(self, *, by_step: bool = False) -> Saved:
        """Return the elements that one token keeps for the gradients: gates and states."""
        directions = 2 if self.direction == "both" else 1
        numbers = (_SAVED_BY_STEP if by_step else _SAVED)[self.cell]
        return Saved(0, 0, numbers * self.width * directions)


class RecurrentEncoder(RecurrentLayers):
    """Layers of a recurrent cell over batches of padded rows: the baseline without attention.

    Args:
        width: width D of tokens and states.
        num_layers: number of layers, each of which reads the states of the one below.
        cell: kind of cell.
        keep_bias: initial bias of the gate that keeps the state; see `RecurrentLayers`.
    """

    def __init__(
        self, width: int, num_layers: int, cell: Cell = "lstm", *, keep_bias: float = 1.0
    ) -> None:
        super().__init__(width, width, cell, keep_bias=keep_bias, num_layers=num_layers)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Read every row in the order of its positions.

        Args:
            x: [B, L, D].
            positions: [B, L] int64; −1 is padding, at any index.

        Returns:
            The last layer's states [B, L, D], each in its token's slot; 0 for padding.
        """
        return self.sequence(x, Runs.of(Positions.of_self(positions)))[0]


class RecurrentMixer(nn.Module):
    """A recurrent layer as a mixer: in any direction in an encoder, forward in a decoder.

    Args:
        width: model width D.
        spec: cell and direction.
    """

    def __init__(self, width: int, spec: RecurrentSpec) -> None:
        super().__init__()
        self.layer = RecurrentLayers(
            width, width, spec.cell, direction=spec.direction, keep_bias=spec.keep_bias
        )

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Read whole sequences; see `Mixer`."""
        context = context or Context.whole(x)
        states, _ = self.layer.sequence(x, Runs.of(context.positions))
        return states

    def initial_state(
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> ScanState:
        """Return the state before the first token, zeros; see `Mixer.initial_state`.

        Raises:
            ModelError: when the layer reads later tokens, which a step does not have.
        """
        if self.layer.direction != "forward":
            raise ModelError(
                f"A recurrent layer of direction {self.layer.direction} cannot go token by token",
                remedy="Use direction = 'forward' for a model that writes",
            )
        return ScanState((self.layer.no_state(rows, like.device)[:, None],))

    def step(self, x: Tensor, state: ScanState, context: Context) -> tuple[Tensor, ScanState]:
        """Read more tokens; see `Mixer.step`. Padding does not change the state."""
        (vectors,), positions = state.tensors, context.positions  # [B, W, P, H]
        if vectors.shape[1] == 1 and x.shape[1] > 1:  # several tokens of a single beam
            states, after = self.layer.sequence(x, Runs.of(positions), vectors[:, 0])
            return states, ScanState((after[:, None],))
        # Beams are rows of a batch to the cell: no token of one beam is another's past.
        before = vectors.flatten(0, 1)
        after = self.layer.advance(x.flatten(0, 1), before)
        is_real = positions.query.reshape(-1, 1, 1) >= 0
        after = torch.where(is_real, after, before).unflatten(0, x.shape[:2])
        return after[:, :, 0].to(x.dtype), ScanState((after,))

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens, independent of earlier tokens; see `Costed`."""
        return self.layer.work().times(queries)

    def state_bytes(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of the state, the same after any number of tokens."""
        return self.layer.vectors * self.layer.width * FLOAT32

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of gates and states; see `Costed`."""
        return self.layer.saved()
