"""What the C++ parser says about a text of the expression language (docs/functions.md).

torch.compile takes the results of the functions that have the mark as constants: texts, and tuples of texts.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from gdpa._library import describe_text
from gdpa._when_imported import assume_constant_result


class Name(NamedTuple):
    """A name in an expression that is not the name of a function or of a constant."""

    name: str
    begin: int
    end: int  #: equal to `begin` for a position that a named mask reads, such as kv_idx of causal()
    is_whole_index: bool  #: whether the name is an index of a tensor and nothing else


class Read(NamedTuple):
    """A read of a tensor by index."""

    tensor: str
    indices: tuple[str, ...]  #: for each axis, the name that is the whole index, or ""


class Description(NamedTuple):
    """The contents of a text."""

    functions: int  #: with more than one, function h is for query head h
    end: int  #: where the expression ends, and the clause "with a = 2" begins
    numbers: dict[str, float]  #: of the clause
    names: tuple[Name, ...]  #: of the expression, in its order
    reads: tuple[Read, ...]
    tensors: tuple[str, ...]  #: the tensors of these reads


def parsed(text: str, is_condition: bool = False) -> Description:
    """Returns the contents of a function, or of the condition of a mask.

    Raises:
        ValueError: the text does not follow the grammar. The message marks the fault with a caret.
    """
    said = json.loads(describe_text(text, is_condition))
    reads = tuple(Read(tensor, tuple(indices)) for tensor, indices in said["reads"])
    names = tuple(Name(*one) for one in said["names"])
    return Description(
        said["functions"], said["end"], said["numbers"], names, reads, tuple(one.tensor for one in reads)
    )


@lru_cache(maxsize=1024)
def describe(text: str, is_condition: bool = False) -> Description:
    """Returns the contents of a text. One with a fault has none: the operators then refuse it."""
    try:
        return parsed(text, is_condition)
    except ValueError:
        return Description(1, len(text), {}, (), (), ())


@assume_constant_result
def names_in(text: str, is_condition: bool = False) -> tuple[str, ...]:
    """Returns the names in the expression."""
    return tuple(one.name for one in describe(text, is_condition).names)


@assume_constant_result
def names_of_reads(text: str, is_condition: bool = False) -> tuple[str, ...]:
    """Returns the names of the tensors that the expression reads by index."""
    return describe(text, is_condition).tensors


@assume_constant_result
def replaced(text: str, texts: Mapping[str, str], is_condition: bool = False) -> str:
    """Returns the text with other texts in place of some names."""
    parts, at = [], 0
    for name, begin, end, _ in describe(text, is_condition).names:
        if name in texts and end > begin:
            parts += [text[at:begin], texts[name]]
            at = end
    return "".join([*parts, text[at:]])
