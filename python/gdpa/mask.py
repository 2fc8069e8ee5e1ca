"""Masks: the keys that a query attends to, as conditions in positions and tensors of the call.

A mask is a Mask, made by one of the functions below or from a text, or a Python function like mask_mod of
flex_attention. `&`, `|` and `~` combine masks::

    mask = gdpa.mask.causal() & ~gdpa.mask.prefix(padding)
    output = gdpa.varlen_attention(query, key, value, cu, cu, activation="silu", mask=mask)

docs/masks.md describes the conditions, and the tiles that a mask skips. gdpa.prepare_mask prepares a mask for several
calls.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from gdpa import _trace
from gdpa._errors import refuse_gradient
from gdpa._symbolic import is_symbolic
from gdpa._text import replaced

__all__ = ["Mask", "MaskLike", "PreparedMask", "causal", "documents", "hstu", "intervals", "prefix", "window"]


class Mask:
    """A condition. P and the gradient of the scores are 0 where the condition does not hold.

    Args:
        text: a condition in the positions batch, head, q_idx and kv_idx (query and key in their sequences), the rows
            q_row and kv_row of the packed operands, the lengths len_q and len_k, and elements of tensors:
            "(kv_idx <= q_idx) & (q_idx - kv_idx < width[head])". docs/functions.md describes the language. A condition
            does not read s. Comparisons next to & and | need parentheses, as in Python.
        tensors: the tensors that the text reads, by name. An axis with the index q_row or kv_row has an element for
            each row of the packed query or key. dtypes: float32, bfloat16, float16, int32, int64 or bool; on the CPU
            also float64. No gradient flows to them.

    Raises:
        TypeError: `text` is no string, or a value of `tensors` is no tensor.

    The text and the tensors are checked by the call that uses the mask.

    Example::

        >>> width = torch.tensor([4, 16])
        >>> gdpa.mask.Mask("(kv_idx <= q_idx) & (q_idx - kv_idx < width[head])", {"width": width}) & gdpa.mask.causal()
        Mask('((kv_idx <= q_idx) & (q_idx - kv_idx < width[head])) & (causal())', tensors: width)
    """

    __slots__ = ("_tensors", "_text", "_window")

    def __init__(self, text: str, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
        if not isinstance(text, str):
            raise TypeError(
                f"mask: expected a text as the condition, got {type(text).__name__}; write 'kv_idx <= q_idx'"
            )
        for name, tensor in (tensors or {}).items():
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"mask: expected a tensor for {name!r}, got {type(tensor).__name__}; convert it")
        self._text = text
        self._tensors = dict(tensors or {})
        self._window: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        """The condition."""
        return self._text

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that the condition reads, by name."""
        return dict(self._tensors)

    @property
    def window(self) -> tuple[int, int] | None:
        """(left, right) of a mask that is a window around the diagonal, as window_size of varlen_attention."""
        return self._window

    def __repr__(self) -> str:
        names = f", tensors: {', '.join(self._tensors)}" if self._tensors else ""
        return f"Mask({self._text!r}{names})"

    def __and__(self, other: "MaskLike") -> "Mask":
        return self._combined("&", other)

    def __or__(self, other: "MaskLike") -> "Mask":
        return self._combined("|", other)

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> "Mask":
        return Mask(f"~({self._text})", self._tensors)

    def _combined(self, sign: str, other: "MaskLike") -> "Mask":
        other = mask_of(other)
        text, tensors = other._without(self._tensors)
        return Mask(f"({self._text}) {sign} ({text})", {**self._tensors, **tensors})

    def _without(self, taken: Mapping[str, torch.Tensor]) -> tuple[str, dict[str, torch.Tensor]]:
        """Returns the text and the tensors with other names for tensors whose names are taken by other tensors."""
        names = {}
        for name, tensor in self._tensors.items():
            number, new = 2, name
            while (new in taken and taken[new] is not tensor) or (new != name and new in self._tensors):
                number, new = number + 1, f"{name}_{number}"
            if new != name:
                names[name] = new
        text = replaced(self._text, names, is_condition=True) if names else self._text
        return text, {names.get(name, name): tensor for name, tensor in self._tensors.items()}


class PreparedMask(Mask):
    """A mask whose tiles are classified for calls of the same shapes. gdpa.prepare_mask makes it.

    `&`, `|` and `~` return a Mask that is not prepared.
    """

    __slots__ = ("_lists", "_tiles", "_versions")

    def __init__(self, mask: Mask, lists: torch.Tensor | None, tiles: str) -> None:
        super().__init__(mask.text, mask.tensors)
        self._window = mask.window
        self._lists = lists
        self._tiles = tiles
        self._versions = _versions_of(self.tensors)

    @property
    def nbytes(self) -> int:
        """The bytes of device memory that the lists of tiles occupy. 0 on the CPU, and for a window."""
        return 0 if self._lists is None else self._lists.nbytes

    @property
    def lists(self) -> tuple[torch.Tensor, str] | None:
        """The lists, and the text that describes them, as the operators take them. None for a window.

        Raises:
            ValueError: a tensor of the mask has changed since its preparation. A compiled function does not check this.
        """
        if not torch.compiler.is_compiling():
            for name, version in _versions_of(self.tensors).items():
                if version != self._versions[name]:
                    raise ValueError(
                        f"mask: expected tensors as in gdpa.prepare_mask, got a change of {name} since then; prepare "
                        "the original mask again"
                    )
        return None if self._lists is None else (self._lists, self._tiles)

    def __repr__(self) -> str:
        return f"Prepared{super().__repr__()}"


