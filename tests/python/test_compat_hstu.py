"""gdpa.compat.hstu and the order of the older wheels against FBGEMM's formula in fp64, over random arguments."""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest
import torch
from compat_checks import check_same, integers, leaves, lengths, starts
from compat_reference import hstu

from gdpa.compat import hstu as current
from gdpa.compat import hstu_attn, hstu_attn_interface


class Drawn:
    """Random arguments of hstu_attn_varlen_func, by name, with the same call of the reference."""

    def __init__(self, draw: random.Random) -> None:
        batch, heads, columns = draw.randint(1, 4), draw.choice([1, 2, 3]), draw.choice([4, 8, 16])
        lengths_k = lengths(draw, batch, 12)
        lengths_q = [draw.randint(0, length) for length in lengths_k] if draw.random() < 0.4 else lengths_k
        self.is_self = lengths_q is lengths_k and draw.random() < 0.8
        cu_q, cu_k = starts(lengths_q), starts(lengths_k)
        tensor_k = integers(cu_k)
        self.tensors = {"cu_seqlens_q": tensor_k if self.is_self else integers(cu_q), "cu_seqlens_k": tensor_k}
        rows_q, rows_k = cu_q[-1], cu_k[-1]
        if self.is_self:
            (self.packed,) = self.inputs = leaves((rows_k, 3, heads, columns))
            self.operands = self.packed.unbind(1)
        else:
            self.operands = self.inputs = leaves(*[(rows, heads, columns) for rows in (rows_q, rows_k, rows_k)])
        self.arguments: dict[str, Any] = {"seqused_q": None, "seqused_k": None}
        self.expected: dict[str, Any] = {}
        longest_q, longest_k = max(lengths_q), max(lengths_k) + draw.choice([0, 0, 2])
        self.arguments |= {"max_seqlen_q": longest_q, "max_seqlen_k": longest_k}
        if draw.random() < 0.4:
            lengths_q, lengths_k = self.draw_used(draw, lengths_q, lengths_k)
        self.cu = cu_q, cu_k
        scaling = draw.choice([-1, -1, 7])
        self.arguments["scaling_seqlen"] = scaling
        self.expected["scaling"] = max(longest_q, 1) if scaling == -1 else scaling
        if scaling == -1 and longest_q == 0:
            self.arguments["scaling_seqlen"] = 1
        self.arguments["alpha"] = self.expected["alpha"] = draw.choice([1.0, 0.125, -0.5])
        self.expected["longest_k"] = longest_k
        self.draw_mask(draw, lengths_k, rows_q)
        if draw.random() < 0.4:
            shape = (batch, draw.choice([1, heads]), longest_k, longest_k)
            (rab,) = leaves(shape)
            has_drab = draw.random() < 0.7
            self.arguments |= {"rab": rab, "has_drab": has_drab}
            self.expected["rab"] = rab if has_drab else rab.detach()
            self.inputs = [*self.inputs, rab]

    def draw_used(self, draw: random.Random, lengths_q: list[int], lengths_k: list[int]) -> tuple[list[int], list[int]]:
        used_k = [draw.randint(0, length) for length in lengths_k]
        used_q = [draw.randint(0, min(one, most)) for one, most in zip(lengths_q, used_k, strict=True)]
        tensor_k = integers(used_k)
        self.arguments |= {"seqused_q": integers(used_q), "seqused_k": tensor_k}
        if self.is_self:
            used_q = used_k
            self.arguments["seqused_q"] = tensor_k
        self.expected |= {"used_q": used_q, "used_k": used_k}
        return used_q, used_k

    def draw_mask(self, draw: random.Random, lengths_k: list[int], rows_q: int) -> None:
        kind = draw.choice(["all", "causal", "local", "contexts", "targets", "both", "func", "func"])
        window = {"all": (-1, -1), "local": draw.choice([(2, 1), (3, -1), (-1, 2), (0, 0), (99, 1)])}.get(kind, (-1, 0))
        if kind in ("contexts", "both"):
            numbers = [draw.randint(0, max(length, 0)) for length in lengths_k]
            self.arguments["num_contexts"], self.expected["contexts"] = integers(numbers), numbers
        if kind in ("targets", "both"):
            contexts = self.expected.get("contexts", [0] * len(lengths_k))
            numbers = [draw.randint(0, length - first) for length, first in zip(lengths_k, contexts, strict=True)]
            group = draw.choice([1, 1, 2, 3])
            self.arguments |= {"num_targets": integers(numbers), "target_group_size": group}
            self.expected |= {"targets": numbers, "group": group}
        if kind == "func":
            count, window = draw.choice([1, 3, 5, 7, 9, 11]), draw.choice([(-1, -1), (-1, 0), (2, 1)])
            func = torch.randint(0, 14, (draw.choice([1, 2]), count, rows_q + draw.choice([0, 256])))
            self.arguments["func"] = self.expected["func"] = func.int()
        self.arguments["window_size"] = self.expected["window"] = window

    def reference(self) -> torch.Tensor:
        return hstu(*self.operands, *self.cu, **self.expected)

    def __str__(self) -> str:
        shown = {
            name: tuple(one.shape) if isinstance(one, torch.Tensor) and one.dim() > 1 else one
            for name, one in self.arguments.items()
        }
        return f"{[tuple(one.shape) for one in self.operands]}, {self.cu}, {shown}"


