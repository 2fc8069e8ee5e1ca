"""Checks the wheel of gdpa in an environment that contains only this wheel and one version of PyTorch."""

import importlib.util
import os
import sys

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some virtual machines list AMX but do not allow it

import torch

import gdpa

assert torch.__version__.split("+")[0] == sys.argv[1], f"expected torch {sys.argv[1]}, got {torch.__version__}"

# The benchmarks and the demonstration are in the distribution gdpa-bench.
for name in ("gdpa.bench", "gdpa.demo", "gdpa.train"):
    assert importlib.util.find_spec(name) is None, f"expected no {name} in the wheel of gdpa"

torch.manual_seed(0)
lengths = [5, 0, 70]
offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
query, key, value = (torch.randn(75, 2, 16, dtype=torch.float64, requires_grad=True) for _ in range(3))
weights = torch.randn(75, 2, 16, dtype=torch.float64)
table = torch.randn(2, 8, dtype=torch.float64, requires_grad=True)


def score(s, b, h, q_idx, kv_idx):
    return s * torch.sigmoid(1.702 * s) + table[h, torch.clamp(q_idx - kv_idx, 0, 7)]


inputs = (query, key, value, table)
output = gdpa.varlen_attention(query, key, value, offsets, offsets, activation=score)
gradients = torch.autograd.grad((output * weights).sum(), inputs)

rows = []
for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
    q, k, v = (tensor[begin:end].transpose(0, 1) for tensor in (query, key, value))
    scores = q @ k.transpose(1, 2) / 4
    heads, positions = torch.arange(2)[:, None, None], torch.arange(end - begin)
    rows.append((score(scores, 0, heads, positions[:, None], positions) @ v).transpose(0, 1))
expected = torch.cat(rows)
expected_gradients = torch.autograd.grad((expected * weights).sum(), inputs)

for got, want in zip((output, *gradients), (expected, *expected_gradients), strict=True):
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
