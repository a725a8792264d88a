"""What a kernel or its launcher refuses.

KernelError
|-- DtypeError      a tensor has another element type than the op takes
|-- ShapeError      a size, stride, alignment or index range does not fit
|-- DeviceError     tensors lie on the wrong or on different devices, or the GPU is not one the op runs on
`-- NumericsError   values that the op has no answer for, such as NaN weights
"""

from __future__ import annotations


class KernelError(Exception):
    """The message says what, the value and what was expected; `hint` says the next step."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.hint = hint


class DtypeError(KernelError):
    """A tensor has another element type than the op takes."""


class ShapeError(KernelError):
    """A size, stride, alignment or index range does not fit."""


class DeviceError(KernelError):
    """Tensors lie on the wrong or on different devices, or the GPU is not one the op runs on."""


class NumericsError(KernelError):
    """Values that the op has no answer for, such as NaN weights."""
