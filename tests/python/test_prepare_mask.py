"""gdpa.prepare_mask: the results, errors and compilation of prepared masks. tests/gpu checks the lists on a GPU."""

import pytest
import torch

import gdpa

LENGTHS = (5, 0, 70, 30)
ROWS = sum(LENGTHS)


def offsets(lengths=LENGTHS):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])


def operands(rows=ROWS, heads=2, dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(rows, heads, 16, dtype=dtype, requires_grad=True) for _ in range(3)]


def prefix():
    return gdpa.mask.prefix(torch.tensor([2, 0, 7, 1])) | gdpa.mask.causal()


def results(mask, activation="silu", **keywords):
    tensors = operands()
    output = gdpa.varlen_attention(*tensors, offsets(), offsets(), activation=activation, mask=mask, **keywords)
    return [output.detach(), *torch.autograd.grad(output.square().sum(), tensors)]


def prepared(mask, **keywords):
    return gdpa.prepare_mask(
        gdpa.varlen_attention, *operands(), offsets(), offsets(), activation="silu", mask=mask, **keywords
    )


def masks():
    times = torch.rand(sum(LENGTHS), dtype=torch.float32)
    return {
        "prefix or causal": prefix(),
        "hstu": gdpa.mask.hstu(contexts=torch.tensor([1, 0, 5, 2]), targets=torch.tensor([2, 0, 9, 1])),
        "text": "(q_idx - kv_idx) % 3 == 0",
        "function": lambda b, h, q_idx, kv_idx, q_row, kv_row: (kv_idx <= q_idx) & (times[q_row] - times[kv_row] < 0.3),
        "causal": "causal",
        "window": gdpa.mask.window(3, 1),
    }


def test_a_mask_whose_tensors_have_changed_since_its_preparation_is_refused():
    """On a GPU, the lists of tiles depend on the values of these tensors. Old lists would give wrong results."""
    prefixes = torch.tensor([2, 0, 7, 1])
    mask = gdpa.mask.prefix(prefixes) | gdpa.mask.causal()
    ready = prepared(mask)
    results(ready)
    prefixes += 1
    with pytest.raises(ValueError, match=r"expected tensors as in gdpa.prepare_mask, got a change of lengths since"):
        results(ready)
    results(prepared(mask))
    with torch.inference_mode():
        ready = prepared(gdpa.mask.prefix(torch.tensor([2, 0, 7, 1])))
        gdpa.varlen_attention(*operands(), offsets(), offsets(), activation="silu", mask=ready)


