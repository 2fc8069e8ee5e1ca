"""Draws the pipelines of the GPU kernels: docs/pictures/pipeline-<kernel>.svg. It needs matplotlib.

python docs/pictures/draw_pipelines.py            writes the SVG files
python docs/pictures/draw_pipelines.py FOLDER     writes PNG files into FOLDER
"""

from __future__ import annotations

import logging
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

INK, FAINT, PAPER = "#24292f", "#8b949e", "#ffffff"
FIRST, SECOND = "#9cc3ea", "#f6c58f"  # the two consumer warpgroups
FIRST_DARK, SECOND_DARK = "#5b95d1", "#dd9440"  # the products of these warpgroups
LOAD, STORE, OTHER = "#b9dfbf", "#e3b7d3", "#dfe3e8"
COLORS_OF_WARPGROUPS = ((FIRST, FIRST_DARK), (SECOND, SECOND_DARK))
HOPPER_GROUPS = [(0, 3, "producer\nwarpgroup"), (4, 5, "consumers")]  # first lane, last lane, name


@dataclass
class Block:
    """An activity in a lane, from `begin` to `end`."""

    begin: float
    end: float
    label: str
    color: str


@dataclass
class Lane:
    """The activities of one group of threads, or of one unit of the hardware."""

    name: str
    blocks: list[Block] = field(default_factory=list)
    note: str = ""

    def add(self, begin: float, end: float, label: str, color: str) -> None:
        self.blocks.append(Block(begin, end, label, color))


@dataclass
class Arrow:
    """A signal between two lanes. Each end is a time and the index of a lane."""

    begin: tuple[float, int]
    end: tuple[float, int]


@dataclass
class Picture:
    name: str
    title: str
    lanes: list[Lane]
    arrows: list[Arrow]
    caption: str
    memory: list[tuple[str, float, str]]  # label, KB, color
    memory_title: str
    end: float
    groups: list[tuple[int, int, str]]  # first lane, last lane, name


def draw_timeline(axes: Axes, picture: Picture) -> None:
    count = len(picture.lanes)
    height = 0.72
    for index, lane in enumerate(picture.lanes):
        y = count - 1 - index
        axes.axhline(y, color="#eef0f2", linewidth=1, zorder=0)
        axes.text(-0.012 * picture.end, y + (0.13 if lane.note else 0), lane.name, ha="right", va="center", fontsize=9)
        if lane.note:
            axes.text(-0.012 * picture.end, y - 0.2, lane.note, ha="right", va="center", fontsize=7.5, color=FAINT)
        for block in lane.blocks:
            if block.begin >= picture.end:
                continue
            width = min(block.end, picture.end) - block.begin - 0.0012 * picture.end
            axes.broken_barh(
                [(block.begin, width)], (y - height / 2, height), facecolor=block.color, edgecolor=PAPER, linewidth=1
            )
            is_cut = width < 0.7 * (block.end - block.begin)
            label = "..." if is_cut else block.label
            middle = block.begin + width / 2
            axes.text(middle, y, label, ha="center", va="center", fontsize=8, color=INK, linespacing=1.05)
    for arrow in picture.arrows:
        (x1, lane1), (x2, lane2) = arrow.begin, arrow.end
        direction = 1 if lane2 > lane1 else -1
        start = (x1, count - 1 - lane1 - direction * height / 2)
        target = (x2, count - 1 - lane2 + direction * height / 2)
        axes.annotate(
            "",
            xy=target,
            xytext=start,
            arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1, "shrinkA": 0, "shrinkB": 0},
            zorder=5,
        )
    for first, last, name in picture.groups:
        top, bottom = count - 1 - first + 0.45, count - 1 - last - 0.45
        x = -0.205 * picture.end
        axes.plot([x, x], [bottom, top], color=FAINT, linewidth=1.2, clip_on=False)
        axes.text(x - 0.02 * picture.end, (top + bottom) / 2, name, rotation=90, ha="center", va="center", fontsize=8.5)
    axes.set_xlim(0, picture.end)
    axes.set_ylim(-0.6, count - 0.35)
    axes.axis("off")