REQUIRED = {"num_contexts": None, "num_targets": None}


@pytest.mark.parametrize("part", range(4))
def test_random_calls_follow_the_formula(part: int) -> None:
    draw = random.Random(part)
    torch.manual_seed(part)
    for _ in range(125):
        drawn = Drawn(draw)
        if drawn.is_self and draw.random() < 0.5:
            output = current.hstu_attn_qkvpacked_func(drawn.packed, **drawn.tensors, **drawn.arguments)
        else:
            output = current.hstu_attn_varlen_func(*drawn.operands, **drawn.tensors, **(REQUIRED | drawn.arguments))
        check_same(output, drawn.reference(), drawn.inputs, lambda drawn=drawn: str(drawn))


@pytest.mark.parametrize("module", [hstu_attn, hstu_attn_interface])
def test_the_older_orders_of_arguments_have_the_same_result(module: Any) -> None:
    draw = random.Random(9)
    torch.manual_seed(9)
    names = list(inspect.signature(module.hstu_attn_varlen_func).parameters)[5:]
    compared = 0
    for _ in range(120):
        drawn = Drawn(draw)
        given = {name: one for name, one in drawn.arguments.items() if not name.startswith("seqused")}
        if drawn.arguments["seqused_q"] is not None:
            continue
        compared += 1
        defaults = inspect.signature(module.hstu_attn_varlen_func).parameters
        positional = [given[name] if name in given else defaults[name].default for name in names]
        output = module.hstu_attn_varlen_func(*drawn.operands, *drawn.tensors.values(), *positional)
        check_same(output, drawn.reference(), drawn.inputs, lambda drawn=drawn: str(drawn))
        if drawn.is_self:
            known = inspect.signature(module.hstu_attn_qkvpacked_func).parameters
            packed = {name: one for name, one in given.items() if name in known}
            assert torch.equal(output, module.hstu_attn_qkvpacked_func(drawn.packed, *drawn.tensors.values(), **packed))
    assert compared > 10


def test_the_function_without_bias_records_no_gradient_for_inference() -> None:
    cu, targets = integers([0, 5, 12]), integers([1, 3])
    q, k, v = leaves(*[(12, 2, 8)] * 3)
    arguments = (q, k, v, cu, cu, None, None, 7, 7, 5, targets, (-1, 0), 0.5)
    expected = hstu(q, k, v, [0, 5, 12], [0, 5, 12], scaling=5, targets=[1, 3], window=(-1, 0), alpha=0.5, longest_k=7)
    check_same(current.cuda_hstu_attn_varlen(*arguments), expected, [q, k, v], str)
    inference = current.cuda_hstu_attn_varlen(*arguments, is_train=False)
    assert not inference.requires_grad
    torch.testing.assert_close(inference, expected.detach())
    applied = current.HstuAttnVarlenFunc.apply(*arguments[:10], None, targets, 1, (-1, 0), 0.5)
    torch.testing.assert_close(applied, expected)


