"""Options: the arguments of varlen_attention that a block keeps. Their tensors belong to the block."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from gdpa.mask import Mask, PreparedMask


class Options(nn.Module):
    """Arguments of varlen_attention, by name.

    A tensor, also a tensor of a gdpa.mask.Mask, is a buffer: it moves with the block and is in its state_dict. A tensor
    that requires a gradient is a parameter. A module, such as a mask with tensors of its own, is a submodule. A Python
    function keeps the tensors that it captures where they are.

    Tensors keep their dtype in `.half()` and `.to(torch.bfloat16)`, because the types of 16 bits have too few digits
    for 1 / 200 or for a time.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._values: dict[str, Any] = {}  # that are neither tensors nor modules
        self._owned: list[str] = []
        self._mask_text: str | None = None
        for name, value in options.items():
            if isinstance(value, PreparedMask):
                raise ValueError(
                    f"{name}: expected a mask that gdpa.prepare_mask has not prepared, got a prepared one, whose lists "
                    "are for one batch; pass it with each call"
                )
            if isinstance(value, Mask) and value.tensors:
                self._mask_text = value.text
                value = Options(value.tensors)
            if isinstance(value, (Tensor, nn.Module)):
                self._own(name, value)
            else:
                self._values[name] = value

    def _own(self, name: str, value: Tensor | nn.Module) -> None:
        if hasattr(self, name):
            raise ValueError(f"{name}: expected a name that nn.Module does not use, got {name!r}; rename the tensor")
        self._owned.append(name)
        if isinstance(value, nn.Module):
            self.add_module(name, value)
        elif not value.is_leaf:
            raise ValueError(
                f"{name}: expected a tensor with a gradient of its own, got the result of an operation; pass it with "
                "each call, or .detach() it"
            )
        elif value.requires_grad:
            self.register_parameter(name, value if isinstance(value, nn.Parameter) else nn.Parameter(value))
        else:
            self.register_buffer(name, value)

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments."""
        arguments = dict(self._values)
        for name in self._owned:
            arguments[name] = getattr(self, name)
        if self._mask_text is not None:
            arguments["mask"] = Mask(self._mask_text, arguments["mask"].arguments())
        return arguments

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Options":
        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return result if result.dtype == tensor.dtype else tensor.to(result.device)

        return super()._apply(moved, recurse)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._values.items())