def draw_memory(axes: Axes, picture: Picture) -> None:
    x = 0.0
    for label, kilobytes, color in picture.memory:
        axes.broken_barh([(x, kilobytes)], (0, 1), facecolor=color, edgecolor=PAPER, linewidth=1.5)
        axes.text(x + kilobytes / 2, 0.5, label, ha="center", va="center", fontsize=8, linespacing=1.1)
        x += kilobytes
    axes.text(0, 1.25, picture.memory_title, ha="left", va="bottom", fontsize=9)
    axes.set_xlim(0, max(x, 1))
    axes.set_ylim(0, 1.8)
    axes.axis("off")


def draw(picture: Picture, target: Path) -> None:
    lanes = 0.46 * len(picture.lanes)
    caption = textwrap.wrap(f"Time runs to the right, not to scale. {picture.caption}", 165)
    height = 0.55 + lanes + 0.15 + 0.19 * len(caption) + 0.75
    figure = plt.figure(figsize=(11.5, height), facecolor=PAPER)
    left, width = 0.205, 0.785
    top = 1 - 0.42 / height
    figure.text(0.012, 1 - 0.2 / height, picture.title, fontsize=11, va="center", fontweight="bold")
    timeline = figure.add_axes((left, top - lanes / height, width, lanes / height))
    draw_timeline(timeline, picture)
    y = top - (lanes + 0.2) / height
    for line in caption:
        figure.text(0.012, y, line, fontsize=8.5, va="center", color=INK)
        y -= 0.19 / height
    memory = figure.add_axes((0.012, 0.08 / height, 0.976, 0.75 / height))
    draw_memory(memory, picture)
    metadata = {"Date": None} if target.suffix == ".svg" else None
    figure.savefig(target, facecolor=PAPER, metadata=metadata, dpi=110)
    plt.close(figure)


def consumer_lanes(rows: str) -> list[Lane]:
    """The lanes of two consumer warpgroups with 64 `rows` each."""
    return [Lane("consumer warpgroup 0", note=f"{rows} 0 to 63"), Lane("consumer warpgroup 1", note="64 to 127")]


def stages(name: str, kilobytes: float, color: str, count: int = 2, unit: str = "") -> list[tuple[str, float, str]]:
    """The buffers of one operand in shared memory, one for each pipeline stage."""
    return [(f"{name} {stage}\n{kilobytes:g}{unit}", kilobytes, color) for stage in range(count)]


