"""Settings for all Python tests."""

import os

# On some virtual machines PyTorch's bfloat16 products die: the processor lists AMX, the system does not allow it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Inductor compiles in this process, because each process of its pool would import PyTorch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import hypothesis
import torch

import gdpa  # noqa: F401  # before a test imports torch._dynamo, as in most programs

hypothesis.settings.register_profile("gdpa", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("gdpa")
torch.manual_seed(0)
