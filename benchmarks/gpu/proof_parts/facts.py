"""Facts: versions, driver, sandbox, and the attention backends with their time for a new shape."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import time
from statistics import median

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends, sdpa_kernel

from .part import Part
from .results import Facts, NewShape

PACKAGES = ("torch", "triton", "transformers", "numpy", "liger_kernel", "peft")
SMI_FIELDS = "name,memory.total,driver_version,clocks.sm,power.limit"
BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
COMMAND_S = 20
DOCTOR = "from rocstar.train.cli import main; raise SystemExit(main())"


def measure(part: Part) -> None:
    result: Facts = part.result
    result.python, result.kernel = sys.version, platform.release()
    result.libc = " ".join(platform.libc_ver())
    result.compiler = output("g++", "--version").split("\n")[0]
    result.versions = {name: version(name) for name in PACKAGES}
    result.cuda, result.hip = torch.version.cuda, torch.version.hip
    result.cudnn = torch.backends.cudnn.version()
    result.nvidia_smi = output("nvidia-smi", f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader") or None
    part.save()
    doctor = subprocess.run(
        [sys.executable, "-c", DOCTOR, "sandbox", "doctor"],
        capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip
    result.sandbox_doctor, result.sandbox_exit = doctor.stdout + doctor.stderr, doctor.returncode
    part.save()
    if not part.on_device:
        result.new_shapes = [NewShape(backend="any", kv_heads=2, left_out="needs a device")]
        part.save()
        return
    properties = torch.cuda.get_device_properties(part.device)
    result.device, result.memory_gib = properties.name, properties.total_memory / 2**30
    result.multiprocessors, result.l2_mib = properties.multi_processor_count, properties.L2_cache_size / 2**20
    result.attention_order = [backend.name for backend in _cur_sdpa_kernel_backends(with_priority=True)]
    part.save()
    for backend in BACKENDS:
        for kv_heads in (2, 8):
            result.new_shapes.append(new_shapes(part.device, backend, kv_heads))
            part.save()


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def output(*command: str) -> str:
    """The output of a command; empty without such a command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except FileNotFoundError:
        return ""
    return (done.stdout + done.stderr).strip()


def new_shapes(device: torch.device, backend: SDPBackend, kv_heads: int) -> NewShape:
    """Time each call at a context that was not seen before, as decoding does."""
    times = []
    for context in range(300, 340):
        keys = torch.randn(64, kv_heads, context, 64, device=device, dtype=torch.bfloat16)
        queries = torch.randn(64, 8, 1, 64, device=device, dtype=torch.bfloat16)
        mask = torch.zeros(64, 1, 1, context, device=device, dtype=torch.bfloat16)
        torch.cuda.synchronize()
        began = time.perf_counter()
        try:
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(queries, keys, keys, attn_mask=mask, enable_gqa=kv_heads != 8)
        except RuntimeError as error:  # the backend refuses the arguments
            return NewShape(backend=backend.name, kv_heads=kv_heads, left_out=str(error)[:200])
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return NewShape(
        backend=backend.name, kv_heads=kv_heads,
        first_ms=times[0], median_ms=median(times), worst_ms=max(times[1:]),
    )  # fmt: skip
