"""The training example: its data do not leak, its metrics are right, it resumes exactly, and its model is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gdpa.train import data, serve
from gdpa.train.__main__ import VARIANTS as NAMES
from gdpa.train.__main__ import main
from gdpa.train.metrics import auc, evaluate, ndcg, seen
from gdpa.train.model import VARIANTS, MeanPooling, Recommender, Sizes, SoftmaxAttention
from gdpa.train.run import Run, Settings, loss_of

SMALL = Sizes(data.ITEMS, dim=8, heads=2, layers=1)


@pytest.fixture(scope="module")
def events() -> data.Events:
    return data.load(users=24)


def test_the_model_trains_only_on_events_before_the_split(events: data.Events) -> None:
    split = events.split_time
    trained = events.until(split)
    assert int(trained.times.max()) <= split
    assert len(trained.items) == int((events.times <= split).sum())
    assert 0.7 < len(trained.items) / len(events.items) <= 0.82
    for user, (begin, end) in enumerate(zip(trained.offsets[:-1], trained.offsets[1:], strict=True)):
        whole = slice(int(events.offsets[user]), int(events.offsets[user]) + int(end - begin))
        assert torch.equal(trained.items[begin:end], events.items[whole])


def test_a_row_predicts_the_next_event_of_its_user(events: data.Events) -> None:
    batch = events.batch([3, 5, 7])
    for begin, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        assert torch.equal(batch.next_items[begin : end - 1], batch.items[begin + 1 : end])
        likes = batch.ratings[begin + 1 : end] >= 3
        assert torch.equal(batch.next_likes[begin : end - 1], likes.float())
        assert batch.predicts[begin : end - 1].all() and not batch.predicts[end - 1]
    split = events.split_time
    later = events.batch(range(24), after=split)
    assert int(later.predicts.sum()) == int((events.times > split).sum()) - int(
        (events.times[events.offsets[:-1]] > split).sum()  # the first event of a user has no history
    )


def test_a_batch_may_have_no_users_and_users_without_events(events: data.Events) -> None:
    none = events.until(0)
    for users in ([], [0, 1]):
        batch = none.batch(users)
        assert batch.items.shape == (0,) and batch.cu_seqlens.tolist() == [0] * (len(users) + 1)
        loss = loss_of(Recommender(SMALL, VARIANTS["silu"]), batch)
        loss.backward()
        assert float(loss) == 0


def test_auc_and_ndcg_are_their_definitions() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 6, (60,), generator=generator).float()
    labels = torch.randint(0, 2, (60,), generator=generator).float()
    above = (scores[labels > 0][:, None] > scores[labels == 0]).double()
    ties = (scores[labels > 0][:, None] == scores[labels == 0]).double()
    assert auc(scores, labels) == pytest.approx(float((above + ties / 2).mean()))
    assert ndcg(torch.tensor([0, 1, 9, 10])) == pytest.approx((1 + 0.6309297 + 0.2890648) / 4)


def test_items_that_a_user_has_rated_are_not_candidates(events: data.Events) -> None:
    batch = events.batch([1, 2])
    mask = seen(batch, 1682)
    first = int(batch.cu_seqlens[1])
    assert mask[first - 1].nonzero().squeeze(1).tolist() == sorted(set(batch.items[:first].tolist()))
    assert mask[first].nonzero().squeeze(1).tolist() == [int(batch.items[first])]


@pytest.mark.parametrize("name", list(VARIANTS))
def test_no_variant_sees_a_later_event(name: str, events: data.Events) -> None:
    torch.manual_seed(0)
    model = Recommender(SMALL, VARIANTS[name])
    batch = events.batch([4, 5])
    items = batch.items.clone()
    at = int(batch.cu_seqlens[1]) + 10
    before = model(items, batch.ratings, batch.cu_seqlens, batch.next_items)
    items[at:] = 7
    after = model(items, batch.ratings, batch.cu_seqlens, batch.next_items)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one[:at], other[:at], rtol=1e-4, atol=1e-5)
    assert not torch.equal(before[0][at:], after[0][at:])
    # Nor does it see the length of its history.
    shorter = model(items[:at], batch.ratings[:at], torch.tensor([0, int(batch.cu_seqlens[1]), at]), items[:at])
    torch.testing.assert_close(shorter[0], after[0][:at], rtol=1e-4, atol=1e-5)


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


def settings(variant: str = "learned", steps: int = 7) -> Settings:
    return Settings(variant, seed=1, steps=steps, users=6, sizes=SMALL)


@pytest.mark.parametrize("killed_after", [1, 4, 5, 6])
def test_a_killed_run_continues_with_the_same_losses(killed_after: int, events: data.Events, tmp_path: Path) -> None:
    def run(folder: str) -> Run:
        return Run(settings(), events, torch.device("cpu"), compile=False, folder=tmp_path / folder)

    whole = run("whole")
    list(whole.train(save_every=2))
    killed = run("killed")
    for _, _ in zip(range(killed_after), killed.train(save_every=2), strict=False):
        pass
    again = run("killed")
    assert again.step == killed_after - killed_after % 2
    list(again.train(save_every=2))
    assert torch.equal(torch.stack(again.losses), torch.stack(whole.losses))
    for one, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)
    finished = run("killed")
    assert finished.step == 7 and not list(finished.train(save_every=2))


def test_other_settings_do_not_continue_a_run(events: data.Events, tmp_path: Path) -> None:
    list(Run(settings(steps=2), events, torch.device("cpu"), compile=False, folder=tmp_path).train(1))
    assert Run(settings(steps=3), events, torch.device("cpu"), compile=False, folder=tmp_path).step == 0
    restarted = Run(settings(steps=2), events, torch.device("cpu"), compile=False, folder=tmp_path, restart=True)
    assert restarted.step == 0


def test_the_model_learns(events: data.Events, tmp_path: Path) -> None:
    run = Run(settings("silu", steps=25), events, torch.device("cpu"), compile=False, folder=tmp_path)
    losses = torch.stack(list(run.train(1000)))
    assert losses[-5:].mean() < losses[:5].mean() - 0.2
    metrics = evaluate(run.model, events, events.split_time)
    assert metrics["auc"] > 0.5 and metrics["ndcg@10"] > 0


@pytest.mark.long
def test_a_compiled_run_has_the_same_losses(events: data.Events, tmp_path: Path) -> None:
    losses = []
    for compile in (False, True):
        run = Run(settings(steps=3), events, torch.device("cpu"), compile, tmp_path / str(compile))
        losses.append(torch.stack(list(run.train(1000))))
    torch.testing.assert_close(*losses)


def test_the_command_writes_its_report_and_the_model_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--users", "12", "--steps", "3", "--seeds", "2", "--dim", "8", "--output", str(tmp_path)]
    assert main(small) == 0
    document: dict[str, Any] = json.loads((tmp_path / "train-cpu.json").read_text())
    assert [(run["variant"], run["seed"]) for run in document["runs"]] == [
        (name, seed) for name in NAMES.split(",") for seed in range(2)
    ]
    assert all(len(run["losses"]) == 3 and 0 < run["auc"] < 1 for run in document["runs"])
    page = (tmp_path / "train-cpu.md").read_text()
    assert "| softmax |" in page and "±" in page and "(train-cpu.svg)" in page
    assert (tmp_path / "train-cpu.svg").read_text().startswith("<?xml")
    capsys.readouterr()

    assert serve.main([str(tmp_path / "checkpoints" / "learned-1.pt")]) == 0
    shown = capsys.readouterr().out
    assert "largest difference from the model: 0.0e+00" in shown or "e-0" in shown
    assert serve.main([str(tmp_path / "checkpoints" / "softmax-0.pt")]) == 1
    assert "expected a model with gdpa's attention" in capsys.readouterr().err


def test_an_impossible_option_is_refused_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--steps", "0"], "--steps is a number from 1 up"),
        (["--variants", "silu,relu"], "got relu"),
        (["--heads", "3"], "--heads divides --dim, got 3 and 64"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err
    assert main(["--device", "cuda:99"]) == 1
    assert main(["--shard-tables"]) == 1 and "start it with torchrun" in capsys.readouterr().err
