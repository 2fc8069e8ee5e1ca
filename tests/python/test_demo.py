"""The demonstration: the data are the real histories, the PyTorch computations are right, and it writes its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gdpa.bench.device import Device
from gdpa.bench.systems import Operands
from gdpa.demo import histories as data
from gdpa.demo.__main__ import main
from gdpa.demo.report import RESULTS, results_of, sampled
from gdpa.demo.uses import USES, WITH_GDPA, Reference, Use, WithoutPadding, WithPadding, without_padding

NORM_CONSTANT = 2e-6  # fp32: the allowed error in addition to PyTorch's error, times the norm of the reference


def small_batch(use: Use, activation: str) -> Operands:
    histories = data.load(users=3)
    short = data.Histories(histories.items[:90], histories.ratings[:90], torch.tensor([0, 20, 21, 90]))
    return use.operands(
        short, data.Embedding(short, heads=2, head_dim=8, dtype=torch.float64, device=torch.device("cpu")), activation
    )


def test_histories_are_all_of_movielens_100k() -> None:
    histories = data.load()
    assert histories.users == 943
    assert len(histories.items) == len(histories.ratings) == int(histories.offsets[-1]) == 100_000
    assert (int(histories.lengths.min()), int(histories.lengths.max())) == (20, 737)
    assert (int(histories.items.min()), int(histories.items.max())) == (0, 1681)
    assert sorted(histories.ratings.unique().tolist()) == [0, 1, 2, 3, 4]


def test_a_history_is_in_the_order_of_time() -> None:
    rows = [line.split("\t") for line in data.data_file().read_text().splitlines()[1:]]
    by_time = sorted((int(time), int(item) - 1) for user, item, _, time in rows if user == "2")
    time_of = {item: time for time, item in by_time}
    histories = data.load(users=2)
    second = histories.items[int(histories.offsets[1]) :].tolist()
    assert sorted(second) == sorted(time_of)
    times = [time_of[item] for item in second]
    assert times == sorted(times)


def test_batches_cover_every_history_once() -> None:
    histories = data.load(users=10)
    batches = list(histories.batches(4))
    assert [batch.users for batch in batches] == [4, 4, 2]
    assert torch.equal(torch.cat([batch.items for batch in batches]), histories.items)
    assert torch.equal(torch.cat([batch.lengths for batch in batches]), histories.lengths)


@pytest.mark.parametrize("use", USES, ids=lambda use: use.name)
@pytest.mark.parametrize("text", ["gelu", "s * sigmoid(1.702 * s)", "sigmoid"])
def test_padded_and_packed_pytorch_agree_with_one_product_a_sequence(use: Use, text: str) -> None:
    operands = small_batch(use, text)
    case = operands.case
    expected = results_of(Reference(), operands)
    results = results_of(WithPadding(), operands)
    lengths = case.lengths_q, case.lengths_q, case.lengths_k, case.lengths_k
    for want, got, of_rows in zip(expected, results, lengths, strict=True):
        torch.testing.assert_close(without_padding(got, of_rows), want)
    assert (WithoutPadding().refusal(case) is None) == (use.name == "PFFN")
    if use.name == "PFFN":
        results = results_of(WithoutPadding(), operands)
        for want, got in zip(expected, results, strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("use", USES, ids=lambda use: use.name)
def test_the_demonstration_calls_gdpa_for_the_same_computation(use: Use) -> None:
    operands = small_batch(use, "s^2 * tanh(s)")
    expected = results_of(Reference(), operands)
    results = results_of(WITH_GDPA, operands)
    for want, got in zip(expected, results, strict=True):
        torch.testing.assert_close(got, want)


def test_samples_are_spread_over_the_batches() -> None:
    assert sampled(15, 2) == {3, 11}
    assert sampled(3, 5) == {0, 1, 2}


@pytest.mark.long
def test_the_demonstration_writes_its_figures_and_its_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--device", "cpu", "--quick", "--output", str(tmp_path), "--activation", "sin(s)"]) == 0

    document = json.loads((tmp_path / "demo.json").read_text())
    assert "32 users" in document["method"] and "batches of up to 16 users" in document["method"]
    assert document["device"] == Device().describe()
    rows = document["rows"]
    assert {(row["dtype"], row["B"], row["H"], row["d"]) for row in rows} == {("float32", 32, 4, 32)}
    assert [(row["shape"], row["activation"]) for row in rows] == [
        (use.name, text) for use in USES for text in ("gelu", "silu", "sin(s)")
    ]
    for row in rows:
        assert row["forward_gflops"] > 0 and row["backward_gflops"] > 0 and row["speed_up_over_padded"] > 0
        for name in RESULTS:
            error = row["errors"][name]
            assert error["gdpa"] <= 2 * max(error["pytorch"], NORM_CONSTANT), (row["shape"], row["activation"], name)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "Error against fp64" in shown and "speed-up" in shown


def test_an_error_is_one_sentence_and_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        (["--users", "944"], "--users is a number from 1 to 943"),
        (["--device", "cuda:99"], "expected one of PyTorch's"),
        (["--activation", "s +"], "is not an expression in s"),
        (["--activation", "softmax(s)"], "to compare with PyTorch"),
    ):
        assert main([*arguments, "--output", str(tmp_path)]) == 2
        message = capsys.readouterr().err
        assert message.startswith("gdpa.demo: ") and expected in message and "Traceback" not in message
    assert not list(tmp_path.iterdir())


def test_an_impossible_option_is_refused_with_the_usage() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--batch", "0"])
    assert stopped.value.code == 2
