"""Draws docs/pictures/call-path.svg: a call from the public header to the WGMMA instruction. It needs only Python.

python docs/pictures/draw_call_path.py
"""

import sys
from dataclasses import dataclass
from pathlib import Path

WIDTH, MARGIN, LEFT, RIGHT = 1072, 24, 412, 466
INK, FAINT, HOST, PRINTED, DEVICE = "#24292f", "#57606a", "#2f6db5", "#b5762f", "#3b9a63"
LINE, GAP = 21, 26


@dataclass(frozen=True)
class Step:
    """A file on the path, its functions, and the functions of other files that it calls on the way."""

    file: str
    functions: str
    calls: tuple[tuple[str, str, str], ...]
    color: str

    @property
    def height(self) -> int:
        return 18 + LINE * max(2, len(self.calls))


STEPS = (
    Step(
        "src/api/attention.cpp",
        "gdpa::forward -> run",
        (
            ("forward", "include/gdpa/attention.h", "the declaration that a caller includes"),
            ("check_forward", "src/api/checks.cpp", "makes Problem and Params, or throws"),
        ),
        HOST,
    ),
    Step(
        "src/gpu/backend.cpp",
        "gpu::run -> run_plan -> launch_kernel",
        (
            ("plan_call", "src/gpu/plan.cpp", "the launches and their memory"),
            ("add_attention", "src/gpu/families/families.cpp", "selects the family, which adds launches"),
            ("find_kernels", "src/gpu/loaded_kernels.cpp", "loaded, or in the cache, or compiled"),
            ("launch", "src/gpu/kernels/hopper_forward.h", "CTAs, arguments, tensor maps"),
        ),
        HOST,
    ),
    Step(
        "src/gpu/kernel.cpp",
        "gdpa_kernel, text of Kernel::source",
        (
            ("gdpa_kernel", "src/gpu/kernel.h", "the name in the cubin"),
            ("HopperForward::source", "src/gpu/kernels/hopper_forward.h", "struct Config"),
            ("cuda_source", "src/codegen/function.cpp", "struct Activation, which evaluates f"),
        ),
        PRINTED,
    ),
    Step(
        "kernels/hopper/forward.cuh",
        "forward -> ForwardConsumer::run -> issue_scores",
        (
            ("schedule_tiles", "kernels/pipeline/tile_scheduler.cuh", "the tile scheduler warp"),
            ("load_key_tiles, ...", "query_major.cuh", "the producer warps: TMA loads"),
            ("store_through_query, ...", "forward_epilogue.cuh", "scales, rounds and stores O"),
        ),
        DEVICE,
    ),
    Step("kernels/hopper/wgmma.cuh", "multiply_columns -> multiply_add -> mma_async", (), DEVICE),
)


def text(x: float, y: float, words: str, size: int = 14, color: str = INK, more: str = "") -> str:
    words = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" {more}>{words}</text>'


def code(x: float, y: float, words: str, size: int = 13, color: str = INK) -> str:
    return text(x, y, words, size, color, 'font-family="Menlo, Consolas, monospace"')


def draw() -> str:
    parts: list[str] = []
    y = 58
    parts.append(text(MARGIN, 34, "The path of the call", 15, INK, 'font-weight="bold"'))
    parts.append(text(RIGHT, 34, "Called on the way: function, file, result", 15, INK, 'font-weight="bold"'))
    for step in STEPS:
        parts.append(
            f'<rect x="{MARGIN}" y="{y}" width="{LEFT}" height="{step.height}" rx="6" fill="{step.color}" '
            f'fill-opacity="0.1" stroke="{step.color}"/>'
        )
        middle = y + step.height / 2
        parts += [
            text(MARGIN + 14, middle - 5, step.file, 15, INK, 'font-weight="bold"'),
            code(MARGIN + 14, middle + 16, step.functions),
        ]
        for row, (function, file, result) in enumerate(step.calls):
            line = middle + (row - (len(step.calls) - 1) / 2) * LINE + 5
            parts += [
                f'<path d="M{MARGIN + LEFT + 4} {line - 5:g}H{RIGHT - 8}" stroke="{FAINT}" stroke-dasharray="3 3"/>',
                code(RIGHT, line, function, 12),
                text(RIGHT + 194, line, f"{file}: {result}", 12, FAINT),
            ]
        y += step.height
        if step is not STEPS[-1]:
            x = MARGIN + LEFT / 2
            parts.append(
                f'<path d="M{x:g} {y}v{GAP - 2}m-5 -7l5 7l5 -7" fill="none" stroke="{INK}" stroke-width="1.5"/>'
            )
            y += GAP
    for x, color, words in (
        (MARGIN, HOST, "C++ on the host"),
        (MARGIN + 160, PRINTED, "CUDA C++ that the host prints for a call"),
        (MARGIN + 460, DEVICE, "CUDA C++ of kernels/; NVRTC compiles both at run time"),
    ):
        parts += [
            f'<rect x="{x}" y="{y + 18}" width="12" height="12" fill="{color}" fill-opacity="0.3"/>',
            text(x + 20, y + 29, words, 13),
        ]
    height = y + 46
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif">\n'
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    Path(sys.argv[0]).with_name("call-path.svg").write_text(draw())
