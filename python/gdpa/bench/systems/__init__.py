"""The timed systems, one small class for each. To add a system, write a class and list it here.

Before the timing, a system receives its operands in its best layout. A system that cannot run returns the reason.
"""

from torch.nn.attention import SDPBackend

from gdpa.bench.systems.base import Operands, Prepared, System
from gdpa.bench.systems.checkouts import add_checkout
from gdpa.bench.systems.compat import GdpaCompat
from gdpa.bench.systems.ours import Gdpa, GdpaIn, GdpaWith, in_turn
from gdpa.bench.systems.packages import FlashAttention, Hstu, TritonGdpa, TritonHstu
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
    FlashAttention(
        "FlashAttention 4", ("flash_attn.cute",), ("flash-attn-4", "flash_attn_4"), no_bound=None, first_call=2.5
    ),
    Hstu(),
    TritonGdpa(),
    TritonHstu("Triton HSTU", enable_tma=False),
    TritonHstu("Triton HSTU, TMA", enable_tma=True),
)

__all__ = [
    "SYSTEMS",
    "Gdpa",
    "GdpaIn",
    "GdpaWith",
    "Operands",
    "Padded",
    "Prepared",
    "SdpaPerSequence",
    "System",
    "add_checkout",
    "in_turn",
]
