"""The GPU part of the Python benchmark, without a GPU: alternation of systems, rows, reports, and calls of packages."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from bench_cases import by_name, small_case, unpadded
from torch.nn.attention import SDPBackend

from gdpa.bench.cases import Case
from gdpa.bench.counts import kept_scores_of
from gdpa.bench.device import Device, Gpu, Product, Rates, Work, choose
from gdpa.bench.figures import cold_starts
from gdpa.bench.measure import Effort, measure, work_of
from gdpa.bench.progress import Progress
from gdpa.bench.rates import RateReport, columns
from gdpa.bench.report import Figure, Refused
from gdpa.bench.systems import SYSTEMS, Gdpa, Operands, Prepared, SdpaPerSequence
from gdpa.bench.systems.packages import FlashAttention, Hstu, TritonGdpa, first_module
from gdpa.bench.systems.pytorch import Flex, SdpaDense

CPU = torch.device("cpu")
case = partial(small_case, dtype="float32")


# Which device --------------------------------------------------------------------------------------------------------


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> list[torch.device]:
    made: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    return made


def test_the_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pretend_gpus(monkeypatch, 2)
    assert isinstance(choose(None), Gpu)
    assert isinstance(choose("cuda:1"), Gpu)
    assert made == [torch.device("cuda:0"), torch.device("cuda:1")]
    assert type(choose("cpu")) is Device


def test_without_a_gpu_it_is_the_processor_and_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 0)
    assert type(choose(None)) is Device
    for name, words in (("cuda", "one of PyTorch's 0 GPUs"), ("cuda:x", "cpu, cuda or cuda:N"), ("mps", "'mps'")):
        with pytest.raises(ValueError, match=words):
            choose(name)


# Times ---------------------------------------------------------------------------------------------------------------


class Event:
    """A GPU event on a clock that each call moves by two milliseconds."""

    milliseconds = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Event.milliseconds

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


def test_gpu_times_are_those_between_events_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 1)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls: list[str] = []

    def prepare() -> str:
        Event.milliseconds += 50  # time before the call does not count
        calls.append("prepare")
        return "prepared"

    def run(prepared: str) -> None:
        assert prepared == "prepared"
        Event.milliseconds += 2
        calls.append("run")

    times = Gpu(torch.device("cuda:0")).times(Work(run, prepare), 0.02)
    assert times == pytest.approx([0.002] * len(times))
    assert 10 <= len(times) <= 11
    assert calls.count("run") > 3 * len(times)  # the warm-up lasts by the clock on the wall, which this one outruns
    assert calls[:2] == ["prepare", "run"]
    assert len(Gpu(torch.device("cuda:0")).times(Work(run, prepare), 0.0)) == 1


class Pretended(Device):
    """A GPU with calls of duration `seconds_of`. It records the order of the turns."""

    torch_device = CPU
    seconds = 0.9

    def __init__(self, seconds_of: Callable[[Work], float]) -> None:
        self.seconds_of = seconds_of
        self.order: list[str] = []
        self.matrices = Product(Work(lambda _: None), 6e12)

    def describe(self) -> str:
        return "NVIDIA H9000"

    def times(self, work: Work, seconds: float) -> list[float]:
        return self.call_times(work, 1)

    def call_times(self, work: Work, calls: int) -> list[float]:
        assert calls == 1
        if work is self.matrices.work:
            self.order.append("cuBLAS")
            return [0.01]
        result = work.run(work.prepare())
        self.order.append("fwd" if isinstance(result, list) else "bwd")
        return [self.seconds_of(work)]

    def duration(self, seconds: float) -> float:
        return 2 * seconds

    def product(self, dtype: str) -> Product:
        return self.matrices

    def rates(self, dtype: str, product_flops: float | None) -> Rates | None:
        assert product_flops
        return Rates(product_flops, 1e9)

    def release(self) -> None:
        self.order.append("release")


def test_cublas_takes_turns_with_every_figure_in_every_round() -> None:
    device = Pretended(lambda work: 1.0)
    measure(case(), [Gdpa()], ["fwd", "bwd"], Effort(9.0, 3), device)
    assert device.order == ["fwd", "bwd", *["cuBLAS", "fwd", "bwd"] * 3, "release"]


def test_the_forward_before_a_gradient_is_not_timed_and_a_forward_alone_records_nothing() -> None:
    prepared = Gdpa().prepare(case(), Operands.random(case(), CPU))
    work = work_of(prepared, "bwd")
    outputs = work.prepare()
    assert outputs[0].requires_grad
    gradients = work.run(outputs)
    assert isinstance(gradients, tuple) and len(gradients) == 3
    with pytest.raises(RuntimeError, match="second time"):  # these outputs, not others made in the meantime
        work.run(outputs)
    (output,) = work_of(prepared, "fwd").run(None)  # type: ignore[misc]
    assert not output.requires_grad


def test_a_system_that_is_slow_takes_fewer_turns() -> None:
    device = Pretended(lambda work: 1.0)
    measure(case(), [Gdpa()], ["fwd"], Effort(0.4, 3), device)
    assert device.order == ["fwd", "cuBLAS", "fwd", "cuBLAS", "cuBLAS", "release"]


def test_a_row_carries_the_product_of_its_turns_and_the_floor_under_it() -> None:
    row = measure(case(), [Gdpa()], ["fwd"], Effort(1.0, 2), Pretended(lambda work: 0.5)).rows[0]
    assert row.device == "NVIDIA H9000"
    assert row.cublas_tflops == pytest.approx(600.0)
    flops = 4 * 2 * 8 * (7 * 7 + 3 * 3 + 12 * 12)
    moved = 4 * 22 * 2 * 8 * 4
    assert row.tflops == pytest.approx(flops / 0.5 * 1e-12)
    assert row.floor_tflops == pytest.approx(flops / (moved / 1e9) * 1e-12)
    shown = columns([row])
    assert shown["of cuBLAS"](row) == f"{row.tflops / 600:.2f}" and "TFLOP/s" in shown


class OutOfMemory(Gdpa):
    """A system with gradients that do not fit into memory."""

    name = "too large"

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        prepared = super().prepare(case, operands)

        class Failing(Prepared):
            def backward(self, outputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 38 GiB. GPU 0 has more words")

        return Failing(prepared.forward, prepared.inputs, prepared.grad_outputs)


def test_a_direction_that_does_not_fit_is_refused_and_the_other_is_kept() -> None:
    result = measure(
        case(batch_limit=2), [OutOfMemory(), Gdpa()], ["fwd", "bwd"], Effort(1.0, 1), Pretended(lambda work: 1.0)
    )
    assert [(row.system, row.direction, row.ms) for row in result.rows] == [
        ("too large", "fwd", 2000.0), ("gdpa", "fwd", 2000.0), ("gdpa", "bwd", 2000.0),
    ]  # fmt: skip
    reason = "CUDA out of memory. Tried to allocate 38 GiB."
    assert result.refusals == [Refused("too large", "bwd", reason)]


def test_progress_tells_the_time_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = Progress(cases=4, begin=0.0)
    for now in (0.0, 200.0, 230.0):
        progress(0.0, "first call")
        progress(0.5, "round 2")  # not a terminal: one line a case
        now += 30.0 if now else 200.0
        progress.finish_case()
    assert capsys.readouterr().err.splitlines() == [
        "case 1/4",
        "case 2/4, about 10 min left",
        "case 3/4, about 60 s left",  # the first case took 200 s, because it compiled, and the second 30 s
    ]


# The other systems ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timed",
    [
        case(),
        case(mask="causal"),
        case(lengths_k=(9, 9, 9)),
        case(shared_q=True, lengths_q=(4, 4, 4), lengths_k=(6, 6, 6)),
        case(shared_kv=True, lengths_k=(5, 5, 5)),
    ],
)
def test_dense_softmax_is_that_of_one_call_a_sequence(timed: Case) -> None:
    """The gradients also ignore rows after the end of a query."""
    dense = SdpaDense("dense", SDPBackend.MATH)
    if dense.refusal(timed):
        assert "softmax would count the padding" in str(dense.refusal(timed)) and len(set(timed.lengths_k)) > 1
        return
    operands = Operands.random(timed, CPU)
    one_by_one, padded = SdpaPerSequence().prepare(timed, operands), dense.prepare(timed, operands)
    expected, got = one_by_one.forward(), padded.forward()
    torch.testing.assert_close(
        unpadded(got[0].transpose(1, 2), timed.lengths_q), torch.cat([output[0].transpose(0, 1) for output in expected])
    )
    ours = padded.backward(got)
    theirs = torch.autograd.grad(expected, one_by_one.inputs, one_by_one.grad_outputs)
    assert sum(float(gradient.square().sum()) for gradient in ours) == pytest.approx(
        sum(float(gradient.square().sum()) for gradient in theirs), rel=1e-4
    )


def test_operands_of_equal_lengths_are_not_copied_to_be_dense() -> None:
    operands = Operands.random(case(lengths_q=(4, 4, 4)), CPU)
    assert operands.dense.query.data_ptr() == operands.query.data_ptr()
    assert operands.dense.query.shape == (3, 4, 2, 8)
    assert operands.dense.key.shape == (3, 12, 2, 8)


@pytest.mark.parametrize("mask", ["none", "causal", "window:2,1"])
def test_the_block_mask_of_flex_attention_counts_the_scores_of_the_case(mask: str) -> None:
    timed = case(mask=mask, lengths_k=(5, 12, 2))
    block_mask: Any = Flex.block_mask(timed, CPU)
    b, q, k = torch.meshgrid(torch.arange(3), torch.arange(12), torch.arange(12), indexing="ij")
    assert int(block_mask.mask_mod(b, torch.zeros_like(b), q, k).sum()) == kept_scores_of(timed)
    assert Flex.block_mask(case(lengths_q=(4, 4, 4), lengths_k=(6, 6, 6)), CPU) is None


def softmax_of_packed(query, key, value, offsets_q, offsets_k):  # type: ignore[no-untyped-def]
    outputs = []
    for b in range(len(offsets_q) - 1):
        q, k, v = (
            rows[offsets[b] : offsets[b + 1]].transpose(0, 1)
            for rows, offsets in ((query, offsets_q), (key, offsets_k), (value, offsets_k))
        )
        outputs.append((torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v).transpose(0, 1))
    return torch.cat(outputs)


def pretend_module(monkeypatch: pytest.MonkeyPatch, name: str, **functions: object) -> None:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(functions)
    first_module.cache_clear()


@pytest.fixture(autouse=True)
def forget_modules() -> Any:
    first_module.cache_clear()
    yield
    first_module.cache_clear()


def test_flash_attention_gets_packed_rows_where_lengths_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options):  # type: ignore[no-untyped-def]
        asked.append({"longest": (max_seqlen_q, max_seqlen_k), "offsets": cu_seqlens_q.dtype} | options)
        return softmax_of_packed(q, k, v, cu_seqlens_q, cu_seqlens_k), None

    pretend_module(monkeypatch, "flash_attn.cute", flash_attn_varlen_func=flash_attn_varlen_func)
    system = by_name("FlashAttention 4")
    timed = case()
    assert system.refusal(timed) is None
    operands = Operands.random(timed, CPU)
    prepared = system.prepare(timed, operands)
    output = prepared.forward()
    expected = SdpaPerSequence().prepare(timed, operands).forward()
    torch.testing.assert_close(output[0], torch.cat([one[0].transpose(0, 1) for one in expected]))
    assert len(prepared.backward(output)) == 3
    assert asked == [{"longest": (12, 12), "offsets": torch.int32, "window_size": (None, None)}]
    system.prepare(case(mask="window:3,-1"), operands).forward()
    system.prepare(case(mask="causal"), operands).forward()
    assert [options.get("window_size") for options in asked[1:]] == [(3, None), None] and asked[2]["causal"] is True


def test_flash_attention_2_is_refused_if_only_flash_attention_4_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_module(monkeypatch, "flash_attn.cute", flash_attn_varlen_func=print)
    assert by_name("FlashAttention 4").refusal(case()) is None
    assert "flash_attn has no flash_attn_varlen_func" in str(by_name("FlashAttention 2").refusal(case()))


def test_a_module_of_another_package_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_module(monkeypatch, "hstu")
    assert "hstu has no hstu_attn_varlen_func" in str(Hstu().refusal(case()))
    pretend_module(monkeypatch, "hstu_attn", hstu_attn_varlen_func=print)
    assert Hstu().refusal(case()) is None and Hstu().module().__name__ == "hstu_attn"


def test_flash_attention_gets_dense_operands_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[torch.Size] = []

    def flash_attn_func(q, k, v, window_size):  # type: ignore[no-untyped-def]
        assert window_size == (-1, -1)
        shapes.append(q.shape)
        return q * 2

    pretend_module(monkeypatch, "flash_attn_interface", flash_attn_func=flash_attn_func, flash_attn_varlen_func=print)
    timed = case(lengths_q=(4, 4, 4), lengths_k=(6, 6, 6))
    prepared = by_name("FlashAttention 3").prepare(timed, Operands.random(timed, CPU))
    assert prepared.forward()[0].shape == shapes[0] == prepared.grad_outputs[0].shape == (3, 4, 2, 8)


def test_hstu_gets_what_its_version_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def hstu_attn_varlen_func(
        q, k, v, cu_q, cu_k, max_seqlen_q, max_seqlen_k, scaling_seqlen, num_contexts, num_targets, window_size, alpha
    ):  # type: ignore[no-untyped-def]
        asked.update(scaling_seqlen=scaling_seqlen, alpha=alpha, window_size=window_size)
        return q.clone()

    pretend_module(monkeypatch, "hstu", hstu_attn_varlen_func=hstu_attn_varlen_func)
    timed = case()
    assert Hstu().refusal(timed) is None
    Hstu().prepare(timed, Operands.random(timed, CPU)).forward()
    assert asked == {"scaling_seqlen": 12, "alpha": 8**-0.5, "window_size": (-1, -1)}
    assert Hstu().refusal(case(shared_kv=True, lengths_k=(5, 5, 5)))
    assert Hstu().refusal(case(mask="causal", lengths_k=(5, 5, 5)))


def test_triton_gdpa_gets_its_own_name_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def generalized_dot_product_attention(query, key, value, **options):  # type: ignore[no-untyped-def]
        asked.update(options)
        return query.clone()

    functions = {"generalized_dot_product_attention": generalized_dot_product_attention, "tl": None}
    pretend_module(monkeypatch, TritonGdpa.modules[1], **functions)
    timed = case(activation="gelu_tanh")
    assert TritonGdpa().refusal(timed) is None
    TritonGdpa().prepare(timed, Operands.random(timed, CPU)).forward()
    assert asked["activation"] == "fast_gelu" and asked["max_seq_len_kv"] == 12
    assert "object" in vars(sys.modules[TritonGdpa.modules[1]]), "Triton looks up the annotations of its backward"
    assert "none of its functions" in str(TritonGdpa().refusal(case(activation="sin(s)")))
    assert TritonGdpa().refusal(case(mask="causal", activation="relu"))


def test_a_package_that_is_missing_or_broken_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for system in SYSTEMS:
        if isinstance(system, (FlashAttention, Hstu, TritonGdpa)):
            assert "no module named" in str(system.refusal(case(activation="relu"))), system.name
    monkeypatch.setattr(
        "importlib.import_module", lambda name: (_ for _ in ()).throw(ImportError("undefined symbol: x"))
    )
    first_module.cache_clear()
    assert "hstu: ImportError: undefined symbol: x" in str(Hstu().refusal(case()))


# Figures and reports -------------------------------------------------------------------------------------------------


def test_a_cold_start_that_fails_is_a_figure_without_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = cold_starts(Pretended(lambda work: 1.0), rounds=1)
    assert len(found) == 2 and all(figure.measured is None and not figure.reached for figure in found)


def test_a_report_is_a_document_tables_and_a_picture(tmp_path: Path) -> None:
    device = Pretended(lambda work: 1.0)
    rows = measure(case(lengths_q=(4, 4), lengths_k=(4, 4)), [Gdpa()], ["fwd", "bwd"], Effort(1.0, 1), device).rows
    report = RateReport(
        "figures", "NVIDIA H9000", "2.11", "abc", "3 rounds", [replace(row, tflops=330.0) for row in rows],
        [Refused("HSTU", "fwd", "no module named hstu")], [Figure("speed", 1.5, 1.2, "x")],
    )  # fmt: skip
    written = report.write(tmp_path / "new")
    assert [path.name for path in written] == ["figures-h9000.json", "figures-h9000.md", "figures-h9000.png"]
    document = json.loads(written[0].read_text())
    assert len(document["rows"]) == 2 and document["rows"][0]["cublas_tflops"] == pytest.approx(600)
    assert document["figures"][0]["reached"] is True
    (refused,) = document["not_run"]
    assert refused == {"system": "HSTU", "direction": "fwd", "reason": "no module named hstu", "shape": None}
    text = written[1].read_text()
    assert "330.0 (0.55)" in text and "- HSTU, fwd: no module named hstu" in text
    assert "| speed | x | 1.5 | at least 1.2 | yes |" in text
    assert "](figures-h9000.png)" in text
    assert written[2].read_bytes().startswith(b"\x89PNG")
