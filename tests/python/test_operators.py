"""PyTorch's requirements of an operator in addition to its results: opcheck, fake tensors, autocast, FLOPs, threads."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from reference import offsets
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import gdpa

FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Tensor | None, Tensor | None, Tensor | None]] = {
    "jagged": ((7, 4, 8), (9, 2, 8), offsets([3, 0, 4]), offsets([2, 3, 4]), None),
    "shared query": ((4, 4, 8), (9, 2, 8), None, offsets([2, 3, 4]), None),
    "shared key": ((7, 4, 8), (5, 2, 8), offsets([3, 0, 4]), None, None),
    "dense": ((3, 5, 4, 8), (3, 6, 2, 8), None, None, None),
    "gaps": (
        (9, 4, 8),
        (9, 2, 8),
        torch.tensor([[6, 9], [0, 1], [2, 5]]),
        torch.tensor([[0, 4], [2, 6], [8, 8]]),
        None,
    ),
    "batch map": ((7, 4, 8), (2, 6, 2, 8), offsets([3, 0, 4]), None, torch.tensor([1, 0, 1])),
    "shared query and batch map": ((4, 4, 8), (5, 2, 8), None, offsets([2, 3]), torch.tensor([1, 1, 1])),
    "shared query and output offsets": ((4, 4, 8), (9, 2, 8), None, offsets([2, 3, 4]), None),
    "output offsets": ((7, 4, 8), (9, 2, 8), offsets([3, 0, 4]), offsets([2, 3, 4]), None),
}
#: output_offsets and output_rows. -1: as many rows as without output_offsets.
OUTPUTS = {
    "shared query and output offsets": (torch.tensor([8, 0, 4]), -1),
    "output offsets": (torch.tensor([8, 0, 1]), 14),
}


def problem(form: str, requires_grad: bool) -> tuple[Any, ...]:
    shape_q, shape_k, *layout = FORMS[form]
    operands = [torch.randn(shape, requires_grad=requires_grad) for shape in (shape_q, shape_k, shape_k)]
    per_batch = torch.rand(3)
    output_offsets, output_rows = OUTPUTS.get(form, (None, -1))
    options = ("gelu", (), 0.5, 1.0, "number", per_batch, -1, 2, "bottom_right")
    further = None, (), None, True, "fast", False, False, False
    return (*operands, (), *layout, None, None, output_offsets, *options, *further, output_rows, True)


@pytest.mark.parametrize("form", FORMS)
def test_opcheck_passes_for_the_forward(form: str) -> None:
    torch.library.opcheck(torch.ops.gdpa.forward.default, problem(form, requires_grad=True))


@pytest.mark.parametrize("form", FORMS)
def test_opcheck_passes_for_tensors_of_the_call(form: str) -> None:
    query, key, value, _, *rest = problem(form, requires_grad=True)
    place = next(n for n, one in enumerate(rest) if isinstance(one, str))  # of the activation
    layout, options = rest[:place], rest[place + 2 :]
    heads = query.shape[-2]
    shapes = {"a": (heads,), "table": (heads, 4), "bucket": (5,)}
    parameters = [torch.rand(shape, requires_grad=True) for shape in shapes.values()]
    parameters[1] = parameters[1].detach().double().requires_grad_()  # so all gradients of tensors are float64
    parameters[2] = torch.randint(4, (5,))
    function = "a * silu(s + table[head, bucket[abs(q_idx - kv_idx)]])", tuple(shapes)
    arguments = (query, key, value, parameters, *layout, *function, *options)
    torch.library.opcheck(torch.ops.gdpa.forward.default, arguments)
    with torch.no_grad():
        grad_output = torch.randn_like(torch.ops.gdpa.forward(*arguments))
        for wanted in ((True, True, True, 0b11), (False, False, False, 0b10), (True, False, True, 0b01)):
            detached = [tensor.detach() for tensor in parameters]
            operands = [tensor.detach() for tensor in (query, key, value)]
            torch.library.opcheck(
                torch.ops.gdpa.backward.default,
                (grad_output, *operands, detached, *layout, *function, *options, *wanted),
            )


@pytest.mark.parametrize("form", FORMS)
def test_opcheck_passes_for_the_backward(form: str) -> None:
    arguments = problem(form, requires_grad=False)
    grad_output = torch.randn_like(torch.ops.gdpa.forward(*arguments))
    torch.library.opcheck(torch.ops.gdpa.backward.default, (grad_output, *arguments))


WANTED = [(True, False, False), (False, True, True), (False, False, True)]


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_opcheck_passes_for_the_backward_of_some_gradients(wanted: tuple[bool, ...]) -> None:
    arguments = problem("jagged", requires_grad=False)
    grad_output = torch.randn_like(torch.ops.gdpa.forward(*arguments))
    torch.library.opcheck(torch.ops.gdpa.backward.default, (grad_output, *arguments, *wanted))


@pytest.mark.parametrize("form", FORMS)
def test_a_fake_result_has_the_metadata_of_a_real_one(form: str) -> None:
    arguments = problem(form, requires_grad=False)
    real = torch.ops.gdpa.forward(*arguments)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.ops.gdpa.forward(*(a.clone() if isinstance(a, Tensor) else a for a in arguments))
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


BIAS, BF16 = (3, 4, 6, 6), torch.bfloat16


@pytest.mark.parametrize(
    ("device", "shapes", "dtype", "wanted", "expected"),
    [
        ("cuda", [BIAS], BF16, 0b1, BF16),
        ("cuda", [BIAS], torch.float16, 0b1, torch.float16),
        ("cuda", [BIAS], torch.float32, 0b1, torch.float32),
        ("cpu", [BIAS], BF16, 0b1, torch.float32),
        ("cpu", [BIAS], torch.float64, 0b1, torch.float64),
        ("cuda", [(4, 6), BIAS], BF16, 0b01, BF16),
        ("cuda", [BIAS, BIAS], BF16, 0b11, BF16),
    ],
)
def test_fake_gradients_of_tensors_have_the_dtype_of_the_operator(
    device: str, shapes: list[tuple[int, ...]], dtype: torch.dtype, wanted: int, expected: torch.dtype
) -> None:
    query, key, value, _, *rest = problem("dense", requires_grad=False)
    with FakeTensorMode(allow_non_fake_inputs=True):
        operands = [torch.empty(one.shape, dtype=BF16, device=device) for one in (query, key, value)]
        parameters = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        rest = [torch.empty(one.shape, device=device) if isinstance(one, Tensor) else one for one in rest]
        arguments = (torch.empty_like(operands[0]), *operands, parameters, *rest, False, False, False, wanted)
        *_, gradients, _ = torch.ops.gdpa.backward.default(*arguments)
        of_each = gdpa._operators.split_gradients(gradients, parameters, wanted)
    assert gradients.dtype == expected
    for n, (gradient, parameter) in enumerate(zip(of_each, parameters, strict=True)):
        assert (gradient is not None) == bool(wanted >> n & 1)
        if gradient is not None:
            assert (gradient.shape, gradient.dtype) == (parameter.shape, dtype)


def jagged(requires_grad: bool = False) -> tuple[Tensor, Tensor]:
    return torch.randn(7, 2, 8, requires_grad=requires_grad), offsets([3, 4])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_computes_in_its_type_and_gradients_keep_theirs(dtype: torch.dtype) -> None:
    query, cu = jagged(requires_grad=True)
    with torch.autocast("cpu", dtype):
        output = gdpa.varlen_attention(query, query, query, cu, cu)
    assert output.dtype == dtype
    low = query.detach().to(dtype)
    assert torch.equal(output, gdpa.varlen_attention(low, low, low, cu, cu))
    output.sum().backward()
    assert query.grad is not None
    assert query.grad.dtype == torch.float32


def test_autocast_leaves_fp64_alone_and_can_be_switched_off() -> None:
    query, cu = jagged()
    with torch.autocast("cpu", torch.bfloat16):
        assert gdpa.varlen_attention(*[query.double()] * 3, cu, cu).dtype == torch.float64
        with torch.autocast("cpu", enabled=False):
            assert gdpa.varlen_attention(query, query, query, cu, cu).dtype == torch.float32


class Asked(TorchDispatchMode):
    """Notes the argument `deterministic` of each forward and backward operator."""

    def __init__(self) -> None:
        super().__init__()
        self.deterministic: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "gdpa":
            names = [argument.name for argument in func._schema.arguments]
            self.deterministic.append(args[names.index("deterministic")])
        return func(*args, **(kwargs or {}))


@pytest.fixture
def deterministic_algorithms() -> Iterator[Callable[..., None]]:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic_algorithms_of_torch_imply_deterministic(
    warn_only: bool, deterministic_algorithms: Callable[..., None]
) -> None:
    query, cu = jagged(requires_grad=True)
    for mode, deterministic in ((False, False), (True, False), (False, True)):
        deterministic_algorithms(mode, warn_only=warn_only)
        with Asked() as asked, warnings.catch_warnings():
            warnings.simplefilter("error")
            gdpa.varlen_attention(query, query, query, cu, cu, deterministic=deterministic).sum().backward()
        assert asked.deterministic == [mode or deterministic] * 2


def test_compiled_code_follows_deterministic_algorithms(deterministic_algorithms: Callable[..., None]) -> None:
    asked = []
    names = [argument.name for argument in torch.ops.gdpa.forward.default._schema.arguments]
    place = names.index("deterministic")

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        asked.extend(node.args[place] for node in graph.graph.nodes if "gdpa" in str(node.target))
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda query, cu: gdpa.varlen_attention(query, query, query, cu, cu), fullgraph=True, backend=backend
    )
    query, cu = jagged()
    for mode in (False, True):
        deterministic_algorithms(mode)
        compiled(query, cu)
    assert asked == [False, True]


def counted(call: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def test_flops_of_a_jagged_batch_are_those_of_its_sequences() -> None:
    lengths_q, lengths_k, heads, head_dim, head_dim_v = [3, 0, 10], [4, 5, 2], 4, 8, 16
    query = torch.randn(13, heads, head_dim, requires_grad=True)
    key = torch.randn(11, 2, head_dim, requires_grad=True)
    value = torch.randn(11, 2, head_dim_v, requires_grad=True)
    scores = heads * sum(q * k for q, k in zip(lengths_q, lengths_k, strict=True))

    def attend() -> Tensor:
        return gdpa.varlen_attention(query, key, value, offsets(lengths_q), offsets(lengths_k), enable_gqa=True)

    forward = 2 * scores * (head_dim + head_dim_v)
    backward = 2 * scores * (3 * head_dim + 2 * head_dim_v)  # S again, dS K, dS^T Q; dO V^T, P^T dO
    assert counted(attend) == forward
    assert counted(lambda: attend().sum().backward()) == forward + backward


def test_flops_leave_out_what_the_mask_leaves_out() -> None:
    query, cu = jagged()
    causal = counted(lambda: gdpa.varlen_attention(query, query, query, cu, cu, window_size=(-1, 0)))
    assert causal == 2 * 2 * (6 + 10) * (8 + 8)


def test_flops_of_fake_tensors_take_all_lengths_as_equal() -> None:
    query, _ = jagged()
    with FakeTensorMode() as mode:
        fake, cu = mode.from_tensor(query), mode.from_tensor(offsets([3, 4]))
        assert counted(lambda: gdpa.varlen_attention(fake, fake, fake, cu, cu)) == 2 * 2 * (2 * 3.5 * 3.5) * (8 + 8)


@pytest.mark.parametrize("is_fake", [False, True], ids=["real", "fake"])
@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_flops_of_backward_are_those_of_the_wanted_gradients(wanted: tuple[bool, ...], is_fake: bool) -> None:
    shape_q, shape_k, *_ = FORMS["dense"]
    shapes = shape_q, shape_k, (*shape_k[:-1], 16)
    wants_query, wants_key, wants_value = wanted
    scores = 3 * 4 * 5 * 6
    # S again, and dS K and dS^T Q; dO V^T for dS, and P^T dO.
    products = (1 + wants_query + wants_key) * 8 + ((wants_query or wants_key) + wants_value) * 16
    with FakeTensorMode() if is_fake else nullcontext():
        operands = [torch.randn(shape).requires_grad_(one) for shape, one in zip(shapes, wanted, strict=True)]
        output = gdpa.varlen_attention(*operands, None, None, enable_gqa=True)
        assert counted(output.sum().backward) == 2 * scores * products


@pytest.mark.parametrize("is_fake", [False, True], ids=["real", "fake"])
def test_flops_of_the_gradient_of_a_tensor_are_those_of_the_scores_and_their_gradient(is_fake: bool) -> None:
    with FakeTensorMode() if is_fake else nullcontext():
        query, key, value = torch.randn(3, 5, 4, 8), torch.randn(3, 6, 4, 8), torch.randn(3, 6, 4, 16)
        table = torch.randn(4, 6, requires_grad=True)
        output = gdpa.varlen_attention(
            query, key, value, None, None, activation="s + table[head, kv_idx]", params={"table": table}
        )
        assert counted(output.sum().backward) == 2 * 3 * 4 * 5 * 6 * (8 + 16)  # S again, and dO V^T


def test_threads_may_call_at_the_same_time() -> None:
    def attend(seed: int) -> list[Tensor]:
        query = torch.randn(50, 2, 16, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        cu = offsets([20, 30])
        output = gdpa.varlen_attention(query, query, query, cu, cu, activation=f"s * sigmoid({1 + seed % 5} * s)")
        return [output.detach(), *torch.autograd.grad(output.sum(), query)]

    alone = [attend(seed) for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(attend, range(40)))
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_many_calls_do_not_grow_the_process() -> None:
    query, cu = jagged()

    def resident_kib() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    text = "s * sigmoid(1.702 * s) + 0 * s + 0 * s + 0 * s"
    for _ in range(10_000):
        gdpa.varlen_attention(query, query, query, cu, cu, activation=text)
    before = resident_kib()
    for _ in range(50_000):
        gdpa.varlen_attention(query, query, query, cu, cu, activation=text)
    assert resident_kib() - before < 2048


def test_a_module_that_holds_an_activation_can_be_copied() -> None:
    activation = gdpa.Activation("a * s", {"a": 2.0})
    assert copy.deepcopy(activation) == activation
    assert hash(copy.deepcopy(activation)) == hash(activation)
