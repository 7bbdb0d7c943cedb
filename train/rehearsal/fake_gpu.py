"""A simulated GPU: tensors on `cuda:0` without memory, for one rank of many without the others.

    FakeGpu (a dispatch mode) ─┬─ an op with a tensor of the GPU   shapes alone, by torch's fake tensors
                               ├─ an op of the host alone          done in earnest: packing, statistics
                               ├─ GPU -> host, a few numbers       zeros, and the place is remembered
                               └─ two devices in one op            MisplacedTensorError

torch for CPUs has no cuda: its autograd, written in C++, asks a tensor for its device and finds no driver for
the answer. It gets `meta` here, which needs none; Python gets `cuda:0`. FSDP2 gets streams that do
nothing, and `torch.testing`'s fake process group, whose collectives return at once with nothing done.

Nothing here is thread-safe: it changes names of torch while it lasts.
"""

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed import device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_init, _fsdp_param_group, _fsdp_state
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from rocstar.kernels import chunks, layer_ops, linear_loss, rows, varlen_attention
from rocstar.train.learner import activations, sharding
from rocstar.train.rehearsal.memory_fit import OVERHEAD_GIB
from rocstar.train.rehearsal.memory_tracker import GIB, Category, MemoryTracker

HALF = (torch.bfloat16, torch.float16)
FLASH_HEAD = 256
"""The largest head of the flash kernel."""


def kernel_of(q: Tensor, k: Tensor, mask: Tensor | None) -> str:
    """`flash`, `efficient` or `math` for queries and keys_SHLD."""
    is_grouped = q.shape[-3] != k.shape[-3]
    if mask is None and q.dtype in HALF and q.shape[-1] <= FLASH_HEAD:
        return "flash"
    return "math" if is_grouped else "efficient"