@pytest.mark.parametrize("name", masks())
def test_a_prepared_mask_gives_the_results_of_its_mask_in_several_calls(name):
    mask = masks()[name]
    ready = prepared(mask)
    assert isinstance(ready, gdpa.mask.PreparedMask)
    expected = results(mask)
    for _ in range(2):
        for one, other in zip(results(ready), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    again = prepared(ready)
    for one, other in zip(results(again), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_tensors_of_the_function_and_of_the_mask_stay_apart():
    lengths = torch.tensor([2.0, 3.0], dtype=torch.float64)
    keywords = {"activation": "lengths * silu(s)", "params": {"lengths": lengths}}
    ready = gdpa.prepare_mask(gdpa.varlen_attention, *operands(), offsets(), offsets(), mask=prefix(), **keywords)
    assert list(ready.tensors) == ["lengths"]
    for one, other in zip(results(ready, **keywords), results(prefix(), **keywords), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_on_the_cpu_nothing_is_stored_and_a_window_has_no_lists():
    assert prepared(prefix()).nbytes == 0
    assert prepared("causal").window == (-1, 0)
    assert prepared("causal").lists is None
    assert repr(prepared(prefix())).startswith("PreparedMask('(prefix(lengths[batch])) | ")


def test_a_combination_with_a_prepared_mask_is_not_prepared():
    both = prepared(prefix()) & gdpa.mask.window(2, 2)
    assert type(both) is gdpa.mask.Mask
    for one, other in zip(results(both), results(prefix() & gdpa.mask.window(2, 2)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_the_dense_function_has_prepared_masks():
    query, key, value = torch.randn(3, 2, 4, 20, 16).unbind()
    mask = "kv_idx <= q_idx + head"
    ready = gdpa.prepare_mask(gdpa.generalized_dot_product_attention, query, key, value, "silu", mask=mask)
    expected = gdpa.generalized_dot_product_attention(query, key, value, "silu", mask=mask)
    torch.testing.assert_close(gdpa.generalized_dot_product_attention(query, key, value, "silu", mask=ready), expected)


@pytest.mark.parametrize("is_argument", [False, True])
def test_a_compiled_function_takes_a_prepared_mask(is_argument):
    ready = prepared(prefix())

    def attend(query, key, value, cu, mask):
        return gdpa.varlen_attention(query, key, value, cu, cu, activation="silu", mask=mask) * 2

    def attend_with_captured(query, key, value, cu, _):
        return attend(query, key, value, cu, ready)

    compiled = torch.compile(attend if is_argument else attend_with_captured, fullgraph=True, backend="aot_eager")
    tensors = operands()
    output = compiled(*tensors, offsets(), ready if is_argument else None)
    expected = attend(*tensors, offsets(), prefix())
    torch.testing.assert_close(output, expected)
    gradients = torch.autograd.grad(output.sum(), tensors)
    for one, other in zip(gradients, torch.autograd.grad(expected.sum(), tensors), strict=True):
        torch.testing.assert_close(one, other)


def test_preparation_in_a_compiled_function_breaks_the_graph():
    def attend(query, key, value, cu):
        keywords = {"activation": "silu", "mask": "kv_idx <= q_idx"}
        mask = gdpa.prepare_mask(gdpa.varlen_attention, query, key, value, cu, cu, **keywords)
        return gdpa.varlen_attention(query, key, value, cu, cu, activation="silu", mask=mask)

    tensors = operands()
    expected = gdpa.varlen_attention(*tensors, offsets(), offsets(), activation="silu", mask="kv_idx <= q_idx")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="call it outside of the compiled function"):
        torch.compile(attend, backend="aot_eager", fullgraph=True)(*tensors, offsets())
    torch.testing.assert_close(torch.compile(attend, backend="aot_eager")(*tensors, offsets()), expected)


def other_call(rows=ROWS, heads=2, lengths=LENGTHS, mask=None):
    ready = prepared(mask or prefix())
    tensors = [torch.randn(rows, heads, 16, dtype=torch.float64) for _ in range(3)]
    cu = offsets(lengths)
    return lambda: gdpa.varlen_attention(*tensors, cu, cu, activation="silu", mask=ready)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: other_call(rows=200), "expected a mask for 200 rows of query, got one for 105"),
        (lambda: other_call(heads=4), "expected a mask for 4 query heads, got one for 2"),
        (
            lambda: other_call(lengths=(5, 100), mask="kv_idx <= q_idx"),
            "expected a mask for 2 batch entries, got one for 4",
        ),
    ],
)
def test_another_call_is_refused(make, message):
    with pytest.raises(ValueError, match=f"prepared_mask: {message}; prepare the mask with the arguments of this call"):
        make()()


def test_other_lengths_are_another_batch_of_the_same_shape():
    expected, cu = operands(), offsets((60, 5, 40, 0))
    output = gdpa.varlen_attention(*expected, cu, cu, activation="silu", mask=prepared("kv_idx <= q_idx"))
    torch.testing.assert_close(
        output, gdpa.varlen_attention(*expected, cu, cu, activation="silu", mask="kv_idx <= q_idx")
    )


def test_wrong_uses_raise_one_error():
    with pytest.raises(ValueError, match="expected a call with a mask, got one without; pass mask="):
        gdpa.prepare_mask(gdpa.varlen_attention, *operands(), offsets(), offsets())
    with pytest.raises(ValueError, match="expected a function that calls gdpa once, got 0 calls"):
        gdpa.prepare_mask(lambda: None)
    with pytest.raises(ValueError, match="mask: expected a condition"):
        prepared("kv_idx + 1")
    with pytest.raises(ValueError, match="n: expected"):
        prepared(gdpa.mask.Mask("kv_idx < n[batch]", {"n": torch.zeros(4, 1)}))
