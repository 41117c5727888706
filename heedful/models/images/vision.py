"""An encoder of images (ViT, Dosovitskiy 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.models.images.image_model import ImageModel
from heedful.models.images.vision_spec import VisionSpec
from heedful.models.prediction_heads import Classifier, Pooler
from heedful.models.stack import Stack
from heedful.nn.capture import Capture
from heedful.nn.mixer import Context, Memory
from heedful.nn.norms import build_norm
from heedful.nn.patches import PatchEmbedding, stretched
from heedful.nn.positions import LearnedPositions, Positions


class VisionModel(ImageModel):
    """An encoder of image patches with an optional classifier.

    Args:
        spec: complete description; see `heedful.models.model_spec`.
    """

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        self.spec = spec
        sizes = (spec.image_size, spec.patch_size, spec.channels)
        self.patches = PatchEmbedding(spec.width, *sizes, bias=spec.patch_bias)
        self.class_token = _token(spec.width) if spec.pooling == "first" else None
        self.distillation_token = _token(spec.width) if spec.distillation else None
        self.positions = LearnedPositions(spec.width, spec.num_states)
        # Dropout follows the sum with positions, as in appendix B.1 of the paper.
        self.dropout = nn.Dropout(spec.dropout)
        self.input_norm = build_norm(spec.input_norm, spec.width) if spec.input_norm else None
        self.encoder = Stack(spec.width, spec.encoder, "encoder")
        head = spec.pooling_head
        self.pooling_query = _token(spec.width) if head else None
        self.pooling_head = Stack(spec.width, head, "pooling") if head else None
        self.pooler = Pooler(spec.width) if spec.pooler else None
        num_classes = len(spec.class_names)
        self.classifier = Classifier(spec.width, num_classes) if num_classes else None
        distils = spec.distillation == "classifier"
        self.distillation_classifier = Classifier(spec.width, num_classes) if distils else None

    def forward(self, images: Tensor, capture: Capture | None = None) -> Tensor:
        """Run the encoder.

        Args:
            images: [B, C, h, w] float.
            capture: tensors to keep, by addresses such as `encoder.0.self.weights` and
                `encoder.0.output`.

        Returns:
            States [B, n, D] of the n patches in reading order; [B, 1 + n, D] where `pooling` is
            `first`, with the class token's state first; one more with a distillation token, which
            is the second.

        Raises:
            DataError: when the images have another size or number of channels than the spec.
        """
        x = self.patches(images)
        own = (self.class_token, self.distillation_token)
        tokens: list[Tensor] = [token for token in own if token is not None]
        if tokens:
            # The parameters are float32 where patches come from a bfloat16 matmul.
            first = torch.stack(tokens).to(x.dtype)
            x = torch.cat([first.expand(x.shape[0], -1, -1), x], dim=1)
        # Images have no padding, so every row has the same positions.
        at = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        x = self.dropout(x + self.positions(at))
        if self.input_norm is not None:
            x = self.input_norm(x)
        states: Tensor = self.encoder(x, Context(Positions.of_self(at), capture=capture))
        return states

    def pooled(self, states: Tensor) -> Tensor:
        """Return a vector for each image, as `pooling` says, through the pooler if any.

        Args:
            states: [B, 1 + n or n, D], result of `forward`.

        Returns:
            [B, D].
        """
        if self.spec.pooling == "attention":
            vector = self._read(states)
        else:
            vector = states[:, 0] if self.spec.pooling == "first" else states.mean(dim=1)
        return vector if self.pooler is None else self.pooler(vector)

    def _read(self, states: Tensor) -> Tensor:
        """Return what the learned query finds in the states of each image [B, D]."""
        assert self.pooling_query is not None and self.pooling_head is not None
        at = torch.arange(states.shape[1], device=states.device).expand(states.shape[:2])
        query = self.pooling_query.to(states.dtype).expand(len(states), 1, -1)
        context = Context(Positions.of_self(at[:, :1]), Positions(at[:, :1], at))
        read = self.pooling_head.read(Memory(states, at))
        vectors: Tensor = self.pooling_head(query, context, read)
        return vectors[:, 0]

    def pooling_work(self) -> int:
        """Return the operations of the pooling head for an image; 0 without one."""
        states, total = self.spec.num_states, 0
        for block in self.pooling_head.blocks if self.pooling_head else ():
            for part in block.parts():
                total += part.work(1, states).total
                total += part.read_work(states).total if hasattr(part, "read_work") else 0
        return total

    def class_logits(self, states: Tensor) -> Tensor:
        """Return logits [B, classes]; see `ImageModel`. Those of two classifiers are averaged."""
        logits = super().class_logits(states)
        if self.distillation_classifier is None:
            return logits
        second: Tensor = self.distillation_classifier(states[:, 1])
        return (logits + second) / 2

    def stacks(self) -> dict[str, Stack]:
        """Return the stacks by name, in the order of a pass."""
        return {"encoder": self.encoder}

    def input_modules(self) -> dict[str, nn.Module]:
        """Return the module that adds positions to the patches: the model itself."""
        return {"encoder": self}

    def at_size(self, image_size: int) -> VisionModel:
        """Return a copy for images of another size, with interpolated positions.

        Fine-tuning at a higher resolution than that of pre-training helps (section 3.2).

        Args:
            image_size: height and width in pixels, a multiple of the patch size.

        Raises:
            ConfigError: when the size is no multiple of the patch size.
        """
        # Parsed anew, which checks the size; `model_copy` would not.
        plain = {**self.spec.plain(), "image_size": image_size}
        shorter = self.spec.pixels and self.spec.pixels.shorter_side
        if shorter:
            # The same share of a picture is cut out of it.
            side = shorter * image_size // self.spec.image_size
            plain["pixels"] = {**plain["pixels"], "shorter_side": side}
        spec = VisionSpec.parse(plain, where=f"image size {image_size}")
        weights = self.state_dict()
        before = self.spec.num_tokens  # rows that belong to no patch
        table = weights["positions.weight"]
        sides = [size // spec.patch_size for size in (self.spec.image_size, image_size)]
        finer = stretched(table[before:], sides[0], sides[1])
        weights["positions.weight"] = torch.cat([table[:before], finer])
        # Weights are loaded right after this, so none are initialised and no memory is taken twice.
        with torch.device("meta"):
            model = VisionModel(spec)
        # Clones, so that training the copy leaves this model as it is.
        own = {name: tensor.clone() for name, tensor in weights.items()}
        model.load_state_dict(own, assign=True)
        return model.train(self.training)


def _token(width: int) -> nn.Parameter:
    """Return a learned input, drawn like a row of an embedding table, which it is in effect."""
    return nn.Parameter(nn.init.normal_(torch.empty(width), std=width**-0.5))
