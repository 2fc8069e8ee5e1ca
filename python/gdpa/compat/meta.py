"""Meta's GDPA in Triton: `generalized_dot_product_attention` of ads_model_kernel_library, gdpa/triton.

The formula is O = qk_scale * act(Q K^T) V for each sequence and head. docs/compat.md lists the differences.
"""

from collections.abc import Iterable
from functools import lru_cache

import torch

from gdpa._attention import varlen_attention
from gdpa._errors import refuse_gradient
from gdpa._symbolic import leaf

__all__ = [
    "cpu_generalized_dot_product_attention",
    "create_dummy_tensor",
    "expect_contiguous",
    "generalized_dot_product_attention",
    "next_power_of_2",
]

#: The names of the peer's functions, in the order of its enumeration, and gdpa's names.
FUNCTIONS = {
    "raw": "identity",
    "gelu": "gelu",
    "gelu_approx": "gelu_tanh",
    "fast_gelu": "gelu_tanh",
    "leaky_relu": "leaky_relu",
    "relu": "relu",
    "fast_gelu_bf16": "gelu_tanh",
    "silu": "silu",
    "fast_silu": "silu",
    "hardswish": "hardswish",
    "relu_square": "relu2",
    "fast_gelu_taylor_approx": "gelu_tanh",
}
_BY_NUMBER = tuple(FUNCTIONS.values())

# The GPU kernels need a head_dim that is a multiple of this number.
_gpu_columns = 8


