"""The training example: its data do not leak, its metrics are right, it resumes exactly, and its model is served."""

from __future__ import annotations

import argparse
import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
import torch.nn.functional as F

from gdpa.train import data, serve
from gdpa.train.__main__ import main
from gdpa.train.jobs import jobs_of
from gdpa.train.metrics import Metrics, evaluate, metrics_of
from gdpa.train.model import VARIANTS, MeanPooling, Recommender, Sizes, SoftmaxAttention
from gdpa.train.parallel import Ranks
from gdpa.train.report import Result
from gdpa.train.run import Run, Settings, loss_of

HISTORY = 30
SMALL = Sizes(data.ITEMS, dim=8, heads=2, layers=1)


@pytest.fixture(scope="module")
def events() -> data.Events:
    return data.load(users=24)


def test_the_model_trains_on_all_events_but_the_last_two(events: data.Events) -> None:
    generator = torch.Generator().manual_seed(0)
    users = range(events.users)
    held_out = {int(end) - back for end in events.ends for back in (0, 1)}
    positions = torch.arange(len(events.items))
    numbered = replace(events, items=positions)  # the item of an event is its index
    trained: set[int] = set()
    for _ in range(60):
        ends = events.training_ends(HISTORY, generator)
        batch = numbered.batch(users, ends, HISTORY)
        assert torch.equal(batch.cu_seqlens.diff(), events.trained(HISTORY))
        trained |= {*batch.items.tolist(), *batch.next_items.tolist()}
    assert not trained & held_out
    assert len(trained) > 0.95 * (len(positions) - len(held_out))


def test_a_row_predicts_the_next_event_of_its_user(events: data.Events) -> None:
    batch = events.batch([3, 5, 7], events.ends, HISTORY)
    for user, (begin, end) in zip([3, 5, 7], zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False), strict=True):
        history = events.items[events.offsets[user] : events.offsets[user + 1]]
        assert torch.equal(batch.items[begin:end], history[:-1][-HISTORY:])
        assert torch.equal(batch.next_items[begin:end], history[1:][-HISTORY:])


def test_a_rank_may_have_no_users(events: data.Events) -> None:
    batch = events.batch([], events.ends, HISTORY)
    assert batch.items.shape == (0,) and batch.cu_seqlens.tolist() == [0]
    loss = loss_of(Recommender(SMALL, VARIANTS["silu"]), batch, targets=1)
    loss.backward()
    assert loss.item() == 0


def test_the_metrics_are_their_definitions() -> None:
    metrics = metrics_of(torch.tensor([0, 1, 9, 10]))
    assert metrics.ndcg == pytest.approx((1 + 0.6309297 + 0.2890648) / 4)
    assert metrics.hit_rate == 0.75


