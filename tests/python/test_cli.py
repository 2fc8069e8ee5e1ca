"""The interface of the command line: exit codes, printed text, and JSON.

The program is GDPA_COMMAND, or `gdpa` in the package or on PATH.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gdpa.bench import command

OUTPUTS = ["O", "dQ", "dK", "dV"]
ROW_FIELDS = [
    "system",
    "version",
    "commit",
    "direction",
    "device",
    "shape",
    "dtype",
    "activation",
    "accuracy",
    "deterministic",
    "mask",
    "B",
    "H_q",
    "H_k",
    "d",
    "d_v",
    "q",
    "kv",
    "fill",
    "shared_q",
    "shared_kv",
    "bytes",
    "ms",
    "tflops",
    "cublas_tflops",
    "floor_tflops",
]


def gdpa(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """On the CPU, unless an environment says otherwise: with a GPU in the machine it would be chosen."""
    return subprocess.run(
        [command.find(), *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=120,
        env=os.environ | ({"CUDA_VISIBLE_DEVICES": ""} | environment),
    )


def succeed(*arguments: str, stdin: str = "") -> str:
    done = gdpa(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_json(*arguments: str) -> dict[str, Any]:
    return json.loads(succeed("run", "--seconds", "0", "--json", *arguments))


@pytest.mark.parametrize("subcommand", ["run", "explain", "compile", "bench", "doctor", "verify"])
def test_every_subcommand_explains_itself_with_examples(subcommand: str) -> None:
    text = succeed(subcommand, "--help")
    assert f"Usage: gdpa {subcommand}" in text
    assert "Examples:" in text and f"  gdpa {subcommand}" in text


def test_the_main_help_lists_the_subcommands_and_exit_codes() -> None:
    text = succeed("--help")
    for word in ("run", "explain", "compile", "bench", "doctor", "verify", "Exit codes"):
        assert word in text
    assert "verify-child" not in text, "a part of gdpa verify"


def test_the_version_is_that_of_the_header() -> None:
    header = Path(__file__).parents[2] / "include" / "gdpa" / "version.h"
    version = header.read_text().split('"')[1]
    assert succeed("--version").startswith(f"gdpa {version} (commit ")


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("run", "--nonsense"), ("run", "--batch", "0")])
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = gdpa(*arguments)
    assert done.returncode == 2
    assert done.stderr and not done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dtype", "int8"), "expected float32, float64, bfloat16 or float16; got 'int8'"),
        (("--lengths", "3,-1"), "expected lengths, whole numbers of 0 or more; got '-1'"),
        (("--lengths", "no-such-file"), "found no such file"),
        (("--lengths-q", "3,4", "--lengths-k", "3"), "got 2 of the queries and 1 of the keys"),
        (("--lengths", "3", "--lengths-q", "3"), "--lengths sets the lengths of queries and keys"),
        (("--dense", "--fill", ".5"), "--dense gives every batch entry the same length"),
        (("--shared-q", "4", "--lengths", "3"), "--shared-q"),
        (("--mask", "triangle"), "expected none, causal, causal-upper-left, window:LEFT,RIGHT (-1 has no bound), or a"),
        (("--mask", "kv_idx <= n[batch]"), "no tensor is given for n"),
        (("--mask", "hstu(3)"), "hstu takes 2 to 4 arguments, but 1 came"),
        (("--mask", "kv_idx < 3", "--tensor", "n=3"), """--tensor: expected a name in "gelu", "kv_idx < 3"; got 'n'"""),
        (("--mask", "window:3"), "got 'window:3'"),
        (("--out-scale", "half"), "got 'half'"),
        (("--with", "a"), "expected name=number"),
        (("--heads", "4", "--heads-k", "3"), "heads"),
        (("--scale", "nan"), "scale"),
        (("--out-scale", "1,2,3", "--batch", "2"), "out_scale"),
        (("--activation", "nosuch"), "nosuch"),
        (("--activation", "b * s", "--tensor", "b"), "--tensor: expected NAME=VALUE"),
        (("--activation", "b * s", "--tensor", "b=1", "c=2"), """--tensor: expected a name in "b * s"; got 'c'"""),
        (("--activation", "s + t[head, q_idx]"), "no tensor is given for t"),
        (("--activation", "b * s", "--tensor", "b=1", "--with", "b=2"), "b is given twice"),
        (("--activation", "b * s", "--tensor", "b=no/such.npy"), "'no/such.npy', and there is no such file"),
        (("--activation", "b * s", "--tensor", "b=randn:none"), "tokens_q, tokens_k; got 'none'"),
        (("--activation", "b * s", "--tensor", "b=randn:0"), "expected sizes of 1 or more"),
        (("--activation", "b * s", "--tensor", "b=randn:1,1,1,1,1"), "expected at most 4 axes"),
        (("--activation", "b * s", "--tensor", "b=randn:4:int8"), "got 'int8'"),
        (("--activation", "b * s", "--tensor", "b=randn:5"), "one number for each query head, got (5,)"),
        (("--activation", "b * s", "--tensor", "b=1", "--tensor-gradients", "c"), "--tensor-gradients: expected all"),
        (
            ("--activation", "s + t[q_idx]", "--tensor", "t=times:9", "--tensor-gradients", "t"),
            "floating-point numbers; got",
        ),
    ],
)
def test_an_impossible_argument_is_refused_in_words(arguments: tuple[str, ...], words: str) -> None:
    done = gdpa("run", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert not done.stdout


def test_a_wrong_expression_is_shown_with_a_caret_under_the_mistake() -> None:
    done = gdpa("run", "--activation", "s * sigmod(s)")
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    shown = next(index for index, line in enumerate(lines) if line.strip() == "s * sigmod(s)")
    assert lines[shown + 1].index("^") == lines[shown].index("sigmod")


def test_json_that_cannot_be_written_is_exit_code_3() -> None:
    done = gdpa("run", "--lengths", "3", "--seconds", "0", "--json", "/no/such/folder/out.json")
    assert done.returncode == 3
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "shape",
    [
        ("--lengths", "3,17,0,5"),
        ("--lengths-q", "9,0,40", "--lengths-k", "30,5,0", "--heads", "4", "--heads-k", "2"),
        ("--dense", "--batch", "2", "--max-length", "33", "--head-dim", "24", "--head-dim-v", "40"),
        ("--shared-q", "4", "--lengths-k", "5,0,70", "--out-scale", "1/len_k"),
        ("--shared-k", "16", "--lengths-q", "5,0,70", "--out-scale", ".5,1,2"),
        ("--lengths", "50,20", "--mask", "causal", "--activation", "silu"),
        ("--lengths-q", "50,20", "--lengths-k", "30,40", "--mask", "window:5,2", "--scale", ".3"),
    ],
)
def test_run_keeps_the_promise(shape: tuple[str, ...], dtype: str) -> None:
    result = run_json(*shape, "--dtype", dtype)
    assert result["ok"] is True
    assert list(result["outputs"]) == OUTPUTS
    for output in result["outputs"].values():
        assert 0 <= output["error"] <= output["promise"]
    assert result["problem"]["dtype"] == dtype


def test_run_takes_an_expression_with_parameters() -> None:
    result = run_json("--lengths", "20", "--activation", "a * tanh(b * s)", "--with", "a=2", "b=.5")
    assert result["ok"] is True
    assert "a = 2" in result["problem"]["activation"]


TABLE = "silu(s + table[head, clamp(q_idx - kv_idx, 0, 127)])"
BUCKETS = "silu(s + w[head, clamp(floor(log2(1 + abs(t_q[q_row] - t_k[kv_row]))), 0, 63)])"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("arguments", "gradients"),
    [
        ((TABLE, "--tensor", "table=randn:heads,128:bfloat16"), ["dtable"]),
        (("a * s * sigmoid(b * s)", "--tensor", "a=1.5", "b=randn:heads"), ["da", "db"]),
        (("a * s * sigmoid(b * s)", "--tensor", "a=1.5", "b=randn:heads", "--tensor-gradients", "none"), []),
        ((BUCKETS, "--tensor", "w=randn:heads,64", "--tensor", "t_q=times:tokens_q", "t_k=times:tokens_k"), ["dw"]),
        (("gelu; silu; relu; a * s + bias[batch, head, q_idx, kv_idx]",
          "--tensor", "a=2", "bias=randn:batch,1,length_q,length_k", "--tensor-gradients", "bias"), ["dbias"]),
    ],
)  # fmt: skip
def test_run_checks_the_gradients_of_tensors(arguments: tuple[str, ...], gradients: list[str], dtype: str) -> None:
    result = run_json("--lengths", "30,0,41", "--dtype", dtype, "--activation", *arguments)
    assert result["ok"] is True
    assert list(result["outputs"]) == OUTPUTS + gradients
    wanted = [f"d{name}" for name, tensor in result["problem"]["tensors"].items() if tensor["gradient"]]
    assert wanted == gradients


def test_run_divides_the_error_of_a_sum_that_cancels_by_the_norm_of_its_terms() -> None:
    """The two reads have opposite terms, so the exact gradient is 0. What is left is the rounding of 7,200 terms."""
    opposite = "s + t[clamp(kv_idx, 0, 0)] * sin(s)^2 + t[clamp(q_idx, 0, 0)] * (cos(s)^2 - 1)"
    result = run_json("--lengths", "60", "--heads", "2", "--activation", opposite, "--tensor", "t=randn:1")
    assert 1e-9 < result["outputs"]["dt"]["error"] <= result["outputs"]["dt"]["promise"] == 2e-6
    assert result["ok"] is True


def test_tensors_come_from_files_of_numpy(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    arrays = {
        "a": numpy.float64(1.5),
        "b": numpy.linspace(-1, 1, 4),
        "table": numpy.asfortranarray(numpy.arange(36, dtype="f2").reshape(4, 9)) / 36,
        "n": numpy.arange(50, dtype="i4") % 9,
    }
    values = []
    for name, array in arrays.items():
        numpy.save(tmp_path / f"{name}.npy", array)
        values.append(f"{name}={tmp_path / name}.npy")
    result = run_json(
        "--lengths", "20,30", "--activation", "a * s * sigmoid(b * s + table[head, n[kv_idx]])", "--tensor", *values
    )
    assert result["ok"] is True
    assert list(result["outputs"]) == [*OUTPUTS, "da", "db", "dtable"]
    tensors = {name: (one["dtype"], one["shape"]) for name, one in result["problem"]["tensors"].items()}
    assert tensors == {
        "a": ("float32", []), "b": ("float32", [4]), "table": ("float16", [4, 9]), "n": ("int32", [50])
    }  # fmt: skip

    numpy.save(tmp_path / "complex.npy", numpy.zeros(3, complex))
    done = gdpa("run", "--activation", "b * s", "--tensor", f"b={tmp_path}/complex.npy")
    assert done.returncode == 2 and "got '<c16'" in done.stderr


def mask_files(folder: Path) -> list[str]:
    numpy = pytest.importorskip("numpy")
    arrays = {"n": numpy.array([4, 0, 9]), "seen": numpy.arange(60, dtype="i4") * 7 % 60, "width": numpy.float32(2.5)}
    for name, array in arrays.items():
        numpy.save(folder / f"{name}.npy", array)
    return [f"{name}={folder / name}.npy" for name in arrays]


MASK = "((kv_idx < n[batch]) & (seen[q_row] > seen[kv_row] - 20)) | (abs(q_idx - kv_idx) < width)"


def test_a_mask_is_a_condition_with_tensors(tmp_path: Path) -> None:
    options = ("--lengths", "30,0,30", "--mask", MASK, "--tensor", *mask_files(tmp_path))
    result = run_json(*options, "--dtype", "float64")
    assert result["ok"] is True, result
    assert list(result["outputs"]) == OUTPUTS
    problem = result["problem"]
    assert problem["mask"] == MASK
    tensors = {name: (one["dtype"], one["shape"], one["gradient"]) for name, one in problem["mask_tensors"].items()}
    assert tensors == {"n": ("int64", [3], False), "seen": ("int32", [60], False), "width": ("float32", [], False)}
    rows = [json.loads(line) for line in succeed("bench", *options, "--seconds", "0", "--json").splitlines()]
    assert [row["mask"] for row in rows] == [MASK, MASK]
    plan = json.loads(succeed("explain", *options, "--json"))
    ratio = rows[0]["tflops"] * rows[0]["ms"] * 1e9 / plan["forward"]["flops"]
    assert ratio == pytest.approx(1)


def test_a_function_and_a_mask_have_their_own_parameters() -> None:
    options = ("--lengths", "9", "--activation", "a * silu(s)", "--mask", "q_idx - kv_idx < w", "--with", "a=2,w=3")
    assert run_json(*options)["ok"] is True
    assert "expression" in gdpa("run", *options[:-1], "a=2,w=3,z=1").stderr


def kept(i: int, j: int) -> bool:
    """hstu(3, 8, 4) in a sequence of 40."""
    if i < 3 and j < 32:
        return True
    return j <= i and (i < 32 or j < 32 or j >= 32 + (i - 32) // 4 * 4)


def test_explain_draws_the_tiles_of_a_mask(tmp_path: Path) -> None:
    picture = tmp_path / "mask.png"
    options = ("--lengths", "7,40", "--mask", "hstu(3, 8, 4)", "--entry", "1", "--tile-map", str(picture))
    of_forward = json.loads(succeed("explain", *options, "--json"))["tile_map"]["forward"]
    rows, columns = of_forward["tile_queries"], of_forward["tile_keys"]

    def tile(row: int, column: int) -> str:
        scores = [
            kept(i, j)
            for i in range(row * rows, min(40, (row + 1) * rows))
            for j in range(column * columns, min(40, (column + 1) * columns))
        ]
        return "#" if all(scores) else "+" if any(scores) else "."

    expected = ["".join(tile(r, c) for c in range(-(-40 // columns))) for r in range(-(-40 // rows))]
    assert of_forward["rows"] == expected
    counts = [sum(line.count(mark) for line in expected) for mark in "#+."]
    assert [of_forward[name] for name in ("full", "partial", "empty")] == counts
    text = succeed("explain", *options)
    assert "mask of sequence 1, head 0: 40 queries, 40 keys" in text
    assert f"{counts[0]} full (#), {counts[1]} partial (+), {counts[2]} empty (.)" in text

    image = pytest.importorskip("matplotlib.image").imread(picture)
    size = image.shape[0] // 40
    assert image.shape[:2] == (40 * size, 40 * size)
    colours: dict[bool, set[tuple[float, ...]]] = {False: set(), True: set()}
    for i in range(40):
        for j in range(40):
            colours[kept(i, j)].add(tuple(image[i * size + size // 2, j * size + size // 2][:3]))
    assert not colours[False] & colours[True]


def test_a_wrong_place_of_a_tile_map_is_refused(tmp_path: Path) -> None:
    options = ("explain", "--lengths", "7,9", "--tile-map")
    for arguments, words in (
        (["--entry", "2"], "--entry: expected 0 to 1; got 2"),
        (["--head", "4"], "--head: expected 0 to 3; got 4"),
        ([str(tmp_path / "mask.jpg")], "expected a file name that ends in .png"),
    ):
        done = gdpa(*options, *arguments)
        assert done.returncode == 2 and words in done.stderr
    done = gdpa(*options, str(tmp_path / "none" / "mask.png"))
    assert done.returncode == 3 and "cannot be written" in done.stderr


def test_bench_binds_a_tensor_to_the_functions_that_name_it() -> None:
    options = ("--lengths", "10,20", "--seconds", "0", "--json", "--tensor", "table=randn:heads,128")
    lines = succeed("bench", *options, "--activation", "silu", TABLE).splitlines()
    assert [json.loads(line)["activation"] for line in lines] == ["silu", "silu", TABLE, TABLE]
    done = gdpa("bench", *options, "--activation", "silu", "gelu")
    assert done.returncode == 2 and 'expected a name in "silu", "gelu"' in done.stderr


def test_run_finds_an_error_above_the_promise() -> None:
    """1e30 * s overflows the 16-bit score product's range, so the promise cannot be kept and the exit code says so."""
    done = gdpa("run", "--lengths", "20", "--dtype", "fp16", "--activation", "1e30 * s", "--seconds", "0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "above" in done.stdout


def test_lengths_come_from_a_file_or_from_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("# three users\n3, 17\n5\n")
    assert run_json("--lengths", str(file))["problem"]["lengths_q"] == [3, 17, 5]
    piped = json.loads(succeed("run", "--lengths", "-", "--seconds", "0", "--json", stdin="4 6"))
    assert piped["problem"]["lengths_q"] == [4, 6]
    timed = succeed("bench", "--lengths", "-", "--seconds", "0", "--direction", "fwd", "--json", stdin="4 6")
    assert json.loads(timed)["q"] == 6


def test_generated_lengths_have_the_fill_and_follow_the_seed() -> None:
    options = ("--batch", "400", "--max-length", "100", "--fill", ".3")

    def explain(*more: str) -> list[int]:
        return json.loads(succeed("explain", *options, *more, "--json"))["problem"]["lengths_q"]

    lengths = explain()
    assert len(lengths) == 400 and max(lengths) <= 60
    assert abs(sum(lengths) / 400 - 30) < 3
    assert explain() == lengths
    assert explain("--seed", "1") != lengths


def test_no_terminal_means_no_colour_and_no_progress() -> None:
    done = gdpa("run", "--lengths", "3", "--seconds", "0")
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_explain_says_what_would_run_in_both_directions() -> None:
    text = succeed("explain", "--lengths", "30,40", "--mask", "causal", "--activation", "silu")
    for word in ("forward", "backward", "kernel", "tiles", "schedule", "reason", "workspace", "floor", "f'(s)"):
        assert word in text


def test_explain_counts_the_scores_that_the_mask_keeps() -> None:
    options = ("--lengths", "40", "--heads", "2", "--head-dim", "16", "--head-dim-v", "8", "--json")
    everything = json.loads(succeed("explain", *options))
    causal = json.loads(succeed("explain", *options, "--mask", "causal"))
    assert everything["forward"]["flops"] == 2 * 2 * (16 + 8) * 40 * 40
    assert causal["forward"]["flops"] == 2 * 2 * (16 + 8) * 40 * 41 / 2
    assert everything["forward"]["floor_ms"] > 0


def test_explain_counts_the_products_of_the_wanted_gradients() -> None:
    options = ("--lengths", "40", "--heads", "1", "--head-dim", "16", "--head-dim-v", "8", "--json")

    def flops(gradients: str) -> float:
        plan = json.loads(succeed("explain", *options, "--gradients", gradients))
        assert plan["gradients"] == gradients
        return float(plan["backward"]["flops"])

    scores = 2 * 40 * 40
    assert flops("qkv") == scores * (3 * 16 + 2 * 8)
    assert flops("q") == scores * (2 * 16 + 8)  # S, dP and dQ
    assert flops("v") == scores * (16 + 8)  # S and dV
    assert "backward, gradients kv" in succeed("explain", "--gradients", "kv")


def test_explain_needs_no_numbers_of_tensors(nvrtc: str) -> None:
    options = ("--arch", "sm_80", "--dtype", "fp16", "--head-dim", "16", "--activation", TABLE, "--json")

    def kernels(*more: str) -> list[str]:
        plan = json.loads(succeed("explain", *options, "--tensor", "table=randn:heads,128", *more))
        names = [kernel["name"] for kernel in plan["backward"]["kernels"]]
        return [name.removeprefix("portable: ").split()[0] for name in names]

    # The sums of the gradients are cleared first.
    assert kernels() == ["clear", "clear", "backward", "parameter_gradients", "round_parameters", "reduce"]
    assert kernels("--tensor-gradients", "none") == ["clear", "backward", "reduce"]


@pytest.mark.parametrize("letters", ["qq", "x", "q,k", ""])
def test_gradients_are_letters_of_operands_each_once(letters: str) -> None:
    for subcommand in ("explain", "compile"):
        done = gdpa(subcommand, "--arch", "sm_90a", "--gradients", letters)
        assert done.returncode == 2
        assert "--gradients: expected some of the letters q, k and v" in done.stderr


def test_bench_writes_one_row_for_each_function_and_direction() -> None:
    lines = succeed(
        "bench", "--lengths", "10,20", "--activation", "gelu", "s * sigmoid(1.702 * s)", "--seconds", "0", "--json"
    ).splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["direction"], row["activation"]) for row in rows] == [
        ("fwd", "gelu"),
        ("bwd", "gelu"),
        ("fwd", "s * sigmoid(1.702 * s)"),
        ("bwd", "s * sigmoid(1.702 * s)"),
    ]
    for row in rows:
        assert list(row) == ROW_FIELDS
        assert row["cublas_tflops"] is None
        assert (row["B"], row["q"], row["fill"]) == (2, 20, 0.75)
        assert row["ms"] > 0 and row["tflops"] > 0 and row["floor_tflops"] > 0


