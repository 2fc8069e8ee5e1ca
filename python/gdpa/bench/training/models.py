"""The trained models: stacks of gdpa.nn's modules, their sizes, and the inputs of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import gdpa
from gdpa.bench.cases import generate_lengths
from gdpa.bench.systems.base import offsets

FEATURES, SUMMARY, QUERIES, RECENT = 16, 4, 4, 4  # tokens of InterFormer and Kunlun; see gdpa.nn.InterFormer
SEEDS, TOKENS, WINDOW = 32, 8, (64, 0)  # of Kunlun
FFN_ROWS = 256  # shared keys and values of the PFFN of the block
ACTIVATIONS = {"block": "gelu_tanh", "hstu": "silu", "interformer": "silu", "kunlun": "silu"}


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
    def activation(self) -> str:
        return ACTIVATIONS[self.model]

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


class Stack(nn.Module):
    """Layers on rows (T, D), one after another."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, features: Tensor, rows: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Maps (T, D) to (T, D). It does not read the features, which InterFormer and Kunlun of gdpa.nn read."""
        for layer in self.layers:
            rows = layer(rows, cu_seqlens=cu_seqlens)
        return rows


def blocks(shape: ModelShape) -> nn.Module:
    """Projections, attention, a projection, and a PFFN whose keys and values the batch shares."""
    layers: list[nn.Module] = []
    for _ in range(shape.layers):
        layers.append(gdpa.nn.GDPAttention(shape.width, shape.heads, activation=shape.activation))
        layers.append(gdpa.nn.PFFN(shape.width, shape.heads, rows=FFN_ROWS, tau=1.0, activation=shape.activation))
    return Stack(layers)


def hstu(shape: ModelShape) -> nn.Module:
    """HSTU layers without relative bias, divided by the maximum length like the Triton kernels.

    No other system has a kernel with the bias, so that a bias would leave nothing to compare.
    """
    options: dict[str, Any] = {"activation": shape.activation, "out_scale": 1.0 / shape.max_length}
    return Stack(gdpa.nn.HSTULayer(shape.width, shape.heads, **options) for _ in range(shape.layers))


def interformer(shape: ModelShape) -> nn.Module:
    return gdpa.nn.InterFormer(
        shape.width, shape.heads, shape.layers, features=FEATURES, summary=SUMMARY, queries=QUERIES, recent=RECENT,
        activation=shape.activation,
    )  # fmt: skip


def kunlun(shape: ModelShape) -> nn.Module:
    return gdpa.nn.Kunlun(
        shape.width, shape.heads, shape.layers, features=FEATURES, summary=SUMMARY, seeds=SEEDS, tokens=TOKENS,
        window_size=WINDOW, tau=float(shape.max_length), activation=shape.activation,
    )  # fmt: skip


MODELS: dict[str, Callable[[ModelShape], nn.Module]] = {
    "block": blocks,
    "hstu": hstu,
    "interformer": interformer,
    "kunlun": kunlun,
}
# The batch and the longest sequence. Both shapes of the block have the same number of tokens.
BATCHES = dict.fromkeys(MODELS, ((1152, 2048),)) | {"block": ((1152, 512), (288, 2048))}


def shapes_of(model: str, layers: int, kind: str, batch_factor: float = 1.0) -> list[ModelShape]:
    """Returns the shapes for this kind of device. The CPU shape is small. It only shows that the command works."""
    if kind == "cpu":
        shapes = [ModelShape(model, layers, 4, 24, heads=2, head_dim=16, dtype="float32")]
    else:
        shapes = [ModelShape(model, layers, *batch) for batch in BATCHES[model]]
    return [replace(shape, batch=max(1, round(shape.batch * batch_factor))) for shape in shapes]


def build(shape: ModelShape, device: torch.device) -> nn.Module:
    """Returns the model with gdpa's attention. All models of a shape have the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[shape.model](shape).to(device, getattr(torch, shape.dtype))


def inputs_of(shape: ModelShape, lengths: Sequence[int], device: torch.device) -> list[Tensor]:
    """Returns N(0, 1) features (B, n, D) and rows (T, D), which require gradients, and the offsets of the sequences.

    Each call returns the same numbers.
    """
    generator = torch.Generator(device).manual_seed(0)

    def normal(*rows: int) -> Tensor:
        numbers = torch.randn(*rows, shape.width, generator=generator, device=device)
        return numbers.to(getattr(torch, shape.dtype)).requires_grad_()

    return [normal(len(lengths), FEATURES), normal(sum(lengths)), offsets(lengths, device, torch.int32)]
