"""The two public functions. They convert PyTorch's layouts and names to a call of the operator gdpa::forward."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch.fx import Proxy
from torch.fx.node import has_side_effect

from gdpa._activation import ActivationLike, Param, text_of
from gdpa._errors import refuse_gradient, translated, translating
from gdpa._library import SCORE_FACTOR, Problem, backward_out
from gdpa._operators import attend, batch_of, split_gradients
from gdpa._symbolic import is_symbolic, leaf, node_of
from gdpa._text import names_of_reads
from gdpa._when_imported import assume_constant_result
from gdpa.mask import Mask, MaskLike, PreparedMask, mask_of

#: The factor of the scores: None is 1 / sqrt(d).
Scale = float | torch.Tensor | None

#: The factor of the output.
OutScale = float | str | torch.Tensor


def varlen_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor | None,
    cu_seq_k: torch.Tensor | None,
    max_q: int | None = None,
    max_k: int | None = None,
    *,
    activation: ActivationLike = "gelu",
    params: Mapping[str, Param] | None = None,
    scale: Scale = None,
    out_scale: OutScale = 1.0,
    window_size: tuple[int, int] = (-1, -1),
    diagonal: str = "bottom_right",
    mask: MaskLike | None = None,
    enable_gqa: bool = False,
    accuracy: str = "fast",
    deterministic: bool = False,
    seq_offsets_q: torch.Tensor | None = None,
    seq_offsets_k: torch.Tensor | None = None,
    kv_of: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    add_query: bool = False,
    output_offsets: torch.Tensor | None = None,
    output_rows: int | None = None,
    zeroes_output: bool = True,
) -> torch.Tensor:
    r"""Computes attention over a jagged batch with any elementwise function f instead of softmax.

    For each sequence and head,

        S = scale * Q K^T,   P = f(S) where the window allows, else 0,   O = out_scale * P V

    The function is differentiable once in query, key and value. The arguments follow torch.nn.attention.varlen: the
    rows hold one sequence after another, and cumulative lengths hold the first row of each sequence. On the CPU, the
    call uses torch.get_num_threads() threads.

    Args:
        query: (T_q, H_q, d). With cu_seq_q=None, (L_q, H_q, d) shared by the whole batch, or (B, L_q, H_q, d) with one
            length for all sequences. float32, float64, bfloat16 or float16. The last stride is 1. The other strides are
            free, so a view of a fused projection needs no copy.
        key: (T_k, H_k, d). With cu_seq_k=None, (L_k, H_k, d) shared by the whole batch, or (B, L_k, H_k, d).
        value: (T_k, H_k, d_v), or a form without cumulative lengths, as for key. d_v may differ from d.
        cu_seq_q: (B + 1), int32 or int64: 0, then the running sum of the query lengths. A length may be 0. Rows before
            the first number and after the last number belong to no sequence. The output and the gradients of these rows
            are 0.
        cu_seq_k: (B + 1), the cumulative lengths of the keys.
        max_q, max_k: the longest lengths, for compatibility with torch's function. gdpa ignores them.
        activation: f as a name ("gelu"), an expression in s ("s * sigmoid(1.702 * s)"), a Python function, or a
            gdpa.Activation. docs/functions.md describes names and expressions. A Python function uses torch operations
            and has one argument, the score, or five, (score, batch, head, q_idx, kv_idx), like score_mod of
            flex_attention, and then arguments that are named in params. It may index tensors that it captures. gdpa
            traces a Python function again if what it reads has changed, and in each call if it captures tensors.
        params: values of the names in the activation: a number, such as {"a": 2.0}; a tensor of shape () or (H_q,),
            with one number for all query heads or for each of them; or a tensor that the activation reads by index, as
            in "silu(s + table[head, clamp(q_idx - kv_idx, 0, 127)])". A number is a constant of the compiled kernel.
            The numbers of a tensor are passed with the call, so that a new number compiles nothing, and a tensor may
            require a gradient. docs/score.md describes tensors in the function.
        scale: the factor of the scores before f: a number, or a tensor with one number for all query heads, () or (1,),
            or for each of them, (H_q,). A tensor may require a gradient, such as a learned temperature. A new number in
            it compiles nothing. It counts as a tensor of the function. None means 1 / sqrt(d).
        out_scale: the factor of the output: a number, "1/len_q", "1/len_k" (0 for a sequence without rows), or a
            float32 or float64 tensor: (B,) with one number for each sequence, without a gradient; or one number for
            each query, (T_q, 1), (L_q, 1) of a shared query, or (B, L_q, 1) of a query of rank 4. The numbers of
            queries may require a gradient. The kernels multiply before they round and store the output.
        window_size: (left, right), in keys around the diagonal. -1 means no bound. With the default diagonal, query i
            attends to key j if i + L_k - L_q - left <= j <= i + L_k - L_q + right. (-1, 0) is causal.
        diagonal: "bottom_right", where the last query is opposite the last key, or "upper_left", where the first query
            is opposite the first key, as with is_causal of generalized_dot_product_attention:
            i - left <= j <= i + right.
        mask: the keys that a query attends to: "causal", a condition ("(kv_idx <= q_idx) & (q_idx - kv_idx < 100)"), a
            gdpa.mask.Mask, or a Python function (batch, head, q_idx, kv_idx) like mask_mod of flex_attention, which may
            index tensors that it captures. It cannot be combined with window_size. docs/masks.md describes masks and
            their speed. gdpa.prepare_mask prepares a mask for several calls.
        enable_gqa: allows H_q to be a multiple of H_k. Neighbouring query heads then share a key head.
        accuracy: "fast" or "exact", the accuracy of f, see docs/accuracy.md.
        deterministic: requests the same bits every time. On a GPU, the bits of a sequence then also do not depend on
            the other sequences of the batch, see docs/support.md. torch.use_deterministic_algorithms(True) at the time
            of the call has the same effect, also on the gradients. Every problem has deterministic kernels, so
            warn_only=True also selects them, without a warning. Results on the CPU are always deterministic for a fixed
            number of threads.
        seq_offsets_q: (B, 2), int32 or int64, in place of cu_seq_q: the first row of each sequence, and the row after
            its last one. Sequences are in any order. Rows between them belong to no sequence: they are not read, and
            the output and the gradients are 0 there. Two sequences must not have a query in common.
        seq_offsets_k: (B, 2), the same for the keys, in place of cu_seq_k. Sequences may overlap: the gradients of
            common keys are summed in float32 (float64 for operands of float64).
        kv_of: (B,), int32 or int64: query sequence b attends to the keys and values of sequence kv_of[b]. The number of
            sequences of keys is free, and several query sequences may have the same keys, whose gradients are summed.
        block_table: (B, pages of a sequence), int32 or int64: keys and values are in pages. Key and value have the
            shape (pages, r, H_k, d), where r is a multiple of 16, and rows [n r, (n + 1) r) of sequence b are in page
            block_table[b, n]. Pages have no gradient.
        seqused_k: (B,), int32 or int64: with block_table, the number of keys of each sequence.
        add_query: adds the query to the output, O = out_scale * P V + Q, a residual connection. The result equals an
            addition after the call, also in rows that belong to no sequence. On a GPU, the result may be rounded before
            the addition. The option needs d_v = d and a query that the batch does not share. It cannot be combined with
            output_offsets or zeroes_output=False.
        output_offsets: (B,), int32 or int64: the first row of each sequence in the output, whose rows are then not the
            rows of the query. Two sequences must not have a row of the output in common. The query is not of rank 4.
        output_rows: the number of rows of the output with output_offsets. None means as many as without output_offsets.
        zeroes_output: whether the rows of the output that belong to no sequence become 0. False saves the time of these
            writes, and needs seq_offsets_q or output_offsets. The rows then have undefined values.

    Returns:
        (T_q, H_q, d_v), with the dtype of query. For a shared query, (B * L_q, H_q, d_v) with the rows of one sequence
        after another. With output_offsets, (output_rows, H_q, d_v).

    Raises:
        ValueError: a size, stride, number, name or offset is wrong. The message states the expected value.
        TypeError: a dtype, a device or the type of an argument is wrong.
        NotImplementedError: a second derivative is requested.

    Example::

        >>> lengths = torch.tensor([0, 5, 12])
        >>> query, key, value = torch.randn(3, 12, 4, 64).unbind()
        >>> gdpa.varlen_attention(query, key, value, lengths, lengths, window_size=(-1, 0)).shape
        torch.Size([12, 4, 64])
    """
    if isinstance(query, Proxy):
        return node_of(varlen_attention, query, locals())
    return _attend(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        activation,
        params,
        scale,
        out_scale,
        window_size,
        diagonal,
        mask,
        enable_gqa,
        accuracy,
        deterministic,
        add_query,
        seq_offsets_q,
        seq_offsets_k,
        kv_of,
        block_table,
        seqused_k,
        output_offsets,
        output_rows,
        zeroes_output,
    )


_write_gradients = translating(backward_out)


@has_side_effect
@leaf
def varlen_attention_backward(
    grad_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor | None,
    cu_seq_k: torch.Tensor | None,
    *,
    grad_query: torch.Tensor | None = None,
    grad_key: torch.Tensor | None = None,
    grad_value: torch.Tensor | None = None,
    grad_params: Sequence[str] = (),
    **options: Any,
) -> dict[str, torch.Tensor]:
    r"""Writes the gradients of varlen_attention into given tensors.

    This is the backward pass for autograd functions of a caller that fuses attention with other steps: the gradients
    may be views of one buffer. No gradient is recorded. varlen_attention itself needs no such call.

    Args:
        grad_output: the gradient of the output, in its shape and in the dtype of the query.
        query, key, value, cu_seq_q, cu_seq_k: as in varlen_attention.
        grad_query, grad_key, grad_value: the tensors for the gradients, in the shapes and the dtype of query, key and
            value. The last stride is 1. The other strides are free, so a view of a fused gradient needs no copy. Every
            element is overwritten. None means that the gradient is not wanted, and saves its products.
        grad_params: the names of the tensors of `params` whose gradients are returned. "scale" and "out_scale" name the
            tensor `scale` and one number of `out_scale` for each query.
        options: activation, params, scale and so on, as in the call of varlen_attention, without output_rows and
            zeroes_output: the rows are those of grad_output, and backward writes no output.

    Returns:
        The gradient of each tensor of `grad_params`, by name.

    Raises:
        ValueError: an argument is wrong, or no gradient is wanted.
        TypeError: a dtype, a device or the type of an argument is wrong.

    Example::

        >>> fused = torch.randn(12, 3, 4, 64)
        >>> gradient, lengths = torch.empty_like(fused), torch.tensor([0, 5, 12])
        >>> grad_query, grad_key, grad_value = gradient.unbind(1)
        >>> gdpa.varlen_attention_backward(
        ...     torch.randn(12, 4, 64), *fused.unbind(1), lengths, lengths,
        ...     grad_query=grad_query, grad_key=grad_key, grad_value=grad_value,
        ... )
        {}
    """
    for name in options:
        if name not in problem_of.__annotations__ or name in ("output_rows", "zeroes_output"):
            raise TypeError(f"varlen_attention_backward() got an unexpected keyword argument {name!r}")
    parameters, rest = problem_of(query, key, cu_seq_q, cu_seq_k, **options)
    params: Mapping[str, Param] = options.get("params") or {}
    scale: Any = options.get("scale")
    out_scale: OutScale = options.get("out_scale", 1.0)
    has_factor, has_rows = isinstance(scale, torch.Tensor), _has_row_numbers(out_scale)
    for name in grad_params:
        names = [name for name, one in params.items() if isinstance(one, torch.Tensor)]
        names += ["scale"] * has_factor + ["out_scale"] * has_rows
        if names.count(name) != 1:
            raise ValueError(
                f"grad_params: expected names of tensors of params, scale or out_scale ({', '.join(names) or 'none'}), "
                f"got {name!r}; " + ("rename the tensor of params" if name in names else "leave it out")
            )
    of_call = rest[_names] or ()
    numbers = {SCORE_FACTOR if name == "scale" and has_factor else name for name in grad_params}
    wanted = sum(1 << n for n, name in enumerate(of_call) if name in numbers)
    wants_out_scale = has_rows and "out_scale" in grad_params
    arguments = (grad_output, query, key, value, parameters, *rest, grad_query, grad_key, grad_value)
    with torch.no_grad():
        sums, of_rows = _write_gradients(*arguments, wanted, wants_out_scale)
    gradients = zip(of_call, split_gradients(sums, parameters, wanted), strict=False)
    results = {name: one for name, one in gradients if one is not None}
    if SCORE_FACTOR in results:
        results["scale"] = results.pop(SCORE_FACTOR).view(scale.shape)
    if wants_out_scale:
        results["out_scale"] = of_rows.unsqueeze(-1)
    return results


def generalized_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    activation: ActivationLike = "gelu",
    *,
    is_causal: bool = False,
    params: Mapping[str, Param] | None = None,
    scale: Scale = None,
    out_scale: OutScale = 1.0,
    window_size: tuple[int, int] = (-1, -1),
    mask: MaskLike | None = None,
    enable_gqa: bool = False,
    accuracy: str = "fast",
    deterministic: bool = False,
    add_query: bool = False,
) -> torch.Tensor:
    r"""scaled_dot_product_attention with f instead of softmax: out_scale * f(scale * Q K^T) V.

    Args:
        query: (..., H_q, L_q, d), or a nested tensor of layout torch.jagged and shape (B, H_q, ragged, d).
        key: (..., H_k, L_k, d), or a nested tensor like query. Leading dimensions broadcast, and gdpa does not copy
            expanded dimensions.
        value: (..., H_k, L_k, d_v), or a nested tensor with the lengths of key.
        is_causal: query i attends to key j if j <= i. The diagonal starts at the upper left, as in
            scaled_dot_product_attention. (With window_size it ends at the bottom right.)
        window_size: (left, right) as in varlen_attention. It cannot be combined with is_causal.
        mask: as in varlen_attention. It cannot be combined with is_causal.
        activation, params, scale, out_scale, enable_gqa, accuracy, deterministic, add_query: as in varlen_attention. B
            of an out_scale tensor is the product of the leading dimensions, and the batch entry of an activation counts
            them as one dimension.

    Returns:
        (..., H_q, L_q, d_v), a transposed view of a contiguous (..., L_q, H_q, d_v) tensor. A nested tensor for nested
        input.

    Raises:
        ValueError, TypeError, NotImplementedError: for the same reasons as varlen_attention.

    Example::

        >>> query, key, value = torch.randn(3, 2, 8, 100, 64).unbind()
        >>> gdpa.generalized_dot_product_attention(query, key, value, "silu", is_causal=True).shape
        torch.Size([2, 8, 100, 64])
    """
    if isinstance(query, Proxy):
        return node_of(generalized_dot_product_attention, query, locals())
    diagonal = "bottom_right"
    if is_causal:
        if mask is not None:
            raise ValueError(
                "is_causal: expected False with mask=, got True; combine them: "
                'mask=gdpa.mask.Mask("kv_idx <= q_idx") & mask'
            )
        if _two(window_size) != (-1, -1):
            raise ValueError(
                f"window_size: expected (-1, -1) with is_causal=True, got {window_size}; the two count from different "
                "corners: window_size=(left, 0) is causal too"
            )
        window_size, diagonal = (-1, 0), "upper_left"
    after_scale = (window_size, diagonal, mask, enable_gqa, accuracy, deterministic, add_query)
    options = (activation, params, scale, out_scale, *after_scale)
    if isinstance(query, torch.Tensor) and query.is_nested:
        return _attend_nested(query, key, value, options)
    return _attend_dense(query, key, value, options)


def _attend_dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: tuple[Any, ...]
) -> torch.Tensor:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: expected Tensor, got {type(tensor).__name__}; convert it")
        if tensor.is_nested:
            raise TypeError(f"{name}: expected a dense tensor, as the query's, got a nested one; make both the same")
        if tensor.dim() < 3:
            raise ValueError(
                f"{name}: expected shape (..., heads, length, head_dim), got {tuple(tensor.shape)}; unsqueeze it"
            )
    leading = query.shape[:-3]
    if not (len(leading) == 1 and key.shape[:-3] == leading == value.shape[:-3]):
        leading = _broadcast(query, key, value)
        query, key, value = (_with_one_batch(tensor, leading) for tensor in (query, key, value))
    output = _attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), None, None, *options)
    output = output.transpose(1, 2)
    return output if len(leading) == 1 else output.unflatten(0, leading) if leading else output.squeeze(0)


def _broadcast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Size:
    shapes = [tensor.shape[:-3] for tensor in (query, key, value)]
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        raise ValueError(
            "key: expected leading dimensions of query, key and value that broadcast, got "
            f"{', '.join(str(tuple(shape)) for shape in shapes)}; make the batch dimensions agree"
        ) from None


def _with_one_batch(tensor: torch.Tensor, leading: torch.Size) -> torch.Tensor:
    """Returns (*leading, heads, length, head_dim) with one leading dimension, as a view if the strides allow it."""
    expanded = tensor.expand(*leading, *tensor.shape[-3:])
    return expanded.flatten(0, -4) if leading else expanded.unsqueeze(0)


def _attend_nested(query: Any, key: Any, value: Any, options: tuple[Any, ...]) -> torch.Tensor:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        _check_nested(name, tensor)
    _check_same_lengths(key, value)
    q, k, v = (tensor.values().transpose(0, 1) for tensor in (query, key, value))
    output = _attend(q, k, v, query.offsets(), key.offsets(), *options)
    return nested_like(query, output).transpose(1, 2)


def nested_like(nested: Any, rows: torch.Tensor) -> torch.Tensor:
    """Returns the rows with the ragged dimension of a nested tensor, so that the two can be added."""
    return torch.nested.nested_tensor_from_jagged(
        rows, nested.offsets(), min_seqlen=nested._maybe_min_seqlen, max_seqlen=nested._maybe_max_seqlen
    )


def _check_nested(name: str, tensor: Any) -> None:
    is_jagged = isinstance(tensor, torch.Tensor) and tensor.is_nested and tensor.layout == torch.jagged
    if not is_jagged:
        raise TypeError(
            f"{name}: expected a nested tensor of layout torch.jagged, as query, key and value are or none is, got "
            f"{'another tensor' if isinstance(tensor, torch.Tensor) else type(tensor).__name__}; make all three alike"
        )
    if tensor.dim() != 4 or tensor._ragged_idx != 2:
        raise ValueError(
            f"{name}: expected shape (batch, heads, ragged, head_dim), got {tuple(tensor.shape)}; "
            "transpose(1, 2) brings (batch, ragged, heads, head_dim) there"
        )
    if tensor.lengths() is not None:
        raise ValueError(
            f"{name}: expected a nested tensor without holes, got one with lengths; make a copy: "
            "torch.nested.as_nested_tensor(list(tensor.unbind()), layout=torch.jagged)"
        )


def _check_same_lengths(key: Any, value: Any) -> None:
    # Tensors with the same ragged dimension have the same lengths. For others, the host waits for the offsets.
    if key.shape[2] == value.shape[2] or torch.equal(key.offsets(), value.offsets()):
        return
    lengths = [tensor.offsets().diff().tolist() for tensor in (key, value)]
    raise ValueError(
        f"value: expected the lengths of the key's sequences, {_shortened(lengths[0])}, got {_shortened(lengths[1])}; "
        "pass the value of each key"
    )


def _shortened(numbers: list[int]) -> str:
    most = 8
    return str(numbers) if len(numbers) <= most else f"[{', '.join(map(str, numbers[:most]))}, ...]"


def _two(window_size: tuple[int, int]) -> tuple[int, int]:
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise ValueError(
            f"window_size: expected two whole numbers (left, right), got {window_size!r}; -1 has no bound"
        ) from None
    for bound in (left, right):
        if type(bound) is not int:  # a call with a keyword takes longer than the rest of this function
            refuse_gradient(window_size=bound)
    return left, right


def _offsets(name: str, offsets: torch.Tensor, of_lengths: str, cumulative: torch.Tensor | None) -> torch.Tensor:
    """Returns the argument of the operator that says where the sequences of one side are."""
    if cumulative is not None:
        raise ValueError(f"{name}: expected None with {of_lengths}, got both; leave one of them out")
    if isinstance(offsets, torch.Tensor) and offsets.dim() != 2:
        raise ValueError(
            f"{name}: expected shape (batch, 2), the begin and the end of each sequence, got {tuple(offsets.shape)}; "
            f"pass cumulative lengths as {of_lengths}"
        )
    return offsets


def _allow_tf32(query: torch.Tensor) -> bool:
    """Returns whether PyTorch allows tf32 for its float32 products on a GPU."""
    is_asked = isinstance(query, torch.Tensor) and query.is_cuda and query.dtype == torch.float32
    return is_asked and _torch_allows_tf32()


def _score_factor(scale: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Returns a scale that is a tensor with the shape () or (heads,)."""
    heads = query.shape[-2] if isinstance(query, torch.Tensor) and query.dim() > 2 else 1
    if scale.is_nested or tuple(scale.shape) not in ((), (1,), (heads,)):
        raise ValueError(
            f"scale: expected shape () or ({heads},), one number for all query heads or for each of them, got "
            f"{'a nested tensor' if scale.is_nested else tuple(scale.shape)}; reshape it"
        )
    if scale.dtype == torch.bool or scale.is_complex():
        raise TypeError(f"scale: expected a real dtype, got {str(scale.dtype).removeprefix('torch.')}; convert it")
    if isinstance(query, torch.Tensor) and scale.device != query.device:
        raise TypeError(
            f"scale: expected device {query.device}, as the query's, got {scale.device}; move all tensors to one device"
        )
    numbers = scale if scale.is_floating_point() else scale.to(torch.float32)
    return numbers.reshape(()) if tuple(scale.shape) == (1,) else numbers


