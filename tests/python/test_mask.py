"""Masks against dense boolean matrices that are written independently."""

import pytest
import torch

import gdpa

HEADS = 2
LENGTHS_Q, LENGTHS_K = (5, 0, 70, 3), (9, 4, 131, 3)


def offsets(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])


def operands(lengths_q=LENGTHS_Q, lengths_k=LENGTHS_K, width=16):
    torch.manual_seed(sum(lengths_q))
    sizes = (sum(lengths_q), sum(lengths_k), sum(lengths_k))
    return [torch.randn(size, HEADS, width, dtype=torch.float64, requires_grad=True) for size in sizes]


def reference(q, k, v, keeps, lengths_q=LENGTHS_Q, lengths_k=LENGTHS_K):
    """silu(S) V, where keeps(b, h, len_q, len_k) returns a matrix of booleans."""
    outputs = []
    for b, (q_b, k_b, v_b) in enumerate(zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True)):
        heads = []
        for h in range(HEADS):
            scores = q_b[:, h] @ k_b[:, h].T / q.shape[-1] ** 0.5
            kept = keeps(b, h, lengths_q[b], lengths_k[b])
            heads.append(torch.nn.functional.silu(scores).masked_fill(~kept, 0.0) @ v_b[:, h])
        outputs.append(torch.stack(heads, 1))
    return torch.cat(outputs)


