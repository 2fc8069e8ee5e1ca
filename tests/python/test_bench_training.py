"""The suite training: every attention computes the right results, and the report has its goals and parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from bench_cases import by_name, fields
from torch import Tensor

from gdpa.bench import __main__ as bench
from gdpa.bench.cases import Case
from gdpa.bench.device import Device, Product, Work
from gdpa.bench.measure import Effort, Result
from gdpa.bench.systems import SYSTEMS, Gdpa, Padded, System, choose_systems
from gdpa.bench.systems.base import Attend
from gdpa.bench.training import attentions, trainer
from gdpa.bench.training.attentions import Attention, OnMlp, PaddedSoftmax, attends, refusal_of_model, use
from gdpa.bench.training.breakdown import GAPS, PARTS, breakdown, idle, part_of, summed
from gdpa.bench.training.model_step import TrainingRow, flops_of_step, measure_model, shape_that_fits, trainer_of
from gdpa.bench.training.models import MODELS, ModelShape, build, inputs_of, shapes_of
from gdpa.bench.training.suite import TrainingReport

CPU = torch.device("cpu")
QUICK = Effort(seconds=0.0, rounds=1)


def small(model: str, **changes: object) -> ModelShape:
    return replace(ModelShape(model, 2, batch=3, max_length=9, heads=2, head_dim=8, dtype="float64"), **changes)


def measure(
    shape: ModelShape,
    *systems: System,
    limit: float = 0.0,
    compile: bool = False,
    device: Device | None = None,
) -> tuple[list[TrainingRow], Result]:
    result = measure_model(shape, systems, compile, limit, QUICK, device or Device(), lambda done, text: None)
    return result.rows, result


# The attention of other systems --------------------------------------------------------------------------------------


FUNCTIONS = {"identity": lambda s: s, "silu": F.silu, "gelu_tanh": partial(F.gelu, approximate="tanh")}


class OneByOne(System):
    """A packed system: P = function(scale * Q K^T) * factor in each sequence, with the mask of the case."""

    def __init__(self, function: str | None, scale: float | None, factor: float) -> None:
        self.name = "one by one"
        self.function = function
        self.scale, self.factor = scale, factor

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        scale = case.head_dim**-0.5 if self.scale is None else self.scale
        left, right = case.window

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            outputs = []
            for q, k, v in zip(
                query.split(case.lengths_q), key.split(case.lengths_k), value.split(case.lengths_k), strict=True
            ):
                scores = scale * torch.einsum("ihd,jhd->hij", q, k)
                distance = torch.arange(len(q))[:, None] - torch.arange(len(k))
                inside = (distance <= (left if left >= 0 else 9999)) & (distance >= -(right if right >= 0 else 9999))
                if self.function == "softmax":
                    p = scores.masked_fill(~inside, -torch.inf).softmax(-1)
                else:
                    p = FUNCTIONS[case.activation](scores) * inside * self.factor
                outputs.append(torch.einsum("hij,jhd->ihd", p, v))
            return torch.cat(outputs)

        return attend


def results(system: System, shape: ModelShape) -> dict[str, Tensor]:
    return trainer_of(system, shape, CPU).results()


@pytest.mark.parametrize("model", MODELS)
def test_padded_attention_computes_what_gdpa_computes(model: str) -> None:
    shape = small(model)
    ours, padded = results(Gdpa(), shape), results(Padded(), shape)
    assert {"output 0", "gradient of the rows", "gradient of the weights"} <= set(ours)
    torch.testing.assert_close(padded, ours)


@pytest.mark.parametrize("model", MODELS)
def test_packed_systems_with_their_own_scales_compute_what_gdpa_computes(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meta's function has no scale, and HSTU's divides by the longest length."""

    class Meta(OneByOne):
        pass

    monkeypatch.setattr(attentions, "TritonGdpa", Meta)
    shape = small(model)
    ours = results(Gdpa(), shape)
    torch.testing.assert_close(results(Meta(None, 1.0, 1.0), shape), ours)
    longest = max(shape.lengths_of_attention)
    if model == "hstu":  # where all calls are silu of keys of one length
        torch.testing.assert_close(results(OneByOne("silu", None, 1 / longest), shape), ours)


