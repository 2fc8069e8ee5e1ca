"""Compares gdpa.compat.meta and Meta's Triton operator with the formula in fp64, on a GPU.

    python tests/compat/side_by_side.py ~/ads_model_kernel_library --markdown side-by-side.md

Each case has random operands. The table has the error of O and of each gradient: the 2-norm of the difference to fp64,
as a part of the 2-norm of the exact result. An error of more than twice the constant of docs/accuracy.md is marked with
an asterisk. The command ends with exit code 1 if a result of gdpa has this mark. Processes compute the cases at the
same time, because Triton compiles two kernels for each case.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "python"))
from compat_reference import META_FUNCTIONS, meta  # noqa: E402

NAMES = list(META_FUNCTIONS)
BOUNDS = {torch.bfloat16: 2 * 3e-3, torch.float16: 2 * 6e-4}  # docs/accuracy.md
LENGTHS_Q, LENGTHS_K = [200, 1, 77, 300], [130, 257, 0, 64]
TABLES = ("ts_encoding", "ts_event_request_even", "ts_event_request_log", "ts_adjacent_event_log", "pos_emb")
ROWS_OF_TABLE = 32


@dataclass(frozen=True)
class Case:
    """A call of the operator. The members are its deviations from a plain call with silu."""

    name: str
    functions: Sequence[str] = ("silu",) * 4  # of each query head
    heads_k: int = 4
    columns: int = 64
    dtype: torch.dtype = torch.bfloat16
    form: str = "offsets"
    arguments: dict[str, Any] = field(default_factory=dict)
    encodings: Sequence[str] = ()


def cases() -> list[Case]:
    of_all = [Case(f"activation {name}", [name] * 4) for name in NAMES]
    windows = [Case(f"window_size {size}", arguments={"window_size": size}) for size in (0, 1, 17, 128, 1000)]
    encodings = [Case(f"{name} with {f}", [f] * 4, encodings=[name]) for name in TABLES for f in ("raw", "silu")]
    return [
        *of_all,
        *windows,
        Case("qk_scale 0.25", arguments={"qk_scale": 0.25}),
        Case("broadcast_q", form="broadcast", arguments={"broadcast_q": True}),
        Case("GQA, 4 query heads for each key head", heads_k=1),
        Case("GQA, 2 query heads for each key head", heads_k=2),
        Case("start and end offsets, apart", form="ranges"),
        Case("start and end offsets, keys overlap", form="overlapping ranges"),
        Case("ad_to_request_offset", form="map"),
        Case("fused K||V", form="fused"),
        Case("ensemble_activation_list", ["gelu", "relu", "silu", "silu"],
             arguments={"ensemble_activation_list": [NAMES.index("gelu"), NAMES.index("relu")]}),
        *encodings,
        Case("all encodings with silu", encodings=TABLES),
        Case("head dim 128", columns=128),
        Case("head dim 32, fp16", columns=32, dtype=torch.float16),
        Case("window_size 17 and GQA", heads_k=2, arguments={"window_size": 17}),
        Case("window_size 17 and broadcast_q", form="broadcast", arguments={"broadcast_q": True, "window_size": 17}),
    ]  # fmt: skip


def offsets_of(lengths: Sequence[int]) -> list[int]:
    return [0, *torch.tensor(lengths).cumsum(0).tolist()]


def ranges_with_gaps(lengths: Sequence[int], step: int) -> list[tuple[int, int]]:
    """Sequences of which each begins `step` rows after the end of the one before, or before that end."""
    ranges, begin = [], max(0, step)
    for length in lengths:
        ranges.append((begin, begin + length))
        begin = max(0, begin + length + step)
    return ranges


class Call:
    """The operands and arguments of a case, for both operators and for the reference."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)

        def drawn(*shape: int, factor: float = 1.0) -> Tensor:
            return (torch.randn(shape, generator=generator, device="cuda") * factor).to(case.dtype)

        self.case = case
        heads, columns = len(case.functions), case.columns
        self.arguments: dict[str, Any] = {"activation": case.functions[-1], **case.arguments}
        self.expected: dict[str, Any] = {
            "functions": case.functions,
            "window_size": case.arguments.get("window_size"),
            "qk_scale": case.arguments.get("qk_scale"),
        }
        offsets_q, offsets_k = offsets_of(LENGTHS_Q), offsets_of(LENGTHS_K)
        self.ranges_q, self.ranges_k = list(pairwise(offsets_q)), list(pairwise(offsets_k))
        self.offsets_q, self.offsets_k = offsets_q, offsets_k
        rows_q, rows_k = offsets_q[-1], offsets_k[-1]
        if case.form == "broadcast":
            rows_q = LENGTHS_Q[0]
            self.offsets_q = [0, rows_q]
            self.ranges_q = [(0, rows_q)] * len(LENGTHS_K)
            begins = [b * rows_q for b in range(len(LENGTHS_K) + 1)]
            self.arguments["output_offset"] = self.integers(begins)
            self.expected |= {"output_begins": begins[:-1], "rows": begins[-1]}
        elif "ranges" in case.form:
            self.ranges_q = ranges_with_gaps(LENGTHS_Q, 3)
            self.ranges_k = ranges_with_gaps(LENGTHS_K, -40 if case.form.startswith("overlapping") else 5)
            rows_q, rows_k = self.ranges_q[-1][1], max(end for _, end in self.ranges_k)
            self.offsets_q, self.offsets_k = ([n for one in r for n in one] for r in (self.ranges_q, self.ranges_k))
            self.arguments |= {"use_start_end_offsets": True, "total_num_objects": rows_q}
            self.expected["rows"] = rows_q
        elif case.form == "map":
            keys_of = [1, 1, 3, 0]
            self.arguments["ad_to_request_offset"] = self.integers(keys_of)
            self.expected["keys_of"] = keys_of
        # A standard deviation of 2 for the scores, which is where the functions differ from lines.
        query = drawn(rows_q, heads, columns, factor=2 * columns**-0.5)
        if case.form == "fused":
            self.operands = [query, drawn(rows_k, case.heads_k, 2 * columns), None]
        else:
            self.operands = [query, drawn(rows_k, case.heads_k, columns), drawn(rows_k, case.heads_k, columns)]
        self.tables = {name: drawn(ROWS_OF_TABLE, heads * columns, factor=columns**-0.5) for name in case.encodings}
        self.buckets = {
            name: torch.randint(0, ROWS_OF_TABLE, (rows_q,), generator=generator, device="cuda", dtype=torch.int32)
            for name in case.encodings
        }

    @staticmethod
    def integers(numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, device="cuda", dtype=torch.int32)

    def results(self, operator: Callable[..., Tensor]) -> dict[str, Tensor]:
        """O and the gradients that a call of the operator gives."""
        operands = [None if one is None else one.clone().requires_grad_() for one in self.operands]
        tables = {name: table.clone().requires_grad_() for name, table in self.tables.items()}
        encodings = {f"{name}_params": table for name, table in tables.items()}
        encodings |= {f"{name}_bucket_values": buckets for name, buckets in self.buckets.items()}
        output = operator(
            *operands, self.integers(self.offsets_q), self.integers(self.offsets_k), max(LENGTHS_Q), max(LENGTHS_K),
            **self.arguments, **encodings,
        )  # fmt: skip
        return self.with_gradients(output, operands, tables)

    def exact(self) -> dict[str, Tensor]:
        operands = [None if one is None else one.double().requires_grad_() for one in self.operands]
        tables = {name: table.double().requires_grad_() for name, table in self.tables.items()}
        parts = operands if operands[2] is not None else [operands[0], *operands[1].chunk(2, -1)]
        encodings = [(table, self.buckets[name]) for name, table in tables.items()]
        with torch.device("cuda"):
            output = meta(*parts, self.ranges_q, self.ranges_k, encodings=encodings, **self.expected)
        return self.with_gradients(output, operands, tables)

    def with_gradients(
        self, output: Tensor, operands: Sequence[Tensor | None], tables: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        generator = torch.Generator("cuda").manual_seed(0)
        gradient = torch.randn(output.shape, generator=generator, device="cuda").to(self.case.dtype).to(output.dtype)
        results = {"O": self.of_sequences(output.detach())}
        output.backward(gradient)
        names = ("dQ", "dK||dV") if operands[2] is None else ("dQ", "dK", "dV")
        for name, operand in zip(names, operands, strict=False):
            results[name] = operand.grad
        if tables:
            results["encodings"] = torch.cat([table.grad.reshape(-1) for table in tables.values()])
        return results

    def of_sequences(self, output: Tensor) -> Tensor:
        """The rows of the output that a sequence has. Meta's operator leaves the others without a value."""
        begins = self.expected.get("output_begins", [begin for begin, _ in self.ranges_q])
        return torch.cat(
            [output[at : at + end - begin] for at, (begin, end) in zip(begins, self.ranges_q, strict=True)]
        )


@cache
def metas_operator(checkout: Path) -> Callable[..., Tensor]:
    os.environ["GDPA_DISABLE_AUTOTUNE"] = "1"  # one variant of each kernel
    from gdpa.bench.systems.packages import META_PACKAGE, add_checkout, define_object

    add_checkout(checkout)
    module = importlib.import_module(f"{META_PACKAGE}.triton.triton_generalized_dot_product_attention")
    define_object(module)
    return module.generalized_dot_product_attention


@dataclass(frozen=True)
class Outcome:
    """The errors of the results of a call, or the message of the exception that it raised."""

    errors: dict[str, float]
    exception: str = ""

    def is_within(self, bound: float) -> bool:
        return not self.exception and all(error <= bound for error in self.errors.values())

    def text(self, bound: float) -> str:
        marked = (f"{name} {error:.4f}{'' if error <= bound else '*'}" for name, error in self.errors.items())
        return self.exception or ", ".join(marked)


def outcomes_of(number: int, checkout: Path, seed: int) -> list[Outcome]:
    """Returns the outcomes of gdpa and of Meta's operator in a case."""
    from gdpa.compat.meta import generalized_dot_product_attention

    call = Call(cases()[number], seed)
    exact = call.exact()
    outcomes = []
    for operator in (generalized_dot_product_attention, metas_operator(checkout)):
        try:
            results = call.results(operator)
        except Exception as error:  # the errors of Triton's compiler have no common class
            outcomes.append(Outcome({}, f"{type(error).__name__}: {error}".splitlines()[0][:120]))
            continue
        distances = {name: (results[name].double() - of_exact).norm() for name, of_exact in exact.items()}
        outcomes.append(Outcome({name: float(distances[name] / exact[name].norm()) for name in exact}))
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="of ads_model_kernel_library")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table to a file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("side_by_side.py: expected a CUDA GPU for Meta's Triton kernels, found none")
    table = [["case", "gdpa", "Meta's operator"]]
    within = [0, 0]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        runs = [pool.submit(outcomes_of, i, options.checkout, options.seed) for i in range(len(cases()))]
        for case, run in zip(cases(), runs, strict=True):
            bound, outcomes = BOUNDS[case.dtype], run.result()
            within = [count + outcome.is_within(bound) for count, outcome in zip(within, outcomes, strict=True)]
            table.append([case.name, *(outcome.text(bound) for outcome in outcomes)])
            print("  |  ".join(table[-1]), flush=True)
    print(f"{len(cases())} cases; gdpa is within the bound in {within[0]}, Meta's operator in {within[1]}")
    if options.markdown:
        lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in table]
        options.markdown.write_text("\n".join([lines[0], "|---|---|---|", *lines[1:]]) + "\n")
    if within[0] < len(cases()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