class Oracle(torch.nn.Module):
    """Gives the item that follows in the history of the user this score, and `rank` other items a score of 2."""

    def __init__(self, events: data.Events, rank: int, score: float = 1.0) -> None:
        super().__init__()
        self.item_bias = torch.zeros(data.ITEMS)
        self.events, self.rank, self.score = events, rank, score

    def expect_rows(self, longest: int) -> None: ...

    def forward(self, items: torch.Tensor, cu_seqlens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(len(rows), data.ITEMS)
        for number, row in enumerate(rows.tolist()):
            user = int(torch.searchsorted(cu_seqlens, row, right=True)) - 1
            history = self.events.items[self.events.offsets[user] : self.events.offsets[user + 1]].tolist()
            wanted = history[history.index(int(items[row])) + 1]
            better = [item for item in range(data.ITEMS) if item != wanted][: self.rank]
            scores[number, wanted] = self.score
            scores[number, better] = 2.0
        return scores


def test_the_test_is_the_last_item_and_the_validation_the_one_before(events: data.Events) -> None:
    for rank, gain in ((0, 1.0), (2, 0.5), (10, 0.0)):
        for metrics in evaluate(Oracle(events, rank), events, HISTORY):  # type: ignore[arg-type]
            assert metrics == Metrics(gain, float(rank < 10))
    assert evaluate(Oracle(events, 0, float("nan")), events, HISTORY)[1] == Metrics(0, 0)  # type: ignore[arg-type]


def test_the_epoch_is_chosen_without_the_test() -> None:
    metrics = [(Metrics(ndcg, 0.0), Metrics(test, test)) for ndcg, test in ((0.1, 0.9), (0.3, 0.2), (0.2, 0.8))]
    result = Result("silu", 0, [1.0], metrics, 1.0)
    assert (result.best, result.test) == (1, Metrics(0.2, 0.2))


@pytest.mark.parametrize("name", list(VARIANTS))
def test_no_variant_sees_a_later_event(name: str, events: data.Events) -> None:
    torch.manual_seed(0)
    model = Recommender(SMALL, VARIANTS[name]).eval()
    batch = events.batch([4, 5], events.ends, HISTORY)
    items, rows = batch.items.clone(), torch.arange(len(batch.items))
    at = int(batch.cu_seqlens[1]) + 10
    before = model(items, batch.cu_seqlens, rows)
    items[at:] = 7
    after = model(items, batch.cu_seqlens, rows)
    torch.testing.assert_close(before[:at], after[:at], rtol=1e-4, atol=1e-5)
    assert not torch.equal(before[at:], after[at:])
    # Nor does it see the length of its history.
    shorter = model(items[:at], torch.tensor([0, int(batch.cu_seqlens[1]), at]), rows[:at])
    torch.testing.assert_close(shorter, after[:at], rtol=1e-4, atol=1e-5)


def test_the_compared_attentions_are_softmax_and_mean() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 7, 2, 4).unbind()
    cu = torch.tensor([0, 4, 4, 7])
    softmax, mean = SoftmaxAttention(2), MeanPooling()
    torch.nn.init.normal_(softmax.position)
    of_softmax, of_mean = (one(query, key, value, cu, cu) for one in (softmax, mean))
    for begin, end in ((0, 4), (4, 7)):
        for i in range(begin, end):
            torch.testing.assert_close(of_mean[i], value[begin : i + 1].mean(0))
            for h in range(2):
                scores = key[begin : i + 1, h] @ query[i, h] / 2 + softmax.position[h, : i + 1 - begin].flip(0)
                torch.testing.assert_close(of_softmax[i, h], F.softmax(scores, 0) @ value[begin : i + 1, h])


def settings(variant: str = "learned", epochs: int = 2, sizes: Sizes = SMALL) -> Settings:
    return Settings(variant, seed=1, epochs=epochs, users=6, history=HISTORY, sizes=sizes)


@pytest.mark.parametrize("killed_after", [3, 5])
def test_a_killed_run_continues_with_the_same_losses(killed_after: int, events: data.Events, tmp_path: Path) -> None:
    def run(folder: str) -> Run:
        return Run(settings(), events, torch.device("cpu"), compile=False, folder=tmp_path / folder)

    whole = run("whole")
    list(whole.train())
    killed = run("killed")
    for _, _ in zip(range(killed_after), killed.train(), strict=False):
        pass
    again = run("killed")
    assert len(again.losses) == (4 if killed_after > 4 else 0)
    list(again.train())
    assert torch.equal(torch.stack(again.losses), torch.stack(whole.losses)) and again.metrics == whole.metrics
    for one, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)
    finished = run("killed")
    assert finished.metrics == whole.metrics and not list(finished.train())


def test_other_settings_do_not_continue_a_run(events: data.Events, tmp_path: Path) -> None:
    def run(epochs: int, restart: bool = False) -> Run:
        return Run(settings(epochs=epochs), events, torch.device("cpu"), False, tmp_path, restart)

    list(run(1).train())
    assert len(run(1).losses) == 4 and not run(2).losses and not run(1, restart=True).losses


def test_the_model_learns(events: data.Events, tmp_path: Path) -> None:
    run = Run(settings("silu", epochs=6), events, torch.device("cpu"), compile=False, folder=tmp_path)
    losses = torch.stack(list(run.train()))
    assert losses[-4:].mean() < losses[:4].mean() - 0.2