@pytest.mark.parametrize("page_rows", [16, 32])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("has_targets", [True, False])
@pytest.mark.parametrize(("alpha", "scaling"), [(0.3, -1), (-0.7, 5)])
def test_pages_are_the_keys_before_the_targets(
    page_rows: int, group: int, has_targets: bool, alpha: float, scaling: int
) -> None:
    draw = random.Random(page_rows + group)
    torch.manual_seed(page_rows + group)
    batch, heads, columns = 3, 2, 8
    new = [draw.randint(1, 5) for _ in range(batch)]
    targets = [draw.randint(0, 6) if has_targets else 0 for _ in range(batch)]
    cached = [draw.randint(length, 70) for length in new]  # the new tokens are in the pages
    counts = [-(-length // page_rows) for length in cached]
    pages = torch.randn(sum(counts), 2, page_rows, heads, columns, dtype=torch.float64)
    ids = torch.randperm(sum(counts), dtype=torch.int32)
    cu_q = starts([one + other for one, other in zip(new, targets, strict=True)])
    q, k, v = torch.randn(3, cu_q[-1], heads, columns, dtype=torch.float64).unbind()
    keys, values = [], []
    for b in range(batch):
        of_entry = pages[ids[starts(counts)[b] : starts(counts)[b + 1]].long()]
        rows = of_entry.transpose(1, 2).reshape(-1, 2, heads, columns)[: cached[b]]
        newest = slice(cu_q[b + 1] - targets[b], cu_q[b + 1])
        keys.append(torch.cat([rows[:, 0], k[newest]]))
        values.append(torch.cat([rows[:, 1], v[newest]]))
    lengths_k = [len(one) for one in keys]
    cu_k = starts(lengths_k)
    output = current.hstu_attn_varlen_func(
        q, k, v, integers(cu_q), integers(cu_k), None, None, 11, max(lengths_k), scaling, None,
        integers(targets) if has_targets else None, group, (-1, 0), alpha, None, False, pages, integers(starts(counts)),
        ids, integers([(length - 1) % page_rows + 1 for length in cached]),
    )  # fmt: skip
    expected = hstu(
        q, torch.cat(keys), torch.cat(values), cu_q, cu_k, scaling=11 if scaling == -1 else scaling, targets=targets,
        group=group, window=(-1, 0), alpha=alpha, longest_k=max(lengths_k),
    )  # fmt: skip
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)


CU = integers([0, 5, 12])


def call(**arguments: Any) -> torch.Tensor:
    q, k, v = torch.randn(3, 12, 2, 8).unbind()
    given: dict[str, Any] = {
        "q": q, "k": k, "v": v, "cu_seqlens_q": CU, "cu_seqlens_k": CU, "seqused_q": None, "seqused_k": None,
        "max_seqlen_q": 7, "max_seqlen_k": 7, "scaling_seqlen": -1, "num_contexts": None, "num_targets": None,
    }  # fmt: skip
    return current.hstu_attn_varlen_func(**(given | arguments))


ONES = integers([1, 1])
PAGES = {"kv_cache": torch.randn(2, 2, 16, 2, 8), "page_offsets": integers([0, 1, 2]), "page_ids": ONES}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"has_drab": True}, ValueError),
        ({"num_contexts": ONES}, ValueError),
        ({"num_targets": ONES}, ValueError),
        ({"num_targets": ONES, "window_size": (3, 0)}, ValueError),
        ({"target_group_size": 0}, ValueError),
        ({"max_seqlen_q": 8}, ValueError),
        ({"scaling_seqlen": 0}, ValueError),
        ({"q": torch.randn(12, 16)}, AssertionError),
        ({"q": torch.randn(12, 2, 8, dtype=torch.float64)}, RuntimeError),
        ({"v": torch.randn(12, 2, 8, dtype=torch.bfloat16)}, RuntimeError),
        ({"q": torch.randn(12, 2, 8).transpose(1, 2).contiguous().transpose(1, 2)}, RuntimeError),
        ({"k": torch.randn(12, 1, 8), "v": torch.randn(12, 1, 8)}, RuntimeError),
        ({"v": torch.randn(11, 2, 8)}, RuntimeError),
        ({"cu_seqlens_q": CU.float()}, RuntimeError),
        ({"cu_seqlens_q": integers([0, 5, 13])}, RuntimeError),
        ({"seqused_q": integers([1]), "seqused_k": ONES}, RuntimeError),
        ({"num_targets": integers([1]), "window_size": (-1, 0)}, RuntimeError),
        ({"num_contexts": integers([1, 1, 1]), "window_size": (-1, 0)}, RuntimeError),
        ({"rab": torch.randn(2, 2, 6, 7)}, RuntimeError),
        ({"rab": torch.randn(2, 3, 7, 7)}, RuntimeError),
        ({"rab": torch.randn(2, 7, 7)}, RuntimeError),
        ({"func": torch.zeros(1, 2, 12, dtype=torch.int32)}, RuntimeError),
        ({"func": torch.zeros(1, 3, 11, dtype=torch.int32)}, RuntimeError),
        ({"quant_mode": 0}, NotImplementedError),
        ({"quant_mode": 5}, NotImplementedError),
        (PAGES, ValueError),
        (PAGES | {"window_size": (-1, 0)}, ValueError),
        (PAGES | {"window_size": (-1, 0), "last_page_lens": ONES, "num_contexts": ONES}, ValueError),
        (PAGES | {"window_size": (-1, 0), "last_page_lens": ONES * 99}, RuntimeError),
    ],
)
def test_errors_have_the_types_of_the_peer(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(**arguments)


def test_the_helpers_for_fp8_say_that_there_is_none() -> None:
    for name in current.__all__:
        if name.startswith(("get_", "quantize_")):
            with pytest.raises(NotImplementedError, match="fp8"):
                getattr(current, name)(torch.randn(3, 2, 8), CU)


def test_types_are_kept_and_other_offsets_are_accepted() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        qkv = torch.randn(12, 3, 2, 8).to(dtype)
        output = current.hstu_attn_qkvpacked_func(qkv, CU.long(), CU.long(), None, None, 7, 7, window_size=(-1, 0))
        assert output.dtype == dtype
        exact = current.hstu_attn_qkvpacked_func(qkv.double(), CU, CU, None, None, 7, 7, window_size=(-1, 0))
        assert (output.double() - exact).norm() <= 1e-2 * exact.norm()
