"""gdpa through the functions of gdpa.compat, which other systems of the suite compat have under the same names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gdpa.bench.cases import Case
from gdpa.bench.systems.base import Attend, Operands, Prepared, System, learned, offsets
from gdpa.bench.systems.ours import Gdpa
from gdpa.compat import generative_recommenders, hstu, meta

MASKED = "hstu:0,"  # causal with targets at the end, the mask of generative-recommenders


def targets_of(case: Case, device: torch.device) -> Tensor:
    """Returns the number of targets of each sequence: the number in the mask, or the whole of a shorter sequence."""
    count = int(case.mask.split(",")[1])
    return torch.tensor([min(count, length) for length in case.lengths_q], dtype=torch.int64, device=device)


class GdpaCompat(Gdpa):
    """gdpa.compat: HSTU with a mask, FBGEMM's function with rab, and Meta's function otherwise."""

    name = "gdpa.compat"
    is_usual = False

    def __init__(self, activation: str | None = None) -> None:
        self.function = activation
        if activation is not None:
            self.name = f"gdpa.compat, {activation}"

    @property
    def row_name(self) -> str:
        return "gdpa"

    def refusal(self, case: Case) -> str | None:
        if case.mask == "none":
            return None if case.activation in meta.FUNCTIONS.values() else "Meta's GDPA does not have this function"
        return None if case.mask.startswith(MASKED) else "no function of gdpa.compat is for this mask"

    def variants(self, functions: Sequence[str]) -> list[System]:
        return [self, *map(GdpaCompat, functions[1:])]

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        case = replace(case, activation=self.function or case.activation)
        inputs, params = operands.leaves(), operands.params(case)
        attend = self.packed(case, operands.query.device, params)
        return Prepared(lambda: [attend(*inputs)], [*inputs, *learned(params)], [operands.grad_output])

    def packed(self, case: Case, device: torch.device, params: dict[str, Tensor] | None = None) -> Attend:
        offsets_q, offsets_k = (offsets(lengths, device, torch.int32) for lengths in (case.lengths_q, case.lengths_k))
        longest, alpha = max(case.lengths_q), case.head_dim**-0.5
        if case.mask == "none":
            options: dict[str, Any] = {
                "query_offset": offsets_q, "key_offset": offsets_k, "output_offset": offsets_q,
                "max_seq_len_q": longest, "max_seq_len_kv": max(case.lengths_k), "qk_scale": 1.0,
                "activation": meta_name(case.activation),
            }  # fmt: skip
            return lambda *operands: meta.generalized_dot_product_attention(*operands, **options)
        targets = targets_of(case, device)
        if params:
            options = {
                "num_targets": targets, "window_size": (-1, 0), "alpha": alpha, "rab": params["rab"], "has_drab": True,
            }  # fmt: skip
            return lambda q, k, v: hstu.hstu_attn_varlen_func(
                q, k, v, offsets_q, offsets_q, None, None, longest, longest, -1, None, **options
            )
        return lambda q, k, v: generative_recommenders.hstu_mha(longest, alpha, q, k, v, offsets_q, num_targets=targets)


def meta_name(activation: str) -> str:
    """Returns Meta's name of a function of gdpa. If there are several, the first one."""
    return next(theirs for theirs, ours in meta.FUNCTIONS.items() if ours == activation)