@leaf
def generalized_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    query_offset: torch.Tensor,
    key_offset: torch.Tensor,
    max_seq_len_q: int,
    max_seq_len_kv: int,
    ad_to_request_offset: torch.Tensor | None = None,
    attn_mask: torch.Tensor | None = None,
    attn_offset: torch.Tensor | None = None,
    is_causal: bool = False,
    qk_scale: float | None = None,
    seq_index: torch.Tensor | None = None,
    allow_tf32: bool = True,
    output_offset: torch.Tensor | None = None,
    use_start_end_offsets: bool = False,
    window_size: int | None = None,
    broadcast_q: bool = False,
    activation: str = "raw",
    enable_persistent: bool = False,
    enable_tma: bool = False,
    enable_ws: bool = False,
    use_dq_atomic_add: bool = False,
    total_num_objects: int | None = None,
    ts_encoding_params: torch.Tensor | None = None,
    ts_event_request_even_params: torch.Tensor | None = None,
    ts_event_request_log_params: torch.Tensor | None = None,
    ts_adjacent_event_log_params: torch.Tensor | None = None,
    ts_encoding_bucket_values: torch.Tensor | None = None,
    ts_event_request_even_bucket_values: torch.Tensor | None = None,
    ts_event_request_log_bucket_values: torch.Tensor | None = None,
    ts_adjacent_event_log_bucket_values: torch.Tensor | None = None,
    pos_emb_params: torch.Tensor | None = None,
    pos_emb_bucket_values: torch.Tensor | None = None,
    bwd_opt_tech: str = "base",
    ensemble_activation_list: list[int] | None = None,
) -> torch.Tensor:
    """Computes qk_scale * act(Q K^T) V over a jagged batch, with the arguments of Meta's operator.

    Args:
        query: (T_q, H_q, D). With value=None and key=None, (T, H, 3 D): query, key and value side by side.
        key, value: (T_k, H_k, D), where H_k divides H_q. With value=None, key is (T_k, H_k, 2 D): both side by side.
            With fused query, key and value, key_offset is not read.
        query_offset, key_offset: (B + 1), the cumulative lengths. With use_start_end_offsets, (2 B): the begin and the
            end of each sequence, in any order. The sequences of keys may overlap.
        ad_to_request_offset: (B_q,), the sequence of keys of each sequence of queries.
        qk_scale: the factor after the activation. None means 1.
        output_offset: the first row of each sequence in the output. None means query_offset, and with broadcast_q a
            block of rows for each sequence.
        window_size: w: query i attends to key j if |i - j| <= w, both counted from the begin of their sequences.
        broadcast_q: all sequences of keys have the same queries, query_offset = (0, T_q).
        activation: a name of `FUNCTIONS`.
        total_num_objects: with use_start_end_offsets, the rows of the output.
        ts_encoding_params, ..., pos_emb_params: (N, H * D) or (N, H, D), tables of rows. The first D numbers of row
            `..._bucket_values[t]` are added to each head of query t.
        ensemble_activation_list: the numbers of the functions of the first heads, in the order of `FUNCTIONS`.
        max_seq_len_q, max_seq_len_kv, seq_index, allow_tf32, attn_offset, enable_persistent, enable_tma, enable_ws,
            use_dq_atomic_add, bwd_opt_tech: without effect. gdpa plans each call itself.

    Returns:
        (T_q, H_q, D), (B T_q, H_q, D) with broadcast_q, or (total_num_objects, H_q, D), in the dtype of the query.

    Raises:
        AssertionError: is_causal or attn_mask is given; head_dims or heads do not match; use_start_end_offsets comes
            with fused operands or broadcast_q, or without total_num_objects. As in Meta's operator.
        ValueError: the activation is unknown, as in Meta's operator, or another argument is wrong.
        TypeError: a dtype or a device is wrong.

    Example::

        >>> offsets = torch.tensor([0, 5, 12])
        >>> query, key, value = torch.randn(3, 12, 4, 64).unbind()
        >>> generalized_dot_product_attention(query, key, value, offsets, offsets, 7, 7, activation="silu").shape
        torch.Size([12, 4, 64])
    """
    assert attn_mask is None, "attn_mask/bias unsupported"
    assert not is_causal, "Causal unsupported"
    if use_start_end_offsets:
        assert value is not None and not broadcast_q, (
            "fused_qkv/fused_kv/broadcast_q not supported with start/end offsets"
        )
        assert total_num_objects is not None, "total_num_objects must be provided"
    if key is None and value is None:
        key_offset = query_offset
    query, key, value = _separated(query, key, value)
    columns, heads = query.shape[-1], query.shape[-2]
    assert columns == key.shape[-1] == value.shape[-1], "query, key and value must have the same head_dim"
    assert heads % key.shape[-2] == 0, "the heads of query must be a multiple of the heads of key"
    function = _function_of(
        activation, heads, None if ensemble_activation_list is None else tuple(ensemble_activation_list)
    )
    encodings = (
        ("ts_encoding", ts_encoding_params, ts_encoding_bucket_values),
        ("ts_event_request_even", ts_event_request_even_params, ts_event_request_even_bucket_values),
        ("ts_event_request_log", ts_event_request_log_params, ts_event_request_log_bucket_values),
        ("ts_adjacent_event_log", ts_adjacent_event_log_params, ts_adjacent_event_log_bucket_values),
        ("pos_emb", pos_emb_params, pos_emb_bucket_values),
    )
    if any(table is not None for _, table, _ in encodings):
        query = _with_encodings(query, encodings)
    if query.is_cuda and columns % _gpu_columns:
        query, key, value = (_padded(operand) for operand in (query, key, value))
    refuse_gradient(window_size=window_size, qk_scale=qk_scale)
    window = -1 if window_size is None else window_size
    if window_size is not None and window_size < 0:
        raise ValueError(f"window_size: expected 0 or more, or None, got {window_size}; no key is within the window")
    if broadcast_q:
        _check_shared(query, query_offset)
    begins_q = begins_k = output_begins = output_rows = None
    if use_start_end_offsets:
        begins_q, begins_k = query_offset.view(-1, 2), key_offset.view(-1, 2)
        if total_num_objects != query.shape[0]:
            output_begins, output_rows = begins_q[:, 0], total_num_objects
    if output_offset is not None and output_offset is not query_offset:
        output_begins = output_offset.view(-1, 2)[:, 0] if use_start_end_offsets else output_offset[:-1]
        output_rows = total_num_objects if use_start_end_offsets else None
    output = varlen_attention(
        query,
        key,
        value,
        None if broadcast_q or use_start_end_offsets else query_offset,
        None if use_start_end_offsets else key_offset,
        activation=function,
        scale=1.0,
        out_scale=1.0 if qk_scale is None else qk_scale,
        window_size=(window, window),
        diagonal="upper_left",
        enable_gqa=True,
        seq_offsets_q=begins_q,
        seq_offsets_k=begins_k,
        kv_of=ad_to_request_offset,
        output_offsets=output_begins,
        output_rows=output_rows,
    )
    return output if output.shape[-1] == columns else output[..., :columns]


