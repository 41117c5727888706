"""An encoder of sounds with the decoder of a translator (Whisper, Radford 2022)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import DataError
from heedful.models.sounds.transcriber_spec import TranscriberSpec
from heedful.models.stack import Stack
from heedful.models.translator import EncoderDecoder
from heedful.nn.embeddings import InputEmbedding, TokenEmbedding
from heedful.nn.positions import LearnedPositions


class SoundInput(nn.Module):
    """Frames of a sound as vectors: two convolutions over time and a table of positions.

    Args:
        spec: bands, frames and width of the model.
    """

    def __init__(self, spec: TranscriberSpec) -> None:
        super().__init__()
        self.bands = spec.bands
        self.first = nn.Conv1d(spec.bands, spec.width, 3, padding=1)
        # A stride of 2 makes a state of 20 ms, so that attention is over half as many.
        self.second = nn.Conv1d(spec.width, spec.width, 3, stride=2, padding=1)
        self.positions = LearnedPositions(spec.width, spec.num_states)
        self.dropout = nn.Dropout(spec.embedding.dropout)

    def forward(self, frames: Tensor, positions: Tensor) -> Tensor:
        """Return vectors [B, N, D] of frames.

        Args:
            frames: [B, 2 N, bands] float, logarithms of the energy of each band.
            positions: [B, N] int64; −1 is padding.

        Raises:
            DataError: when the frames have another number of bands.
            ModelError: when a position lies past the table.
        """
        if frames.ndim != 3 or frames.shape[-1] != self.bands:
            raise DataError(
                f"The frames have the shape {list(frames.shape)}; the model reads [sounds, frames, "
                f"{self.bands}]",
                remedy="Make them by heedful.data.mel_frames.log_mel",
            )
        x = F.gelu(self.first(frames.to(self.first.weight.dtype).mT))
        x = F.gelu(self.second(x)).mT
        vectors: Tensor = self.dropout(x + self.positions(positions).to(x.dtype))
        return vectors


class Transcriber(EncoderDecoder):
    """A sequence-to-sequence model from frames of sound to token ids.

    Args:
        spec: complete description; see `heedful.models.sounds.transcriber_spec`.
    """

    spec: TranscriberSpec

    def __init__(self, spec: TranscriberSpec) -> None:
        super().__init__()
        self.spec = spec
        # This table comes first, so that it is stored under its name (`TranscriberSpec.ties`).
        self.target_embedding = TokenEmbedding(spec.vocabulary, spec.width)
        self.output_projection = self.target_embedding
        self.output_bias = None
        self.source_input = SoundInput(spec)
        self.target_input = InputEmbedding(spec.width, spec.embedding)
        self.encoder = Stack(spec.width, spec.encoder, "encoder")
        self.decoder = Stack(spec.width, spec.decoder, "decoder")

    def read_source(self, source: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors [B, N, D] of frames [B, 2 N, bands] and their positions [B, N]."""
        return self.source_input(source, positions), positions
