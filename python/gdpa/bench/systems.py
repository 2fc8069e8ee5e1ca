"""The systems that are timed, one small class each. To add one, write a class and list it in SYSTEMS.

A system gets its operands in the layout that it likes best before any time is taken, and says why when it cannot run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from gdpa.bench.cases import Case

Elementwise = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Operands:
    """The packed operands of one call: (rows, heads, head_dim), sequence after sequence, or once where shared."""

    query: Tensor
    key: Tensor
    value: Tensor
    grad_output: Tensor

    @classmethod
    def random(cls, case: Case, device: torch.device, seed: int = 0) -> Operands:
        generator = torch.Generator(device).manual_seed(seed)

        def normal(lengths: tuple[int, ...], shared: bool) -> Tensor:
            rows = lengths[0] if shared else sum(lengths)
            numbers = torch.randn(rows, case.heads, case.head_dim, generator=generator, device=device)
            return numbers.to(getattr(torch, case.dtype))

        return cls(
            normal(case.lengths_q, case.shared_q),
            normal(case.lengths_k, case.shared_kv),
            normal(case.lengths_k, case.shared_kv),
            normal(case.lengths_q, False),
        )

    def to(self, dtype: torch.dtype) -> Operands:
        return Operands(*(operand.to(dtype) for operand in (self.query, self.key, self.value, self.grad_output)))


@dataclass(frozen=True)
class Prepared:
    """A system, ready to be timed: `forward` reads `inputs`, and the gradients of its outputs are `grad_outputs`."""

    forward: Callable[[], list[Tensor]]
    inputs: list[Tensor]
    grad_outputs: list[Tensor]

    def backward(self, outputs: list[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs, self.inputs, self.grad_outputs)


class System(ABC):
    """One way to compute attention. `name` tells it from the others of a run, `row_name` is what its rows say."""

    name: str
    function: str | None = None  # what it computes in the place of f, where that is fixed
    dtype: str | None = None  # what it computes in, where that is not the case's type

    @property
    def row_name(self) -> str:
        return self.name

    def version(self) -> str:
        return torch.__version__

    def refusal(self, case: Case) -> str | None:
        """Why this case cannot be run, or None."""
        return None

    @abstractmethod
    def prepare(self, case: Case, operands: Operands) -> Prepared: ...


class Gdpa(System):
    """gdpa through PyTorch, on the packed operands as they are."""

    name = "gdpa"

    def version(self) -> str:
        import gdpa

        return gdpa.__version__

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        import gdpa

        inputs = leaves(operands)
        offsets_q = None if case.shared_q else offsets(case.lengths_q, operands.query.device)
        offsets_k = None if case.shared_kv else offsets(case.lengths_k, operands.query.device)

        def forward() -> list[Tensor]:
            query, key, value = inputs
            output = gdpa.varlen_attention(
                query, key, value, offsets_q, offsets_k, activation=case.activation, window_size=case.window
            )
            return [output]

        return Prepared(forward, inputs, [operands.grad_output])


class GdpaIn(Gdpa):
    """gdpa in another type than the case's, to take turns with it."""

    def __init__(self, dtype: str) -> None:
        self.name = f"gdpa, {dtype}"
        self.dtype = dtype

    @property
    def row_name(self) -> str:
        return "gdpa"

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        return super().prepare(case, operands.to(getattr(torch, str(self.dtype))))


class SdpaPerSequence(System):
    """scaled_dot_product_attention, softmax, one call a sequence, so that nothing is padded."""

    name = "SDPA per sequence"
    function = "softmax"

    def refusal(self, case: Case) -> str | None:
        return refuse_windows(case) or refuse_causal_cross(case)

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        queries = sequences(operands.query, case.lengths_q, case.shared_q)
        keys = sequences(operands.key, case.lengths_k, case.shared_kv)
        values = sequences(operands.value, case.lengths_k, case.shared_kv)
        grads = sequences(operands.grad_output, case.lengths_q, False)
        run = [b for b, lengths in enumerate(zip(case.lengths_q, case.lengths_k, strict=True)) if min(lengths) > 0]
        causal = case.mask == "causal"

        def forward() -> list[Tensor]:
            return [F.scaled_dot_product_attention(queries[b], keys[b], values[b], is_causal=causal) for b in run]

        inputs = list({id(part[b]): part[b] for b in run for part in (queries, keys, values)}.values())
        return Prepared(forward, inputs, [grads[b].detach() for b in run])


