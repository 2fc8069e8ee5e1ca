"""The definition in plain torch, one sequence after the other, with PyTorch's autograd for the gradients.

Independent of gdpa: it shares no code with it, and its masks are written out score by score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda s: s,
    "relu": F.relu,
    "relu2": lambda s: F.relu(s) ** 2,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda s: F.gelu(s, approximate="tanh"),
    "fast_gelu": lambda s: F.gelu(s, approximate="tanh"),
    "silu": F.silu,
    "fast_silu": F.silu,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "s * sigmoid(1.702 * s)": lambda s: s * torch.sigmoid(1.702 * s),
    "a * tanh(b * s) with a = 2, b = 0.5": lambda s: 2 * torch.tanh(0.5 * s),
}

# The allowed error of a result relative to the 2-norm of the reference, or twice PyTorch's error in the same type.
SHARE = {torch.bfloat16: 3e-3, torch.float16: 6e-4, torch.float32: 2e-6, torch.float64: 1e-13}


@dataclass
class Problem:
    """One call. Operands are packed (rows, heads, head_dim); a shared side has one length and one set of rows."""

    query: Tensor
    key: Tensor
    value: Tensor
    lengths_q: Sequence[int]
    lengths_k: Sequence[int]
    shared_q: bool = False
    shared_k: bool = False
    activation: str = "gelu"
    scale: float | None = None
    out_scale: float | str | Tensor = 1.0
    window: tuple[int, int] = (-1, -1)
    upper_left: bool = False
    function: Callable[[Tensor], Tensor] | None = None  # the function of an `activation` that FUNCTIONS does not have


def allowed(length_q: int, length_k: int, window: tuple[int, int], upper_left: bool) -> Tensor:
    """True if query i attends to key j."""
    shift = 0 if upper_left else length_k - length_q
    i = torch.arange(length_q)[:, None] + shift
    j = torch.arange(length_k)[None, :]
    left, right = window
    valid = torch.ones(length_q, length_k, dtype=torch.bool)
    if left >= 0:
        valid &= i - j <= left  # no sum with a side, which may be the largest integer
    if right >= 0:
        valid &= j - i <= right
    return valid


def out_scale_of(problem: Problem, entry: int, length_q: int, length_k: int) -> float:
    if isinstance(problem.out_scale, Tensor):
        return float(problem.out_scale[entry])
    if problem.out_scale == "1/len_q":
        return 1 / length_q if length_q else 0.0
    if problem.out_scale == "1/len_k":
        return 1 / length_k if length_k else 0.0
    assert isinstance(problem.out_scale, (int, float))
    return problem.out_scale


def attention(problem: Problem, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The output, (rows, heads, head_dim_v), in the type of the operands given."""
    function = problem.function or FUNCTIONS[problem.activation]
    scale = query.shape[-1] ** -0.5 if problem.scale is None else problem.scale
    group = query.shape[1] // key.shape[1]
    rows, begin_q, begin_k = [], 0, 0
    for entry, (length_q, length_k) in enumerate(zip(problem.lengths_q, problem.lengths_k, strict=True)):
        q = query if problem.shared_q else query[begin_q : begin_q + length_q]
        k, v = (t if problem.shared_k else t[begin_k : begin_k + length_k] for t in (key, value))
        k, v = (t.repeat_interleave(group, dim=1).transpose(0, 1) for t in (k, v))
        scores = scale * (q.transpose(0, 1) @ k.transpose(1, 2))
        valid = allowed(length_q, length_k, problem.window, problem.upper_left)
        weights = torch.where(valid, function(scores), torch.zeros((), dtype=scores.dtype))
        rows.append((out_scale_of(problem, entry, length_q, length_k) * (weights @ v)).transpose(0, 1))
        begin_q += length_q
        begin_k += length_k
    covered = torch.cat(rows) if rows else query.new_zeros(0, query.shape[1], value.shape[-1])
    if problem.shared_q:
        return covered
    return F.pad(covered, (0, 0, 0, 0, 0, query.shape[0] - begin_q))


def results(problem: Problem, weights: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """O, dQ, dK and dV for the loss sum(weights * O), computed in `dtype`."""
    operands = [t.detach().to(dtype).requires_grad_() for t in (problem.query, problem.key, problem.value)]
    output = attention(problem, *operands)
    gradients = torch.autograd.grad(output, operands, weights.to(dtype), allow_unused=True)
    filled = [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, operands, strict=True)]
    return [output.detach(), *filled]


def assert_within_promise(got: Sequence[Tensor], problem: Problem, weights: Tensor, share: float | None = None) -> None:
    """The 2-norm of each error is at most twice the larger of PyTorch's in the same type and `share` of the result,
    which is SHARE of the type where it is not given."""
    dtype = problem.query.dtype
    share = SHARE[dtype] if share is None else share
    exact = results(problem, weights, torch.float64)
    same_type = results(problem, weights, dtype)
    for name, result, true, torchs in zip(("O", "dQ", "dK", "dV"), got, exact, same_type, strict=True):
        assert result.dtype == dtype, f"{name} is {result.dtype}"
        assert result.shape == true.shape, f"{name} has shape {tuple(result.shape)}, expected {tuple(true.shape)}"
        error = (result.double() - true).norm()
        bound = 2 * max((torchs.double() - true).norm(), share * true.norm())
        assert error <= bound, f"{name}: error {error:.3g} is above {bound:.3g}, worst at {worst(result, true)}"


def worst(result: Tensor, true: Tensor) -> str:
    if not true.numel():
        return "nothing"
    difference = (result.double() - true).abs().flatten()
    place = int(torch.where(difference.isnan(), torch.inf, difference).argmax())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), true.shape))
    return f"{where}: {result.flatten()[place]:.6g}, expected {true.flatten()[place]:.6g}"


def offsets(lengths: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)