def attention_of(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a replacement for `scaled_dot_product_attention`; `plain` is the original function."""

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        kernel = kernel_of(q, k, attn_mask)
        if isinstance(q, FakeTensor) and not q.is_cuda:
            of_cpu = _aten._scaled_dot_product_flash_attention_for_cpu
            out: Tensor = of_cpu(q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
            return out
        if not q.is_cuda or kernel == "math":
            return plain(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if kernel == "flash":
            flash = _aten._scaled_dot_product_flash_attention
            out = flash(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
            return out
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*q.shape[:-1], k.shape[-2])
        keeps = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        efficient = _aten._scaled_dot_product_efficient_attention
        out = efficient(q, k, v, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]
        return out

    return attend


def scratch_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """Bytes that the backward of the flash kernel allocates and frees. 0 for any other op.

    Float32 gradients of the queries, in half precision those of keys and values for every query head where
    heads are grouped. In a call of S sequences of any lengths 128 rows are between two sequences. Source:
    mha_bwd and mha_varlen_bwd in aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp.
    """
    if func not in (
        _aten._scaled_dot_product_flash_attention_backward.default,
        _aten._flash_attention_backward.default,
    ):
        return 0
    is_varlen = func is _aten._flash_attention_backward.default
    _, q, k = args[:3]
    q_heads, k_heads = (x.shape[-2] if is_varlen else x.shape[1] for x in (q, k))
    gap = 128 * (len(args[6]) - 1) * q.shape[-1] * q_heads if is_varlen else 0
    grouped = 2 * k.element_size() * k.numel() // k_heads * q_heads if k_heads != q_heads else 0
    return int(4 * (q.numel() + gap) + grouped)


GPU = torch.device("cuda", 0)
HOST = torch.device("cpu")
READ_BYTES = 16 << 20
"""A larger copy to the host holds weights for a file; no code reads their values."""
_HOME = str(Path(__file__).resolve().parents[2])
_PLAIN = (Tensor, FakeTensor, torch.nn.Parameter)
_aten: Any = torch.ops.aten


class MisplacedTensorError(Exception):
    """An op got tensors of two devices, or a value that only the GPU has; names the line of rocstar."""


class _NoDriver(FakeTensorMode):
    """Fake tensors whose device C++ takes for `meta`, also in what torch decomposes by itself."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return torch.device("meta")
        return super().dispatch(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def replace_tensors(model: nn.Module, make: Callable[[Tensor], Tensor]) -> None:
    """Replace each parameter and buffer of a model by what `make` returns; tied parameters stay one."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                if id(parameter) not in made:
                    made[id(parameter)] = nn.Parameter(make(parameter), parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = make(buffer)


class FakeGpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The dispatch mode. `tracker` counts the GPU's memory, `host` the host memory of files.

    With the CPU as `device` the learner learns there: `tracker` counts real host memory too,
    and the two are not distinguished.
    """

    def __init__(self, device: torch.device = GPU) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.shapes = _NoDriver(allow_non_fake_inputs=True)
        self.tracker, self.host = MemoryTracker(), MemoryTracker()
        self.reads: Counter[str] = Counter()
        """Places that wait for the GPU to read a value, and how often."""
        self.num_ops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing compiles here, and its wrapper costs as much as an op

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # asked by C++ alone
            return torch.device("meta")
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # DTensor: comes again with the tensor of this rank
        self.num_ops += 1
        made_for = kwargs.get("device")
        # Where the CPU learns, what FSDP asks it for is the learner's, and not the host's own.
        is_fsdp = made_for == self.device and self.tracker.scopes[-1] is Category.gathers
        is_ours = made_for is not None and (made_for.type in ("meta", "cuda") or is_fsdp)
        if is_ours:
            kwargs = {**kwargs, "device": self.device}
        fakes = [x for x in tree_leaves((args, kwargs)) if isinstance(x, FakeTensor)]
        if not fakes and not is_ours:
            with unset_fake_temporarily():
                made = func(*args, **kwargs)
                if func in _EMPTY and made.dtype.is_floating_point:
                    made.zero_()  # the target of a write from a fake tensor keeps its values and may be read
                return self._count(made)
        if fakes and func in _READS:
            return self._read(func, fakes[0])
        if fakes and made_for is not None and func is _aten._to_copy.default:
            fake, dtype = fakes[0], kwargs.get("dtype") or fakes[0].dtype
            if made_for == HOST and fake.device == self.device and fake.nbytes <= READ_BYTES:
                self.reads[_place()] += 1
                with unset_fake_temporarily():
                    return torch.zeros(fake.shape, dtype=dtype)
            if kwargs["device"] == fake.device and dtype == fake.dtype:
                return _aten.alias.default(fake)  # C++ could not know that it is there already
        try:
            self.tracker.brief(scratch_bytes(func, args))
            return self._count(func(*args, **kwargs))
        except RuntimeError as error:
            raise _explained(error, func) from error

    def give_memory(self, model: nn.Module) -> None:
        """Replace the model's tensors on `meta` by unbooked ones of this GPU."""

        def make(like: Tensor) -> Tensor:
            with _disable_current_modes():
                shape = torch.empty(like.shape, dtype=like.dtype, device="meta")
            return FakeTensor(self.shapes, shape, self.device)

        replace_tensors(model, make)

    def _count(self, made: Any) -> Any:
        """Book the results of an op."""
        for tensor in tree_leaves(made):
            if isinstance(tensor, FakeTensor):
                (self.tracker if tensor.device == self.device else self.host).made(tensor)
            elif isinstance(tensor, Tensor) and self.device == HOST:
                self.tracker.made(tensor)
        return made

    def _read(self, func: Any, tensor: FakeTensor) -> Any:
        """One number of the GPU: plausible, for there is none."""
        if tensor.device == self.device:
            self.reads[_place()] += 1
        if func is not _aten._local_scalar_dense.default or tensor.dtype == torch.bool:
            return True
        return 1.0 if tensor.dtype.is_floating_point else 1


_EMPTY = (_aten.empty.memory_format, _aten.empty_strided.default, _aten.new_empty.default)
_READS = (_aten._local_scalar_dense.default, _aten.equal.default, _aten.allclose.default)


def _explained(error: RuntimeError, func: Any) -> Exception:
    """The error of torch's fake tensors as one of ours, where it is about where values are."""
    kind = type(error).__name__
    of_devices = ("on the same device", "two different devices")  # the second of torch 2.11
    if kind == "FakeTensorDeviceMismatchError" or any(words in str(error) for words in of_devices):
        return MisplacedTensorError(f"{_place()}: {func} got tensors of two devices ({error})")
    if kind in ("DynamicOutputShapeException", "DataDependentOutputException"):
        return MisplacedTensorError(f"{_place()}: the result of {func} depends on values of the GPU")
    return error


def _place() -> str:
    """The innermost line of rocstar that is not of this room, as `train/learner/learner.py:301`."""
    frame: FrameType | None = sys._getframe(1)
    here = str(Path(__file__).resolve().parent)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_HOME) and not name.startswith(here) and ".venv" not in name[len(_HOME) :]:
            return f"{name[len(_HOME) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "torch"


class _NoStreams:
    """The module that FSDP asks for streams and events of a device: those of the CPU, which do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def is_initialized(self) -> bool:
        return True


@contextlib.contextmanager
def fake_gpu(ranks: int, device: torch.device = GPU, *, memory_bytes: int = 80 << 30) -> Iterator[FakeGpu]:
    """Run the block as rank 0 of `ranks` with a simulated GPU; no other rank is waited for.

    `device`: the CPU, to compare a rehearsal with the memory that a CPU run held.

    Raises:
        RuntimeError: this process has a process group already.
    """
    if dist.is_initialized():
        raise RuntimeError("a rehearsal needs a process without a process group")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    gpu = FakeGpu(device)
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        with contextlib.ExitStack() as stack:
            for patch in _patches(gpu, memory_bytes):
                stack.enter_context(patch)
            stack.enter_context(gpu.shapes)
            stack.enter_context(gpu)
            yield gpu
    finally:
        dist.destroy_process_group()


def _patches(gpu: FakeGpu, memory_bytes: int) -> Iterator[Any]:
    def handle(_: str = "") -> Any:
        return _NoStreams()

    def free_bytes(_: torch.device) -> int:
        return memory_bytes - int(OVERHEAD_GIB * GIB) - gpu.tracker.total

    for module in (_fsdp_collectives, _fsdp_init, _fsdp_param_group, _fsdp_state, device_mesh):
        yield mock.patch.object(module, "_get_device_handle", handle)
    yield _property(FakeTensor, "is_cuda", lambda tensor: tensor.fake_device.type == "cuda")
    yield _property(DTensor, "is_cuda", lambda tensor: tensor._local_tensor.is_cuda)
    yield _property(DTensor, "device", lambda tensor: tensor._local_tensor.device)
    plain = functional.scaled_dot_product_attention
    yield mock.patch.object(functional, "scaled_dot_product_attention", attention_of(plain))
    yield mock.patch.object(activations, "device_bytes", return_value=memory_bytes)
    yield mock.patch.object(sharding, "local_device", return_value=gpu.device)
    if gpu.device == GPU:
        yield mock.patch.object(linear_loss, "_why_not_triton", return_value=None)
        yield mock.patch.object(chunks, "free_bytes", free_bytes)
        yield mock.patch.object(layer_ops, "HAS_TRITON", True)
        yield mock.patch.object(rows, "HAS_TRITON", True)
        yield mock.patch.object(varlen_attention, "_has_kernel", return_value=True)
    resize = torch.UntypedStorage.resize_

    @functools.wraps(resize)
    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        gpu.tracker.resized(storage, size)
        return result

    yield mock.patch.object(torch.UntypedStorage, "resize_", resized)


@contextlib.contextmanager
def _property(owner: type, name: str, get: Callable[[Any], Any]) -> Iterator[None]:
    """A property of a class for a while; the class need not have it."""
    before = owner.__dict__.get(name)
    setattr(owner, name, property(get))
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