def _versions_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Returns the version of each tensor, which PyTorch increments when the tensor is modified in place.

    An inference tensor has no version. Its number is 0.
    """
    return {name: 0 if one.is_inference() else one._version for name, one in tensors.items()}


#: A mask, the text of a condition, or a Python function (b, h, q_idx, kv_idx) like mask_mod of flex_attention.
MaskLike = Mask | str | Callable[..., Any]


def mask_of(mask: MaskLike) -> Mask:
    """Returns the Mask of an argument `mask`."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, str):
        return causal() if mask == "causal" else Mask(mask)
    if callable(mask):
        return Mask(*_trace.condition_of(mask))
    is_tensor = isinstance(mask, torch.Tensor)
    of_tensor = 'name its axes: gdpa.mask.Mask("keeps[batch, q_idx, kv_idx]", {"keeps": tensor})'
    raise TypeError(
        f"mask: expected a gdpa.mask.Mask, a text or a function (batch, head, q_idx, kv_idx), got "
        f"{'Tensor' if is_tensor else type(mask).__name__}; {of_tensor if is_tensor else 'see docs/masks.md'}"
    )


def causal() -> Mask:
    """Returns the causal mask: query i attends to key j if j <= i + len_k - len_q.

    The last query attends to the last key, as with window_size=(-1, 0).

    Example::

        >>> gdpa.mask.causal()
        Mask('causal()')
    """
    return window(-1, 0)


def window(left: int, right: int) -> Mask:
    """Returns a window around the diagonal: i + len_k - len_q - left <= j <= i + len_k - len_q + right.

    Args:
        left, right: keys before and after the diagonal. -1 means no bound.

    Raises:
        ValueError: a bound is below -1.

    Example::

        >>> gdpa.mask.window(255, 0)
        Mask('window(255, 0)')
    """
    refuse_gradient(left=left, right=right)
    for bound in (left, right):
        if bound < -1:
            raise ValueError(f"mask: expected bounds of at least 0, or -1 for none, got {bound}; correct it")
    mask = Mask("causal()" if (left, right) == (-1, 0) else f"window({left}, {right})")
    mask._window = (left, right)
    return mask


def prefix(lengths: torch.Tensor) -> Mask:
    """Returns the mask of the first keys: every query of sequence b attends to key j if j < lengths[b].

    Args:
        lengths: (B,), int32 or int64.

    Example::

        >>> gdpa.mask.prefix(torch.tensor([5, 0])) | gdpa.mask.causal()
        Mask('(prefix(lengths[batch])) | (causal())', tensors: lengths)
    """
    return Mask("prefix(lengths[batch])", {"lengths": _checked("lengths", lengths, (1,))})


def documents(query: torch.Tensor, key: torch.Tensor | None = None) -> Mask:
    """Returns the mask of packed documents: a query attends to the keys with the same number of a document.

    Args:
        query: (T_q,), the number of the document of each packed query, int32 or int64.
        key: (T_k,), the same for the keys. None means that queries and keys are the same tokens.

    Example::

        >>> gdpa.mask.documents(torch.tensor([0, 0, 1, 1, 1])) & gdpa.mask.causal()
        Mask('(document_q[q_row] == document_k[kv_row]) & (causal())', tensors: document_q, document_k)
    """
    query = _checked("query", query, (1,))
    key = query if key is None else _checked("key", key, (1,))
    return Mask("document_q[q_row] == document_k[kv_row]", {"document_q": query, "document_k": key})