@pytest.mark.long
def test_a_compiled_run_has_the_same_losses(events: data.Events, tmp_path: Path) -> None:
    losses = []
    for compile in (False, True):
        one = settings(epochs=1, sizes=replace(SMALL, dropout=0.0))  # torch.compile draws other numbers
        run = Run(one, events, torch.device("cpu"), compile, tmp_path / str(compile))
        losses.append(torch.stack(list(run.train())))
    torch.testing.assert_close(*losses)


def test_the_command_writes_its_report_and_the_model_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: processes.context)
    small = ["--users", "12", "--epochs", "2", "--seeds", "2", "--dim", "8", "--output", str(tmp_path), "--jobs", "2"]
    assert main(small) == 0
    document: dict[str, Any] = json.loads((tmp_path / "train-cpu.json").read_text())
    assert [(run["variant"], run["seed"]) for run in document["runs"]] == [
        (name, seed) for name in VARIANTS for seed in range(2)
    ]
    assert all(len(run["losses"]) == 2 and len(run["metrics"]) == 2 for run in document["runs"])
    assert main([*small[:-1], "1", "--variants", "silu", "--output", str(tmp_path / "alone")]) == 0
    alone = json.loads((tmp_path / "alone" / "train-cpu.json").read_text())["runs"]
    for run, same in zip(document["runs"][:2], alone, strict=True):
        assert run["losses"] == pytest.approx(same["losses"], rel=1e-4), "a process computes what the command computes"
    page = (tmp_path / "train-cpu.md").read_text()
    assert "| softmax |" in page and "±" in page and "(train-cpu.png)" in page
    assert "| SASRec | MovieLens 100K |" in page and "| HSTU | MovieLens 1M |" in page
    assert (tmp_path / "train-cpu.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()

    assert serve.main([str(tmp_path / "checkpoints" / "learned-1.pt")]) == 0
    shown = capsys.readouterr().out
    assert "largest difference from the model: 0.0e+00" in shown or "e-0" in shown
    served = torch.export.load(tmp_path / "checkpoints" / "learned-1.pt2").module()
    events = data.load()
    of_one_user = serve.inputs_of(events.batch(range(7, 8), events.ends, 50))
    assert served(*of_one_user).shape[0] == 1
    assert serve.main([str(tmp_path / "checkpoints" / "softmax-0.pt")]) == 2
    assert "expected a model with gdpa's attention" in capsys.readouterr().err


def test_an_error_of_a_run_in_a_process_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: processes.context)
    (tmp_path / "file").touch()
    options = ["--users", "12", "--epochs", "1", "--dim", "8", "--jobs", "2", "--output", str(tmp_path)]
    assert main([*options, "--checkpoints", str(tmp_path / "file" / "folder")]) == 3
    assert "Not a directory" in capsys.readouterr().err


def test_a_gpu_and_torchrun_have_one_run_at_a_time() -> None:
    options = argparse.Namespace(jobs=None, threads=None)
    cpu, gpu, one, two = torch.device("cpu"), torch.device("cuda"), Ranks(), Ranks(0, 2)
    assert jobs_of(options, gpu, one, 9) == jobs_of(options, cpu, two, 9) == 1
    assert jobs_of(options, cpu, one, 1) == 1, "no more than there are runs"
    options.jobs = 3
    assert jobs_of(options, cpu, one, 9) == 3
    for device, ranks in ((gpu, one), (cpu, two)):
        with pytest.raises(ValueError, match="--jobs: expected one run at a time on a GPU and with torchrun"):
            jobs_of(options, device, ranks, 9)


def test_an_impossible_option_is_refused_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--epochs", "0"], "--epochs: expected a number from 1 up; got 0"),
        (["--variants", "silu,relu"], "got relu"),
        (["--heads", "3"], "--heads divides --dim, got 3 and 64"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err
    assert main(["--device", "cuda:99"]) == 2
    assert main(["--shard-tables"]) == 2 and "start it with torchrun" in capsys.readouterr().err
