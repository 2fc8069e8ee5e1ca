"""The timed systems, one small class for each. To add a system, write a class and list it here.

Before the timing, a system receives its operands in its best layout. A system that cannot run returns the reason.
"""

from collections.abc import Sequence
from itertools import combinations

from torch.nn.attention import SDPBackend

from gdpa.bench.systems.base import Operands, Prepared, System
from gdpa.bench.systems.ours import Gdpa, in_turn
from gdpa.bench.systems.packages import FlashAttention, GdpaCompat, Hstu, TritonGdpa, TritonHstu, add_checkout
from gdpa.bench.systems.padded import Padded, PaddedCompiled
from gdpa.bench.systems.pytorch import Flex, SdpaDense, SdpaNested, SdpaPerSequence, Varlen

SYSTEMS: tuple[System, ...] = (
    Gdpa(),
    GdpaCompat(),
    SdpaPerSequence(),
    SdpaNested(),
    SdpaDense("SDPA cuDNN", SDPBackend.CUDNN_ATTENTION),
    SdpaDense("SDPA flash", SDPBackend.FLASH_ATTENTION),
    SdpaDense("SDPA efficient", SDPBackend.EFFICIENT_ATTENTION),
    Varlen(),
    Flex(),
    Padded(),
    PaddedCompiled(),
    FlashAttention("FlashAttention 2", ("flash_attn",), ("flash_attn", "flash-attn"), no_bound=-1),
    FlashAttention("FlashAttention 3", ("flash_attn_interface",), ("flash_attn_3", "flash-attn-3"), no_bound=-1),
    FlashAttention("FlashAttention 4", ("flash_attn.cute",), ("flash-attn-4", "flash_attn_4"), no_bound=None),
    Hstu(),
    TritonGdpa(),
    TritonHstu("Triton HSTU", enable_tma=False),
    TritonHstu("Triton HSTU, TMA", enable_tma=True),
)


def systems_on(kind: str) -> list[System]:
    """Returns all systems for this kind of device."""
    return [system for system in SYSTEMS if kind in system.devices]


def choose_systems(
    wanted: Sequence[str] | None, without: Sequence[str], kind: str, usual: Sequence[str] | None = None
) -> list[System]:
    """Returns the systems of the options, or the usual systems of the suite or of this kind of device.

    Raises ValueError for an unknown name, and for two systems that a report could not tell apart.
    """
    known = {system.name: system for system in systems_on(kind)}
    for option, names in (("--systems", wanted or []), ("--without", without)):
        for name in names:
            if name not in known:
                raise ValueError(f"{option}: expected names among {', '.join(known)} on {kind}; got {name!r}")
    if usual is None:
        usual = [system.name for system in known.values() if system.is_usual]
    chosen = wanted or [name for name in usual if name in known]
    systems = [known[name] for name in chosen if name not in without]
    for one, other in combinations(systems, 2):
        if one.row_name == other.row_name:
            raise ValueError(
                f"--systems: expected either {one.name} or {other.name}, not both: "
                f"both are called {one.row_name!r} in the report"
            )
    return systems


__all__ = [
    "SYSTEMS",
    "Gdpa",
    "Operands",
    "Padded",
    "Prepared",
    "SdpaPerSequence",
    "System",
    "add_checkout",
    "choose_systems",
    "in_turn",
    "systems_on",
]
