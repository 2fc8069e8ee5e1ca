"""The attention of other systems in gdpa.nn's modules. Everything else in a model stays the same.

Each module of gdpa.nn has its attention in the submodule `attend`. `use` replaces these submodules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import gdpa
from gdpa.bench.cases import Case
from gdpa.bench.systems import Gdpa, Padded, System
from gdpa.bench.systems.base import Packed
from gdpa.bench.systems.packages import Package, TritonGdpa
from gdpa.bench.systems.padded import elementwise, padded_attention
from gdpa.bench.systems.pytorch import Flex
from gdpa.bench.training.models import SUMMARY, ModelShape


@dataclass(frozen=True)
class Call:
    """The attention of one module: its lengths, and the options of gdpa's call.

    A side is jagged, or it has the same number of rows in every sequence: (rows, H, d) that the batch shares, or (B,
    rows, H, d).
    """

    shape: ModelShape
    rows_q: int | None  # None for a jagged side
    rows_k: int | None
    activation: str
    scale: float
    out_scale: float | str  # a number, or 1/len_k
    window: tuple[int, int]

    @classmethod
    def of(cls, module: nn.Module, shape: ModelShape) -> Call:
        """Returns the call of a module of gdpa.nn."""
        attend: Any = module.attend
        rows_q = rows_k = None
        if isinstance(module, gdpa.nn.PFFN):
            rows_k = SUMMARY
        elif isinstance(module, gdpa.nn.PMA):
            rows_q = module.query.shape[0]
        elif isinstance(module, gdpa.nn.HSP):
            rows_q = module.seeds.shape[0]
        options = {"scale": None, "out_scale": 1.0, "window_size": (-1, -1), **attend.options.arguments()}
        scale, out_scale, window = (options.pop(name) for name in ("scale", "out_scale", "window_size"))
        assert not options and not attend.learned, "the models of the benchmark have no other options"
        scale = shape.head_dim**-0.5 if scale is None else scale
        function = attend.activation.replace("(s)", "")  # HSTULayer writes f(s)
        return cls(shape, rows_q, rows_k, function, scale, out_scale, tuple(window))

    @property
    def is_self(self) -> bool:
        return self.rows_q is None and self.rows_k is None

    def lengths(self, rows: int | None) -> tuple[int, ...]:
        return self.shape.lengths_of_attention if rows is None else (rows,) * self.shape.batch

    @cached_property
    def case(self) -> Case:
        left, right = self.window
        mask = {(-1, -1): "none", (-1, 0): "causal"}.get(self.window, f"window:{left},{right}")
        lengths = self.lengths(self.rows_q), self.lengths(self.rows_k)
        shape = self.shape
        return Case(*lengths, shape.heads, shape.head_dim, shape.dtype, self.activation, mask, name=shape.name)

    def factors_of_keys(self, device: torch.device) -> Tensor:
        """Returns out_scale for each sequence (B)."""
        lengths = torch.tensor(self.case.lengths_k, device=device, dtype=torch.float64)
        return 1 / lengths if self.out_scale == "1/len_k" else torch.full_like(lengths, float(self.out_scale))


class Attention(nn.Module):
    """A replacement of gdpa.nn.GDPA: query, key and value in the forms of varlen_attention to packed rows."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, cu_q: object, cu_k: object, *, add_query: bool = False
    ) -> Tensor:
        output = self.compute(query, key, value)
        return output + query if add_query else output

    def compute(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise NotImplementedError


class Unpad(torch.autograd.Function):
    """Selects rows. No row is selected twice, so that the gradient is a copy without atomic additions."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = padded.shape[0]
        return padded.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        (gradient,) = gradients
        return gradient.new_zeros(ctx.rows, *gradient.shape[1:]).index_copy(0, index, gradient), None


class OnPadded(Attention):
    """Product, f or softmax, product on rows that are padded to the longest sequence."""

    def __init__(self, call: Call, device: torch.device, is_softmax: bool = False) -> None:
        super().__init__(call)
        self.is_softmax = is_softmax
        lengths = torch.tensor(call.shape.lengths_of_attention, device=device)
        self.longest = max(call.shape.lengths_of_attention)
        positions = torch.arange(self.longest, device=device)
        exists = positions < lengths[:, None]
        self.index = exists.flatten().nonzero()[:, 0]  # of the rows that exist, in the padded batch
        dtype = getattr(torch, call.shape.dtype)
        of_keys = exists if call.rows_k is None else exists.new_ones(call.shape.batch, call.rows_k)
        self.exists = of_keys[:, None, None, :]
        self.weights = (self.exists * call.factors_of_keys(device)[:, None, None, None]).to(dtype)
        left, right = call.window
        distance = positions[:, None] - positions
        inside = (distance <= left if left >= 0 else distance > -self.longest) & (
            distance >= -right if right >= 0 else distance < self.longest
        )
        self.inside = inside if left >= 0 or right >= 0 else None
        self.function = elementwise(call.activation)

    def dense(self, rows: Tensor, is_jagged: bool) -> Tensor:
        """Returns (B, H, rows, d), or (1, H, rows, d) for rows that the batch shares."""
        if is_jagged:
            batch = self.call.shape.batch
            padded = rows.new_zeros(batch * self.longest, *rows.shape[1:]).index_copy(0, self.index, rows)
            rows = padded.unflatten(0, (batch, self.longest))
        elif rows.dim() == 3:
            rows = rows[None]
        return rows.transpose(1, 2)

    def compute(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        call = self.call
        query = self.dense(query, call.rows_q is None)
        key, value = (self.dense(rows, call.rows_k is None) for rows in (key, value))
        if self.is_softmax:
            mask = self.exists if self.inside is None else self.exists & self.inside
            scores = call.scale * (query @ key.mT)
            # A padded query has no key within its window. Its row is not used, but must not be NaN.
            output = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) @ value
        else:
            assert self.function is not None
            mask = self.weights if self.inside is None else self.weights * self.inside
            output = padded_attention(query, key, value, self.function, call.scale, mask)
        rows = output.transpose(1, 2).flatten(0, 1)
        return Unpad.apply(rows, self.index) if call.rows_q is None else rows


class OnFlex(OnPadded):
    """FlexAttention on padded rows, with a block mask of the lengths and the window."""

    def __init__(self, call: Call, device: torch.device) -> None:
        super().__init__(call, device, is_softmax=True)
        self.block_mask: Any = Flex.block_mask(call.case, device)

    def compute(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        query, key, value = (self.dense(rows, True) for rows in (query, key, value))
        output = flex_attention(query, key, value, block_mask=self.block_mask, scale=self.call.scale)
        return Unpad.apply(output.transpose(1, 2).flatten(0, 1), self.index)


class OnPacked(Attention):
    """A system that reads packed rows. A side that is not jagged gets rows of every sequence."""

    def __init__(self, call: Call, device: torch.device, system: Packed) -> None:
        super().__init__(call)
        attend: Callable[..., Tensor] = system.packed(call.case, device)
        # torch.compile does not trace kernels of other packages. They end one graph and begin the next.
        self.attend = torch.compiler.disable(attend) if isinstance(system, Package) else attend
        scale_of_system = 1.0 if isinstance(system, TritonGdpa) else call.shape.head_dim**-0.5
        self.factor = call.scale / scale_of_system
        self.out_factors: Tensor | None = None
        if system.function != "softmax":
            # The kernels of HSTU divide by the longest length.
            divided = max(call.case.lengths_k) if system.function == "silu" else 1.0
            factors = call.factors_of_keys(device) * divided
            if not torch.allclose(factors, torch.ones_like(factors)):
                lengths = torch.tensor(call.case.lengths_q, device=device)
                of_rows = factors.repeat_interleave(lengths)[:, None, None]
                self.out_factors = of_rows.to(getattr(torch, call.shape.dtype))

    def compute(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (
            self.flat(query, self.call.rows_q),
            *(self.flat(one, self.call.rows_k) for one in (key, value)),
        )
        output = self.attend(query if self.factor == 1 else query * self.factor, key, value)
        return output if self.out_factors is None else output * self.out_factors

    def flat(self, rows: Tensor, count: int | None) -> Tensor:
        if count is None:
            return rows
        return rows.expand(self.call.shape.batch, *rows.shape[-3:]).flatten(0, 1)


def can_train(system: System) -> bool:
    """Returns whether the system may compute the attention of a model."""
    return type(system) in (Gdpa, Padded, Flex) or (isinstance(system, Packed) and not isinstance(system, Gdpa))


def refusal(system: System, call: Call) -> str | None:
    """Returns the reason why the system does not compute this call, or None."""
    if isinstance(system, Gdpa):
        return None
    if system.function not in (None, "softmax", call.activation):
        return f"computes {system.function}, and not {call.activation}"
    if isinstance(system, Flex) and not call.is_self:
        return "is used for the attention of a sequence to itself only"
    if isinstance(system, Padded):
        return None if elementwise(call.activation) else f"no PyTorch form is known of {call.activation!r}"
    return system.refusal(call.case)


def attends(model: nn.Module) -> list[nn.Module]:
    """Returns the modules of gdpa.nn that call gdpa's attention."""
    return [module for module in model.modules() if isinstance(getattr(module, "attend", None), gdpa.nn.GDPA)]


def refusal_of_model(system: System, model: nn.Module, shape: ModelShape) -> str | None:
    """Returns why the system does not compute the attention of sequences to themselves in this model, or None."""
    calls = (Call.of(module, shape) for module in attends(model))
    return next(filter(None, (refusal(system, call) for call in calls if call.is_self)), None)


def use(system: System, model: nn.Module, shape: ModelShape, device: torch.device) -> nn.Module:
    """Replaces gdpa's attention in the model by the attention of the system, and returns the model.

    If a system refuses a PFFN or a pooling, the padded computation takes its place, with the function of the system.
    """
    if isinstance(system, Gdpa):
        return model
    for module in attends(model):
        call = Call.of(module, shape)
        is_refused = refusal(system, call) is not None
        if isinstance(system, Flex) and not is_refused:
            module.attend = OnFlex(call, device)
        elif isinstance(system, Packed) and not is_refused:
            module.attend = OnPacked(call, device, system)
        else:
            module.attend = OnPadded(call, device, system.function == "softmax")
    return model