def check(mask, keeps, lengths_q=LENGTHS_Q, lengths_k=LENGTHS_K):
    q, k, v = operands(lengths_q, lengths_k)
    cu_q, cu_k = offsets(lengths_q), offsets(lengths_k)
    output = gdpa.varlen_attention(q, k, v, cu_q, cu_k, activation="silu", mask=mask)
    expected = reference(q, k, v, keeps, lengths_q, lengths_k)
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)
    grad = torch.randn_like(output)
    actual = torch.autograd.grad(output, (q, k, v), grad)
    for one, other in zip(actual, torch.autograd.grad(expected, (q, k, v), grad), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def rows(len_q, len_k):
    """The row of each query in the keys' positions, and the keys."""
    return torch.arange(len_q)[:, None] + len_k - len_q, torch.arange(len_k)[None]


def causal(b, h, len_q, len_k):
    row, key = rows(len_q, len_k)
    return key <= row


CONTEXTS, TARGETS, PREFIX = torch.tensor([2, 0, 7, 1]), torch.tensor([3, 0, 20, 0]), torch.tensor([4, 2, 50, 0])


def hstu(group, window):
    def keeps(b, h, len_q, len_k):
        contexts, targets = int(CONTEXTS[b]), int(TARGETS[b])
        history = len_k - targets
        kept = torch.zeros(len_q, len_k, dtype=torch.bool)
        for i in range(len_q):
            row = i + len_k - len_q
            for j in range(len_k):
                if row < contexts:
                    kept[i, j] = j < history
                    continue
                kept[i, j] = j <= row and (window < 0 or row - j <= window or j < contexts)
                if row >= history and history <= j < history + (row - history) // group * group:
                    kept[i, j] = False
        return kept

    return keeps


@pytest.mark.parametrize(("group", "window"), [(1, -1), (4, -1), (4, 10)])
def test_hstu_follows_the_rule_of_contexts_and_targets(group, window):
    mask = gdpa.mask.hstu(contexts=CONTEXTS, targets=TARGETS, target_group_size=group, window=window)
    check(mask, hstu(group, window))


def test_causal_and_windows_are_windows_of_the_operator():
    check("causal", causal)
    check(gdpa.mask.causal(), causal)
    assert gdpa.mask.causal().window == (-1, 0)
    check(gdpa.mask.window(5, 2), lambda b, h, m, n: ((d := rows(m, n)[0] - rows(m, n)[1]) <= 5) & (d >= -2))


def test_the_text_of_a_window_has_its_keys():
    for left, right in ((-1, -1), (5, -1), (-1, 3), (5, 0)):
        mask = gdpa.mask.Mask(gdpa.mask.window(left, right).text)

        def keeps(b, h, m, n, left=left, right=right):
            distance = rows(m, n)[0] - rows(m, n)[1]
            return (distance <= left if left >= 0 else distance < 1e9) & (distance >= -right if right >= 0 else True)

        check(mask, keeps)


def test_prefix_or_causal():
    check(
        gdpa.mask.prefix(PREFIX) | gdpa.mask.causal(),
        lambda b, h, m, n: causal(b, h, m, n) | (torch.arange(n)[None] < PREFIX[b]),
    )


def test_documents_of_packed_tokens():
    lengths = (30, 1, 100)
    tokens = torch.randint(0, 4, (sum(lengths),), generator=torch.Generator().manual_seed(0)).sort().values
    of_sequence = tokens.split(lengths)
    check(
        gdpa.mask.documents(tokens) & gdpa.mask.causal(),
        lambda b, h, m, n: (of_sequence[b][:, None] == of_sequence[b][None]) & causal(b, h, m, n),
        lengths,
        lengths,
    )


@pytest.mark.parametrize("count", [3, 4, 5, 9])
@pytest.mark.parametrize("heads", [1, HEADS])
def test_intervals_of_each_query(heads, count):
    bounds = torch.randint(-3, 140, (sum(LENGTHS_Q), heads, count, 2), generator=torch.Generator().manual_seed(1))
    bounds = torch.where(torch.rand(bounds.shape[:-1])[..., None] < 0.8, bounds.sort(-1).values, bounds).int()
    of_sequence = bounds.split(LENGTHS_Q)

    def keeps(b, h, m, n):
        ranges = of_sequence[b][:, h % heads]
        keys = torch.arange(n)
        return ((keys >= ranges[..., :1]) & (keys < ranges[..., 1:])).any(1)

    check(gdpa.mask.intervals(bounds if heads > 1 else bounds[:, 0], keys=max(LENGTHS_K)), keeps)


def test_a_function_of_positions_reads_captured_tensors():
    times_q, times_k = torch.rand(sum(LENGTHS_Q)), torch.rand(sum(LENGTHS_K))
    of_q, of_k = times_q.split(LENGTHS_Q), times_k.split(LENGTHS_K)
    check(
        lambda b, h, q_idx, kv_idx, *, q_row, kv_row: (
            (kv_idx <= q_idx + 40) & ~((times_q[q_row] - times_k[kv_row] < 0.3) | (h == 1))
        ),
        lambda b, h, m, n: (
            (torch.arange(n)[None] <= torch.arange(m)[:, None] + 40)
            & ~((of_q[b][:, None] - of_k[b][None] < 0.3) | torch.tensor(h == 1))
        ),
    )


def test_a_bool_tensor_is_a_condition():
    """As in flex_attention: the padding of a batch, alone, combined, and as a text."""
    keeps = torch.rand(len(LENGTHS_K), max(LENGTHS_K)) < 0.5

    def earlier(m, n):
        return torch.arange(n)[None] <= torch.arange(m)[:, None]

    check(lambda b, h, q, k: keeps[b, k], lambda b, h, m, n: keeps[b, :n].expand(m, n))
    check(lambda b, h, q, k: ~keeps[b][k] & (k <= q), lambda b, h, m, n: ~keeps[b, :n] & earlier(m, n))
    check(
        gdpa.mask.Mask("keeps[batch, kv_idx] | (kv_idx <= q_idx)", {"keeps": keeps}),
        lambda b, h, m, n: keeps[b, :n] | earlier(m, n),
    )


def test_a_mask_and_a_function_with_tensors_have_their_own_names():
    lengths = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    q, k, v = operands()
    cu_q, cu_k = offsets(LENGTHS_Q), offsets(LENGTHS_K)
    output = gdpa.varlen_attention(
        q, k, v, cu_q, cu_k, activation="lengths * silu(s)", params={"lengths": lengths}, mask=gdpa.mask.prefix(PREFIX)
    )
    expected = reference(q, k, v, lambda b, h, m, n: (torch.arange(n)[None] < PREFIX[b]).expand(m, n))
    torch.testing.assert_close(output, expected * lengths[None, :, None])
    grad = torch.randn_like(output)
    actual = torch.autograd.grad(output, lengths, grad)[0]
    torch.testing.assert_close(actual, (expected * grad).sum((0, 2)))


def test_equal_names_of_different_tensors_are_renamed():
    other = torch.tensor([1, 1, 1, 1])
    mask = gdpa.mask.prefix(PREFIX) & ~gdpa.mask.prefix(other)
    assert list(mask.tensors) == ["lengths", "lengths_2"]
    keys = torch.arange
    check(mask, lambda b, h, m, n: ((keys(n)[None] < PREFIX[b]) & (keys(n)[None] >= 1)).expand(m, n))
    same = gdpa.mask.prefix(PREFIX) | gdpa.mask.prefix(PREFIX)
    assert list(same.tensors) == ["lengths"]


def test_a_masked_partner_contributes_nothing_and_a_query_without_keys_gives_zeros():
    q, k, v = operands()
    cu_q, cu_k = offsets(LENGTHS_Q), offsets(LENGTHS_K)
    output = gdpa.varlen_attention(q, k, v, cu_q, cu_k, activation="exp(s)", mask="kv_idx > len_k")
    assert torch.equal(output, torch.zeros_like(output))
    for gradient in torch.autograd.grad(output.sum(), (q, k, v)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_torch_compile_keeps_the_mask_in_the_graph():
    q, k, v = operands()
    cu_q, cu_k = offsets(LENGTHS_Q), offsets(LENGTHS_K)

    def step(q, k, v, lengths):
        mask = gdpa.mask.prefix(lengths) | gdpa.mask.causal()
        return gdpa.varlen_attention(q, k, v, cu_q, cu_k, activation="silu", mask=mask)

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths in (PREFIX, PREFIX + 1):
        torch.testing.assert_close(compiled(q, k, v, lengths), step(q, k, v, lengths))


def test_dense_attention_takes_a_mask():
    q, k, v = torch.randn(3, 2, HEADS, 40, 16, dtype=torch.float64).unbind()
    table = torch.rand(40, 40) < 0.5
    bits = table.to(torch.int32)
    output = gdpa.generalized_dot_product_attention(q, k, v, "silu", mask=lambda b, h, i, j: bits[i, j])
    scores = torch.nn.functional.silu(q @ k.mT / 4).masked_fill(~table, 0.0)
    torch.testing.assert_close(output, scores @ v)


def test_a_new_name_of_a_tensor_is_no_name_of_its_own_mask() -> None:
    first, second, third = (torch.tensor([number]) for number in (1, 2, 3))
    both = gdpa.mask.Mask("kv_idx < t[batch]", {"t": first}) & gdpa.mask.Mask(
        "kv_idx < t[batch] + t_2[batch]", {"t": second, "t_2": third}
    )
    assert both.text == "(kv_idx < t[batch]) & (kv_idx < t_3[batch] + t_2[batch])"
    assert both.tensors == {"t": first, "t_3": second, "t_2": third}


def test_an_inverse_is_of_the_whole_condition() -> None:
    rows, keys = torch.arange(5)[:, None], torch.arange(5)
    ones, identity = torch.ones(5, 1, 8), torch.eye(5, 8)[:, None]
    cu = torch.tensor([0, 5])
    for mask, kept in (
        (~gdpa.mask.Mask("kv_idx <= q_idx"), keys > rows),
        (~(gdpa.mask.causal() | gdpa.mask.Mask("kv_idx == 4")), (keys > rows) & (keys != 4)),
        (~(gdpa.mask.causal() & gdpa.mask.Mask("kv_idx >= 2")), (keys > rows) | (keys < 2)),
        (~~gdpa.mask.Mask("kv_idx < q_idx"), keys < rows),
    ):
        output = gdpa.varlen_attention(ones, ones, identity, cu, cu, activation="0 * s + 1", mask=mask)
        torch.testing.assert_close(output[:, 0, :5], kept.float())


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (3, TypeError, "mask: expected a gdpa.mask.Mask, a text or a function"),
        ("kv_idx + 1", ValueError, "mask: expected a condition, but a number came"),
        ("s > 0", ValueError, "mask: "),
        ("kv_idx < n[batch]", ValueError, "mask: "),
        (lambda b, h, i, j: "x", ValueError, "mask: expected a function of positions that returns a condition"),
        (gdpa.mask.Mask("kv_idx < n[batch]", {"n": torch.zeros(4, 1)}), ValueError, "n: expected"),
    ],
)
def test_a_wrong_mask_raises_one_error(mask, error, message):
    q, k, v = operands()
    with pytest.raises(error, match=message.replace("(", "\\(")):
        gdpa.varlen_attention(q, k, v, offsets(LENGTHS_Q), offsets(LENGTHS_K), mask=mask)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("(kv_idx <= q_idx) and (kv_idx > 1)", "write & for and"),
        ("not (kv_idx <= q_idx)", "write ~ for not"),
        (lambda b, h, q, k: k <= q and k > 1, "mask: expected one expression .*; use &, | and ~ instead of and, or"),
        (lambda q, k: k <= q, r"mask: expected a function of \(batch, head, q_idx, kv_idx\)"),
        (torch.ones(3, 3, dtype=torch.bool), r"got Tensor; name its axes: gdpa.mask.Mask\("),
    ],
    ids=["and", "not", "function with and", "two arguments", "tensor"],
)
def test_a_usual_mistake_gets_what_to_write(mask, message):
    q, k, v = operands()
    with pytest.raises((ValueError, TypeError), match=message.replace("| and", r"\| and")):
        gdpa.varlen_attention(q, k, v, offsets(LENGTHS_Q), offsets(LENGTHS_K), mask=mask)


