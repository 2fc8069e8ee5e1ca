"""Context parallelism: attention over sequences whose rows lie on several ranks.

GDPA has no softmax, so the outputs of parts of the keys simply add. The heads may be computed in groups: the
communication of one group then runs during the computation of another group.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gdpa._activation import ActivationLike, Param
from gdpa._attention import OutScale, Scale, problem_of
from gdpa._errors import translated
from gdpa._library import Problem, backward, forward
from gdpa._operators import split_gradients
from gdpa._text import describe
from gdpa.distributed._plan import ContextPlan

_POSITIONS = ("batch", "q_idx", "kv_idx", "q_row", "kv_row", "len_q", "len_k")


def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: ContextPlan,
    *,
    activation: ActivationLike = "gelu",
    params: Mapping[str, Param] | None = None,
    scale: Scale = None,
    out_scale: OutScale = 1.0,
    enable_gqa: bool = False,
    accuracy: str = "fast",
    deterministic: bool = False,
    head_groups: int | None = None,
    add_query: bool = False,
) -> Tensor:
    """Computes varlen_attention over a batch whose rows lie on the ranks of a group.

    The result of all ranks together equals varlen_attention of the joined rows. Gradients of query, key and value come
    to the ranks of their rows. The gradient of a tensor in params is this rank's part of the sum, as the gradient of
    every other weight is.

    Args:
        query, key, value: this rank's rows, which plan.shard_queries and plan.shard_keys take from the whole batch.
        plan: the division of the batch.
        activation, params, scale, out_scale, enable_gqa, accuracy, deterministic, add_query: as in varlen_attention.
            The function does not read positions in the sequence, because a rank has only parts of sequences.
        head_groups: the number of groups in which the heads are computed. The communication of one group runs during
            the computation of another group. The default is 1 group in forward. In backward, the default is 2 groups
            if the function is the same in all heads and the number of heads is even. Otherwise it is 1 group.

    Returns:
        The output of this rank's queries.

    Raises:
        ValueError: the rows do not fit the plan, or the ranks have different plans. Every rank raises it. On a GPU the
            ranks agree once for each plan, at the first call, which waits for the device.
    """
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # before the rows are saved for backward
        query, key, value = (
            one if one.dtype == torch.float64 else one.to(torch.get_autocast_dtype(kind)) for one in (query, key, value)
        )
    _agree(plan, _complaint(query, key, value, plan), query.device)
    # The outputs of several ranks are summed in the mode "keys", and the query is added once.
    adds_in_kernel = add_query and plan.mode == "queries"
    scaled = plan.out_scale(out_scale, query.device)
    options: dict[str, Any] = {"enable_gqa": enable_gqa, "accuracy": accuracy, "deterministic": deterministic}
    options |= {"window_size": plan.window_size, "diagonal": plan.diagonal, "add_query": adds_in_kernel}
    offsets = plan.offsets_on(query.device)
    parameters, rest = problem_of(query, key, *offsets, activation, params, scale, scaled, **options)
    problem = Problem(query, key, value, parameters, *rest)
    said, tensors = describe(problem.activation), problem.parameter_names or ()
    names = [one.name for one in said.names if one.name not in tensors]
    found = next((name for name in names if name in _POSITIONS), None)
    if found is not None:
        raise ValueError(
            f"activation: expected a function that reads no position in the sequence, got one that reads {found}; a "
            "rank has only parts of sequences"
        )
    is_same = said.functions == 1 and "head" not in names and all(tensor.dim() == 0 for tensor in parameters)
    heads = key.shape[1]
    if head_groups is None:
        in_forward, in_backward = 1, 2 if is_same and heads % 2 == 0 else 1
    elif (head_groups > 1 and not is_same) or head_groups < 1 or heads % head_groups:
        raise ValueError(
            f"head_groups: expected 1, or a divisor of {heads} heads for a function that is the same in all heads, got "
            f"{head_groups}; omit it"
        )
    else:
        in_forward = in_backward = head_groups
    try:
        result: Tensor = _ContextAttention.apply(query, key, value, plan, (in_forward, in_backward), rest, *parameters)
    except RuntimeError as error:
        raise translated(error) from None
    return result + query if add_query and not adds_in_kernel else result


def _complaint(query: Tensor, key: Tensor, value: Tensor, plan: ContextPlan) -> str | None:
    of_queries, of_keys = plan.rows_of(plan.rank)
    for name, tensor, rows in (("query", query, of_queries), ("key", key, of_keys), ("value", value, of_keys)):
        if tensor.dim() != 3 or tensor.shape[0] != rows.stop - rows.start:
            return (
                f"{name}: expected shape ({rows.stop - rows.start}, heads, head_dim), this rank's rows of the plan, "
                f"got {tuple(tensor.shape)}; make the plan from the offsets of this batch"
            )
    return None


def _agree(plan: ContextPlan, complaint: str | None, device: torch.device) -> None:
    """Raises an error on every rank if one rank has one, so that no rank waits for another without end."""
    if device.type != "cpu" and plan.is_agreed and complaint is None:
        return
    print_of_plan = plan.fingerprint()
    state = torch.tensor([complaint is None, print_of_plan, -print_of_plan], dtype=torch.int64, device=device)
    dist.all_reduce(state, dist.ReduceOp.MIN, group=plan.group)
    are_all_well, lowest, highest = state.tolist()
    if complaint is not None:
        raise ValueError(complaint)
    if lowest != -highest:
        raise ValueError(
            "plan: expected the same plan on all ranks, got plans of different batches; make it from the offsets of "
            "the whole batch on every rank"
        )
    if not are_all_well:
        raise ValueError("plan: expected rows that fit the plan on all ranks, got other rows on another rank")
    plan.is_agreed = True


def _exchange(sent: Sequence[Tensor], received: Sequence[Tensor], plan: ContextPlan) -> list[dist.Work]:
    """Starts to send a tensor to each other rank, and to receive a tensor from each. Returns the running operations.

    The caller keeps the tensors until the operations have ended. The tensors of the ranks may have different sizes. No
    tensor is padded.
    """
    others = [rank for rank in range(plan.world) if rank != plan.rank]
    operations = [
        dist.P2POp(operation, tensors[rank], group=plan.group, group_peer=rank)
        for rank in others
        for operation, tensors in ((dist.isend, sent), (dist.irecv, received))
        if tensors[rank].numel()
    ]
    return dist.batch_isend_irecv(operations) if operations else []


class _Gathered:
    """The rows of all ranks (T, ...), as soon as the communication has ended."""

    def __init__(self, local: Tensor, bounds: list[int], plan: ContextPlan) -> None:
        self.rows = local.new_empty(bounds[-1], *local.shape[1:])
        parts = self.rows.split([b - a for a, b in pairwise(bounds)])
        own = parts[plan.rank].copy_(local)
        self.works = _exchange([own] * plan.world, parts, plan)

    def wait(self) -> Tensor:
        for work in self.works:
            work.wait()
        return self.rows


class _Summed:
    """This rank's rows of the sum of all ranks' rows (T, ...), as soon as the communication has ended."""

    def __init__(self, rows: Tensor, bounds: list[int], plan: ContextPlan) -> None:
        self.sent = rows.contiguous().split([b - a for a, b in pairwise(bounds)])
        own = self.sent[plan.rank]
        self.parts = [own if rank == plan.rank else torch.empty_like(own) for rank in range(plan.world)]
        self.works = _exchange(self.sent, self.parts, plan)

    def wait(self) -> Tensor:
        for work in self.works:
            work.wait()
        # Each rank has rounded its part once. The parts are summed in the order of the ranks, in fp32 for 16-bit types.
        kind = torch.float32 if self.parts[0].dtype.itemsize == 2 else self.parts[0].dtype
        total = self.parts[0].to(kind, copy=True)
        for part in self.parts[1:]:
            total += part
        return total.to(self.parts[0].dtype)


def _groups(tensor: Tensor, count: int) -> Sequence[Tensor]:
    """Returns the tensor in groups of heads."""
    return tensor.chunk(count, dim=1)


def _heads(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class _ContextAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: ContextPlan, head_groups: tuple[int, int],
        rest: tuple[Any, ...], *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        groups, in_backward = head_groups
        ctx.plan, ctx.groups, ctx.parts_of_group, ctx.rest = plan, groups, in_backward // groups, rest
        ctx.head_dim = query.shape[-1]
        queries, keys, values = (_groups(one, groups) for one in (query, key, value))
        outputs: list[Any] = []
        saved: list[Tensor] = []
        if plan.mode == "queries":
            both = [torch.cat(one, dim=-1) for one in zip(keys, values, strict=True)]
            gathered = [_Gathered(one, plan.bounds_k, plan) for one in both]
            for q, one in zip(queries, gathered, strict=True):
                k, v = one.wait().split([key.shape[-1], value.shape[-1]], dim=-1)
                outputs.append(forward(q, k, v, list(parameters), *rest))
                saved += [q, k, v]
        else:
            gathered = [_Gathered(one, plan.bounds_q, plan) for one in queries]
            for one, k, v in zip(gathered, keys, values, strict=True):
                q = one.wait()
                outputs.append(_Summed(forward(q, k, v, list(parameters), *rest), plan.bounds_q, plan))
                saved += [q, k, v]
            outputs = [one.wait() for one in outputs]
        ctx.save_for_backward(*parameters, *saved)
        return _heads(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        plan, rest = ctx.plan, ctx.rest
        count = len(ctx.saved_tensors) - 3 * ctx.groups
        parameters, saved = list(ctx.saved_tensors[:count]), ctx.saved_tensors[count:]
        bits = sum(1 << n for n, needed in enumerate(ctx.needs_input_grad[6:]) if needed)
        # Each group of forward has one or several groups of backward.
        operands = [_groups(one, ctx.parts_of_group) for one in saved]
        parts = [part for n in range(0, len(saved), 3) for part in zip(*operands[n : n + 3], strict=True)]
        of_output: list[Any] = list(_groups(grad_output, len(parts)))
        if plan.mode == "keys":
            of_output = [_Gathered(one, plan.bounds_q, plan) for one in of_output]
        grads: list[list[Any]] = [[], [], []]
        sums: Tensor | None = None
        for one, (q, k, v) in zip(of_output, parts, strict=True):
            grad = one.wait() if plan.mode == "keys" else one
            dq, dk, dv, part, _ = backward(grad, q, k, v, parameters, *rest, True, True, True, bits)
            part = part.to(torch.promote_types(part.dtype, torch.float32))
            sums = part if sums is None else sums + part
            if plan.mode == "keys":
                dq = _Summed(dq, plan.bounds_q, plan)
            else:
                dk = _Summed(torch.cat([dk, dv], dim=-1), plan.bounds_k, plan)
                dv = None
            for total, gradient in zip(grads, (dq, dk, dv), strict=True):
                total.append(gradient)
        of_query, of_key, of_value = grads
        if plan.mode == "keys":
            of_query = [one.wait() for one in of_query]
        else:
            both = [one.wait() for one in of_key]
            of_key = [one[..., : ctx.head_dim] for one in both]
            of_value = [one[..., ctx.head_dim :] for one in both]
        assert sums is not None
        of_parameters = split_gradients(sums, parameters, bits)
        return _heads(of_query), _heads(of_key), _heads(of_value), None, None, None, *of_parameters
