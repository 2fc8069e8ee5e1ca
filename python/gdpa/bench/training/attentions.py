"""The attention of other systems in gdpa.nn's modules. Everything else in a model stays the same.

Each module of gdpa.nn has its attention in the submodule `attend`. `use` replaces these submodules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import gdpa
from gdpa.bench.cases import Case
from gdpa.bench.in_pytorch import elementwise
from gdpa.bench.systems import Gdpa, Padded, System
from gdpa.bench.systems.base import Attend
from gdpa.bench.systems.packages import Package, TritonGdpa
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
            rows_k = module.key.shape[0] if module.is_shared else SUMMARY
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


class Attention(nn.Module):
    """A replacement of gdpa.nn.GDPA by a system: query, key and value in the forms of varlen_attention to packed rows.

    The operands get the layout of the system. Its scale and its division by a length become those of the call by
    factors before and after it.
    """

    def __init__(self, call: Call, system: System, device: torch.device) -> None:
        super().__init__()
        self.call = call
        self.system = system
        self.layout = system.layout(call.case)
        attend: Attend = system.attend(call.case, device, {})
        # torch.compile does not trace kernels of other packages. They end one graph and begin the next.
        self.attend = torch.compiler.disable(attend) if isinstance(system, Package) else attend
        self.factor = call.scale / (1.0 if isinstance(system, TritonGdpa) else call.shape.head_dim**-0.5)
        lengths = torch.tensor(call.shape.lengths_of_attention, device=device)
        self.longest = max(call.shape.lengths_of_attention)
        # The rows that exist, in the padded batch.
        self.index = (torch.arange(self.longest, device=device) < lengths[:, None]).flatten().nonzero()[:, 0]
        self.out_factors: Tensor | None = None
        if system.function != "softmax":
            # The kernels of HSTU divide by the longest length.
            divided = max(call.case.lengths_k) if system.function == "silu" else 1.0
            factors = call.factors_of_keys(device) * divided
            if not torch.allclose(factors, torch.ones_like(factors)):
                of_rows = factors.repeat_interleave(torch.tensor(call.case.lengths_q, device=device))
                self.out_factors = of_rows[:, None, None].to(getattr(torch, call.shape.dtype))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, cu_q: object, cu_k: object, *, add_query: bool = False
    ) -> Tensor:
        call = self.call
        scaled = query if self.factor == 1 else query * self.factor
        sides = ((scaled, call.rows_q), (key, call.rows_k), (value, call.rows_k))
        output = self.attend(*(self.laid(rows, count) for rows, count in sides))
        if self.layout != "packed":
            output = output.transpose(1, 2) if self.layout == "heads_first" else output
            output = output.flatten(0, 1)
            output = Unpad.apply(output, self.index) if call.rows_q is None else output
        output = output if self.out_factors is None else output * self.out_factors
        return output + query if add_query else output

    def laid(self, rows: Tensor, count: int | None) -> Tensor:
        """Returns packed or fixed rows in the layout of the system. `count` is None for packed rows."""
        batch = self.call.shape.batch
        if self.layout == "packed":
            return rows if count is None else rows.expand(batch, *rows.shape[-3:]).flatten(0, 1)
        if count is None:
            padded = rows.new_zeros(batch * self.longest, *rows.shape[1:]).index_copy(0, self.index, rows)
            rows = padded.unflatten(0, (batch, self.longest))
        rows = rows.expand(batch, *rows.shape[-3:])
        return rows.transpose(1, 2) if self.layout == "heads_first" else rows


class PaddedSoftmax(Padded):
    """Softmax on padded operands, for the PFFN and the pooling of a model whose system refuses them."""

    function = "softmax"

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        lengths = torch.tensor(case.lengths_k, device=device)
        missing = torch.arange(max(case.lengths_k), device=device) >= lengths[:, None]
        scale = case.head_dim**-0.5

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return (scale * (query @ key.mT)).masked_fill(missing[:, None, None, :], -torch.inf).softmax(-1) @ value

        return attend


class OnMlp(nn.Module):
    """f(x W1^T) W2, with the keys and values that the batch shares as the weights of all heads together."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.function = elementwise(activation)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, cu_q: object, cu_k: object, *, add_query: bool = False
    ) -> Tensor:
        output = (self.function(query.flatten(1) @ key.flatten(1).mT) @ value.flatten(1)).view_as(query)
        return output + query if add_query else output


def refusal(system: System, call: Call) -> str | None:
    """Returns the reason why the system does not compute this call, or None."""
    if isinstance(system, Gdpa):
        return None
    if system.function not in (None, "softmax", call.activation):
        return f"computes {system.function}, and not {call.activation}"
    if isinstance(system, Flex) and not call.is_self:
        return "is used for the attention of a sequence to itself only"
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

    If a system refuses a PFFN or a pooling, the padded computation takes its place, with the function of the system. A
    model with softmax has an MLP in place of a PFFN with weights that the batch shares.
    """
    if isinstance(system, Gdpa):
        return model
    modules: list[Any] = attends(model)
    for module in modules:
        call = Call.of(module, shape)
        has_mlp = system.function == "softmax" and isinstance(module, gdpa.nn.PFFN) and module.is_shared
        if has_mlp:
            module.attend = OnMlp(call.activation)
        elif refusal(system, call) is None:
            module.attend = Attention(call, system, device)
        else:
            module.attend = Attention(call, PaddedSoftmax() if system.function == "softmax" else Padded(), device)
    return model