def test_a_mask_excludes_another_mask():
    q, k, v = operands()
    cu_q, cu_k = offsets(LENGTHS_Q), offsets(LENGTHS_K)
    with pytest.raises(ValueError, match=r"window_size: expected \(-1, -1\) with mask=, got \(3, 0\)"):
        gdpa.varlen_attention(q, k, v, cu_q, cu_k, window_size=(3, 0), mask="kv_idx < 3")
    with pytest.raises(ValueError, match='diagonal: expected "bottom_right" with mask=, got "upper_left"'):
        gdpa.varlen_attention(q, k, v, cu_q, cu_k, diagonal="upper_left", mask="kv_idx < 3")
    with pytest.raises(ValueError, match="is_causal: expected False with mask=, got True"):
        gdpa.generalized_dot_product_attention(*torch.randn(3, 1, 1, 4, 8).unbind(), is_causal=True, mask="kv_idx < 3")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gdpa.mask.window(-2, 0), "expected bounds of at least 0"),
        (lambda: gdpa.mask.prefix(torch.zeros(2, 2)), "expected 1 axes for lengths"),
        (lambda: gdpa.mask.intervals(torch.zeros(2, 5, 3)), "with n of 1 or more"),
        (lambda: gdpa.mask.intervals(torch.zeros(2, 5, 2)), "pass keys="),
        (lambda: gdpa.mask.hstu(target_group_size=0), "target_group_size of at least 1"),
    ],
)
def test_a_wrong_argument_of_a_factory_raises_one_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