def intervals(bounds: torch.Tensor, keys: int | None = None) -> Mask:
    """Returns the mask of ranges of keys for each query: query i attends to key j if a range has j.

    Args:
        bounds: (T_q, n, 2) or (T_q, H_q, n, 2) with n of 1 or more, int32 or int64: the first key of each range and the
            key after its last one, counted from the first key of the sequence. Ranges may overlap or be empty.
        keys: with n above 4, the most keys of a sequence. Later keys are masked. The mask then has one bit for each
            query and key, in words of 30 bits.

    Raises:
        ValueError: the shape is neither of these, or `keys` is missing.

    Example::

        >>> gdpa.mask.intervals(torch.tensor([[[0, 1]], [[0, 2]], [[1, 3]]])).text
        'interval(intervals[q_row, 0, 0], intervals[q_row, 0, 1])'
    """
    _checked("intervals", bounds, (3, 4))
    ranges = bounds.shape[-2]
    if bounds.shape[-1] != 2 or ranges < 1:
        raise ValueError(
            f"mask: expected intervals of shape (tokens, n, 2) or (tokens, heads, n, 2) with n of 1 or more, got "
            f"{tuple(bounds.shape)}; reshape them"
        )
    head = "head, " if bounds.dim() == 4 else ""
    if ranges > _compared_ranges:
        refuse_gradient(keys=keys)
        if keys is None:
            raise ValueError(
                f"mask: expected the most keys of a sequence with more than {_compared_ranges} intervals, got none; "
                "pass keys="
            )
        words, powers = _words_of(bounds, keys)
        bit = f"floor(words[q_row, {head}floor(kv_idx / {_word_bits})] / powers[kv_idx % {_word_bits}]) % 2"
        tensors = {"words": words, "powers": powers}
        if not is_symbolic(keys):
            return Mask(f"(kv_idx < {keys}) & ({bit} == 1)", tensors)
        most = torch.full((1,), keys, device=bounds.device)
        return Mask(f"(kv_idx < most[0]) & ({bit} == 1)", {"most": most, **tensors})
    parts = [f"interval(intervals[q_row, {head}{n}, 0], intervals[q_row, {head}{n}, 1])" for n in range(ranges)]
    return Mask(" | ".join(parts), {"intervals": bounds})


# A mask reads at most eight elements, so it compares the bounds of at most four ranges.
_compared_ranges = 4

# Exact in the arithmetic of int32 and of float64.
_word_bits = 30


def _words_of(bounds: torch.Tensor, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a bit for each key of each query, (T_q, n) or (T_q, H_q, n) words in int32, and the powers of two."""
    begins = torch.arange(0, max(keys, 1), _word_bits, device=bounds.device)
    words = bounds.new_zeros((*bounds.shape[:-2], begins.shape[0]), dtype=torch.int32)
    for first, end in (one.unbind(-1) for one in bounds.unbind(-2)):
        low = (first[..., None] - begins).clamp(0, _word_bits)
        high = torch.maximum((end[..., None] - begins).clamp(0, _word_bits), low)
        words |= ((1 << high) - (1 << low)).int()
    return words, 1 << torch.arange(_word_bits, dtype=torch.int32, device=bounds.device)


def hstu(
    *,
    contexts: torch.Tensor | None = None,
    targets: torch.Tensor | None = None,
    target_group_size: int = 1,
    window: int = -1,
) -> Mask:
    """Returns the mask of HSTU (arXiv 2402.17152) with contextual tokens and targets.

    With the row r = i + len_k - len_q of a query (the last query is the last key), C = contexts[b], T = targets[b] and
    h = len_k - T, the first key of the targets:

        causal:    j <= r, and with a window also r - j <= window or j < C
        contexts:  a row r < C attends to every key j < h
        targets:   a row r >= h does not attend to the targets of earlier groups, h <= j < h + g * floor((r - h) / g)

    Args:
        contexts: (B,), int32 or int64: contextual tokens at the begin of each sequence. None means none.
        targets: (B,), int32 or int64: targets at the end of each sequence. None means none.
        target_group_size: g, the targets in a group, which attend to one another causally.
        window: the most keys before the row that it attends to. -1 means no bound.

    Raises:
        ValueError: target_group_size is below 1, or window is below -1.

    Example::

        >>> gdpa.mask.hstu(contexts=torch.tensor([2, 3])).text
        'hstu(contexts[batch], 0, 1, -1)'
    """
    refuse_gradient(target_group_size=target_group_size, window=window)
    if target_group_size < 1:
        raise ValueError(f"mask: expected a target_group_size of at least 1, got {target_group_size}; correct it")
    if window < -1:
        raise ValueError(f"mask: expected a window of at least 0, or -1 for none, got {window}; correct it")
    tensors = {}
    for name, numbers in (("contexts", contexts), ("targets", targets)):
        if numbers is not None:
            tensors[name] = _checked(name, numbers, (1,))
    return Mask(_hstu_text(contexts is not None, targets is not None, target_group_size, window), tensors)


@lru_cache(maxsize=256)
def _hstu_text(has_contexts: bool, has_targets: bool, target_group_size: int, window: int) -> str:
    contexts, targets = "contexts[batch]" if has_contexts else "0", "targets[batch]" if has_targets else "0"
    return f"hstu({contexts}, {targets}, {target_group_size}, {window})"


def _checked(name: str, tensor: Any, ranks: tuple[int, ...]) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"mask: expected a tensor for {name}, got {type(tensor).__name__}; convert it")
    if tensor.dim() not in ranks:
        raise ValueError(
            f"mask: expected {' or '.join(str(rank) for rank in ranks)} axes for {name}, got shape "
            f"{tuple(tensor.shape)}; reshape it"
        )
    return tensor
