"""Matrix products of half-precision factors with a float32 result, on CUDA and ROCm devices.

An operator of the library `rocstar` with an implementation for fake tensors: torch's operators have none in
some versions, and their availability can be tested only on a real device.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.library import custom_op


@custom_op("rocstar::wide_product_", mutates_args=("out",))
def wide_product_(out: Tensor, a: Tensor, b: Tensor, add: bool, exact: bool) -> None:
    """Compute out = a @ b, or with `add` out += a @ b, in float32.

    Args:
        out: (I, K), float32.
        a: (I, J), float16 or bfloat16.
        b: (J, K), of the type of `a`.
        add: True to add to `out`, which is otherwise uninitialised.
        exact: on a device without this product, True multiplies in float32; False rounds the product to the
            type of `a`, which is several times faster.
    """
    if not a.shape[1]:
        if not add:
            out.zero_()
        return
    if not _has_out_dtype(a.device, a.dtype):
        product = a.to(out.dtype) @ b.to(out.dtype) if exact else a @ b
        _ = out.add_(product) if add else out.copy_(product)
    elif add:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out)
    else:
        torch.mm(a, b, out_dtype=out.dtype, out=out)


@wide_product_.register_fake
def _check_place(out: Tensor, a: Tensor, b: Tensor, add: bool, exact: bool) -> None:
    if not out.device == a.device == b.device:
        raise RuntimeError(f"expected all tensors on the same device, found {out.device}, {a.device} and {b.device}")


@functools.cache
def _has_out_dtype(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if mm and addmm can write float32 on the device; tried on small products."""
    a, out = torch.ones(16, 16, device=device, dtype=dtype), torch.empty(16, 16, device=device)
    try:
        torch.mm(a, a, out_dtype=torch.float32, out=out)
        torch.addmm(out, a, a, out_dtype=torch.float32, out=out)
    except (RuntimeError, TypeError):  # torch's errors for a missing overload, including NotImplementedError
        return False
    return bool((out == 32.0).all())
