"""The trained models: stacks of gdpa.nn's modules, their sizes, and the batch of a training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

import gdpa
from gdpa.bench.cases import generate_lengths
from gdpa.bench.systems.base import offsets

FEATURES, SUMMARY, QUERIES, RECENT = 16, 4, 4, 4  # tokens of InterFormer and Kunlun; see gdpa.nn.InterFormer
SEEDS, TOKENS, WINDOW = 32, 8, (64, 0)  # of Kunlun
ACTIVATION = "silu"


@dataclass(frozen=True)
class ModelShape:
    """A model and its batch. The lengths are spread evenly over [1, max_length]."""

    model: str  # a name of MODELS
    layers: int
    batch: int = 1152  # sequences
    max_length: int = 2048
    heads: int = 4
    head_dim: int = 128
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        return f"{self.model}, {self.layers} layers, {self.batch} of 1-{self.max_length}"

    @property
    def width(self) -> int:
        """D, the number of elements in a row."""
        return self.heads * self.head_dim

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        return tuple(max(1, length) for length in generate_lengths(self.batch, self.max_length, fill=0.5, seed=0))

    @property
    def lengths_of_attention(self) -> tuple[int, ...]:
        """The lengths of the sequences in the layers. InterFormer puts its CLS tokens before a sequence."""
        return tuple(length + (SUMMARY if self.model == "interformer" else 0) for length in self.lengths)


class Hstu(nn.Module):
    """A stack of HSTU layers without relative bias, divided by the maximum length like the Triton kernels.

    No other system has a kernel with the bias, so that a bias would leave nothing to compare.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        layers = (
            gdpa.nn.HSTULayer(shape.width, shape.heads, activation=ACTIVATION, out_scale=1.0 / shape.max_length)
            for _ in range(shape.layers)
        )
        self.layers = nn.ModuleList(layers)

    def forward(self, rows: Tensor, features: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Maps (T, D) to (T, D). It does not read the features."""
        for layer in self.layers:
            rows = layer(rows, cu_seqlens)
        return rows


class InterFormer(nn.Module):
    """gdpa.nn.InterFormer."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.model = gdpa.nn.InterFormer(
            shape.width, shape.heads, shape.layers, features=FEATURES, summary=SUMMARY, queries=QUERIES, recent=RECENT,
            activation=ACTIVATION,
        )  # fmt: skip

    def forward(self, rows: Tensor, features: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        """Returns X (B, n, D) and the summary of the sequence."""
        x, summary = self.model(features, rows, cu_seqlens)
        return x, summary


class Kunlun(nn.Module):
    """gdpa.nn.Kunlun."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.model = gdpa.nn.Kunlun(
            shape.width, shape.heads, shape.layers, features=FEATURES, summary=SUMMARY, seeds=SEEDS, tokens=TOKENS,
            window_size=WINDOW, tau=float(shape.max_length), activation=ACTIVATION,
        )  # fmt: skip

    def forward(self, rows: Tensor, features: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        """Returns X (B, n, D) and the pooled tokens."""
        x, pooled = self.model(features, rows, cu_seqlens)
        return x, pooled


MODELS: dict[str, Callable[[ModelShape], nn.Module]] = {"hstu": Hstu, "interformer": InterFormer, "kunlun": Kunlun}


def model_shape(model: str, layers: int, kind: str, batch_factor: float = 1.0) -> ModelShape:
    """Returns the shape for this kind of device. The CPU shape is small. It only shows that the command works."""
    shape = ModelShape(model, layers)
    if kind == "cpu":
        shape = replace(shape, batch=4, max_length=24, heads=2, head_dim=16, dtype="float32")
    return replace(shape, batch=max(1, round(shape.batch * batch_factor)))


def build(shape: ModelShape, device: torch.device) -> nn.Module:
    """Returns the model with gdpa's attention. All models of a shape have the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[shape.model](shape).to(device, getattr(torch, shape.dtype))


@dataclass(frozen=True)
class ModelBatch:
    """N(0, 1) rows and features, and the gradients of the outputs of the model."""

    shape: ModelShape
    rows: Tensor  # (T, D)
    features: Tensor  # (B, n, D)
    cu_seqlens: Tensor  # (B + 1)
    grad_outputs: list[Tensor]

    @classmethod
    def random(cls, shape: ModelShape, device: torch.device) -> ModelBatch:
        generator = torch.Generator(device).manual_seed(0)
        batch, width, tokens = shape.batch, shape.width, sum(shape.lengths)

        def normal(*rows: int) -> Tensor:
            numbers = torch.randn(*rows, width, generator=generator, device=device)
            return numbers.to(getattr(torch, shape.dtype))

        outputs: dict[str, list[tuple[int, ...]]] = {
            "hstu": [(tokens,)],
            "interformer": [(batch, FEATURES), (batch, SUMMARY + QUERIES + RECENT)],
            "kunlun": [(batch, FEATURES), (batch, TOKENS)],
        }
        features = normal(batch, FEATURES)
        grad_outputs = [normal(*rows) for rows in outputs[shape.model]]
        return cls(shape, normal(tokens), features, offsets(shape.lengths, device, torch.int32), grad_outputs)

    def inputs(self) -> list[Tensor]:
        """Returns rows, features and offsets. The rows are leaves that require gradients, as are the features."""
        rows, features = (one.detach().requires_grad_() for one in (self.rows, self.features))
        return [rows, features, self.cu_seqlens]