#: Meta's name of its function for the CPU. Here it is the same function.
cpu_generalized_dot_product_attention = generalized_dot_product_attention


_operator = (
    torch.library.infer_schema(generalized_dot_product_attention, mutates_args=()),
    generalized_dot_product_attention,
)
#: The schema and the function of each operator.
OPERATORS = {f"{space}::generalized_dot_product_attention": _operator for space in ("gdpa", "ads_mkl")}


# Meta's module has these helpers, and the tests of the module import them.


@leaf
def next_power_of_2(x: int) -> int:
    """Returns the least power of 2 that is not below x."""
    return 1 << max(x - 1, 0).bit_length()


@leaf
def expect_contiguous(x: torch.Tensor | None) -> torch.Tensor | None:
    """Returns x, or a contiguous copy."""
    return None if x is None else x.contiguous()


@leaf
def create_dummy_tensor(x: torch.Tensor) -> torch.Tensor:
    """Returns one int32 with the value 1, on the device of x."""
    return torch.ones(1, dtype=torch.int32, device=x.device)


def _separated(
    query: torch.Tensor, key: torch.Tensor | None, value: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns query, key and value as views of fused operands, with a last stride of 1."""
    if value is None:
        if key is None:
            query, key, value = query.tensor_split(3, dim=-1)
        else:
            key, value = key.tensor_split(2, dim=-1)
    assert key is not None, "key must be provided with value"
    if query.stride(-1) != 1 or key.stride(-1) != 1 or value.stride(-1) != 1:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    return query, key, value


@lru_cache(maxsize=256)
def _function_of(activation: str, heads: int, ensemble: tuple[int, ...] | None) -> str:
    """Returns the name of the function, or a list with a function for each head."""
    if activation not in FUNCTIONS:
        raise ValueError(f"Unsupported activation function: {activation}")
    function = FUNCTIONS[activation]
    if not ensemble:
        return function
    for number in ensemble:
        if not 0 <= number < len(_BY_NUMBER):
            raise ValueError(
                f"ensemble_activation_list: expected numbers from 0 to {len(_BY_NUMBER) - 1}, got {number}"
            )
    functions = [_BY_NUMBER[number] for number in ensemble[:heads]]
    functions += [function] * (heads - len(functions))
    return functions[0] if len(set(functions)) == 1 else "; ".join(functions)


def _with_encodings(
    query: torch.Tensor, encodings: Iterable[tuple[str, torch.Tensor | None, torch.Tensor | None]]
) -> torch.Tensor:
    """Adds rows of the tables to every head of the query. The sum and its gradients are rounded once."""
    columns = query.shape[-1]
    total: torch.Tensor | None = None
    for name, table, buckets in encodings:
        if table is None:
            continue
        if buckets is None:
            raise ValueError(
                f"{name}_params: expected {name}_bucket_values with it, got None; pass a bucket for each row"
            )
        wide = table.flatten(1)[:, :columns].to(torch.promote_types(table.dtype, torch.float32))
        rows = torch.nn.functional.embedding(buckets, wide)
        total = rows if total is None else total + rows
    assert total is not None
    return (query + total.unsqueeze(1)).to(query.dtype)


def _padded(operand: torch.Tensor) -> torch.Tensor:
    """Appends columns of zeros, for a head_dim that the GPU kernels do not have."""
    return torch.nn.functional.pad(operand, (0, -operand.shape[-1] % _gpu_columns))


def _check_shared(query: torch.Tensor, query_offset: torch.Tensor) -> None:
    """Refuses a broadcast query that is a part of the operand, where the host can see it."""
    if query_offset.device.type == "cpu" and query_offset[:2].tolist() != [0, query.shape[0]]:
        raise ValueError(
            f"query_offset: expected (0, {query.shape[0]}), all rows of query, with broadcast_q, got "
            f"{tuple(query_offset.tolist())}; pass the rows that the sequences have in common"
        )
