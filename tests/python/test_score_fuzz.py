"""Random functions that read positions and tensors, in random calls, against autograd of the definition in fp64."""

from __future__ import annotations

import random

import pytest
import torch
from random_score import RandomScore
from sampling import examples
from score_reference import Call

import gdpa


@pytest.mark.parametrize("batch", range(8))
def test_random_scores_follow_the_definition(batch: int) -> None:
    seed = random.randrange(10**9)
    draw = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(examples(40)):
        lengths_q, lengths_k = ([draw.choice([0, 1, draw.randint(2, 40)]) for _ in range(3)] for _ in range(2))
        lengths_q[draw.randrange(3)] = draw.randint(1, 40)  # a dense tensor has elements
        lengths_k[draw.randrange(3)] = draw.randint(1, 40)
        heads_k = draw.choice([1, 2, 4])
        call = Call(
            draw.choice(["jagged", "jagged", "dense", "shared query", "shared key"]), torch.float64, 4, heads_k,
            lengths_q, lengths_k,
        )  # fmt: skip
        window = draw.choice([(-1, -1), (-1, 0), (draw.randint(0, 9), draw.randint(0, 9))])
        score = RandomScore(draw, call)
        for operand in call.operands:
            operand.requires_grad_(draw.random() < 0.8)
        output = gdpa.varlen_attention(
            *call.operands, call.cu_q, call.cu_k, activation=score.text, params=score.tensors, window_size=window,
            enable_gqa=True,
        ).reshape(-1, 4, 4)  # fmt: skip
        expected = call.expected(score, window)
        inputs = [tensor for tensor in (*call.operands, *score.tensors.values()) if tensor.requires_grad]
        results, references = [output], [expected]
        if expected.requires_grad:
            weights = torch.randn_like(expected)
            results += torch.autograd.grad(output, inputs, weights, allow_unused=True, materialize_grads=True)
            references += torch.autograd.grad(expected, inputs, weights, allow_unused=True, materialize_grads=True)
        for one, other in zip(results, references, strict=True):
            shapes = {name: tuple(tensor.shape) for name, tensor in score.tensors.items()}
            assert (one - other).norm() <= 1e-9 * (other.norm() + 0.1), f"seed {seed}: {score.text} with {shapes}"
