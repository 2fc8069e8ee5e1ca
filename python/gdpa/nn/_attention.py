"""GDPA, the attention with its function and its learned numbers, and the two attention blocks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from gdpa._attention import varlen_attention
from gdpa.distributed import ContextPlan, context_parallel_attention
from gdpa.nn._jagged import check_batch, packed_like, unpacked
from gdpa.nn._options import Options

#: A function as in varlen_attention, or a module that is such a function. A module may have parameters.
Function = str | Callable[..., Tensor] | nn.Module | Sequence[Any]


class GDPA(nn.Module):
    """Computes out_scale * f(scale * Q K^T) V with a function f that may have learned numbers.

    Args:
        activation: f, as in varlen_attention. A module that is a Python function of the score becomes a submodule, also
            in a list.
        params: values of the names in f. A tensor becomes a learned parameter of this module, if its dtype is a
            floating dtype, and else a buffer. The parameter is a copy, except of an nn.Parameter. A number is a
            constant.
        options: further arguments of varlen_attention: scale, out_scale, window_size, mask, enable_gqa and so on. A
            tensor among them, also a tensor of a gdpa.mask.Mask, becomes a buffer of this module, or a parameter if it
            requires a gradient. Both are in the state_dict, move with `.to(device)`, and keep their dtype.

    Example::

        >>> swish = gdpa.nn.GDPA("a * s * sigmoid(b * s)", {"a": torch.ones(4), "b": torch.ones(4)})
        >>> rows, cu = torch.randn(12, 4, 64), torch.tensor([0, 5, 12])
        >>> swish(rows, rows, rows, cu, cu).sum().backward()
        >>> swish.learned["a"].grad.shape
        torch.Size([4])
    """

    def __init__(self, activation: Function = "gelu", params: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__()
        self.activation = activation
        if isinstance(activation, (list, tuple)):
            self.functions = nn.ModuleList(one for one in activation if isinstance(one, nn.Module))
        self.options = Options(options)
        self.numbers: dict[str, float] = {}
        self.learned = nn.ParameterDict()
        self.fixed: list[str] = []
        for name, value in (params or {}).items():
            if not isinstance(value, Tensor):
                self.numbers[name] = value
            elif value.is_floating_point():
                self.learned[name] = value if isinstance(value, nn.Parameter) else nn.Parameter(value.detach().clone())
            else:
                self.register_buffer(name, value)
                self.fixed.append(name)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor | None,
        cu_seq_k: Tensor | None,
        *,
        params: Mapping[str, Any] | None = None,
        plan: ContextPlan | None = None,
        **options: Any,
    ) -> Tensor:
        """Calls varlen_attention with the arguments of the module and of this call.

        `params` and `options` of this call are added to the arguments of the module, and replace arguments of the same
        name. `mask` and `window_size` both say which keys a query attends to, so each of them also replaces the other
        one of the module: a mask of this call is the whole mask. `gdpa.mask.causal() & mask` keeps a causal window.
        mask=None leaves the mask or the window of the module.

        With a plan, the rows lie on several ranks, and context_parallel_attention computes their attention.
        """
        given: dict[str, Any] = {**self.numbers, **dict(self.learned.items())}
        given.update({name: getattr(self, name) for name in self.fixed})
        given.update(params or {})
        function: dict[str, Any] = {"activation": self.activation, "params": given or None}
        options = self._options_with(options)
        if plan is not None:
            if "mask" in options:
                raise ValueError(
                    "mask: expected none with plan=, because a rank has only parts of sequences, got a mask; use "
                    "window_size"
                )
            window = tuple(options.pop("window_size", (-1, -1)))
            if window != plan.window_size:
                raise ValueError(
                    f"plan: expected window_size {window}, as the module's, got {plan.window_size}; make the plan with "
                    "this window"
                )
            return context_parallel_attention(query, key, value, plan, **function, **options)
        return varlen_attention(query, key, value, cu_seq_q, cu_seq_k, **function, **options)

    def _options_with(self, of_call: dict[str, Any]) -> dict[str, Any]:
        """Returns the options of the module and of a call."""
        options = self.options.arguments()
        if of_call.get("mask") is None:
            of_call.pop("mask", None)
        else:
            options.pop("window_size", None)
            options.pop("diagonal", None)
        if "window_size" in of_call:
            options.pop("mask", None)
        return {**options, **of_call}

    def extra_repr(self) -> str:
        parts = [] if isinstance(self.activation, nn.Module) else [f"activation={self.activation!r}"]
        return ", ".join([*parts, *(f"{name}={value!r}" for name, value in self.numbers.items())])


#: The defaults of the attention blocks: SiLU, and the mean over the keys.
OF_BLOCKS: dict[str, Any] = {"activation": "silu", "out_scale": "1/len_k"}


def head_dim_of(dim: int, heads: int, head_dim: int | None) -> int:
    """Returns the head_dim: dim / heads if it is not given."""
    if head_dim is None and dim % heads:
        raise ValueError(f"heads: expected a divisor of dim = {dim}, got {heads}; pass head_dim")
    return dim // heads if head_dim is None else head_dim


class GDPAttention(nn.Module):
    """Self-attention of each sequence, with any function instead of softmax.

        Q, K, V = split(Norm(X) W_qkv + b_qkv)              (T, H, d) each
        O_h = out_scale * f(scale * Q_h K_h^T) V_h          in each sequence and head h
        Y = X + concat(O_h) W_o + b_o                       (T, D)

    The computation is Generalized Dot-Product Attention (Kunlun, arXiv 2602.10016) with the projections of multi-head
    attention. The columns of W_qkv have the order (head, [query, key, value], d): ColwiseParallel then gives each rank
    whole heads.

    Args:
        dim: D, the width of the rows.
        heads: H.
        head_dim: d. The default is D / H.
        norm: applied to the rows before the projections, such as nn.LayerNorm(dim). None means no normalisation.
        bias: whether the projections have a bias.
        residual: whether X is added.
        activation, params, options: as in GDPA. The defaults are activation="silu" and out_scale="1/len_k".

    Shapes: rows (T, D) with cu_seqlens (B + 1), or a nested tensor (B, ragged, D). The result has the same form.

    Example::

        >>> block = gdpa.nn.GDPAttention(32, heads=4, activation="silu", window_size=(-1, 0))
        >>> block(torch.randn(12, 32), torch.tensor([0, 5, 12])).shape
        torch.Size([12, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int | None = None,
        norm: nn.Module | None = None,
        bias: bool = True,
        residual: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim_of(dim, heads, head_dim)
        self.residual = residual
        self.norm = norm
        self.qkv = nn.Linear(dim, 3 * heads * self.head_dim, bias=bias)
        self.attend = GDPA(**{**OF_BLOCKS, **options})
        self.out = nn.Linear(heads * self.head_dim, dim, bias=bias)

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None, **call: Any) -> Tensor:
        """Returns Y. `call` holds arguments of varlen_attention for this call, such as params for a dense bias.

        With plan=ContextPlan(...), x has the rows of this rank, and cu_seqlens is plan.local_offsets.
        """
        rows, offsets = unpacked("x", x, cu_seqlens)
        normed = rows if self.norm is None else self.norm(rows)
        # The number of heads follows from the width, so that a tensor-parallel rank has only its own heads.
        query, key, value = self.qkv(normed).unflatten(-1, (-1, 3, self.head_dim)).unbind(-2)
        output = self.out(self.attend(query, key, value, offsets, offsets, **call).flatten(-2))
        return packed_like(x, rows + output if self.residual else output)


class GDPACrossAttention(nn.Module):
    """Attention of the rows of each sequence to the rows of a context, with any function instead of softmax.

        Q = Norm(X) W_q + b_q,   K, V = split(C W_kv + b_kv)
        O_h = out_scale * f(scale * Q_h K_h^T) V_h
        Y = X + concat(O_h) W_o + b_o

    Args:
        dim: D, the width of the rows.
        heads: H.
        context_dim: the width of the context. The default is D.
        head_dim, norm, bias, residual, activation, params, options: as in GDPAttention.

    Shapes: x as in GDPAttention. The context is a jagged batch, rows (T_c, D_c) with cu_seqlens_context or a nested
    tensor; or (B, N, D_c) with one length for all sequences. The result has the form of x.

    Example::

        >>> block = gdpa.nn.GDPACrossAttention(32, heads=4, context_dim=16)
        >>> block(torch.randn(12, 32), torch.randn(2, 6, 16), torch.tensor([0, 5, 12])).shape
        torch.Size([12, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        context_dim: int | None = None,
        head_dim: int | None = None,
        norm: nn.Module | None = None,
        bias: bool = True,
        residual: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim_of(dim, heads, head_dim)
        self.residual = residual
        self.norm = norm
        self.query = nn.Linear(dim, heads * self.head_dim, bias=bias)
        self.key_value = nn.Linear(dim if context_dim is None else context_dim, 2 * heads * self.head_dim, bias=bias)
        self.attend = GDPA(**{**OF_BLOCKS, **options})
        self.out = nn.Linear(heads * self.head_dim, dim, bias=bias)

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        cu_seqlens: Tensor | None = None,
        cu_seqlens_context: Tensor | None = None,
        **call: Any,
    ) -> Tensor:
        """Returns Y. `call` holds arguments of varlen_attention for this call."""
        rows, offsets = unpacked("x", x, cu_seqlens)
        of_context: Tensor | None = None
        if not context.is_nested and context.dim() == 3:
            check_batch("context", context, offsets)
        else:
            context, of_context = unpacked("context", context, cu_seqlens_context)
        normed = rows if self.norm is None else self.norm(rows)
        query = self.query(normed).unflatten(-1, (-1, self.head_dim))
        key, value = self.key_value(context).unflatten(-1, (-1, 2, self.head_dim)).unbind(-2)
        output = self.out(self.attend(query, key, value, offsets, of_context, **call).flatten(-2))
        return packed_like(x, rows + output if self.residual else output)
