"""torch.export of the blocks of gdpa.nn: a program takes any number of users, also one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from reference import offsets
from torch import Tensor, nn
from torch.export import Dim

import gdpa

D, H = 12, 3
ROWS, USERS = Dim("rows"), Dim("users")
OFFSETS = Dim("offsets")  # one more than users, if users are not a dimension of another input

# Without this setting, PyTorch takes a dimension of an input that is 1 in the example as a constant.
any_size = torch.fx.experimental._config.patch(backed_size_oblivious=True)


def jagged(lengths: Sequence[int]) -> tuple[Tensor, ...]:
    return torch.randn(sum(lengths), D), offsets(list(lengths))


def with_times(lengths: Sequence[int]) -> tuple[Tensor, ...]:
    return *jagged(lengths), 1_700_000_000 + torch.arange(sum(lengths)) ** 2


def with_context(lengths: Sequence[int]) -> tuple[Tensor, ...]:
    rows, cu = jagged(lengths)
    return rows, torch.randn(len(lengths), 8, D), cu


def with_features(lengths: Sequence[int]) -> tuple[Tensor, ...]:
    rows, context, cu = with_context(lengths)
    return context, rows, cu


OF_ROWS = ({0: ROWS}, {0: OFFSETS})
#: The block, its inputs for lengths, and their dimensions.
BLOCKS: dict[str, tuple[Callable[[], nn.Module], Callable[[Sequence[int]], tuple[Tensor, ...]], tuple[Any, ...]]] = {
    "GDPAttention": (lambda: gdpa.nn.GDPAttention(D, H), jagged, OF_ROWS),
    "HSTULayer": (
        lambda: gdpa.nn.HSTULayer(D, H, positions=4, time_buckets=30), with_times, ({0: ROWS}, {0: OFFSETS}, {0: ROWS})
    ),
    "PMA": (lambda: gdpa.nn.PMA(D, H, 2), jagged, OF_ROWS),
    "HSP": (lambda: gdpa.nn.HSP(D, H, 6, 2), jagged, OF_ROWS),
    "GDPACrossAttention": (
        lambda: gdpa.nn.GDPACrossAttention(D, H), with_context, ({0: ROWS}, {0: USERS}, {0: USERS + 1})
    ),
    "PFFN": (lambda: gdpa.nn.PFFN(D, H), with_context, ({0: ROWS}, {0: USERS}, {0: USERS + 1})),
    "InterFormer": (
        lambda: gdpa.nn.InterFormer(D, H, 1, features=8), with_features, ({0: USERS}, {0: ROWS}, {0: USERS + 1})
    ),
    "Kunlun": (
        lambda: gdpa.nn.Kunlun(D, H, 2, features=8, seeds=6, tokens=3), with_features,
        ({0: USERS}, {0: ROWS}, {0: USERS + 1}),
    ),
}  # fmt: skip


def check_program(name: str, example: Sequence[int], strict: bool = False) -> None:
    make, inputs_of, dimensions = BLOCKS[name]
    block = make().eval()
    program = torch.export.export(block, inputs_of(example), dynamic_shapes=dimensions, strict=strict).module()
    for lengths in ([5], [2, 0, 4], [3, 3, 1, 2]):
        inputs = inputs_of(lengths)
        torch.testing.assert_close(program(*inputs), block(*inputs))


@pytest.mark.parametrize("example", [[7], [3, 4]], ids=["one user", "two users"])
@pytest.mark.parametrize(
    ("name", "strict"),
    [(name, False) for name in ("GDPAttention", "HSTULayer", "PMA", "HSP")]
    + [(name, True) for name in ("GDPAttention", "HSTULayer")],
)
def test_a_program_takes_any_number_of_users(name: str, example: list[int], strict: bool) -> None:
    check_program(name, example, strict)


@pytest.mark.parametrize("name", list(BLOCKS))
def test_with_a_setting_of_pytorch_every_block_takes_any_number_of_users(name: str) -> None:
    with any_size:
        check_program(name, [7])


class Ranking(nn.Module):
    """Two pools, and layers that read the number of users from their result."""

    def __init__(self) -> None:
        super().__init__()
        self.pma, self.hsp = gdpa.nn.PMA(D, H, 1), gdpa.nn.HSP(D, H, 6, 2)
        self.head = nn.Sequential(nn.Flatten(1), nn.Linear(3 * D, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 1))

    def forward(self, rows: Tensor, cu_seqlens: Tensor) -> Tensor:
        pooled = torch.cat([self.pma(rows, cu_seqlens), self.hsp(rows, cu_seqlens)], dim=1)
        return self.head(pooled @ pooled.mT @ pooled).squeeze(-1)


def test_the_layers_after_a_pool_take_any_number_of_users() -> None:
    model = Ranking().eval()
    program = torch.export.export(model, jagged([3, 4]), dynamic_shapes=({0: ROWS}, {0: USERS + 1})).module()
    for lengths in ([5], [2, 0, 4]):
        inputs = jagged(lengths)
        torch.testing.assert_close(program(*inputs), model(*inputs))


def test_a_wrong_example_is_refused() -> None:
    with pytest.raises(ValueError, match=r"context: expected shape \(B, n, D\) with B = 2.* got \(3, 8, 12\)"):
        torch.export.export(
            gdpa.nn.GDPACrossAttention(D, H), (torch.randn(7, D), torch.randn(3, 8, D), offsets([3, 4]))
        )