# Every size is another number, so that no field can have the number of another one.
SIZES = {"B": 2, "H_q": 6, "H_k": 3, "d": 16, "d_v": 40, "q": 400, "kv": 500}
SIZED = ("--lengths-q", "200,400", "--lengths-k", "350,500", "--heads", "6", "--heads-k", "3", "--head-dim", "16",
         "--head-dim-v", "40")  # fmt: skip
SIZED_FLOP = 2 * 6 * (16 + 40) * (200 * 350 + 400 * 500)


def test_rows_have_the_sizes_of_the_problem_and_flop_as_documented() -> None:
    for row in map(json.loads, succeed("bench", *SIZED, "--dtype", "bf16", "--seconds", "0", "--json").splitlines()):
        assert {name: row[name] for name in SIZES} == SIZES
        assert row["fill"] == 600 / 800
        is_forward = row["direction"] == "fwd"
        assert row["tflops"] * row["ms"] * 1e9 == pytest.approx(SIZED_FLOP * (1 if is_forward else 2.5))
        operands = 600 * 6 * 16 + 850 * 3 * (16 + 40)  # query, key and value, which have a gradient each
        results = 600 * 6 * 40  # the output, or its gradient
        assert row["bytes"] == 2 * (operands * (1 if is_forward else 2) + results)
    problem = run_json(*SIZED, "--no-check")["problem"]
    assert {name: problem[name] for name in SIZES if name in problem} == {
        name: SIZES[name] for name in ("H_q", "H_k", "d", "d_v")
    }


