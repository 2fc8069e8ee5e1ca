"""Features of the GPU backend: streams, graphs, sizes beyond 32 bits, wrong offsets, repeatable bits, memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import pytest
import torch
from reference import Problem, assert_within_promise, offsets
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import gdpa
from gdpa import _compilation


def operands(rows: int = 600, heads: int = 2, head_dim: int = 64, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    return [torch.randn(rows, heads, head_dim).to(dtype).requires_grad_() for _ in range(3)]


def gradients(tensors: list[Tensor], cu_seqlens: Tensor, **keywords: object) -> list[Tensor]:
    output = gdpa.varlen_attention(*tensors, cu_seqlens, cu_seqlens, **keywords)  # type: ignore[arg-type]
    return [output.detach(), *torch.autograd.grad(output, tensors, torch.ones_like(output))]


def test_deterministic_mode_gives_the_same_bits_a_thousand_times() -> None:
    tensors, cu_seqlens = operands(), offsets([200, 0, 1, 399])
    first = gradients(tensors, cu_seqlens, deterministic=True)
    for _ in range(1000):
        for one, other in zip(first, gradients(tensors, cu_seqlens, deterministic=True), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("causal", [False, True])
def test_deterministic_mode_has_one_order_where_many_ctas_add_to_a_gradient(causal: bool) -> None:
    lengths = [1500, 0, 300, 1, 257, 2100, 640] * 3
    tensors, cu_seqlens = operands(sum(lengths), head_dim=128), offsets(lengths)
    window = {"window_size": (-1, 0)} if causal else {}
    first = gradients(tensors, cu_seqlens, deterministic=True, **window)
    for _ in range(50):
        for one, other in zip(first, gradients(tensors, cu_seqlens, deterministic=True, **window), strict=True):
            assert torch.equal(one, other)


def tensors_of_scores(rows: int, heads: int) -> dict[str, tuple[str, dict[str, Tensor]]]:
    """Functions with the tensors that they read. Many CTAs add to each element of a gradient, except to `dense`."""
    times = torch.randint(0, 10**6, (rows,), device="cuda").cumsum(0)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype)

    time_buckets = "silu(s + w[head, clamp(floor(log2(1 + abs(t_q[q_row] - t_k[kv_row]))), 0, 63)])"
    return {
        "numbers": ("a * s * sigmoid(b * s)", {"a": normal(heads), "b": normal()}),
        "table": ("silu(s + table[head, clamp(q_idx - kv_idx, 0, 127)])", {"table": normal(heads, 128)}),
        "buckets": (time_buckets, {"w": normal(heads, 64), "t_q": times, "t_k": times}),
        "summed": (
            "silu(s + bias[batch, head, q_idx, kv_idx])",
            {"bias": normal(1, heads, 300, 300, dtype=torch.bfloat16)},
        ),
        "dense": (
            "silu(s + bias[batch, head, q_idx, kv_idx])",
            {"bias": normal(8, heads, 300, 300, dtype=torch.bfloat16)},
        ),
    }


@pytest.mark.parametrize("name", ["numbers", "table", "buckets", "summed", "dense"])
def test_deterministic_gradients_of_tensors_have_the_same_bits_a_thousand_times(name: str) -> None:
    lengths = [300, 0, 217, 129, 300, 64, 1, 255]
    tensors, cu_seqlens = operands(rows=sum(lengths), heads=4), offsets(lengths)
    text, params = tensors_of_scores(sum(lengths), heads=4)[name]
    learned = [tensor.requires_grad_() for tensor in params.values() if tensor.is_floating_point()]

    def results() -> list[Tensor]:
        output = gdpa.varlen_attention(
            *tensors, cu_seqlens, cu_seqlens, activation=text, params=params, deterministic=True
        )
        return [output.detach(), *torch.autograd.grad(output.square().sum(), [*tensors, *learned])]

    first = results()
    assert all(result.isfinite().all() and result.any() for result in first)
    differs = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(999):
        for one, other in zip(results(), first, strict=True):
            differs |= (one != other).any()
    assert not differs


MASKS = {
    "hstu": gdpa.mask.hstu(
        contexts=torch.tensor([3, 0, 64, 7, 1, 0, 1, 9]), targets=torch.tensor([5, 0, 64, 1, 9, 0, 0, 2]),
        target_group_size=4,
    ),
    "window": gdpa.mask.Mask("abs(q_idx - kv_idx) <= 40"),
    "strided": gdpa.mask.Mask("(floor(q_idx / 100) == floor(kv_idx / 100)) & (head % 2 == 0) | (kv_idx < 10)"),
}  # fmt: skip


def on_gpu(mask: gdpa.mask.Mask) -> gdpa.mask.Mask:
    return gdpa.mask.Mask(mask.text, {name: tensor.cuda() for name, tensor in mask.tensors.items()})


def prepared(tensors: list[Tensor], cu_seqlens: Tensor, mask: gdpa.mask.MaskLike) -> gdpa.mask.PreparedMask:
    return gdpa.prepare_mask(gdpa.varlen_attention, *tensors, cu_seqlens, cu_seqlens, mask=mask, deterministic=True)


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_deterministic_mode_with_a_mask_has_the_same_bits_a_thousand_times(name: str, is_prepared: bool) -> None:
    lengths = [300, 0, 217, 129, 1300, 64, 1, 255]
    tensors, cu_seqlens = operands(rows=sum(lengths), heads=4), offsets(lengths)
    on_cpu, mask = MASKS[name], on_gpu(MASKS[name])
    first = gradients(tensors, cu_seqlens, mask=mask, deterministic=True)
    if is_prepared:
        mask = prepared(tensors, cu_seqlens, mask)
        assert mask.nbytes > 0
    differs = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(999):
        for one, other in zip(gradients(tensors, cu_seqlens, mask=mask, deterministic=True), first, strict=True):
            differs |= (one != other).any()
    assert not differs
    expected = gradients([tensor.detach().cpu().requires_grad_() for tensor in tensors], cu_seqlens.cpu(), mask=on_cpu)
    for one, other in zip(first, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0.02, atol=0.02 * float(other.abs().max()))


def test_a_prepared_mask_is_for_calls_with_other_functions_and_numbers() -> None:
    lengths = [300, 0, 217, 129]
    cu_seqlens, mask = offsets(lengths), on_gpu(gdpa.mask.prefix(torch.tensor([7, 1, 100, 0])))
    ready = prepared(operands(rows=sum(lengths)), cu_seqlens, mask)
    for activation in ("silu", "relu"):
        tensors = operands(rows=sum(lengths))
        keywords = {"activation": activation, "deterministic": True}
        expected = gradients(tensors, cu_seqlens, mask=mask, **keywords)
        for one, other in zip(gradients(tensors, cu_seqlens, mask=ready, **keywords), expected, strict=True):
            assert torch.equal(one, other)


def test_a_mask_is_prepared_in_a_captured_graph_from_the_numbers_at_each_replay() -> None:
    lengths = [300, 0, 217, 129]
    tensors, cu_seqlens = operands(rows=sum(lengths)), offsets(lengths)
    prefix = torch.tensor([7, 1, 100, 0], device="cuda")

    def results() -> list[Tensor]:
        mask = prepared(tensors, cu_seqlens, gdpa.mask.prefix(prefix))
        return gradients(tensors, cu_seqlens, mask=mask, deterministic=True)

    results()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = results()
    for numbers in ([300, 5, 0, 64], [0, 0, 0, 0], [1, 2, 217, 128]):
        prefix.copy_(torch.tensor(numbers))
        graph.replay()
        expected = gradients(tensors, cu_seqlens, mask=gdpa.mask.prefix(prefix), deterministic=True)
        for one, other in zip(captured, expected, strict=True):
            assert torch.equal(one, other)


def test_preparing_a_mask_does_not_wait_for_the_device() -> None:
    lengths = [300, 0, 217, 129]
    tensors, cu_seqlens = operands(rows=sum(lengths)), offsets(lengths)
    prepared(tensors, cu_seqlens, "kv_idx <= q_idx + 7")
    torch.cuda.set_sync_debug_mode("error")
    try:
        prepared(tensors, cu_seqlens, "kv_idx <= q_idx + 7")
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_debug_mode_names_a_sequence_for_whose_lengths_a_mask_is_not_prepared() -> None:
    program = (
        "import torch, gdpa\n"
        "t = torch.randn(600, 1, 64, device='cuda', dtype=torch.bfloat16)\n"
        "first, second = (torch.tensor(o, device='cuda') for o in ([0, 100, 200, 600], [0, 100, 250, 600]))\n"
        "mask = gdpa.prepare_mask(gdpa.varlen_attention, t, t, t, first, first, mask='kv_idx <= q_idx')\n"
        "for cu in (first, second):\n"
        "    gdpa.varlen_attention(t, t, t, cu, cu, mask=mask)\n"
        "    torch.cuda.synchronize()\n"
        "    print('a call', flush=True)\n"
    )
    command, environment = [sys.executable, "-c", program], {**os.environ, "GDPA_CHECK_OFFSETS": "1"}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    same, other, _ = printed.split("a call")
    assert same == ""
    assert "gdpa: sequence 1 has 150 queries and 150 keys, and the mask was prepared for 100 and 100" in other


def test_a_captured_graph_replays_the_same_bits_on_new_data() -> None:
    tensors, cu_seqlens = operands(), offsets([200, 0, 1, 399])
    gradients(tensors, cu_seqlens, deterministic=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(tensors, cu_seqlens, deterministic=True)
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(torch.randn_like(tensor))
    expected = gradients(tensors, cu_seqlens, deterministic=True)
    for _ in range(100):
        graph.replay()
        for one, other in zip(expected, captured, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("dims", [(0, 1, 2), (0,), (1,), (2,)], ids=str)
def test_a_gradient_that_mean_expands_takes_the_kernels_of_a_contiguous_one(dims: tuple[int, ...]) -> None:
    tensors, cu_seqlens = operands(head_dim=128), offsets([200, 0, 1, 399])
    activation = f"tanh(s) * 0.12{len(dims)}{dims[0]}"  # no other test loads the kernels of this function

    def attend() -> tuple[Tensor, list[Tensor]]:
        # Each call has separate leaves, because autograd synchronizes a leaf with the stream of its first use.
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        output = gdpa.varlen_attention(*leaves, cu_seqlens, cu_seqlens, activation=activation, deterministic=True)
        return output, leaves

    output, leaves = attend()
    loss = output.mean(dims).square().sum()
    (expanded,) = torch.autograd.grad(loss, output, retain_graph=True)
    expected = torch.autograd.grad(output, leaves, expanded.contiguous())
    # A capture refuses kernels that are not loaded. The contiguous gradient has not loaded portable kernels.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output, leaves = attend()
        captured = torch.autograd.grad(output.mean(dims).square().sum(), leaves)
    graph.replay()
    for one, other in zip(expected, captured, strict=True):
        assert torch.equal(one, other)


def test_a_kernel_that_is_not_loaded_is_refused_while_a_graph_is_captured() -> None:
    tensors, cu_seqlens = operands(), offsets([600])
    with (
        pytest.raises(RuntimeError, match="run the same call once before capturing"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
        torch.no_grad(),
    ):
        gdpa.varlen_attention(*tensors, cu_seqlens, cu_seqlens, activation="tanh(s) * 0.123")


def test_what_was_warmed_up_can_be_captured() -> None:
    tensors, cu_seqlens = operands(), offsets([200, 0, 1, 399])
    keywords = {"activation": "tanh(s) * 0.321", "deterministic": True}
    made = gdpa.warmup(gdpa.varlen_attention, *tensors, cu_seqlens, cu_seqlens, **keywords)
    assert {kernel.name.split()[1] for kernel in made} >= {"forward", "backward"}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(tensors, cu_seqlens, **keywords)
    graph.replay()
    for one, other in zip(gradients(tensors, cu_seqlens, **keywords), captured, strict=True):
        assert torch.equal(one, other)


def test_the_kernels_of_backward_are_compiled_after_a_call_that_records_gradients() -> None:
    tensors, cu_seqlens = operands(), offsets([600])
    keywords = {"activation": "tanh(s) * 0.777"}
    gdpa.varlen_attention(*tensors, cu_seqlens, cu_seqlens, **keywords)
    end = time.monotonic() + 60
    while _compilation._running and time.monotonic() < end:
        time.sleep(0.01)
    assert not _compilation._running
    kernels = gdpa.warmup(gdpa.varlen_attention, *tensors, cu_seqlens, cu_seqlens, lengths="these", **keywords)
    assert [kernel.name for kernel in kernels if not kernel.was_cached] == []


def test_a_captured_graph_reads_new_numbers_of_a_learned_parameter() -> None:
    tensors, cu_seqlens = operands(), offsets([200, 0, 1, 399])
    slope = torch.rand(2, requires_grad=True)

    def results() -> list[Tensor]:
        output = gdpa.varlen_attention(
            *tensors, cu_seqlens, cu_seqlens, activation="a * silu(s)", params={"a": slope}, deterministic=True
        )
        return [output.detach(), *torch.autograd.grad(output, [*tensors, slope], torch.ones_like(output))]

    results()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = results()
    for _ in range(3):
        with torch.no_grad():
            slope.copy_(torch.rand(2))
        graph.replay()
        for one, other in zip(captured, results(), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_gradients_of_learned_parameters_equal_those_of_the_cpu(dtype: torch.dtype) -> None:
    tensors, cu_seqlens = operands(dtype=dtype), offsets([200, 0, 1, 399])
    params = {"a": torch.rand(2) + 0.5, "b": torch.rand(()) + 0.5}

    def computed(device: str, computes_in: torch.dtype) -> list[Tensor]:
        inputs = [tensor.detach().to(device, computes_in).requires_grad_() for tensor in tensors]
        numbers = {name: number.to(device).requires_grad_() for name, number in params.items()}
        cu = cu_seqlens.to(device)
        output = gdpa.varlen_attention(*inputs, cu, cu, activation="a * s * sigmoid(b * s)", params=numbers)
        loss = output.double().square().sum()  # its gradients are sums without cancellation
        return list(torch.autograd.grad(loss, [*numbers.values()]))

    bound = {torch.bfloat16: 3e-3, torch.float16: 6e-4, torch.float32: 2e-6}[dtype]
    for one, other in zip(computed("cuda", dtype), computed("cpu", torch.float64), strict=True):
        assert (one.cpu() - other).norm() <= bound * other.norm()


def test_two_streams_at_once_do_not_meet() -> None:
    one, two = operands(4000), operands(4000)
    cu_seqlens = offsets([1000, 3000])
    expected = [gradients(tensors, cu_seqlens, deterministic=True) for tensors in (one, two)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(50):
        results = []
        for stream, tensors in zip(streams, (one, two), strict=True):
            with torch.cuda.stream(stream):
                results.append(gradients(tensors, cu_seqlens, deterministic=True))
        torch.cuda.synchronize()
        for got, wanted in zip(results, expected, strict=True):
            for a, b in zip(got, wanted, strict=True):
                assert torch.equal(a, b)


def test_rows_beyond_32_bits_of_elements_are_reached() -> None:
    stride = 2**31 // 100
    memory = torch.empty(140 * stride, dtype=torch.bfloat16)
    views = [memory.as_strided((140, 1, 64), (stride, 64, 1), first * 64) for first in range(3)]
    small = [torch.randn(140, 1, 64).to(torch.bfloat16) for _ in range(3)]
    for view, values in zip(views, small, strict=True):
        view.copy_(values)
    far = [view.detach().requires_grad_() for view in views]
    near = [values.detach().requires_grad_() for values in small]
    # With accuracy "exact", the kernels for distant rows and for near rows round in the same way.
    for one, other in zip(
        *(gradients(t, offsets([100, 40]), deterministic=True, accuracy="exact") for t in (far, near)), strict=True
    ):
        assert torch.equal(one, other)


def test_more_entries_and_heads_than_a_grid_has_rows() -> None:
    lengths = [3] * 40_000
    query, key, value = (torch.randn(120_000, 2, 16).to(torch.bfloat16) for _ in range(3))
    got = gdpa.varlen_attention(query, key, value, offsets(lengths), offsets(lengths), activation="silu")
    scores = torch.einsum("bihd,bjhd->bhij", query.unflatten(0, (-1, 3)).double(), key.unflatten(0, (-1, 3)).double())
    weights = torch.nn.functional.silu(scores / 4)
    true = torch.einsum("bhij,bjhd->bihd", weights, value.unflatten(0, (-1, 3)).double()).flatten(0, 1)
    assert (got.double() - true).norm() <= 6e-3 * true.norm()


@pytest.mark.parametrize("wrong", [[0, 500, 300, 600], [0, 100, 200, 5000], [0, -7, 300, 600], [50, 60, 70, 80]])
def test_offsets_that_are_wrong_write_nothing_beyond_the_operands(wrong: list[int]) -> None:
    around = [torch.full((1800, 2, 64), 7.0, dtype=torch.bfloat16) for _ in range(3)]
    inside = [tensor[600:1200].requires_grad_() for tensor in around]
    gradients(inside, torch.tensor(wrong, dtype=torch.int32))
    torch.cuda.synchronize()
    for tensor in around:
        assert bool((tensor == 7.0).all())


WRONG_OFFSETS = {
    "0, 500, 300, 600": "cu_seqlens_q[2] = 300 is below cu_seqlens_q[1] = 500",
    "0, 100, 5000, 6000": "cu_seqlens_q[2] = 5000 is beyond the 600 rows of query",
    "-5, 100, 200, 600": "cu_seqlens_q[0] = -5, expected 0 or more",
}


def printed_for(cu_seqlens: str, setting: str) -> str:
    """Returns the output of a process with a correct call and a call with these cumulative lengths."""
    program = (
        "import torch, gdpa\n"
        "t = torch.randn(600, 1, 64, device='cuda', dtype=torch.bfloat16)\n"
        f"right, given = (torch.tensor(o, device='cuda') for o in ([0, 1, 2, 600], [{cu_seqlens}]))\n"
        "for offsets in (right, given):\n"
        "    gdpa.varlen_attention(t, t, t, offsets, right)\n"
        "    torch.cuda.synchronize()\n"
        "    print('a call', flush=True)\n"
    )
    environment = {**os.environ, "GDPA_CHECK_OFFSETS": setting}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("wrong", WRONG_OFFSETS)
def test_debug_mode_names_the_offset_that_is_wrong(wrong: str) -> None:
    right, given, _ = printed_for(wrong, "1").split("a call")
    assert right == ""
    assert WRONG_OFFSETS[wrong] in given


WRONG_LAYOUTS = {
    "seq_offsets_q=torch.tensor([[0, 10], [20, 15]]), seq_offsets_k=rows": "seq_offsets_q[1] = [20, 15], expected 0 <=",
    "seq_offsets_q=rows, seq_offsets_k=torch.tensor([[0, 10], [20, 601]])": "<= 600, the rows of key",
    "seq_offsets_q=rows, seq_offsets_k=rows, kv_of=torch.tensor([0, 2])": "kv_of[1] = 2 is not one of the 2 entries",
    "seq_offsets_q=rows, seq_offsets_k=rows, output_offsets=torch.tensor([3, -1])": "output_offsets[1] = -1",
    "seq_offsets_q=rows, seq_offsets_k=rows, output_offsets=torch.tensor([9, 0]), output_rows=15": (
        "output_offsets[0] = 9, expected 0 to 5, for the 15 rows of the output and 10 queries"
    ),
    "seq_offsets_q=rows, block_table=table, seqused_k=torch.tensor([5, 33])": "seqused_k[1] = 33, expected 0 to 32",
    "seq_offsets_q=rows, block_table=table + 1, seqused_k=torch.tensor([5, 32])": (
        "block_table[1, 1] = 4 is not one of the 4 pages"
    ),
}


@pytest.mark.parametrize("wrong", WRONG_LAYOUTS)
def test_debug_mode_names_the_number_of_a_layout_that_is_wrong(wrong: str) -> None:
    program = (
        "import torch, gdpa\n"
        "torch.set_default_device('cuda')\n"
        "t = torch.randn(600, 1, 64, dtype=torch.bfloat16)\n"
        "rows, table = torch.tensor([[0, 10], [20, 30]]), torch.tensor([[0, 1], [2, 3]])\n"
        "pages = t[:64].view(4, 16, 1, 64)\n"
        f"arguments = dict({wrong})\n"
        "key = pages if 'block_table' in arguments else t\n"
        "gdpa.varlen_attention(t, key, key, None, None, **arguments)\n"
        "torch.cuda.synchronize()\n"
    )
    environment = {**os.environ, "GDPA_CHECK_OFFSETS": "1"}
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.count("gdpa:") == 1
    assert WRONG_LAYOUTS[wrong] in printed


def test_without_debug_mode_nothing_is_printed() -> None:
    assert printed_for("0, 500, 300, 600", "0") == "a call\n" * 2


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_no_nan_or_infinity_crosses_to_another_sequence(poison: float) -> None:
    clean = [t.detach() for t in operands(210)]
    poisoned = [t.clone() for t in clean]
    for tensor in poisoned:
        tensor[50:120] = poison
    cu_seqlens = offsets([50, 70, 90])
    wanted, got = (
        gradients([t.requires_grad_() for t in tensors], cu_seqlens, deterministic=True)
        for tensors in (clean, poisoned)
    )
    others = torch.tensor([i for i in range(210) if not 50 <= i < 120])
    for one, other in zip(wanted, got, strict=True):
        assert torch.equal(one[others], other[others])


# CTAs of forward take the tiles of many long sequences from a counter.
@pytest.mark.parametrize("lengths", [[300, 1, 513, 200], [2100, 1999] * 8], ids=["few", "many"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "hardswish"])
def test_a_score_of_minus_infinity_gets_the_limit_of_the_function(name: str, head_dim: int, lengths: list[int]) -> None:
    query, key, value = (t.detach() for t in operands(sum(lengths), head_dim=head_dim))
    query[..., 0] = key[..., 0] = 0
    results = []
    for size in (1e4, 1e30):  # a score of -1e8 / sqrt(d), at which f is 0 to the last bit, and a score that overflows
        query[::3, :, 0], key[::5, :, 0] = size, -size
        cu_seqlens = offsets(lengths)
        results.append(gdpa.varlen_attention(query, key, value, cu_seqlens, cu_seqlens, activation=name))
    assert results[0].isfinite().all()
    assert torch.equal(*results)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "hardswish"])
def test_a_score_of_minus_infinity_gets_the_limit_of_the_derivative(name: str, head_dim: int) -> None:
    query, key, value = (t.detach() for t in operands(1014, head_dim=head_dim))
    query[..., 0] = key[..., 0] = 0
    weights = torch.randn_like(query)
    results = []
    for size in (1e4, 1e30):  # as in the preceding test
        query[::3, :, 0], key[::5, :, 0] = size, -size
        tensors = [t.clone().requires_grad_() for t in (query, key, value)]
        cu_seqlens = offsets([300, 1, 513, 200])
        output = gdpa.varlen_attention(*tensors, cu_seqlens, cu_seqlens, activation=name)
        results.append([g[..., 1:] for g in torch.autograd.grad(output, tensors, weights)])  # column 0 has the size
    for great, infinite in zip(*results, strict=True):
        assert infinite.isfinite().all()
        assert (great - infinite).norm() <= 3e-3 * great.norm()


def padded_gradients(tensors: list[Tensor], lengths: list[list[int]], weights: Tensor) -> list[Tensor]:
    """Returns the gradients of gelu_tanh attention in fp64, with all sequences padded to the longest."""
    sides = [torch.tensor(lengths[0]), *(torch.tensor(lengths[1]) for _ in range(2))]
    kept = [torch.arange(int(side.max()))[None] < side[:, None] for side in sides]
    padded = []
    for tensor, mask in zip([*tensors, weights], [*kept, kept[0]], strict=True):
        rows = torch.zeros(*mask.shape, *tensor.shape[1:], dtype=torch.float64)
        rows[mask] = tensor.detach().double()
        padded.append(rows.requires_grad_())
    query, key, value, grad_output = padded
    scores = torch.einsum("bihd,bjhd->bhij", query, key) / query.shape[-1] ** 0.5
    probabilities = torch.nn.functional.gelu(scores, approximate="tanh") * kept[1][:, None, None]
    output = torch.einsum("bhij,bjhd->bihd", probabilities, value)
    gradients = torch.autograd.grad(output, padded[:3], grad_output.detach())
    return [gradient[mask] for gradient, mask in zip(gradients, kept, strict=True)]


# The number of sequences is large enough for several sequences in each CTA: sequences without queries or with one tile
# of queries, and sequences without keys or with one, two or more tiles of keys.
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
@pytest.mark.parametrize("longest", [(130, 300), (64, 130), (70, 500), (300, 257)])
def test_sequences_that_follow_each_other_on_a_cta(longest: tuple[int, int], head_dim: int) -> None:
    lengths = [torch.randint(0, most + 1, (1200,)).tolist() for most in longest]
    query, (key, value) = operands(sum(lengths[0]), 1, head_dim)[0], operands(sum(lengths[1]), 1, head_dim)[1:]
    tensors = [query, key, value]
    weights = torch.randn_like(tensors[0])
    output = gdpa.varlen_attention(*tensors, offsets(lengths[0]), offsets(lengths[1]), activation="gelu_tanh")
    gradients = torch.autograd.grad(output, tensors, weights)
    for got, wanted in zip(gradients, padded_gradients(tensors, lengths, weights), strict=True):
        assert (got - wanted).norm() <= 2 * 3e-3 * wanted.norm()


@pytest.mark.parametrize("keys", [64, 128, 200, 300], ids="keys{}".format)
def test_gradients_of_keys_that_a_large_batch_shares(keys: int) -> None:
    lengths = torch.randint(0, 200, (1000,)).tolist()
    query = operands(sum(lengths), 2, 128)[0]
    tensors = [query, *operands(keys, 2, 128)[1:]]
    weights = torch.randn_like(query)
    output = gdpa.varlen_attention(*tensors, offsets(lengths), None, activation="gelu_tanh")
    gradients = torch.autograd.grad(output, tensors, weights)
    for got, wanted in zip(gradients, padded_gradients(tensors, [[sum(lengths)], [keys]], weights), strict=True):
        assert (got - wanted).norm() <= 2 * 3e-3 * wanted.norm()


@pytest.mark.parametrize("rows", [4, 32, 100])
def test_gradients_of_queries_that_a_large_batch_shares(rows: int) -> None:
    entries = 600
    lengths = torch.randint(0, 400, (entries,)).tolist()
    query = operands(rows, 2, 128)[0]
    tensors = [query, *operands(sum(lengths), 2, 128)[1:]]
    output = gdpa.varlen_attention(*tensors, None, offsets(lengths), activation="gelu_tanh")
    weights = torch.randn_like(output)
    gradients = torch.autograd.grad(output, tensors, weights)
    copies = [query.repeat(entries, 1, 1), *tensors[1:]]
    of_copies, *of_keys = padded_gradients(copies, [[rows] * entries, lengths], weights)
    expected = [of_copies.view(entries, rows, 2, 128).sum(0), *of_keys]
    for got, wanted in zip(gradients, expected, strict=True):
        assert (got - wanted).norm() <= 2 * 3e-3 * wanted.norm()


@pytest.mark.parametrize("keys", [100, 200, 300], ids="keys{}".format)
def test_rows_after_the_last_offset_have_gradients_of_zero(keys: int) -> None:
    query = operands(700)[0]
    key, value = (torch.randn(3, keys, 2, 64).bfloat16().requires_grad_() for _ in range(2))
    output = gdpa.varlen_attention(query, key, value, offsets([200, 0, 399]), None)
    weights = torch.randn_like(output)
    poison = torch.full_like(query, float("nan"))  # the allocator reuses this memory for the gradient
    del poison
    (gradient,) = torch.autograd.grad(output, query, weights)
    assert gradient.isfinite().all()
    assert bool((gradient[599:] == 0).all())


def test_tf32_follows_pytorch() -> None:
    problem = Problem(*(t.detach() for t in operands(300, dtype=torch.float32)), [100, 200], [100, 200])
    weights = torch.randn(300, 2, 64)
    before = torch.get_float32_matmul_precision()
    results = {}
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            tensors = [t.requires_grad_() for t in (problem.query, problem.key, problem.value)]
            output = gdpa.varlen_attention(*tensors, offsets([100, 200]), offsets([100, 200]))
            results[precision] = [output.detach(), *torch.autograd.grad(output, tensors, weights)]
    finally:
        torch.set_float32_matmul_precision(before)
    assert_within_promise(results["highest"], problem, weights)
    for precise, fast in zip(results["highest"], results["high"], strict=True):
        error = (precise - fast).norm() / precise.norm()
        assert 1e-5 < error < 1e-2


def test_compiled_code_and_autocast_reach_the_gpu() -> None:
    tensors, cu_seqlens = operands(dtype=torch.float32), offsets([200, 400])

    @torch.compile(fullgraph=True, dynamic=True)
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return gdpa.varlen_attention(query, key, value, cu_seqlens, cu_seqlens, activation="silu") * 2

    torch.testing.assert_close(
        attend(*tensors), 2 * gdpa.varlen_attention(*tensors, cu_seqlens, cu_seqlens, activation="silu")
    )
    with torch.autocast("cuda", torch.bfloat16):
        assert gdpa.varlen_attention(*tensors, cu_seqlens, cu_seqlens).dtype == torch.bfloat16


def test_flops_can_be_counted_while_a_graph_is_captured() -> None:
    tensors, cu_seqlens = operands(), offsets([200, 0, 1, 399])
    gradients(tensors, cu_seqlens)
    with torch.cuda.graph(torch.cuda.CUDAGraph()), FlopCounterMode(display=False) as counter:
        gradients(tensors, cu_seqlens)
    scores = 2 * 4 * 150 * 150  # heads, sequences, and the mean length of queries and keys
    assert counter.get_total_flops() == 2 * scores * (2 + 5) * 64


def allocated_beyond(before: int) -> int:
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("deterministic", [False, True])
def test_memory_beyond_results_is_the_sums_of_grad_query(deterministic: bool) -> None:
    sums = 1024 * 2 * 64 * 4
    tables = 4096  # a table of 26 tiles of keys, and the semaphores of 42 tiles of queries
    tensors, cu_seqlens = operands(1024), offsets([200, 0, 1, 823])
    bytes_each = tensors[0].numel() * 2
    weights = torch.randn_like(tensors[0])
    gc.collect()
    forward, backward = [], []
    # Memory that is freed during the measurement reduces the result: tensors of other tests, and earlier results that
    # an autograd thread still holds. Therefore the test uses the maximum of several measurements.
    for _ in range(5):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        output = gdpa.varlen_attention(*tensors, cu_seqlens, cu_seqlens, deterministic=deterministic)
        forward.append(allocated_beyond(before))
        before = torch.cuda.memory_allocated()
        results = torch.autograd.grad(output, tensors, weights)
        backward.append(allocated_beyond(before) - 3 * bytes_each)
        del output, results
    assert max(forward) == bytes_each
    assert sums <= max(backward) <= sums + tables


def test_the_dense_function_counts_from_the_upper_left_on_the_gpu_too() -> None:
    lengths_q, lengths_k = [70, 70], [130, 130]
    packed = [torch.randn(2 * n, 2, 64).to(torch.bfloat16) for n in (70, 130, 130)]
    problem = Problem(*packed, lengths_q, lengths_k, activation="silu", window=(-1, 0), upper_left=True)
    weights = torch.randn(140, 2, 64).to(torch.bfloat16)
    leaves = [t.requires_grad_() for t in packed]
    query, key, value = (t.unflatten(0, (2, -1)).transpose(1, 2) for t in leaves)
    output = gdpa.generalized_dot_product_attention(query, key, value, "silu", is_causal=True)
    rows = output.transpose(1, 2).flatten(0, 1)
    assert_within_promise([rows.detach(), *torch.autograd.grad(rows, leaves, weights)], problem, weights)


def test_nested_tensors_go_in_and_come_out() -> None:
    lengths = [60, 1, 130]
    packed = [torch.randn(191, 2, 64).to(torch.bfloat16).requires_grad_() for _ in range(3)]
    nested = [torch.nested.nested_tensor_from_jagged(t, offsets(lengths, torch.int64)).transpose(1, 2) for t in packed]
    output = gdpa.generalized_dot_product_attention(*nested, "silu", deterministic=True)
    expected = gradients(packed, offsets(lengths), activation="silu", deterministic=True)
    rows = output.transpose(1, 2).values()
    assert torch.equal(rows, expected[0])
    for one, other in zip(torch.autograd.grad(rows, packed, torch.ones_like(rows)), expected[1:], strict=True):
        assert torch.equal(one, other)


def test_a_python_function_is_its_expression() -> None:
    tensors, cu_seqlens = operands(), offsets([200, 400])
    expression = "s * sigmoid(b * s) with b = 1.702"
    traced = gradients(
        tensors, cu_seqlens, activation=lambda s, b: s * torch.sigmoid(b * s), params={"b": 1.702}, deterministic=True
    )
    for one, other in zip(
        traced, gradients(tensors, cu_seqlens, activation=expression, deterministic=True), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (lambda t: [x.double() for x in t], TypeError, "bfloat16, float16 or float32 on a GPU"),
        (lambda t: [x[..., :60] for x in t], ValueError, "multiple of 8 up to 256 on a GPU"),
        (lambda t: [t[0], t[1].cpu(), t[2]], TypeError, "move all tensors to one device"),
    ],
)
def test_what_the_gpu_does_not_compute_is_refused(spoil, error, words) -> None:  # type: ignore[no-untyped-def]
    tensors = spoil([t.detach() for t in operands()])
    with pytest.raises(error, match=words):
        gdpa.varlen_attention(*tensors, offsets([600]), offsets([600]))


def test_a_second_process_finds_the_kernels_in_the_cache(tmp_path) -> None:  # type: ignore[no-untyped-def]
    program = (
        "import torch, gdpa\n"
        "t = torch.randn(10, 1, 64, device='cuda', dtype=torch.bfloat16)\n"
        "o = torch.tensor([0, 10], device='cuda')\n"
        "print(gdpa.varlen_attention(t, t, t, o, o, activation='tanh(s) * 0.77').double().sum().item())\n"
    )
    environment = {**os.environ, "GDPA_CACHE_DIR": str(tmp_path)}
    sums = []
    for expected_files in (1, 1):
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert len(list(tmp_path.glob("*.gdpa"))) == expected_files
        sums.append(done.stdout)
        assert done.stderr == ""