def _parameter(name: str, tensor: torch.Tensor, query: torch.Tensor, is_read_by_index: bool) -> torch.Tensor:
    """Returns a tensor of the call as the operators expect it.

    A tensor that is read without an index has few numbers and becomes float32, or float64 for a query of float64. A
    tensor that is read by index may be large and is not copied, apart from a bool tensor, which no kernel reads.
    """
    if tensor.is_nested:
        raise TypeError(f"params: expected a dense tensor for {name!r}, got a nested one; pass its .values()")
    if tensor.dtype == torch.bool:
        return tensor.to(torch.int32)
    if is_read_by_index or not tensor.is_floating_point():
        return tensor
    return tensor.to(torch.float64 if query.dtype == torch.float64 else torch.float32)


def _mask_arguments(mask: Mask, query: torch.Tensor) -> tuple[tuple[Any, ...], tuple[torch.Tensor, ...]]:
    """Returns the arguments `mask`, `mask_names` and `mask_tiles` of the operators, and the tensors of the mask."""
    tensors = mask.tensors
    reads = names_of_reads(mask.text, True) if tensors else ()
    values = tuple([_parameter(name, one.detach(), query, name in reads) for name, one in tensors.items()])
    if isinstance(mask, PreparedMask) and (prepared := mask.lists) is not None:
        lists, tiles = prepared
        return (mask.text, tuple(tensors), tiles), (*values, lists)
    return (mask.text, tuple(tensors), None), values