def lines_of_table(text: str, columns: str) -> list[dict[str, str]]:
    """Returns the lines of the printed table with this column, by column."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    header = next(n for n, line in enumerate(lines) if columns in line)
    names, *cells = (line for line in lines[header:] if len(line) >= len(lines[header]) - 1)
    return [dict(zip(names[::-1], line[::-1], strict=False)) for line in cells]  # the first column may have no name


def test_tables_have_the_sizes_and_the_rate_of_the_problem() -> None:
    lines = lines_of_table(succeed("bench", *SIZED, "--seconds", "0"), "GFLOP/s")
    assert len(lines) == 2
    for line, flop in zip(lines, (SIZED_FLOP, 2.5 * SIZED_FLOP), strict=True):
        shown = {"B": line["B"], "H_q": line["H"], "d": line["d"], "q": line["q"], "kv": line["kv"]}
        assert shown == {name: str(SIZES[name]) for name in shown}
        assert float(line["fill"]) == 0.75
        assert float(line["GFLOP/s"]) * float(line["ms"]) * 1e6 == pytest.approx(flop, rel=0.02)
    lines = lines_of_table(succeed("run", *SIZED, "--seconds", "0", "--no-check"), "GFLOP/s")
    assert len(lines) == 2
    for line, flop in zip(lines, (SIZED_FLOP, 2.5 * SIZED_FLOP), strict=True):
        assert float(line["GFLOP/s"]) * float(line["ms"]) * 1e6 == pytest.approx(flop, rel=0.02)


def test_bench_counts_flop_inside_the_mask() -> None:
    line = succeed(
        "bench", "--lengths", "30", "--heads", "2", "--head-dim", "16", "--head-dim-v", "8", "--mask", "causal",
        "--direction", "bwd", "--seconds", "0", "--json",
    )  # fmt: skip
    row = json.loads(line)
    assert row["tflops"] * row["ms"] * 1e9 == pytest.approx(2.5 * 2 * 2 * (16 + 8) * 30 * 31 / 2)


def test_bench_writes_a_file_beside_the_table(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    text = succeed("bench", "--lengths", "10", "--direction", "fwd", "--seconds", "0", "--json", str(file))
    assert "GFLOP/s" in text
    assert [json.loads(line)["direction"] for line in file.read_text().splitlines()] == ["fwd"]


def test_a_suite_shrinks_to_a_small_machine() -> None:
    rows = [
        json.loads(line)
        for line in succeed("bench", "--suite", "uses", "--scale-batch", ".03", "--seconds", "0", "--json").splitlines()
    ]
    assert [(row["shared_q"], row["shared_kv"]) for row in rows[::2]] == [(False, False), (False, True), (True, False)]
    assert {row["B"] for row in rows} == {2}
    assert gdpa("bench", "--suite", "nosuch").returncode == 2


def test_the_shapes_of_the_suite_score_have_tensors_for_their_functions() -> None:
    options = ("--suite", "score", "--scale-batch", "1e-9", "--direction", "fwd", "--seconds", "0", "--rounds", "1")
    rows = [json.loads(line) for line in succeed("bench", *options, "--json").splitlines()]
    shapes = json.loads(succeed("bench", "--list-suites", "--json"))["score"]["shapes"]
    assert [(row["shape"], row["activation"]) for row in rows] == [
        (shape["name"], activation) for shape in shapes for activation in shape["activation"]
    ]


def rows_of_suite_hopper(direction: str) -> list[dict[str, Any]]:
    """From a GPU that computes nothing, so that long sequences take no time."""
    asked = ("--suite", "hopper", "--direction", direction)
    done = on_fake_gpu(
        "bench", *asked, "--scale-batch", ".0005", "--seconds", "0", "--rounds", "1", "--alone", "--json"
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["direction"] for row in rows} == {direction}
    return rows


@pytest.mark.long
def test_a_shape_of_a_suite_says_what_differs_from_the_suite() -> None:
    """The suite hopper has functions, types and masks of some of its shapes."""
    rows = rows_of_suite_hopper("fwd")
    functions = [row["activation"] for row in rows if row["shape"] == "2048/2048"]
    assert functions == ["gelu_tanh", "silu", "relu", "gelu", "s * sigmoid(s)"]
    by_name = {row["shape"]: row for row in rows}
    assert by_name["2048/2048 fp16"]["dtype"] == "float16" and by_name["2048/2048"]["dtype"] == "bfloat16"
    assert by_name["2048/2048 causal"]["mask"] == "causal"
    assert by_name["PFFN KV 64"]["shared_kv"] and by_name["PMA Q 4, KV 1024"]["shared_q"]
    assert not by_name.keys() & {"1024/1024 d 64", "2048/2048 deterministic"}  # worth timing backward alone


@pytest.mark.long
def test_a_shape_of_a_suite_may_be_timed_backward_alone_and_be_deterministic() -> None:
    deterministic = {row["shape"]: row["deterministic"] for row in rows_of_suite_hopper("bwd")}
    assert not deterministic["1024/1024 d 64"] and deterministic["2048/2048 deterministic"]
    assert sum(deterministic.values()) == 1


def test_bench_measures_the_host_cost() -> None:
    assert json.loads(succeed("bench", "--host-cost", "--seconds", ".01", "--json"))["host_cost_us"] > 0


def test_doctor_reports_and_checks_this_machine() -> None:
    report = json.loads(succeed("doctor", "--rates", "--json"))
    assert report["threads"] >= 1 and report["memory_bytes"] > 0
    assert report["vector_target"] and report["product_target"]
    assert all(check["ok"] for check in report["self_check"].values())
    assert report["rates"]["float32"]["product_tflops"] > 0
    for component in report["components"]:
        assert component["found"] or component["advice"], component
    names = {component["name"] for component in report["components"]}
    assert {"libxsmm", "Highway", "oneTBB", "CUDA driver", "NVRTC"} <= names


def test_rates_are_measured_on_the_threads_asked_for() -> None:
    """Python's benchmark asks for those that it times, or its floor would be another machine's."""
    assert json.loads(succeed("doctor", "--rates", "--threads", "1", "--json"))["rates"]["float32"]["threads"] == 1


def test_doctor_says_the_same_to_people() -> None:
    text = succeed("doctor")
    for word in ("processor", "libraries", "devices", "self-check", "libxsmm", "NVRTC"):
        assert word in text


# gdpa verify: faults come from a library that is loaded before libgdpa ------------------------------------------------

BUILT_TESTS = Path(os.environ.get("GDPA_BUILD", Path(__file__).parents[2] / "build")) / "tests" / "cpp"
VERIFY = ("verify", "--device", "cpu", "--no-rates", "--json")
SMALL = ("--seed", "8", "--problems", "3")  # a seed whose problems are small


def with_fault(fault: str, call: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With this fault in a call of forward with bfloat16: each child counts its calls from 1."""
    library = BUILT_TESTS / "libfaulty_gdpa.so"
    if not library.is_file():
        pytest.skip("needs a finished build of the tests: cmake --build build")
    return gdpa(*arguments, LD_PRELOAD=str(library), FAULT=fault, FAULT_CALL=str(call))


