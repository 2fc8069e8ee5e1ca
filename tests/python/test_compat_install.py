"""gdpa.compat.install: names of other packages, in a new process each, because a process keeps its modules."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run_program

import gdpa


def run(code: str) -> None:
    done = run_program(code)
    assert done.code == 0, done.errors


OPERANDS = """
offsets, targets = torch.tensor([0, 5, 12], dtype=torch.int32), torch.tensor([1, 3], dtype=torch.int32)
q, k, v = torch.randn(3, 12, 2, 32).unbind()
before = (q, k, v, offsets, offsets)
"""


HSTU = """
gdpa.compat.install("hstu")
gdpa.compat.install("hstu")
import hstu.hstu_ops_gpu, fbgemm_gpu.experimental.hstu.hstu_ops_gpu, hstu_attn, hstu_attn_interface
from hstu import hstu_attn_varlen_func, hstu_attn_qkvpacked_func, get_bm_and_bn_block_size_fwd
from hstu.cuda_hstu_attention import cuda_hstu_attn_varlen
from fbgemm_gpu.experimental.hstu import quantize_for_block_scale, HstuAttnVarlenFunc
from hstu_attn.hstu_attn_interface import hstu_attn_varlen_func as ampere
from hstu_attn_interface import hstu_attn_varlen_func as hopper, get_bm_and_bn_block_size_bwd
one = hstu_attn_varlen_func(*before, None, None, 7, 7, -1, None, targets, window_size=(-1, 0))
for other in (ampere, hopper):
    assert torch.equal(one, other(*before, 7, 7, None, targets, 1, (-1, 0)))
"""

# Forward and backward with the arguments of the fused layers that call them, into views of one buffer.
FBGEMM = """
gdpa.compat.install("hstu")
from hstu import hstu_attn_varlen_func
rab = torch.randn(2, 2, 7, 7, requires_grad=True)
leaves = [one.clone().requires_grad_() for one in (q, k, v)]
used = torch.tensor([4, 7], dtype=torch.int32)
masks = (None, targets, 2, -1, 0, 0.5)
output = hstu_attn_varlen_func(
    *leaves, offsets, offsets, used, used, 7, 7, 9, None, targets, 2, (-1, 0), 0.5, rab, True)
dout = torch.randn_like(output)
expected = torch.autograd.grad(output, (*leaves, rab), dout)
sizes = (7, 7, 9)
common = (offsets, offsets, used, used, *sizes)
forward = [
    torch.ops.fbgemm.hstu_varlen_fwd_90(q, k, v, *common, *masks, rab.detach(), None, -1, 0),
    torch.ops.fbgemm.hstu_varlen_fwd_90(q, k, v, *common, *masks, rab=rab.detach()),
    torch.ops.fbgemm.hstu_varlen_fwd_80(q, k, v, *common, *masks, rab.detach(), None),
]
for one, padded in forward:
    assert torch.equal(one, output) and padded.shape == rab.shape
assert torch.ops.fbgemm.hstu_varlen_fwd_90(q, k, v, *common)[1].numel() == 0
for given in (False, True):
    buffer = torch.full((12, 3, 2, 32), float("nan"))
    out = buffer.unbind(1) if given else (None, None, None)
    tail = (rab.detach(), True, None)
    results = [
        torch.ops.fbgemm.hstu_varlen_bwd_90(
            dout, None, q, None, k, None, v, *common, *out, *masks, -1, *tail, *[None] * 11, 0, False),
        torch.ops.fbgemm.hstu_varlen_bwd_80(dout, q, k, v, *common, *out, *masks, *tail, True),
    ]
    for result in results:
        for one, other in zip(result, expected):
            torch.testing.assert_close(one, other)
    assert buffer.isnan().any() != given
try:
    torch.ops.fbgemm.hstu_varlen_fwd_90(q, k, v, *common, *masks, None, None, 3)
except NotImplementedError as error:
    assert "fp8" in str(error)
else:
    raise AssertionError("fp8 was accepted")
"""

PAGES = """
gdpa.compat.install("hstu")
from hstu import hstu_attn_varlen_func
pages = torch.randn(3, 2, 32, 2, 32)
of_pages = tuple(torch.tensor(one, dtype=torch.int32) for one in ([0, 1, 3], [2, 0, 1], [20, 9]))
lengths = torch.tensor([0, 21, 65], dtype=torch.int32)
sizes = (7, 44, -1, None, targets, 1)
one = hstu_attn_varlen_func(q, k, v, offsets, lengths, None, None, *sizes, (-1, 0), 0.5, None, False, pages, *of_pages)
other, _ = torch.ops.fbgemm.hstu_varlen_fwd_80(
    q, k, v, offsets, lengths, None, None, *sizes, -1, 0, 0.5, None, None, pages, *of_pages)