@pytest.mark.parametrize("model", MODELS)
def test_a_block_that_sees_one_sequence_at_a_time_has_the_same_output(model: str) -> None:
    """A model mixes no rows of different sequences."""
    shape = small(model)
    whole, (features, rows, offsets) = build(shape, CPU), inputs_of(shape, shape.lengths, CPU)
    (output, *_) = as_tuple(whole(features, rows, offsets))
    begin, end = int(offsets[1]), int(offsets[2])
    (one, *_) = as_tuple(whole(features[1:2], rows[begin:end], torch.tensor([0, end - begin])))
    torch.testing.assert_close(one, output[begin:end] if model in ("block", "hstu") else output[1:2])


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def test_the_mlp_of_a_softmax_block_has_the_weights_of_the_ffn() -> None:
    shape = small("block")
    model = use(OneByOne("softmax", None, 1.0), build(shape, CPU), shape, CPU)
    attention, ffn = model.layers[0], model.layers[1]
    assert isinstance(attention.attend, Attention) and isinstance(ffn.attend, OnMlp)
    rows = torch.randn(5, shape.width, dtype=torch.float64)
    hidden = F.gelu(rows @ ffn.key.flatten(1).T, approximate="tanh")
    expected = rows + hidden @ ffn.value.flatten(1)
    torch.testing.assert_close(ffn(rows, cu_seqlens=torch.tensor([0, 5])), expected)


@pytest.mark.parametrize("model", ["interformer", "kunlun"])
def test_softmax_on_padded_operands_is_softmax_of_each_sequence(model: str) -> None:
    """The padded softmax takes the place of the PFFN and the pooling that FlexAttention refuses."""
    shape = small(model)
    packed = use(OneByOne("softmax", None, 1.0), build(shape, CPU), shape, CPU)
    padded = use(OneByOne("softmax", None, 1.0), build(shape, CPU), shape, CPU)
    of_build = {name: module for name, module in build(shape, CPU).named_modules()}
    for name, module in padded.named_modules():
        if isinstance(getattr(module, "attend", None), Attention):
            call = attentions.Call.of(of_build[name], shape)
            if not call.is_self:
                module.attend = Attention(call, PaddedSoftmax(), CPU)
    inputs = inputs_of(shape, shape.lengths, CPU)
    torch.testing.assert_close(padded(*inputs), packed(*inputs))