def test_verify_computes_every_type_in_both_directions() -> None:
    report = json.loads(succeed(*VERIFY, *SMALL))
    rows = {(row["family"], row["type"], row["direction"]): row for row in report["rows"]}
    types = ("float32", "float64", "bfloat16", "float16")
    assert set(rows) == {("cpu", dtype, direction) for dtype in types for direction in ("forward", "backward")}
    for row in rows.values():
        assert row["problems"] == 3 and not row["failures"] and 0 < row["worst_error_by_promise"] <= 1
    assert report["ok"] and report["seed"] == 8 and not report["failures"]
    assert report["machine"]["version"] and report["machine"]["commit"] and report["machine"]["system"]


def test_verify_draws_other_problems_each_time_and_the_same_for_a_seed() -> None:
    def problems(*arguments: str) -> tuple[int, list[str]]:
        report = json.loads(with_fault("wrong", 2, *VERIFY, "--problems", "1", *arguments).stdout)
        return report["seed"], [failure["command"] for failure in report["failures"]]

    seed, commands = problems()
    other_seed, other_commands = problems()
    assert seed != other_seed and commands != other_commands
    assert problems("--seed", str(seed)) == (seed, commands)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("crash", "crash", "ended by signal 6 (Aborted), step: forward\n  its output: a fault of the test"),
        ("hang", "hang", "no answer within 5 s, step: forward"),
        ("error", "error", "an error of the test"),
        ("wrong", "wrong", "O: above, error"),
        ("changed input", "wrong", "the call changed its input K"),
    ],
)
def test_verify_reports_a_fault_and_computes_the_next_problems(fault: str, kind: str, words: str) -> None:
    """The second problem has the fault: each problem calls forward twice."""
    done = with_fault(fault, 4, *VERIFY, *SMALL, "--seconds", "5")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    (failure,) = report["failures"]
    assert (failure["family"], failure["type"], failure["direction"]) == ("cpu", "bfloat16", "forward")
    assert failure["kind"] == kind and words in failure["text"]
    rows = {(row["type"], row["direction"]): row for row in report["rows"]}
    assert rows["bfloat16", "forward"]["problems"] == 3
    assert rows["bfloat16", "forward"]["failures"] == {kind: 1}
    assert all(not row["failures"] for key, row in rows.items() if key != ("bfloat16", "forward"))