assert torch.equal(one, other)
named, _ = torch.ops.fbgemm.hstu_varlen_fwd_80(
    q, k, v, offsets, lengths, None, None, *sizes, -1, 0, 0.5, kv_cache=pages, page_offsets=of_pages[0],
    page_ids=of_pages[1], last_page_lens=of_pages[2])
assert torch.equal(one, named)
"""

HAMMER = """
gdpa.compat.install("hammer")
from hammer.ops.triton.cc.hstu_attention.triton_cc_hstu_attention import triton_cc_hstu_mha
from hammer.v2.ops.triton.template.tlx_bw_hstu_attention import tlx_bw_hstu_mha_wrapper
try:
    from hammer.ops.triton.cc.addmm.triton_cc_addmm import triton_cc_addmm
except ImportError:
    pass
else:
    raise AssertionError("only two modules are registered")
q, k, v = torch.randn(3, 12, 2, 8).unbind()
offsets, targets = torch.tensor([0, 5, 12]), torch.tensor([1, 3])
one = triton_cc_hstu_mha(7, 0.5, q, k, v, offsets, targets)
rest = (0, 0, 0, None, None, None, False, False)
operator = torch.ops.hstu.hstu_mha
assert torch.equal(one, operator(7, 0.5, q, k, v, offsets, True, targets, None, *rest))
dense = [each.view(2, 6, 2, 8) for each in (q, k, v)]
even = triton_cc_hstu_mha(7, 0.5, q, k, v, torch.tensor([0, 6, 12]), targets)
assert torch.equal(even.view(2, 6, 2, 8), operator(7, 0.5, *dense, None, True, targets, None, *rest))
scale = torch.full((), 1 / 7)
assert torch.allclose(one, operator(3, 0.5, q, k, v, offsets, True, targets, scale, *rest[:-1], True))
q.requires_grad_()
operator(7, 0.5, q, k, v, offsets, True, targets, None, *rest).sum().backward()
assert q.grad is not None
for wrong in ({"num_softmax_heads": 2}, {"seq_offsets_q": offsets}, {"num_groups": 2}):
    try:
        operator(7, 0.5, q, k, v, offsets, True, targets, None, *rest, **wrong)
    except NotImplementedError:
        continue
    raise AssertionError(wrong)
"""

# The operators that the fused layer in C++ calls, and calls that the Python functions refuse.
HAMMER_OPERATORS = """
fwd, bwd = torch.ops.hstu.hstu_mha_fwd, torch.ops.hstu.hstu_mha_bwd
q, k, v = (each.detach().requires_grad_() for each in (q, k, v))
token_scale = torch.rand(12)
for causal, of, each_scale in (
    (True, targets, None), (True, None, token_scale), (False, targets, scale.view(1)), (False, None, None)
):
    given = (of, each_scale, 0, 0, 0)
    output = operator(7, 0.5, q, k, v, offsets, causal, *given, None, None, None, False, False)
    assert torch.equal(output, fwd(7, 0.5, q, k, v, offsets, causal, *given, None, None, None, 0, 0, None, 0)[0])
    dout = torch.randn_like(output)
    expected = torch.autograd.grad(output, (q, k, v), dout)
    buffer = torch.empty(12, 3 * 16)
    views = [each.view(12, 2, 8) for each in buffer.split(16, 1)]
    bwd(7, 0.5, dout, q, k, v, *views, output, offsets, causal, *given, False, False, 0, 0, None, 0, None)
    for each, other in zip(views, expected):
        torch.testing.assert_close(each, other)
    kept = torch.ones(7, 7, dtype=torch.bool)
    if causal:
        kept = kept.tril()
    if of is not None:
        kept[:, 4:] = False
        kept |= torch.eye(7, dtype=torch.bool)
    p = torch.nn.functional.silu(0.5 * torch.einsum("ihd,jhd->hij", q[5:], k[5:])) * kept
    factor = 1 / 7 if each_scale is None or each_scale.numel() == 1 else each_scale[5:, None, None]
    torch.testing.assert_close(output[5:], torch.einsum("hij,jhd->ihd", p, v[5:]) * factor)

# Dense operands, with gradients in a buffer that has no dimension of tokens.
dense = [each.detach().view(2, 6, 2, 8) for each in (q, k, v)]
output, lse = fwd(6, 0.5, *dense, None, True, None, None, 0, 0, 0, None, None, None)
assert output.shape == (2, 6, 2, 8) and lse is None
buffer = torch.empty(6, 2, 3, 2, 8)
results = bwd(6, 0.5, output, *dense, *buffer.transpose(0, 1).unbind(2), output, None, True, None, None, 0, 0, 0, False,
              False)
flat = [each.flatten(0, 1).requires_grad_() for each in dense]
even = operator(6, 0.5, *flat, torch.tensor([0, 6, 12]), True, None, None, *rest)
for each, result, other in zip(buffer.unbind(2), results, torch.autograd.grad(even, flat, output.flatten(0, 1))):
    torch.testing.assert_close(each.transpose(0, 1).flatten(0, 1), other)
    torch.testing.assert_close(result.flatten(0, 1), other)