class SdpaNested(System):
    """scaled_dot_product_attention, softmax, on nested jagged tensors."""

    name = "SDPA nested"
    function = "softmax"

    def refusal(self, case: Case) -> str | None:
        if case.shared_q or case.shared_kv:
            return "nested tensors have no operand that the batch shares"
        if min(case.lengths_q + case.lengths_k) == 0:
            return "fails on sequences without rows"
        return refuse_windows(case) or refuse_causal_cross(case)

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        inputs = leaves(operands)
        offsets_q = offsets(case.lengths_q, operands.query.device)
        offsets_k = offsets(case.lengths_k, operands.query.device)
        causal = case.mask == "causal"

        def nested(rows: Tensor, row_offsets: Tensor, lengths: tuple[int, ...]) -> Tensor:
            jagged = torch.nested.nested_tensor_from_jagged(
                rows, row_offsets, min_seqlen=min(lengths), max_seqlen=max(lengths)
            )
            return jagged.transpose(1, 2)

        def forward() -> list[Tensor]:
            query = nested(inputs[0], offsets_q, case.lengths_q)
            key, value = (nested(rows, offsets_k, case.lengths_k) for rows in inputs[1:])
            output = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
            return [output.transpose(1, 2).values()]

        return Prepared(forward, inputs, [operands.grad_output])


class Padded(System):
    """product, f, product on operands padded with zeros to the longest sequence of the batch."""

    name = "padded"

    def refusal(self, case: Case) -> str | None:
        if elementwise(case.activation) is None:
            return f"no PyTorch form is known of the function {case.activation!r}"
        return refuse_windows(case) or refuse_causal_cross(case)

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        inputs = [
            pad(operands.query, case.lengths_q, case.shared_q),
            pad(operands.key, case.lengths_k, case.shared_kv),
            pad(operands.value, case.lengths_k, case.shared_kv),
        ]
        inputs = [operand.requires_grad_() for operand in inputs]
        function = elementwise(case.activation)
        attention = self.attention()
        scale = case.head_dim**-0.5
        longest = max(case.lengths_q)
        keep = None
        if case.mask == "causal":
            keep = torch.ones(longest, longest, dtype=torch.bool, device=operands.query.device).tril()

        def forward() -> list[Tensor]:
            return [attention(*inputs, function, scale, keep)]

        grad = pad(operands.grad_output, case.lengths_q, False)
        return Prepared(forward, inputs, [grad])

    def attention(self) -> Callable[..., Tensor]:
        return padded_attention


class PaddedCompiled(Padded):
    """The same under torch.compile, which fuses the function and the mask."""

    name = "padded, compiled"

    def attention(self) -> Callable[..., Tensor]:
        return compiled_attention()


def padded_attention(
    query: Tensor, key: Tensor, value: Tensor, function: Elementwise, scale: float, keep: Tensor | None
) -> Tensor:
    """Padded values are zero, so that a padded key adds nothing whatever f(0) is."""
    scores = function(scale * (query @ key.mT))
    if keep is not None:
        scores = scores * keep
    return scores @ value


@cache
def compiled_attention() -> Callable[..., Tensor]:
    return torch.compile(padded_attention, dynamic=True)


def elementwise(activation: str) -> Elementwise | None:
    """f as PyTorch users write it, for a name or a plain expression."""
    from gdpa.demo.expression import in_pytorch

    named: dict[str, Elementwise] = {
        "identity": lambda s: s,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        "fast_gelu": partial(F.gelu, approximate="tanh"),
        "fast_silu": F.silu,
        "leaky_relu": F.leaky_relu,
        "hardswish": F.hardswish,
        "softplus": F.softplus,
        "relu2": lambda s: F.relu(s).square(),
    }
    if activation in named:
        return named[activation]
    try:
        return in_pytorch(activation)
    except ValueError:
        return None


def refuse_windows(case: Case) -> str | None:
    return "knows no windows" if case.mask.startswith("window") else None


def refuse_causal_cross(case: Case) -> str | None:
    """PyTorch's own causal mask starts at the upper left: it is gdpa's only where the lengths agree."""
    if case.mask == "causal" and case.lengths_q != case.lengths_k:
        return "its causal mask counts from the upper left, and the lengths of queries and keys differ"
    return None


def leaves(operands: Operands) -> list[Tensor]:
    return [operand.detach().requires_grad_() for operand in (operands.query, operands.key, operands.value)]


def offsets(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int64, device=device)


def sequences(rows: Tensor, lengths: tuple[int, ...], shared: bool) -> list[Tensor]:
    """One contiguous leaf (1, heads, length, head_dim) a sequence; the same one each time where it is shared."""
    if shared:
        return [rows.transpose(0, 1).unsqueeze(0).contiguous().requires_grad_()] * len(lengths)
    parts = rows.split(list(lengths))
    return [part.transpose(0, 1).unsqueeze(0).contiguous().requires_grad_() for part in parts]


def pad(rows: Tensor, lengths: tuple[int, ...], shared: bool) -> Tensor:
    """(batch, heads, longest, head_dim), zeros after the end of each sequence; batch is 1 where the rows are shared."""
    if shared:
        return rows.transpose(0, 1).unsqueeze(0).contiguous()
    padded = torch.nn.utils.rnn.pad_sequence(list(rows.split(list(lengths))), batch_first=True)
    return padded.transpose(1, 2).contiguous()


SYSTEMS: tuple[System, ...] = (Gdpa(), SdpaPerSequence(), SdpaNested(), Padded(), PaddedCompiled())