def test_the_command_of_a_failure_repeats_it() -> None:
    report = json.loads(with_fault("wrong", 4, *VERIFY, *SMALL).stdout)
    program, *arguments = shlex.split(report["failures"][0]["command"])
    assert program == "gdpa"
    repeated = with_fault("wrong", 2, *arguments, "--seconds", "0")
    assert repeated.returncode == 1 and "above" in repeated.stdout
    assert "ok" in succeed(*arguments, "--seconds", "0")


def test_verify_leaves_a_type_after_three_hangs() -> None:
    report = json.loads(with_fault("hang", 1, *VERIFY, "--seed", "8", "--problems", "5", "--seconds", "1").stdout)
    assert [failure["kind"] for failure in report["failures"]] == ["hang"] * 3
    assert report["not_run"] == 2


def test_the_report_of_verify_has_a_table_the_failures_and_the_rates() -> None:
    text = with_fault("wrong", 4, "verify", "--device", "cpu", *SMALL).stdout
    for words in ("gdpa verify --seed 8 --problems 3", "(commit ", "system     ", "matrix product by libxsmm"):
        assert words in text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("cpu     bfloat16  forward ")]
    assert row[3] == "3" and row[5:] == ["O", "1", "wrong"]
    assert "  repeat: gdpa run --dtype bfloat16" in text and "1 of 24 checks failed" in text