def forward() -> Picture:
    """Two tiles of queries, a and b, with two tiles of keys each. A key tile takes 2 units, one for each warpgroup."""
    tiles = ["a0", "a1", "b0", "b1"]
    scheduler, load_q, load_k, load_v = (
        Lane("tile scheduler", note="warp 0"),
        Lane("TMA load of Q", note="warp 1, one thread"),
        Lane("TMA load of K", note="warp 2, one thread"),
        Lane("TMA load of V", note="warp 3, one thread"),
    )
    scheduler.add(0.0, 0.7, "tile a", OTHER)
    scheduler.add(0.7, 2.3, "tiles b, c, then 4, 8, 16", OTHER)
    load_q.add(0.35, 0.95, "Q a", LOAD)
    load_q.add(2.3, 3.2, "Q b", LOAD)
    for i, tile in enumerate(tiles):
        begin = 0.45 + 1.1 * i if i < 3 else 4.3
        load_k.add(begin, begin + 1.0, f"K {tile}", LOAD)
        load_v.add(begin + 0.4, begin + 1.4, f"V {tile}", LOAD)
    consumers = consumer_lanes("queries")
    tensor = Lane("tensor cores")
    arrows = []
    for warpgroup, lane in enumerate(consumers):
        light, dark = COLORS_OF_WARPGROUPS[warpgroup]
        begin = 1.45
        lane.add(begin, begin + 0.4 * (1 + warpgroup), "S a0", dark)
        tensor.add(begin + 0.4 * warpgroup, begin + 0.4 + 0.4 * warpgroup, "S a0", dark)
        lane.add(begin + 0.4 * (1 + warpgroup), begin + 1.3 + 0.4 * warpgroup, "f a0, pack", light)
        for i in range(1, len(tiles)):
            t = 2.85 + 2 * (i - 1) + warpgroup
            now, last = tiles[i], tiles[i - 1]
            lane.add(t, t + 0.65, f"issue S {now}\nand PV {last}", dark)
            tensor.add(t, t + 0.5, f"S {now}", dark)
            tensor.add(t + 0.5, t + 1.0, f"PV {last}", dark)
            stored = last == "a1"
            lane.add(t + 0.65, t + 1.4, f"f {now}, mask", light)
            lane.add(t + 1.4, t + (1.7 if stored else 1.95), "pack" if stored else f"pack P {now}", light)
            if stored:
                lane.add(t + 1.7, t + 1.98, "O a", STORE)
            if i < len(tiles) - warpgroup:
                arrows.append(Arrow((t + 0.63, 4 + warpgroup), (t + 1.02, 5 - warpgroup)))
    return Picture(
        "forward",
        "Hopper forward, d = 128: one CTA, two query tiles (a, b) of two key tiles each",
        [scheduler, load_q, load_k, load_v, *consumers, tensor],
        arrows,
        (
            "S a1 is Q K^T of query tile a and key tile 1; PV a0 adds P V to O. Arrows: the ping-pong barriers. A "
            "consumer issues S of the next key tile before PV of this one, and evaluates f while the tensor cores work "
            "for the other. The loop continues from query tile a to b without draining: S b0 is issued before PV a1, "
            "and O a is stored during the products of the other consumer."
        ),
        [
            ("Q, then O\n32 KB", 32, LOAD),
            *stages("K stage", 32, FIRST, 3, " KB"),
            *stages("V stage", 32, SECOND, 3, " KB"),
            ("", 3, OTHER),
        ],
        "Shared memory, 227 KB, with more than 256 keys on average; the narrow last box: queue of tiles, mbarriers",
        9.2,
        HOPPER_GROUPS,
    )


def backward() -> Picture:
    """Steps n and n + 1 of one key tile, 4 units each, in steady state."""
    scheduler, load, store, semaphore = (
        Lane("tile scheduler", note="warp 0"),
        Lane("TMA loads", note="warp 1, one thread"),
        Lane("TMA stores of dQ", note="warp 2, one thread"),
        Lane("dQ semaphores", note="warp 3, one thread"),
    )
    consumers = consumer_lanes("keys")
    tensor = Lane("tensor cores")
    arrows = []
    names = ["n-1", "n", "n+1", "n+2"]
    scheduler.add(0.2, 2.2, "next key tile, when 3 steps are left", OTHER)
    for step in range(2):
        start = 4.0 * step
        load.add(start + 0.5, start + 3.0, f"Q, dO of {names[step + 2]}", LOAD)
        semaphore.add(start + 0.2, start + 1.9, f"wait for {names[step]}", OTHER)
        semaphore.add(start + 2.4, start + 3.7, f"release {'n-2' if step == 0 else names[step - 1]}", OTHER)
    for warpgroup, lane in enumerate(consumers):
        light, dark = COLORS_OF_WARPGROUPS[warpgroup]
        if warpgroup == 1:
            lane.add(0, 1.98, "P, f' of n", light)
        for step in range(2):
            t = 4.0 * step + 2.0 * warpgroup
            before, after = names[step], names[step + 2]
            lane.add(t, t + 0.36, "dV", dark)
            lane.add(t + 0.36, t + 0.84, "dS", light)
            lane.add(t + 0.84, t + 1.84, f"dK, dQ {before},\nS {after}", dark)
            lane.add(t + 1.9, t + 2.5, f"dQ {before}\nto smem", STORE)
            lane.add(t + 2.5, t + 2.85, "dP", dark)
            lane.add(t + 2.85, t + 4.0, f"P, f' of {after}", light)
            tensor.add(t + 0.02, t + 0.47, "dV", dark)
            tensor.add(t + 0.86, t + 1.24, "dK", dark)
            tensor.add(t + 1.24, t + 1.62, "dQ", dark)
            tensor.add(t + 1.62, t + 2.0, "S", dark)
            tensor.add(t + 2.5, t + 2.85, "dP", dark)
            store.add(t + 2.5, t + 3.9, f"dQ {before}, half {warpgroup}", STORE)
            if t < 6:
                arrows.append(Arrow((t + 1.82, 4 + warpgroup), (t + 2.04, 5 - warpgroup)))
    tensor.add(0.49, 0.84, "dP", SECOND_DARK)
    return Picture(
        "backward",
        "Hopper backward, d = 128: one CTA, a tile of 128 keys, steps n and n+1 over tiles of 64 queries",
        [scheduler, load, store, semaphore, *consumers, tensor],
        arrows,
        (
            "Dark blocks of a consumer issue products, light ones are "
            "arithmetic. Arrows: the ping-pong barriers. After the signal of the other warpgroup, a warpgroup issues "
            "dV += P^T dO and dK += dS^T Q of step n, its half of dQ = dS K of step n-1, and S^T = K Q^T of step n+1. "
            "While the other warpgroup issues, the warpgroup stages dQ for the store thread, issues dP^T = V dO^T of "
            "step n+1, and evaluates f and f' of step n+1."
        ),
        [
            *stages("K stage", 32, FIRST, unit=" KB"),
            ("V\n32 KB", 32, SECOND),
            *stages("Q", 16, LOAD),
            *stages("dO", 16, LOAD),
            *stages("dS", 16, OTHER),
            *[("dQ\n16", 16, STORE)] * 2,
        ],
        "Shared memory, 224 KB, and less than 1 KB of queues and mbarriers",
        8.0,
        HOPPER_GROUPS,
    )