@assume_constant_result
def _torch_allows_tf32() -> bool:
    return torch.get_float32_matmul_precision() != "highest"


def problem_of(
    query: torch.Tensor,
    key: torch.Tensor,
    cu_seq_q: torch.Tensor | None,
    cu_seq_k: torch.Tensor | None,
    activation: ActivationLike = "gelu",
    params: Mapping[str, Param] | None = None,
    scale: Scale = None,
    out_scale: OutScale = 1.0,
    window_size: tuple[int, int] = (-1, -1),
    diagonal: str = "bottom_right",
    mask: MaskLike | None = None,
    enable_gqa: bool = False,
    accuracy: str = "fast",
    deterministic: bool = False,
    add_query: bool = False,
    seq_offsets_q: torch.Tensor | None = None,
    seq_offsets_k: torch.Tensor | None = None,
    kv_of: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    output_offsets: torch.Tensor | None = None,
    output_rows: int | None = None,
    zeroes_output: bool = True,
) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...]]:
    """Returns the tensors of the call, and the operator's arguments after them."""
    left, right = _two(window_size)
    if seq_offsets_q is not None:
        cu_seq_q = _offsets("seq_offsets_q", seq_offsets_q, "cu_seq_q", cu_seq_q)
    if seq_offsets_k is not None:
        cu_seq_k = _offsets("seq_offsets_k", seq_offsets_k, "cu_seq_k", cu_seq_k)
    if output_rows is not None:
        if output_offsets is None:
            raise ValueError(f"output_rows: expected None without output_offsets, got {output_rows}; pass both")
        refuse_gradient(output_rows=output_rows)
        if output_rows < 0:
            raise ValueError(f"output_rows: expected 0 or more, got {output_rows}; pass the rows of the output")
    number, kind, numbers = 1.0, "number", None
    if isinstance(out_scale, str):
        if out_scale not in ("1/len_q", "1/len_k"):
            raise ValueError(
                f'out_scale: expected a number, a tensor, "1/len_q" or "1/len_k", got "{out_scale}"; correct the text'
            )
        kind = out_scale
    elif _has_row_numbers(out_scale):
        kind, numbers = "row", _row_numbers(out_scale)
    elif isinstance(out_scale, torch.Tensor):
        if out_scale.dim() == 0:
            refuse_gradient(out_scale=out_scale)
        if out_scale.requires_grad:
            raise ValueError(
                "out_scale: expected numbers of sequences without gradient, got a tensor that requires one; pass "
                ".detach(), or repeat the numbers for each query: repeat_interleave(lengths).unsqueeze(-1)"
            )
        numbers = out_scale
    elif is_symbolic(out_scale):
        entries = kv_of if block_table is None else block_table
        batch = batch_of(query, key, cu_seq_q, cu_seq_k, entries)
        numbers = query.new_ones((batch,), dtype=torch.float64) * out_scale
    else:
        number = out_scale
    parameters: tuple[torch.Tensor, ...] = ()
    names: tuple[str, ...] | None = None
    if params is not None or not isinstance(activation, str) or isinstance(scale, torch.Tensor):
        activation, tensors = text_of(activation, params)
        if isinstance(scale, torch.Tensor):
            tensors[SCORE_FACTOR], scale = _score_factor(scale, query), 1.0
        if tensors:
            reads = names_of_reads(activation)
            parameters = tuple([_parameter(name, one, query, name in reads) for name, one in tensors.items()])
            names = tuple(tensors)
    of_mask: tuple[Any, ...] = (None, None, None)
    if mask is not None:
        if (left, right) != (-1, -1):
            raise ValueError(
                f"window_size: expected (-1, -1) with mask=, got ({left}, {right}); combine them: "
                f"mask=gdpa.mask.window({left}, {right}) & mask"
            )
        if diagonal != "bottom_right":
            raise ValueError(
                f'diagonal: expected "bottom_right" with mask=, got "{diagonal}"; leave it out, because only a window '
                "has a diagonal"
            )
        mask = mask_of(mask)
        if mask.window is not None:
            left, right = mask.window
        else:
            of_mask, tensors_of_mask = _mask_arguments(mask, query)
            parameters = (*parameters, *tensors_of_mask)
    return parameters, (
        cu_seq_q,
        cu_seq_k,
        kv_of,
        block_table,
        seqused_k,
        output_offsets,
        activation,
        names,
        scale,
        number,
        kind,
        numbers,
        left,
        right,
        diagonal,
        *of_mask,
        enable_gqa,
        accuracy,
        deterministic or torch.are_deterministic_algorithms_enabled(),
        _allow_tf32(query),
        add_query,
        -1 if output_rows is None else output_rows,
        zeroes_output,
    )


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """Calls the operator. The operator checks the arguments, and problem_of converts arguments to its schema."""
    parameters, rest = problem_of(query, key, *arguments)
    try:
        return attend(query, key, value, parameters, *rest)
    except RuntimeError as error:
        raise translated(error) from None


#: The position of the names of the tensors in the arguments of the operator after these tensors.
_names = Problem._fields.index("parameter_names") - Problem._fields.index("cu_seqlens_q")


def _has_row_numbers(out_scale: OutScale) -> TypeGuard[torch.Tensor]:
    """Returns whether out_scale has one number for each query."""
    return isinstance(out_scale, torch.Tensor) and out_scale.dim() > 1


def _row_numbers(out_scale: torch.Tensor) -> torch.Tensor:
    """Returns one number for each query, without the last axis, which keeps it apart from numbers of sequences."""
    if out_scale.shape[-1] != 1:
        raise ValueError(
            "out_scale: expected a last axis of size 1 for one number for each query, got shape "
            f"{tuple(out_scale.shape)}; unsqueeze(-1) adds it"
        )
    return out_scale.squeeze(-1)
