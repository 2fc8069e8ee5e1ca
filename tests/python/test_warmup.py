"""Compiling ahead from Python: the kernels of each call, without computing anything. Needs NVRTC and no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import gdpa
from gdpa._compilation import no_progress
from gdpa._warmup import Record


@pytest.fixture(scope="module", autouse=True)
def has_nvrtc() -> None:
    try:
        gdpa.warmup(gdpa.varlen_attention, *problem(), backward=False, architecture="sm_80")
    except RuntimeError as error:
        if "expected NVRTC" not in str(error):
            raise
        pytest.skip(str(error))


def problem(dtype: torch.dtype = torch.bfloat16, head_dim: int = 32) -> tuple[torch.Tensor, ...]:
    rows = torch.ones(3, 2, head_dim, dtype=dtype)
    cu = torch.tensor([0, 1, 3])
    return rows, rows, rows, cu, cu


def test_names_the_kernels_of_both_directions() -> None:
    kernels = gdpa.warmup(gdpa.varlen_attention, *problem(), activation="silu", architecture="sm_90a", lengths="these")
    passes = ["key_schedule", "backward"] * 2  # without the bounds that few scores need, and with them
    assert [kernel.name.split()[1] for kernel in kernels] == ["forward", *passes]
    assert {kernel.architecture for kernel in kernels} == {"sm_90a"}
    assert all(kernel.seconds > 0 for kernel in kernels)


@pytest.mark.long
def test_covers_calls_with_other_lengths() -> None:
    def kernels_of(rows: int, sequences: int, lengths: str) -> list[gdpa.CompiledKernel]:
        packed = torch.ones(rows, 2, 32, dtype=torch.bfloat16)
        cu = torch.linspace(0, rows, sequences + 1).int()
        return gdpa.warmup(
            gdpa.varlen_attention, packed, packed, packed, cu, cu, activation="0.5 * s", architecture="sm_90a",
            lengths=lengths,
        )  # fmt: skip

    ahead = {kernel.name for kernel in kernels_of(3, 2, "any")}
    for rows, sequences in ((3, 2), (300, 2), (5000, 5), (4000, 1)):
        for kernel in kernels_of(rows, sequences, "these"):
            assert kernel.name in ahead
            assert kernel.was_cached


def test_in_the_background_gives_the_same_kernels_and_a_count() -> None:
    options: dict[str, Any] = {"activation": "s * s + 1", "architecture": "sm_80", "lengths": "these"}
    warm = gdpa.warmup(gdpa.varlen_attention, *problem(), **options, background=True)
    kernels = warm.result()
    assert warm.done()
    assert len(kernels) > 1 and warm.progress == (len(kernels), len(kernels))
    again = gdpa.warmup(gdpa.varlen_attention, *problem(), **options)
    assert [kernel.name for kernel in again] == [kernel.name for kernel in kernels]
    assert all(kernel.was_cached for kernel in again)


@pytest.mark.long
def test_in_the_background_lets_other_threads_run_and_can_be_waited_for(tmp_path: Path) -> None:
    program = (
        "import torch, gdpa; rows = torch.ones(2, 1, 32, dtype=torch.bfloat16); cu = torch.tensor([0, 2]);"
        "warm = gdpa.warmup(gdpa.varlen_attention, rows, rows, rows, cu, cu, architecture='sm_90a', background=True);"
        "turns = 0\n"
        "while not warm.done(): turns += 1\n"
        "assert turns > 1000, turns\n"
        "assert len(warm.result(timeout=0)) == warm.progress.total > 5\n"
    )
    environment = os.environ | {"GDPA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=300)


def test_in_the_background_raises_from_result() -> None:
    warm = gdpa.warmup(gdpa.varlen_attention, *problem(head_dim=20), architecture="sm_90a", background=True)
    with pytest.raises(ValueError, match="multiple of 8"):
        warm.result()


def run_program(program: str, cache: Path) -> str:
    """Runs a program in another process, with the kernel cache in the folder `cache`, and returns its output."""
    operands = "import torch, gdpa; rows = torch.ones(2, 1, 32, dtype=torch.bfloat16); cu = torch.tensor([0, 2])\n"
    run = subprocess.run(
        [sys.executable, "-c", operands + program],
        env=os.environ | {"GDPA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout.strip()


def test_says_when_the_kernels_are_not_there_in_time_and_a_program_ends_while_they_are_compiled(tmp_path: Path) -> None:
    program = (
        "warm = gdpa.warmup(gdpa.varlen_attention, rows, rows, rows, cu, cu, architecture='sm_90a', background=True)\n"
        "try: warm.result(timeout=0.001)\n"
        "except TimeoutError as error: print(error)\n"
        "print(warm.done())"
    )
    said, is_done = run_program(program, tmp_path).splitlines()
    assert "expected the kernels within 0.001 s" in said
    assert is_done == "False"


def test_the_kernels_of_backward_can_be_compiled_alone() -> None:
    with Record() as record:
        gdpa.varlen_attention(*problem(), activation="s * s + 2")
    kernels = gdpa.Warmup(record.problems, ("backward", "sm_90a", "these"), record.wanted).result()
    assert {kernel.name.split()[1] for kernel in kernels} == {"key_schedule", "backward"}


@pytest.mark.parametrize(
    ("requires_grad", "missing"),
    [((False, False, False), []), ((False, True, True), ["dQ"]), ((False, False, True), ["dQ", "dK"])],
)
def test_the_kernels_are_those_of_the_gradients_that_the_operands_require(
    requires_grad: tuple[bool, ...], missing: list[str]
) -> None:
    *operands, cu_q, cu_k = problem()
    operands = [operand.clone().requires_grad_(one) for operand, one in zip(operands, requires_grad, strict=True)]
    kernels = gdpa.warmup(
        gdpa.varlen_attention, *operands, cu_q, cu_k, activation="s", architecture="sm_90a", lengths="these"
    )
    (backward,) = (kernel.name for kernel in kernels if kernel.name.split()[1] == "backward")
    assert [name for name in ("dQ", "dK", "dV") if f"without {name}" in backward] == missing


@pytest.mark.parametrize(
    ("required", "wanted"),
    [
        ("", (True, True, True, 0, False)),
        ("key", (False, True, False, 0, False)),
        ("table", (False, False, False, 0b10, False)),
        ("out_scale", (False, False, False, 0, True)),
    ],
)
def test_the_gradients_are_those_that_operands_and_tensors_of_the_call_require(
    required: str, wanted: tuple[bool, bool, bool, int, bool]
) -> None:
    *operands, cu_q, cu_k = problem()
    tensors = {
        **dict(zip(("query", "key", "value"), (operand.clone() for operand in operands), strict=True)),
        "a": torch.ones(()),
        "table": torch.ones(9),
        "out_scale": torch.ones(operands[0].shape[0], 1),
    }
    if required:
        tensors[required].requires_grad_()
    params, out_scale = {name: tensors.pop(name) for name in ("a", "table")}, tensors.pop("out_scale")
    options = {"activation": "a * s + table[abs(q_idx - kv_idx)]", "params": params, "out_scale": out_scale}
    with Record() as record:
        gdpa.varlen_attention(*tensors.values(), cu_q, cu_k, **options)
    assert record.wanted == [wanted]


def test_calls_on_the_cpu_start_no_thread() -> None:
    rows, _, _, cu, _ = problem(torch.float32)
    operand = rows.requires_grad_()
    before = threading.active_count()
    gdpa.varlen_attention(operand, operand, operand, cu, cu, activation="s * s + 3").sum().backward()
    assert threading.active_count() == before


def test_refuses_unknown_lengths() -> None:
    with pytest.raises(ValueError, match='lengths: expected one of "any", "these", got "short"'):
        gdpa.warmup(gdpa.varlen_attention, *problem(), architecture="sm_90a", lengths="short")  # type: ignore[call-overload]


@pytest.mark.long
def test_finds_them_in_the_cache_the_second_time_in_another_process(tmp_path: Path) -> None:
    program = (
        "x = rows.float()\n"
        "kernels = gdpa.warmup(gdpa.varlen_attention, x, x, x, cu, cu, backward=False, architecture='sm_80')\n"
        "print([kernel.was_cached for kernel in kernels])"
    )
    assert run_program(program, tmp_path) == "[False]"
    assert run_program(program, tmp_path) == "[True]"


def test_takes_the_layout_of_scaled_dot_product_attention() -> None:
    dense = torch.ones(2, 4, 7, 16, dtype=torch.float16)
    kernels = gdpa.warmup(
        gdpa.generalized_dot_product_attention, dense, dense, dense, "silu", backward=False, architecture="sm_80"
    )
    assert {kernel.name.split()[1] for kernel in kernels} == {"forward"}


def test_takes_a_module_that_calls_gdpa_and_gives_it_zeros() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(32, 32, dtype=torch.bfloat16)
            self.seen: torch.Tensor | None = None

        def forward(self, x: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
            x = self.project(x)
            self.seen = gdpa.varlen_attention(x, x, x, cu, cu)
            return x + self.seen

    block = Block()
    rows, _, _, cu, _ = problem()
    kernels = gdpa.warmup(block, rows, cu, backward=False, architecture="sm_80")
    assert {kernel.name.split()[1] for kernel in kernels} == {"forward"}
    assert block.seen is not None and block.seen.shape == rows.shape and not block.seen.any()


def test_a_python_function_and_its_expression_share_a_kernel() -> None:
    def swish(s: torch.Tensor, b: float) -> torch.Tensor:
        return s * torch.sigmoid(b * s)

    for activation in (swish, "s * sigmoid(b * s)"):
        kernels = gdpa.warmup(
            gdpa.varlen_attention, *problem(), activation=activation, params={"b": 1.702}, backward=False,
            architecture="sm_80",
        )  # fmt: skip
    assert kernels[0].was_cached


def test_on_the_cpu_there_is_nothing_to_compile() -> None:
    assert gdpa.warmup(gdpa.varlen_attention, *problem(torch.float64, 5)) == []


def test_refuses_what_the_call_would_refuse() -> None:
    with pytest.raises(TypeError, match="float64"):
        gdpa.warmup(gdpa.varlen_attention, *problem(torch.float64), architecture="sm_90a")
    with pytest.raises(ValueError, match="multiple of 8"):
        gdpa.warmup(gdpa.varlen_attention, *problem(head_dim=20), architecture="sm_90a")
    with pytest.raises(ValueError, match=r'architecture: expected one of sm_80, .*, got "sm_70"'):
        gdpa.warmup(gdpa.varlen_attention, *problem(), architecture="sm_70")
    with pytest.raises(ValueError, match="sigmod"):
        gdpa.warmup(gdpa.varlen_attention, *problem(), activation="sigmod(s)", architecture="sm_90a")


def test_calls_compute_again_afterwards() -> None:
    rows, _, _, cu, _ = problem(torch.float32)
    gdpa.warmup(gdpa.varlen_attention, rows, rows, rows, cu, cu, backward=False, architecture="sm_80")
    assert gdpa.varlen_attention(rows, rows, rows, cu, cu, activation="s").any()


def test_does_not_depend_on_the_default_device_of_torch() -> None:
    """The compiler counts in memory of the host, also where new tensors are made on another device."""
    with torch.device("meta"):
        assert no_progress().device.type == "cpu"