def wide_backward() -> Picture:
    """Steps n and n + 1 of one key tile, 5 units each, in steady state; dQ in two chunks of columns."""
    load_kv, load_q, load_do = (
        Lane("TMA load of K, V", note="warp 1, one thread"),
        Lane("TMA load of Q", note="warp 2, one thread"),
        Lane("TMA load of dO", note="warp 3, one thread"),
    )
    scheduler = Lane("tile scheduler", note="warp 0")
    value, key = Lane("dV warpgroup", note="S, f, f', dV"), Lane("dK warpgroup", note="dP, dS, dK")
    (light, dark), (light_key, dark_key) = COLORS_OF_WARPGROUPS
    names = ["n-1", "n", "n+1", "n+2", "n+3"]
    scheduler.add(0.2, 2.0, "next key tile, 3 steps early", OTHER)
    load_kv.add(0.0, 1.9, "K and V: once for each key tile", PAPER)
    arrows = []
    for step in range(2):
        t = 5.0 * step
        before, now, after = names[step], names[step + 1], names[step + 2]
        load_q.add(t + 0.4, t + 2.4, f"Q of {names[step + 3]}", LOAD)
        load_do.add(t + 0.9, t + 2.9, f"dO of {after}", LOAD)
        key.add(t, t + 0.75, f"dS {now}", light_key)
        key.add(t + 0.75, t + 1.15, "dK", dark_key)
        key.add(t + 1.15, t + 2.05, f"add dQ' {before}", STORE)
        key.add(t + 2.05, t + 2.95, f"dQ {now},\ndP {after}", dark_key)
        key.add(t + 2.95, t + 3.85, f"add dQ {now}", STORE)
        key.add(t + 3.85, t + 4.3, "dQ'", dark_key)
        value.add(t, t + 0.5, f"S {after}", dark)
        value.add(t + 0.5, t + 1.3, f"add dQ' {before}", STORE)
        value.add(t + 1.3, t + 2.2, f"dQ, dV {now}", dark)
        value.add(t + 2.2, t + 3.1, f"add dQ {now}", STORE)
        value.add(t + 3.1, t + 3.55, "dQ'", dark)
        value.add(t + 3.55, t + 4.95, f"P, f' of {after}", light)
        arrows.append(Arrow((t + 0.72, 5), (t + 1.35, 4)))
        if step == 0:
            arrows.append(Arrow((t + 4.93, 4), (t + 5.05, 5)))
    return Picture(
        "wide-backward",
        "Hopper backward with head_dim above 128: one CTA, a tile of 64 keys, steps n and n+1 over tiles of 64 queries",
        [scheduler, load_kv, load_q, load_do, value, key],
        arrows,
        (
            "Arrows: f' in fp32 goes to the dK warpgroup (named barrier), and "
            "dS to the dV warpgroup (mbarrier). Each warpgroup multiplies half of the columns of dQ, in two chunks "
            "(dQ, dQ') that use the same registers, and adds them from registers to fp32 accumulators in global "
            "memory (red.v4). Products are issued before the additions, so that both run at the same time."
        ),
        [
            ("K\n32 KB", 32, FIRST),
            ("V\n32 KB", 32, SECOND),
            *stages("Q", 32, LOAD, unit=" KB"),
            *stages("dO", 32, LOAD, unit=" KB"),
            ("f'\n16", 16, OTHER),
            ("dS\n2 x 8", 16, OTHER),
        ],
        "Shared memory at d = 256, 224 KB, and less than 1 KB of queues and mbarriers",
        9.95,
        HOPPER_GROUPS,
    )