def test_verify_without_a_gpu_says_what_to_do() -> None:
    done = gdpa("verify")
    assert done.returncode == 3 and not done.stdout
    assert "expected a GPU that gdpa supports, found none" in done.stderr and "gdpa verify --device cpu" in done.stderr


# GPUs: the tests need NVRTC, and launches use a driver that computes nothing ------------------------------------------

FAKE_DRIVER = BUILT_TESTS / "fake_driver"


@pytest.fixture(scope="module")
def nvrtc() -> str:
    """The file of NVRTC."""
    components = {found["name"]: found for found in json.loads(succeed("doctor", "--json"))["components"]}
    if not components["NVRTC"]["found"]:
        pytest.skip(components["NVRTC"]["advice"])
    return str(components["NVRTC"]["location"])


def on_fake_gpu(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    if not (FAKE_DRIVER / "libcuda.so.1").is_file():
        pytest.skip("needs a finished build of the tests: cmake --build build")
    libraries = f"{FAKE_DRIVER}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return gdpa(*arguments, **({"LD_LIBRARY_PATH": libraries} | environment))


def test_a_gpu_that_is_not_there_is_said_to_be_missing() -> None:
    done = gdpa("run", "--device", "cuda:7")
    assert done.returncode == 3
    assert "--device cuda:7: expected the number of a GPU" in done.stderr and "--device cpu" in done.stderr
    assert gdpa("run", "--device", "gpu").returncode == 2


@pytest.mark.long
def test_compile_fills_the_cache_for_a_gpu_that_is_not_there(nvrtc: str, tmp_path: Path) -> None:
    arguments = ("compile", "--arch", "sm_90", "--dtype", "bf16", "--head-dim", "16", "--activation", "silu", "--json")

    def kernels(*more: str) -> list[dict[str, Any]]:
        done = gdpa(*arguments, *more, GDPA_CACHE_DIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    first = kernels("--these-lengths")
    assert [(kernel["direction"], *kernel["kernel"].split()[:2]) for kernel in first] == [
        # In two passes, of which the second is for scores that are not finite.
        *[("fwd", "hopper:", "forward")] * 2,
        *[("bwd", "hopper:", kernel) for kernel in ("key_schedule", "backward")] * 2,
    ]
    assert {kernel["architecture"] for kernel in first} == {"sm_90a"}
    assert not any(kernel["cached"] for kernel in first)
    assert all(kernel["cached"] for kernel in kernels("--these-lengths"))
    for_all_lengths = kernels()
    assert {kernel["kernel"] for kernel in first} < {kernel["kernel"] for kernel in for_all_lengths}
    assert sum(kernel["cached"] for kernel in for_all_lengths) == len(first)
    assert all(kernel["cached"] for kernel in kernels())


def test_compile_needs_a_gpu_or_an_architecture() -> None:
    done = gdpa("compile")
    assert done.returncode == 2 and "--arch sm_90a" in done.stderr
    assert gdpa("compile", "--arch", "sm_70").returncode == 2
    assert gdpa("compile", "--arch", "sm_90a", "--dtype", "fp64").returncode == 2


def test_explain_lists_the_kernels_for_an_architecture(nvrtc: str) -> None:
    plan = json.loads(succeed("explain", "--arch", "sm_80", "--dtype", "fp16", "--head-dim", "16", "--json"))
    clearing, *kernels = plan["backward"]["kernels"]
    assert (clearing["name"], clearing["architecture"]) == ("clear memory", "sm_80")
    assert [kernel["name"].split()[1] for kernel in kernels] == ["backward", "reduce"]
    for kernel in kernels:
        assert kernel["architecture"] == "sm_80"
        assert 0 < kernel["registers"] <= 255 and kernel["threads"] % 32 == 0
    assert "floor_ms" not in plan["forward"] and "rates" not in plan
    text = succeed("explain", "--arch", "sm_80", "--dtype", "fp16", "--head-dim", "16")
    assert "FLOP per byte" in text and "spilled bytes" in text


def test_explain_shows_the_source_and_the_instructions(nvrtc: str, tmp_path: Path) -> None:
    problem = ("--arch", "sm_80", "--dtype", "fp16", "--head-dim", "16", "--activation", "s * 2")
    source = succeed("explain", *problem, "--dump-source")
    assert source.count("__global__") == 3 and "// s * 2" in source
    succeed("explain", *problem, "--dump-source", str(tmp_path))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["1-forward.cu", "2-backward.cu", "3-reduce.cu"]
    file = tmp_path / "kernels.sass"
    done = gdpa("explain", *problem, "--dump-sass", str(file))
    if done.returncode == 3:
        assert "Looked in:" in done.stderr
        pytest.skip(done.stderr)
    assert "HMMA" in file.read_text()


@pytest.mark.parametrize("command", ["explain", "compile"])
def test_the_kernels_are_those_of_the_wanted_gradients(nvrtc: str, command: str) -> None:
    options = ["--arch", "sm_80", "--dtype", "fp16", "--head-dim", "16", "--gradients", "v", "--json"]
    if command == "explain":
        report = json.loads(succeed("explain", *options))
        names = [kernel["name"] for kernel in report["backward"]["kernels"]]
    else:
        lines = succeed("compile", *options, "--direction", "bwd", "--these-lengths").splitlines()
        names = [json.loads(line)["kernel"] for line in lines]
    assert [name.split()[1] for name in names] == ["backward"]
    assert "without dK" in names[0] and "without dV" not in names[0]


def test_a_dump_for_the_cpu_is_refused() -> None:
    done = gdpa("explain", "--dump-sass")
    assert done.returncode == 2 and "--arch" in done.stderr


def test_where_the_disassembler_was_looked_for_is_said(nvrtc: str) -> None:
    nowhere = {"PATH": "/nowhere", "CUDA_HOME": "/no/toolkit", "GDPA_SITE_PACKAGES": "/no/packages"}
    done = gdpa("explain", "--arch", "sm_80", "--dtype", "fp16", "--dump-sass", GDPA_NVRTC=nvrtc, **nowhere)
    if done.returncode == 0:
        pytest.skip("a disassembler lies in a place that is always looked at")
    assert done.returncode == 3
    for place in ("/nowhere", "/no/toolkit/bin", "/no/packages/triton/backends/nvidia/bin"):
        assert f"\n  {place}\n" in done.stderr + "\n"


def test_a_gpu_is_chosen_where_there_is_one_and_can_be_left() -> None:
    def device(*arguments: str) -> str:
        done = on_fake_gpu("run", "--lengths", "8", "--seconds", "0", "--no-check", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["problem"]["device"]

    assert device() == "cuda:0, Fake GPU"
    assert device("--device", "cuda") == "cuda:0, Fake GPU"
    assert "Fake" not in device("--device", "cpu")
    assert "Fake" not in device("--dtype", "fp64"), "no kernels for the type: the CPU computes it"
    assert "Fake" not in device("--head-dim", "12")


def test_what_was_not_computed_fails_the_check_on_a_gpu_too() -> None:
    done = on_fake_gpu("run", "--lengths", "8", "--seconds", "0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "on cuda:0, Fake GPU" in done.stdout


def test_an_old_gpu_is_refused_and_never_chosen() -> None:
    done = on_fake_gpu("run", "--device", "cuda", FAKE_CUDA_CAPABILITY="75")
    assert done.returncode == 3
    assert "expected compute capability 8.0 or later (Ampere), got 7.5" in done.stderr
    assert on_fake_gpu("run", "--lengths", "8", "--seconds", "0", FAKE_CUDA_CAPABILITY="75").returncode == 0
    report = on_fake_gpu("doctor", FAKE_CUDA_CAPABILITY="75").stdout
    assert "Fake GPU, compute capability 7.5" in report and "use a newer GPU, or the CPU" in report


def test_verify_says_why_a_gpu_cannot_be_checked(nvrtc: str, tmp_path: Path) -> None:
    old = on_fake_gpu("verify", FAKE_CUDA_CAPABILITY="75")
    assert old.returncode == 3
    assert "cuda:0 is Fake GPU: expected compute capability 8.0 or later (Ampere), got 7.5" in old.stderr
    driver = on_fake_gpu("verify", FAKE_CUDA_VERSION="11080")
    assert driver.returncode == 3 and "this one is for 11.8: update the driver" in driver.stderr
    without = on_fake_gpu("verify", GDPA_NVRTC=str(tmp_path))
    assert without.returncode == 3 and "GDPA_NVRTC is" in without.stderr and not without.stdout


def test_doctor_says_that_a_driver_is_older_than_nvrtc(nvrtc: str) -> None:
    done = on_fake_gpu("doctor", "--json", FAKE_CUDA_VERSION="11080", FAKE_CUDA_CAPABILITY="75")
    advice = {found["name"]: found["advice"] for found in json.loads(done.stdout)["components"]}
    assert "this one is for 11.8: update the driver" in advice["NVRTC"]


def test_doctor_says_what_to_do_about_a_cache_that_cannot_be_written() -> None:
    report = json.loads(gdpa("doctor", "--json", GDPA_CACHE_DIR="/proc/gdpa").stdout)["kernel_cache"]
    assert report["folder"] == "/proc/gdpa" and "set GDPA_CACHE_DIR to a folder" in report["advice"]


def fake_python(folder: Path) -> str:
    """Returns a PATH with a python3 that has every package and prints its arguments."""
    python = folder / "python3"
    python.write_text('#!/bin/bash\n[ "$1" = -c ] && exit 0\nprintf "%s|" "$@"\n')
    python.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_on_a_gpu_bench_is_the_comparison_with_the_same_options(tmp_path: Path) -> None:
    options = ("--suite", "uses", "--activation", "gelu", "s * 2", "--direction", "fwd", "--json")
    done = on_fake_gpu("bench", *options, PATH=fake_python(tmp_path), VIRTUAL_ENV=str(tmp_path))
    words = done.stdout.rstrip("|").split("|")
    if words[:2] != ["-m", "gdpa.bench"]:
        pytest.skip("the folder of the command contains another Python")
    assert words[2] == "uses" and "--suite" not in words
    values = {name: words[words.index(name) + 1] for name in ("--direction", "--json", "--device")}
    assert values == {"--direction": "fwd", "--json": "-", "--device": "cuda:0"}
    assert words[words.index("--activation") + 1 :][:2] == ["gelu", "s * 2"]


@pytest.mark.parametrize(("given", "handed"), [(("--report", "here"), "here"), (("--report",), None)])
def test_on_a_gpu_bench_hands_the_report_over(given: tuple[str, ...], handed: str | None, tmp_path: Path) -> None:
    options = ("--lengths", "4", *given)
    done = on_fake_gpu("bench", *options, PATH=fake_python(tmp_path), VIRTUAL_ENV=str(tmp_path))
    words = done.stdout.rstrip("|").split("|")
    if words[:2] != ["-m", "gdpa.bench"]:
        pytest.skip("the folder of the command contains another Python")
    assert words[2] == "shapes"
    after = words[words.index("--report") + 1]
    assert after == (handed or "--device")


def test_a_report_of_gdpa_alone_is_refused() -> None:
    done = gdpa("bench", "--lengths", "4", "--report")
    assert done.returncode == 2 and "--report: expected a comparison" in done.stderr


def test_on_a_gpu_bench_times_gdpa_alone_where_asked(tmp_path: Path) -> None:
    path = fake_python(tmp_path)
    arguments = ("bench", "--lengths", "8", "--seconds", "0", "--dtype", "bf16", "--direction", "fwd", "--json")
    alone = on_fake_gpu(*arguments, "--alone", PATH=path)
    assert alone.returncode == 0 and alone.stderr == ""
    assert json.loads(alone.stdout)["device"] == "cuda:0, Fake GPU"
    grouped = on_fake_gpu(*arguments, "--heads-k", "2", PATH=path)
    assert json.loads(grouped.stdout)["H_k"] == 2
    assert grouped.stderr == "gdpa bench: --heads-k is known to gdpa alone, so that no other system is timed with it\n"


def test_the_host_cost_of_a_call_on_a_gpu() -> None:
    done = on_fake_gpu("bench", "--host-cost", "--seconds", ".01", "--json")
    assert json.loads(done.stdout)["device"] == "cuda:0, Fake GPU"