# Queries with offsets of their own are the last ones of their sequence.
last, of_queries = torch.cat((q[3:5], q[9:12])), torch.tensor([0, 2, 5])
full = operator(7, 0.5, q, k, v, offsets, True, None, None, *rest)
ends = operator(7, 0.5, last, k, v, offsets, True, None, None, *rest, max_q_len=3, seq_offsets_q=of_queries)
torch.testing.assert_close(ends, torch.cat((full[3:5], full[9:12])))

# The test of generative-recommenders for the CPU has no offset.
output, _ = fwd(10, 0.25, q, k, v, torch.empty(0, dtype=torch.int32), True, None, None, 0, 0, 0, None, None, None, 0)
assert output.shape == v.shape
"""

META = """
gdpa.compat.install("ads_mkl")
from ads_mkl.ops.oss.gdpa.triton.triton_generalized_dot_product_attention import generalized_dot_product_attention
from gdpa.triton.triton_generalized_dot_product_attention import generalized_dot_product_attention as other
assert other is generalized_dot_product_attention
q, k, v = torch.randn(3, 12, 2, 8).requires_grad_().unbind()
offsets = torch.tensor([0, 5, 12])
one = generalized_dot_product_attention(q, k, v, offsets, offsets, 7, 7, activation="silu", window_size=2)
for space in ("gdpa", "ads_mkl"):
    operator = getattr(torch.ops, space).generalized_dot_product_attention
    result = operator(q, k, v, offsets, offsets, 7, 7, activation="silu", window_size=2)
    assert torch.equal(one, result) and result.requires_grad
from gdpa.triton.triton_generalized_dot_product_attention import create_dummy_tensor, expect_contiguous, next_power_of_2
assert [next_power_of_2(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
assert create_dummy_tensor(q).tolist() == [1] and create_dummy_tensor(q).dtype == torch.int32
assert expect_contiguous(offsets) is offsets and expect_contiguous(q.transpose(0, 1)).is_contiguous()
"""


def test_the_names_and_operators_of_other_packages() -> None:
    run("".join([OPERANDS, HSTU, FBGEMM, OPERANDS, PAGES, HAMMER, HAMMER_OPERATORS, META]))


REFUSED = """
import importlib, sys
for package, module, folder in {cases!r}:
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        gdpa.compat.install(package)
    except ImportError as error:
        assert module in str(error)
    else:
        raise AssertionError(module + " was hidden")
    assert importlib.import_module(module).mine == 1
    for name in [name for name in sys.modules if name.split(".")[0] == module.split(".")[0]]:
        del sys.modules[name]
    sys.path.remove(folder)
assert not hasattr(torch.ops.fbgemm, "hstu_varlen_fwd_90")
sys.path.insert(0, {above!r})
importlib.invalidate_caches()
gdpa.compat.install("hstu")
import fbgemm_gpu
from fbgemm_gpu.experimental.hstu import hstu_attn_varlen_func
assert fbgemm_gpu.mine == 1
"""


def package(folder: Path, module: str) -> str:
    """Makes a package that can be imported from the folder."""
    inner = folder.joinpath(*module.split("."))
    inner.mkdir(parents=True)
    inner.joinpath("__init__.py").write_text("mine = 1\n")
    return str(folder)


def test_an_installed_package_is_not_hidden(tmp_path: Path) -> None:
    names = [
        ("hstu", "hstu"),
        ("hstu", "hstu_attn"),
        ("hstu", "fbgemm_gpu.experimental.hstu"),
        ("hammer", "hammer.v2.ops.triton.template.tlx_bw_hstu_attention"),
        ("ads_mkl", "ads_mkl.ops.oss.gdpa.triton.triton_generalized_dot_product_attention"),
    ]
    cases = [(of, module, package(tmp_path / str(n), module)) for n, (of, module) in enumerate(names)]
    run(REFUSED.format(cases=cases, above=package(tmp_path / "above", "fbgemm_gpu")))


FOLDER = """
import sys
sys.path.insert(0, {folder!r})
for _ in range(2):
    gdpa.compat.install("hstu")
import hstu.hstu_ops_gpu
from hstu import hstu_attn_varlen_func
from hstu.tools import mine
assert hstu_attn_varlen_func is gdpa.compat.hstu.hstu_attn_varlen_func and mine == 1
"""


def test_a_folder_with_the_name_of_a_package_is_no_package(tmp_path: Path) -> None:
    """Checkouts of model code have a folder hstu. Python prefers an installed package to a folder without code."""
    tools = tmp_path / "hstu" / "tools.py"
    tools.parent.mkdir()
    tools.write_text("mine = 1\n")
    run(FOLDER.format(folder=str(tmp_path)))


def test_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="hstu, hammer, ads_mkl"):
        gdpa.compat.install("flash_attn")
