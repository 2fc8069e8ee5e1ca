"""gdpa on several devices: see docs/distributed.md.

DDP, FSDP2 and tensor parallelism need nothing from here. This package has a sampler that balances ranks by the number
of scores, and context parallelism for long sequences.
"""

from gdpa.distributed._context import context_parallel_attention
from gdpa.distributed._plan import ContextPlan
from gdpa.distributed._sampler import PairBalancedSampler

__all__ = ["ContextPlan", "PairBalancedSampler", "context_parallel_attention"]