@pytest.mark.parametrize("model", MODELS)
def test_flex_attention_is_softmax_of_each_sequence(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdpa.bench.systems.pytorch.compiled", lambda function: function)
    shape = small(model)
    inputs = inputs_of(shape, shape.lengths, CPU)
    with torch.no_grad():  # FlexAttention has no backward on the CPU
        flex = use(by_name("FlexAttention"), build(shape, CPU), shape, CPU)(*inputs)
        packed = use(OneByOne("softmax", None, 1.0), build(shape, CPU), shape, CPU)(*inputs)
    torch.testing.assert_close(flex, packed)


def test_a_call_that_a_system_refuses_is_padded() -> None:
    """A system with SiLU computes InterFormer's attention and its pooling, and not its linear PFFN."""
    shape = small("interformer")
    model = use(OneByOne("silu", None, 1.0), build(shape, CPU), shape, CPU)
    replaced = [module.attend for module in model.modules() if isinstance(getattr(module, "attend", None), Attention)]
    kinds = {(type(attention.system), attention.call.activation) for attention in replaced}
    assert kinds == {(OneByOne, "silu"), (Padded, "identity")}
    assert not attends(model)


def test_a_system_that_refuses_self_attention_cannot_train_the_model() -> None:
    shape = small("kunlun")
    model = build(shape, CPU)
    assert refusal_of_model(OneByOne("gelu", None, 1.0), model, shape) == "computes gelu, and not silu"
    assert refusal_of_model(by_name("SDPA nested"), model, shape) == "does not support windows"
    assert refusal_of_model(Padded(), model, shape) is None


@pytest.mark.parametrize("system", [Gdpa(), Padded()], ids=lambda system: system.name)
@pytest.mark.parametrize("model", MODELS)
def test_a_step_changes_every_weight(model: str, system: System) -> None:
    trainer = trainer_of(system, small(model), CPU)
    before = {name: weight.detach().clone() for name, weight in trainer.module.named_parameters()}
    trainer.step()
    after = dict(trainer.module.named_parameters())
    assert not [name for name, old in before.items() if torch.equal(old, after[name])]
    assert all(weight.grad is None for weight in after.values())  # a waiting model has no gradients


@pytest.mark.long
@pytest.mark.parametrize("system", [Gdpa(), Padded()], ids=lambda system: system.name)
@pytest.mark.parametrize("model", MODELS)
def test_models_compile_to_one_graph(model: str, system: System) -> None:
    trainer = trainer_of(system, small(model), CPU)
    expected = trainer.results()
    trainer.forward = torch.compile(trainer.module, dynamic=False, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(trainer.results(), expected)


# Measurement ---------------------------------------------------------------------------------------------------------


def test_rows_say_what_was_run() -> None:
    steps, result = measure(small("hstu"), Gdpa(), Padded())
    assert not result.refusals
    ours, padded = steps
    assert (ours.system, ours.activation, ours.model, ours.layers, ours.B) == ("gdpa", "silu", "hstu", 2, 3)
    assert ours.gdpa_speedup == 1 and ours.tokens == sum(small("hstu").lengths)
    assert padded.gdpa_speedup == pytest.approx(ours.tokens_per_second / padded.tokens_per_second)
    assert padded.difference is not None and padded.difference < 1e-12
    assert ours.parts is None and ours.host_waits is None and ours.peak_bytes is None


def test_a_system_with_another_result_is_not_timed() -> None:
    steps, result = measure(small("hstu"), Gdpa(), OneByOne(None, None, 1.01))
    assert [step.system for step in steps] == ["gdpa"]
    assert "expected one by one to be within 2e-09 of gdpa" in result.refusals[0].reason


def test_a_system_that_fails_stops_nothing() -> None:
    class Broken(OneByOne):
        def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
            raise RuntimeError("no kernel")

    steps, result = measure(small("hstu"), Broken(None, None, 1.0), Gdpa())
    assert [step.system for step in steps] == ["gdpa"]
    assert [(one.system, one.reason) for one in result.refusals] == [("one by one", "RuntimeError: no kernel")]


def test_no_system_begins_after_the_limit() -> None:
    steps, result = measure(small("hstu"), Gdpa(), Padded(), limit=1e-6)
    assert [step.system for step in steps] == ["gdpa"]
    assert result.refusals[0].direction == "step of hstu"
    assert result.refusals[0].system == "padded" and "--limit" in result.refusals[0].reason


def test_the_padded_batch_is_halved_until_its_scores_fit() -> None:
    shape = ModelShape("hstu", 2)
    scores = shape.heads * 2 * max(shape.lengths) ** 2  # bytes of one tensor of scores of a sequence
    assert shape_that_fits(shape, 2, 1e15) == shape
    assert shape_that_fits(shape, 2, 7 * 300 * scores / 0.6).batch == 288
    assert shape_that_fits(shape, 2, 0).batch == 1


def test_the_shapes_are_of_the_size_of_production() -> None:
    (shape,) = shapes_of("interformer", 3, "cuda")
    assert (shape.batch, shape.max_length, shape.heads, shape.head_dim, shape.layers) == (1152, 2048, 4, 128, 3)
    assert sum(shape.lengths) == pytest.approx(1152 * 1024, rel=0.05)
    assert shapes_of("hstu", 2, "cuda", 0.25)[0].batch == 288
    short, long = shapes_of("block", 2, "cuda")
    assert (short.batch, short.max_length, long.batch, long.max_length) == (1152, 512, 288, 2048)
    assert sum(short.lengths) == pytest.approx(sum(long.lengths), rel=0.02)


class WithProduct(Device):
    """The processor with a product to compare rates with, and a clock of its own."""

    def __init__(self) -> None:
        self.matrices = Product(Work(lambda _: None), 6e12)

    def product(self, dtype: str) -> Product:
        return self.matrices

    def times(self, work: Work, seconds: float) -> list[float]:
        work.run(work.prepare())
        return [0.01 if work is self.matrices.work else 0.5]


def test_rates_count_the_flop_of_gdpa_without_padding() -> None:
    shape = small("block", layers=1, batch=1)
    (ours, padded), _ = measure(shape, Gdpa(), Padded(), device=WithProduct())
    (n,), width, ffn = shape.lengths, shape.width, 256
    flops = 3 * 2 * n * 4 * width**2 + 3.5 * 4 * width * (n * n + n * ffn)
    assert flops_of_step(shape, CPU) == flops
    assert ours.tflops == padded.tflops == pytest.approx(flops / 0.5 * 1e-12)
    assert ours.cublas_tflops == pytest.approx(600) and ours.ms == 500


def test_the_peak_is_that_of_a_step_whose_gradients_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trainer_of(Gdpa(), small("block"), CPU)

    def memory_beyond(call: Callable[[], list[Tensor]]) -> int:
        assert model.optimiser.state  # is there before anything is counted
        assert call() == []
        assert model.inputs[1].grad is None and all(weight.grad is None for weight in model.module.parameters())
        return 7

    monkeypatch.setattr(trainer, "memory_beyond", memory_beyond)
    assert model.peak_bytes() == 7


def test_results_that_are_not_finite_are_refused() -> None:
    class Infinite(OneByOne):
        def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
            return lambda query, key, value: value / 0

    steps, result = measure(small("hstu"), Infinite(None, None, 1.0))
    assert not steps
    assert result.refusals[0].reason == "ValueError: output 0: expected finite numbers, got NaN or infinities"


def test_a_model_that_does_not_compile_runs_eagerly_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def compiled(function: object, **options: object) -> object:
        asked.update(options)
        raise RuntimeError("a graph break")

    monkeypatch.setattr(trainer, "compiled", compiled)
    steps, result = measure(small("block"), Padded(), compile=True)
    assert [(step.system, step.compiled) for step in steps] == [("padded", False)]
    (refused,) = result.refusals
    assert (refused.system, refused.reason) == ("padded, compiled", "RuntimeError: a graph break")
    assert asked == {"dynamic": False, "fullgraph": True}


def test_every_system_with_one_attention_takes_part() -> None:
    names = {system.name for system in SYSTEMS if system.can_train}
    assert {"gdpa", "padded", "PyTorch varlen", "FlashAttention 2", "FlexAttention", "SDPA nested", "HSTU"} <= names
    assert not names & {"padded, compiled", "SDPA per sequence", "gdpa.compat", "SDPA cuDNN"}
    assert choose_systems(["padded"], [], "cpu")[0].can_train


# The parts of a step -------------------------------------------------------------------------------------------------


def test_kernels_are_told_apart_by_their_names() -> None:
    names = {
        "gdpa_kernel": "attention",
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_bias_TNN": "projections",
        "sm90_xmma_gemm_bf16bf16_bf16f32": "projections",
        "triton_per_fused_native_layer_norm_backward_3": "norms",
        "triton_poi_fused_silu_4": "elementwise and copies",
        "Memset (Device)": "elementwise and copies",
        "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>": "optimiser",
    }
    assert {name: part_of(name) for name in names} == names


def event(
    name: str, begin: float, end: float, *, on_gpu: bool = True, is_user_annotation: bool = False, **more: object
):  # type: ignore[no-untyped-def]
    device = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
    times = SimpleNamespace(start=begin, end=end, elapsed_us=lambda: end - begin)
    return SimpleNamespace(
        name=name, device_type=device, time_range=times, is_user_annotation=is_user_annotation, **more
    )  # fmt: skip


def test_the_parts_of_a_profile_are_its_kernels_and_its_gaps() -> None:
    events = [
        event("gdpa_kernel", 0, 2000),
        event("gdpa_kernel", 2000, 3000),  # a norm, according to its operator
        event("nvjet", 3500, 4500),
        event("triton_poi_fused_add", 4500, 5000),
        event("Optimizer.step", 0, 5000, is_user_annotation=True),
        event("gdpa::norm", 0, 10, on_gpu=False, kernels=[SimpleNamespace(duration=1000)]),
        event("gdpa::forward", 0, 10, on_gpu=False, kernels=[SimpleNamespace(duration=2000)]),
    ]
    parts = summed(events, steps=2)
    assert list(parts) == list(PARTS)
    assert list(parts.values()) == [1.0, 0.5, 0.5, 0.0, 0.25, 0.25]
    assert sum(parts.values()) == 2.5


def test_overlapping_kernels_leave_no_gap() -> None:
    assert idle([(0, 10), (2, 3), (5, 12), (15, 16)]) == 3


def test_a_profile_without_kernels_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="saw no kernel"):
        summed([], steps=1)


# The report ----------------------------------------------------------------------------------------------------------


def report_of_a_gpu() -> TrainingReport:
    (ours, padded), _ = measure(small("hstu"), Gdpa(), Padded())
    parts = dict.fromkeys(PARTS, 1.0) | {GAPS: 3.0}
    ours = replace(ours, tokens=10, peak_bytes=300, host_waits=False, parts=parts, gdpa_speedup=1.0)
    padded = replace(padded, tokens=5, peak_bytes=200, host_waits=True, gdpa_speedup=2.5, tokens_per_second=4.0)
    varlen = replace(padded, system="PyTorch varlen", activation="softmax", gdpa_speedup=1.1, tokens_per_second=9.0)
    return TrainingReport("training", "gpu", "torch", "commit", "method", [ours, padded, varlen])


def test_goals_compare_gdpa_with_the_same_function_with_softmax_and_in_memory() -> None:
    report = report_of_a_gpu()
    shape = small("hstu").name
    numbers = {figure.what.removeprefix(f"{shape}: "): (figure.measured, figure.reached) for figure in report.figures}
    assert numbers == {
        "best system with the same function (padded)": (2.5, True),
        "softmax (PyTorch varlen)": (1.1, False),
        "peak memory of a token": (0.75, True),
        "the host waits": (0.0, True),
    }


def test_the_page_has_the_parts_of_the_step(tmp_path: Path) -> None:
    report = report_of_a_gpu()
    page, picture = tmp_path / "training-gpu.md", tmp_path / "training-gpu.png"
    report.write(tmp_path)
    assert f"| hstu, 2 layers, 3 of 1-9 | {'1.00 (12%) | ' * 5}3.00 (38%) | 8.00 |" in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_writes_and_merges_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["training", "--device", "cpu", "--seconds", "0", "--rounds", "1", "--systems", "gdpa", "padded"]
    common += ["--scale-batch", "0.5", "--layers", "1"]
    for model in ("hstu", "kunlun"):
        assert bench.main([*common, "--model", model, "--report", str(tmp_path / model)]) == 0
    assert "1 cases, " in capsys.readouterr().err
    documents = [str(path) for path in sorted(tmp_path.glob("*/*.json"))]
    assert bench.main(["redraw", *documents, "--report", str(tmp_path)]) == 0
    (document,) = tmp_path.glob("training-*.json")
    read = json.loads(document.read_text())
    assert [(row["model"], row["system"]) for row in read["rows"]] == [
        (model, system) for model in ("hstu", "kunlun") for system in ("gdpa", "padded")
    ]
    assert all(list(row) == fields(TrainingRow) and row["B"] == 2 for row in read["rows"])


def test_systems_without_attention_of_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["training", "--model", "hstu", "--device", "cpu", "--systems", "SDPA per sequence"]
    assert bench.main(arguments) == 2
    assert "--systems: expected gdpa, padded, FlexAttention" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_on_a_gpu_has_parts_and_no_waiting() -> None:
    trainer = trainer_of(Gdpa(), small("hstu", dtype="bfloat16", head_dim=64), torch.device("cuda"))
    trainer.step()
    assert not trainer.host_waits()
    assert breakdown(trainer.step)["attention"] > 0
