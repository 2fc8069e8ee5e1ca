"""The softmax attention of PyTorch: scaled_dot_product_attention, varlen_attn and FlexAttention."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gdpa.bench.cases import Case
from gdpa.bench.in_pytorch import bias_of, mask_mod_of, score_mod_of
from gdpa.bench.masks import mask_of_case
from gdpa.bench.systems.base import Attend, Operands, Prepared, System, offsets, offsets_of, sides_of
from gdpa.bench.systems.padded import compiled


class SdpaPerSequence(System):
    """scaled_dot_product_attention with one call for each sequence, without padding."""

    name = "SDPA per sequence"
    devices = ("cpu",)  # a GPU would need a thousand launches
    function = "softmax"
    lacks = ("layouts", "conditions", "windows", "causal cross")

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        sides = zip(operands.rows, sides_of(case), strict=True)
        queries, keys, values, grads = (sequences(rows, *side) for rows, side in sides)
        run = [b for b, lengths in enumerate(zip(case.lengths_q, case.lengths_k, strict=True)) if min(lengths) > 0]
        causal = case.mask == "causal"

        def forward() -> list[Tensor]:
            return [F.scaled_dot_product_attention(queries[b], keys[b], values[b], is_causal=causal) for b in run]

        inputs = list({id(part[b]): part[b] for b in run for part in (queries, keys, values)}.values())
        return Prepared(forward, inputs, [grads[b].detach() for b in run])


class SdpaNested(System):
    """scaled_dot_product_attention on nested jagged tensors."""

    name = "SDPA nested"
    can_train = True
    devices = ("cpu",)  # on a GPU it calls the same kernels as varlen_attn
    function = "softmax"
    lacks = ("layouts", "conditions", "windows", "causal cross", "shared")

    def refusal(self, case: Case) -> str | None:
        if min(case.lengths_q + case.lengths_k) == 0:
            return "fails on sequences without rows"
        return super().refusal(case)

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        offsets_q = offsets(case.lengths_q, device)
        offsets_k = offsets(case.lengths_k, device)
        causal = case.mask == "causal"

        def nested(rows: Tensor, row_offsets: Tensor, lengths: tuple[int, ...]) -> Tensor:
            # On the processor it requires a GPU if the rows are views of a fused projection.
            jagged = torch.nested.nested_tensor_from_jagged(
                rows.contiguous(), row_offsets, min_seqlen=min(lengths), max_seqlen=max(lengths)
            )
            return jagged.transpose(1, 2)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query = nested(query, offsets_q, case.lengths_q)
            key, value = (nested(rows, offsets_k, case.lengths_k) for rows in (key, value))
            output = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
            return output.transpose(1, 2).values()

        return attend


class SdpaDense(System):
    """scaled_dot_product_attention with one backend, on operands padded to the longest sequence."""

    devices = ("cuda",)
    function = "softmax"
    lacks = ("layouts", "conditions", "windows", "causal cross")

    def __init__(self, name: str, backend: SDPBackend) -> None:
        self.name = name
        self.backend = backend

    def version(self) -> str:
        if self.backend == SDPBackend.CUDNN_ATTENTION:
            return f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
        return super().version()

    def refusal(self, case: Case) -> str | None:
        if case.mask == "none" and not case.shared_kv and len(set(case.lengths_k)) > 1:
            return "keys of different lengths are padded, and softmax would count the padding"
        return super().refusal(case)

    def layout(self, case: Case) -> str:
        return "dense"

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            with sdpa_kernel(self.backend):
                return F.scaled_dot_product_attention(query, key, value, is_causal=case.mask == "causal")

        return with_heads_first(attend, len(case.lengths_q))


class Varlen(System):
    """torch.nn.attention.varlen on the packed operands."""

    name = "PyTorch varlen"
    can_train = True
    devices = ("cuda",)
    function = "softmax"
    lacks = ("layouts", "conditions", "shared")

    def refusal(self, case: Case) -> str | None:
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError:
            return "this PyTorch has no torch.nn.attention.varlen"
        if "window_size" not in inspect.signature(varlen_attn).parameters:
            return "torch.nn.attention.varlen of this PyTorch has no window_size; 2.11 has"
        return super().refusal(case)

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        from torch.nn.attention.varlen import varlen_attn

        longest_q, longest_k = max(case.lengths_q), max(case.lengths_k)
        cumulative = offsets_of(case, device)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            output = varlen_attn(query, key, value, *cumulative, longest_q, longest_k, window_size=case.window)
            assert isinstance(output, Tensor)
            return output

        return attend


class Flex(System):
    """FlexAttention under torch.compile on padded operands, with a block mask if some scores do not count.

    If a function of the case adds a bias to the score, softmax gets the same bias.
    """

    name = "FlexAttention"
    can_train = True
    reads_tensors = True
    devices = ("cuda",)
    function = "softmax"
    lacks = ("layouts",)

    def variants(self, functions: Sequence[str]) -> Sequence[System]:
        return [self.variant(function) for function in functions if bias_of(function)] or [self]

    def layout(self, case: Case) -> str:
        return "dense"

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        from torch.nn.attention.flex_attention import flex_attention

        score_mod, block_mask = score_mod_of(case, params), self.block_mask(case, device)
        attention = compiled(flex_attention)
        return with_heads_first(
            lambda *operands: attention(*operands, score_mod=score_mod, block_mask=block_mask), len(case.lengths_q)
        )

    @staticmethod
    def block_mask(case: Case, device: torch.device) -> object | None:
        """Returns the function that selects scores by the mask and the lengths, or None if all scores count."""
        from torch.nn.attention.flex_attention import create_block_mask

        longest_q, longest_k = max(case.lengths_q), max(case.lengths_k)
        if case.mask == "none" and {*case.lengths_q} == {longest_q} and {*case.lengths_k} == {longest_k}:
            return None
        lengths_q = torch.tensor(case.lengths_q, device=device)
        lengths_k = torch.tensor(case.lengths_k, device=device)
        condition = mask_mod_of(mask_of_case(case, device), case, device)

        def counts(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (q < lengths_q[b]) & (k < lengths_k[b]) & condition(b, h, q, k)

        # If all sequences have the same mask, one mask serves the whole batch. Creating a mask evaluates every score.
        batch = len(case.lengths_q) if len({*zip(case.lengths_q, case.lengths_k, strict=True)}) > 1 else None
        return create_block_mask(counts, batch, None, longest_q, longest_k, device=device.type)


def with_heads_first(attention: Callable[..., Tensor], batch: int) -> Attend:
    """Returns an attention on heads_first operands for dense operands, of which a shared one has batch 1."""
    return lambda *operands: attention(
        *(operand.expand(batch, -1, -1, -1).transpose(1, 2) for operand in operands)
    ).transpose(1, 2)


def sequences(rows: Tensor, lengths: tuple[int, ...], shared: bool) -> list[Tensor]:
    """Returns a contiguous leaf (1, heads, length, head_dim) for each sequence. A shared operand is the same leaf."""
    if shared:
        return [rows.transpose(0, 1).unsqueeze(0).contiguous().requires_grad_()] * len(lengths)
    parts = rows.split(list(lengths))
    return [part.transpose(0, 1).unsqueeze(0).contiguous().requires_grad_() for part in parts]