def parameter_gradients() -> Picture:
    """Two tiles of queries, a and b, with two tiles of keys each. A key tile takes 2.3 units."""
    tiles = ["a0", "a1", "b0", "b1"]
    scheduler, load_q, load_k, load_v = (
        Lane("tile scheduler", note="warp 0"),
        Lane("TMA load of Q, dO", note="warp 1, one thread"),
        Lane("TMA load of K", note="warp 2, one thread"),
        Lane("TMA load of V", note="warp 3, one thread"),
    )
    scheduler.add(0.0, 0.7, "tile a", OTHER)
    scheduler.add(0.7, 2.3, "tiles b, c, then 4, 8, 16", OTHER)
    load_q.add(0.35, 0.95, "Q, dO a", LOAD)
    load_q.add(0.95, 1.9, "Q, dO b", LOAD)
    for i, tile in enumerate(tiles):
        begin = 0.45 + 0.9 * i if i < 2 else 1.0 + 2.3 * (i - 1)
        load_k.add(begin, begin + 0.85, f"K {tile}", LOAD)
        load_v.add(begin + 0.3, begin + 1.15, f"V {tile}", LOAD)
    consumers = consumer_lanes("queries")
    tensor = Lane("tensor cores")
    for warpgroup, lane in enumerate(consumers):
        light, dark = COLORS_OF_WARPGROUPS[warpgroup]
        first = 1.35 + 0.55 * warpgroup
        lane.add(1.3, 1.65, "issue", dark)
        tensor.add(first, first + 0.55, "S, dP a0", dark)
        for i, tile in enumerate(tiles[:3]):
            t = 2.4 + 2.3 * i + 0.15 * warpgroup
            after = tiles[i + 1]
            lane.add(t, t + 0.42, "copy", light)
            lane.add(t + 0.42, t + 0.95, f"issue {after}", dark)
            ends = tile.endswith("1")
            lane.add(t + 0.95, t + (1.85 if ends else 2.25), f"terms of {tile}", light)
            if ends:
                lane.add(t + 1.85, t + 2.27, "add\nsums", STORE)
            begin = 3.1 + 2.3 * i + 0.57 * warpgroup
            tensor.add(begin, begin + 0.57, f"S, dP {after}", dark)
    return Picture(
        "parameter-gradients",
        "Gradients of tensors on Hopper, d = 128: one CTA, two query tiles (a, b) of two key tiles each",
        [scheduler, load_q, load_k, load_v, *consumers, tensor],
        [],
        (
            "S, dP a1 are Q K^T and dO V^T of query tile a and key tile 1. A consumer copies S and dP of a key tile to "
            "other registers, releases K and V, and issues the products of the next key tile, which may be the first "
            "one of the next query tile. It then computes the terms of the copied scores. At the end of a query tile, "
            "it adds registers and sums in shared memory to global memory. The two warpgroups do not alternate."
        ),
        [
            *[(f"Q, dO {stage}\n64 KB", 64, LOAD) for stage in range(2)],
            *stages("K", 16, FIRST),
            *stages("V", 16, SECOND),
            ("sums of\nwarps 26", 26, STORE),
            ("", 3, OTHER),
        ],
        "Shared memory, 221 KB, without sums of each thread; the narrow last box: queue of tiles, mbarriers",
        9.3,
        HOPPER_GROUPS,
    )


