"""The benchmark of a training step: the blocks compute the right results, and the report is complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from bench_cases import by_name
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gdpa.bench import __main__ as bench
from gdpa.bench import agreement, figures_gpu
from gdpa.bench.agreement import Disagreement
from gdpa.bench.device import Processor, Product, Work
from gdpa.bench.measure import Effort, Result
from gdpa.bench.rows import fields
from gdpa.bench.systems import SYSTEMS, Gdpa, Padded
from gdpa.bench.systems.base import Attend
from gdpa.bench.training import step as training_step
from gdpa.bench.training.batch import SHAPES, Batch, Shape, shapes_on
from gdpa.bench.training.block import Block
from gdpa.bench.training.contenders import Contender, OnPadded, WithGdpa, WithSoftmax, contenders_of
from gdpa.bench.training.report import COLUMNS, Step, lines
from gdpa.bench.training.step import Trainer, measure_steps

CPU = torch.device("cpu")
QUICK = Effort(seconds=0.0, rounds=1)
SMALL = Shape(3, 9, heads=2, head_dim=8, ffn_rows=5, dtype="float64")


def measure(
    *contenders: Contender, shape: Shape = SMALL, compile: bool = False, device: Processor | None = None
) -> tuple[list[Step], Result]:
    return measure_steps(shape, contenders, compile, QUICK, device or Processor(), lambda done, text: None)


# Blocks --------------------------------------------------------------------------------------------------------------


def gelu_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
    return torch.einsum("hqk,khd->qhd", F.gelu(scores, approximate="tanh"), value) / len(key)


def gelu_feed_forward(rows: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    heads = [F.gelu(rows[:, h] @ keys[:, h].T, approximate="tanh") @ values[:, h] for h in range(rows.shape[1])]
    return torch.stack(heads, dim=1)


def softmax_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


def mlp(rows: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    hidden = F.linear(rows.flatten(1), keys.flatten(1))
    return F.linear(F.gelu(hidden, approximate="tanh"), values.flatten(1).T).view_as(rows)


def one_by_one(batch: Batch, attention: Attend, feed_forward: Attend) -> dict[str, Tensor]:
    """The results of a block that sees one sequence at a time, by autograd."""
    block = Block(batch.shape, CPU, attention, feed_forward)
    rows = batch.rows.clone().requires_grad_()
    output = torch.cat([block(sequence) for sequence in rows.split(list(batch.shape.lengths))])
    output.backward(batch.grad_output)
    gradients = {f"gradient of {name}": weight.grad for name, weight in block.named_parameters()}
    return {"output": output.detach(), "gradient of the rows": rows.grad, **gradients}


@pytest.mark.parametrize(
    ("contender", "attention", "feed_forward"),
    [
        (WithGdpa(Gdpa()), gelu_attention, gelu_feed_forward),
        (OnPadded(Padded()), gelu_attention, gelu_feed_forward),
        (WithSoftmax(by_name("SDPA nested")), softmax_attention, mlp),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_compute_what_they_say(
    contender: Contender, attention: Attend, feed_forward: Attend, dtype: str
) -> None:
    batch = Batch.random(replace(SMALL, dtype=dtype), CPU)
    results = Trainer(contender, batch, compile=False).results()
    for name, expected in one_by_one(batch, attention, feed_forward).items():
        torch.testing.assert_close(results.pop(name), expected, msg=lambda text, name=name: f"{name}: {text}")
    assert not results


@pytest.mark.parametrize("contender", [WithGdpa(Gdpa()), OnPadded(Padded())])
def test_a_step_changes_every_weight(contender: Contender) -> None:
    trainer = Trainer(contender, Batch.random(SMALL, CPU), compile=False)
    before = [weight.detach().clone() for weight in trainer.block.parameters()]
    trainer.step()
    assert all((old != new).all() for old, new in zip(before, trainer.block.parameters(), strict=True))


def test_flop_are_those_that_pytorch_counts() -> None:
    shape = replace(SMALL, batch=1, max_length=30)
    trainer = Trainer(WithGdpa(Gdpa()), Batch.random(shape, CPU), compile=False)
    with FlopCounterMode(display=False) as counter:
        trainer.gradients()
    assert counter.get_total_flops() == shape.flops


@pytest.mark.parametrize(
    "shape", [shape for shapes in SHAPES.values() for shape in shapes], ids=lambda shape: shape.name
)
def test_every_sequence_has_rows_and_fits(shape: Shape) -> None:
    assert len(shape.lengths) == shape.batch
    assert min(shape.lengths) >= 1 and max(shape.lengths) <= shape.max_length
    assert sum(shape.lengths) == pytest.approx(shape.batch * shape.max_length / 2, rel=0.1)


def test_a_batch_may_be_scaled() -> None:
    whole, part = shapes_on("cuda")[0], shapes_on("cuda", 0.25)[0]
    assert part == replace(whole, batch=whole.batch // 4)


# Measurement ---------------------------------------------------------------------------------------------------------


class WithBounds(Processor):
    """The processor with a product to compare rates with, and a clock of its own."""

    torch_device = CPU

    def __init__(self) -> None:
        self.matrices = Product(Work(lambda _: None), 6e12)

    def product(self, dtype: str) -> Product:
        return self.matrices

    def times(self, work: Work, seconds: float) -> list[float]:
        work.run(work.prepare())
        return [0.01 if work is self.matrices.work else 0.5]


def test_rows_say_what_was_run() -> None:
    steps, result = measure(WithGdpa(Gdpa()), OnPadded(Padded()), device=WithBounds())
    assert not result.refusals
    ours, padded = steps
    assert (ours.system, ours.activation, ours.dtype, ours.compiled) == ("gdpa", "gelu_tanh", "float64", False)
    assert (ours.B, ours.H, ours.d, ours.ffn_rows, ours.max_length) == (3, 2, 8, 5, 9)
    assert ours.tokens == sum(SMALL.lengths)
    assert (ours.ms, ours.times_gdpa, padded.times_gdpa) == (500, 1, 1)
    assert ours.tokens_per_second == ours.tokens / 0.5
    assert ours.tflops == pytest.approx(SMALL.flops / 0.5 * 1e-12)
    assert ours.cublas_tflops == pytest.approx(6e12 / 0.01 * 1e-12)
    assert ours.difference is None and padded.difference is not None and padded.difference < 1e-12


def test_the_peak_is_that_of_a_step_whose_gradients_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(WithGdpa(Gdpa()), Batch.random(SMALL, CPU), compile=False)

    def memory_beyond(call: Callable[[], list[Tensor]]) -> int:
        assert trainer.optimiser.state  # is there before anything is counted
        assert call() == []
        assert trainer.rows.grad is None and all(weight.grad is None for weight in trainer.block.parameters())
        return 7

    monkeypatch.setattr(figures_gpu, "memory_beyond", memory_beyond)
    trainer.measure_peak()
    assert trainer.peak_bytes == 7


class Wrong(OnPadded):
    def feed_forward(self, batch: Batch) -> Attend:
        return lambda rows, keys, values: 1.01 * super(Wrong, self).feed_forward(batch)(rows, keys, values)


def test_a_block_that_computes_something_else_is_not_timed() -> None:
    with pytest.raises(Disagreement, match="expected padded to be within 1e-09 of gdpa"):
        measure(WithGdpa(Gdpa()), Wrong(Padded()))


class Broken(Gdpa):
    name = "broken"


class BrokenBlock(WithGdpa):
    def attention(self, batch: Batch) -> Attend:
        raise RuntimeError("needs a device that is not there\nand a long story")


class Infinite(WithGdpa):
    def attention(self, batch: Batch) -> Attend:
        return lambda query, key, value: value / 0


def test_a_system_that_fails_is_named_with_the_reason_and_stops_nothing() -> None:
    steps, result = measure(BrokenBlock(Broken()), Infinite(Gdpa()), OnPadded(Padded()))
    assert [step.system for step in steps] == ["padded"]
    assert steps[0].times_gdpa is None and steps[0].difference is None
    assert [(refused.system, refused.direction, refused.shape) for refused in result.refusals] == [
        ("broken", "step", SMALL.name),
        ("gdpa", "step", SMALL.name),
    ]
    assert [refused.reason for refused in result.refusals] == [
        "RuntimeError: needs a device that is not there",
        "ValueError: output: expected finite numbers, got NaN or infinities",
    ]


def test_a_system_that_is_not_there_is_named_with_the_reason() -> None:
    steps, result = measure(WithSoftmax(by_name("FlashAttention 3")))
    assert not steps
    assert "no module named" in result.refusals[0].reason


def test_a_block_that_does_not_compile_runs_eagerly_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def compiled(function: object, **options: object) -> object:
        asked.update(options)
        raise RuntimeError("a graph break")

    monkeypatch.setattr(training_step, "compiled", compiled)
    steps, result = measure(OnPadded(Padded()), compile=True)
    assert [(step.system, step.compiled) for step in steps] == [("padded", False)]
    (refused,) = result.refusals
    assert (refused.system, refused.reason) == ("padded, compiled", "RuntimeError: a graph break")
    assert asked == {"dynamic": False, "fullgraph": True}


@pytest.mark.long
def test_blocks_compile_to_one_graph() -> None:
    steps, result = measure(WithGdpa(Gdpa()), OnPadded(Padded()), compile=True)
    assert not result.refusals
    assert [(step.system, step.compiled) for step in steps] == [("gdpa", True), ("padded", True)]


def test_every_softmax_on_packed_operands_takes_part_after_gdpa_and_padded() -> None:
    names = [contender.name for contender in contenders_of(SYSTEMS[::-1])]
    assert names[:2] == ["gdpa", "padded"]
    assert {"PyTorch varlen", "FlashAttention 2", "FlashAttention 3", "SDPA nested"} <= set(names[2:])
    assert "HSTU" not in names and "padded, compiled" not in names


# The command ---------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--training-step", "--device", "cpu", "--seconds", "0", "--rounds", "1"]
    arguments += ["--without", "SDPA per sequence", "--report", str(tmp_path), "--json", str(tmp_path / "rows.jsonl")]
    assert bench.main(arguments) == 0
    printed = capsys.readouterr()
    assert "times gdpa's" in printed.out and "1 cases, about" in printed.err
    (document,), (page,), (picture,) = (list(tmp_path.glob(f"training-step-*.{end}")) for end in ("json", "md", "png"))
    read = json.loads(document.read_text())
    assert read["subject"] == "training-step" and read["not_run"] == []
    assert [row["system"] for row in read["rows"]] == ["gdpa", "padded", "SDPA nested"]
    assert all(list(row) == fields(Step) for row in read["rows"])
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == read["rows"]
    assert all(f"| {row['system']} | {row['activation']} | no |" in page.read_text() for row in read["rows"])
    assert f"]({picture.name})" in page.read_text()
    whole = [file.read_text() for file in (document, page)]
    assert bench.main(["--merge", str(document), str(document), "--report", str(tmp_path)]) == 0
    assert [file.read_text() for file in (document, page)] == whole
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_ends_with_1_where_results_disagree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agreement, "AGREEMENT", {"float32": 0.0})
    assert bench.main(["--training-step", "--device", "cpu", "--seconds", "0"]) == 1
    assert "expected padded to be within 0 of gdpa" in capsys.readouterr().err


def test_systems_that_no_block_can_be_built_on_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--training-step", "--device", "cpu", "--systems", "SDPA per sequence"]) == 2
    assert "--systems: expected gdpa, padded or a softmax" in capsys.readouterr().err


def test_a_row_of_a_gpu_has_its_memory_and_its_share_in_the_table() -> None:
    (step,), _ = measure(WithGdpa(Gdpa()), device=WithBounds())
    line = dict(
        zip(COLUMNS, lines([replace(step, peak_bytes=3 * 2**29, cublas_tflops=2 * step.tflops)])[0], strict=True)
    )
    assert (line["peak GiB"], line["of cuBLAS"], line["times gdpa's"]) == ("1.5", "0.50", "1.00")