def portable() -> Picture:
    """Forward: key tiles i and i + 1 of 32 keys, two steps of 16 keys each; backward: one tile of queries."""
    copies, warps, function = Lane("cp.async copies"), Lane("tensor cores"), Lane("function f")
    for i in range(2):
        t = 3.9 * i
        name = "i" if i == 0 else "i+1"
        warps.add(t, t + 0.3, "wait,\nbarrier", OTHER)
        copies.add(t + 0.3, t + 3.4, f"K, V of tile {'i+1' if i == 0 else 'i+2'}", LOAD)
        warps.add(t + 0.3, t + 1.5, f"S = Q K^T of tile {name}", FIRST_DARK)
        function.add(t + 1.5, t + 2.25, "f, keys 0-15", FIRST)
        warps.add(t + 2.25, t + 2.95, "O += P V", FIRST_DARK)
        function.add(t + 2.3, t + 3.0, "f, keys 16-31", FIRST)
        warps.add(t + 3.05, t + 3.8, "O += P V", FIRST_DARK)
    back_copies, back_warps, back_function = Lane("cp.async copies"), Lane("tensor cores"), Lane("f, f' and dQ")
    back_warps.add(0, 0.3, "wait,\nbarrier", OTHER)
    back_copies.add(0.3, 6.0, "Q, dO of tile i+1", LOAD)
    back_warps.add(0.3, 2.1, "S^T = K Q^T, dP^T = V dO^T", SECOND_DARK)
    back_function.add(2.1, 3.2, "P, dS to smem", SECOND)
    back_warps.add(3.2, 3.5, "barrier", OTHER)
    back_warps.add(3.5, 5.2, "dV += P^T dO, dK += dS^T Q", SECOND_DARK)
    back_warps.add(5.2, 6.3, "dQ = dS K", SECOND_DARK)
    back_function.add(6.3, 7.6, "add dQ in fp32", STORE)
    return Picture(
        "portable",
        "Portable kernels, bf16, d = 128: a CTA of 4 warps (forward) and of 8 warps (backward)",
        [copies, warps, function, back_copies, back_warps, back_function],
        [],
        (
            "All warps of a CTA do the same work on different rows. In forward, "
            "two CTAs share a multiprocessor. Forward: P of 16 keys is the register operand of O += P V while f of "
            "the next 16 keys is computed. Backward: P and dS go through shared memory, because each warp also "
            "multiplies P and dS of other warps."
        ),
        [
            ("forward: Q, then O\n34.8 KB", 34.8, LOAD),
            *stages("K V", 17.4, FIRST),
            ("", 4, PAPER),
            ("backward: K, V\n69.6 KB", 69.6, SECOND),
            *stages("Q dO", 34.8, LOAD),
            ("P\n18.4", 18.4, OTHER),
            ("dS\n18.4", 18.4, OTHER),
        ],
        "Shared memory of a CTA: forward 69.6 KB, backward 176 KB",
        7.8,
        [(0, 2, "forward"), (3, 5, "backward")],
    )


def main() -> None:
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    plt.rcParams["svg.fonttype"] = "none"
    plt.rcParams["svg.hashsalt"] = "gdpa"
    plt.rcParams["font.family"] = ["Helvetica", "Arial", "DejaVu Sans"]
    folder, suffix = (Path(sys.argv[1]), "png") if len(sys.argv) > 1 else (Path(__file__).parent, "svg")
    for picture in (forward(), backward(), wide_backward(), parameter_gradients(), portable()):
        draw(picture, folder / f"pipeline-{picture.name}.{suffix}")


if __name__ == "__main__":
    main()
