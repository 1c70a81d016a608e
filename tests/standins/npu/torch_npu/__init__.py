"""A stand-in for Huawei's `torch_npu`: importable, with its public surface, but the CPU computes.

torch finds it like the real one, through the entry point `torch.backends`. `torch.npu` becomes a device module, tensors
on `npu:0` are tensors of torch's PrivateUse1 device (backend.cpp, compiled at first import), and "hccl" is a process
group over gloo. NPU_STANDIN_DEVICES says how many devices there are (2), NPU_STANDIN_MEMORY their bytes,
NPU_STANDIN_LOG names a file to which each process appends, at its end, what it had each device do.
"""

from __future__ import annotations

import atexit
import json
import os
import types
from pathlib import Path
from typing import Any

import torch

_HERE = Path(__file__).resolve().parent


def _autoload() -> None:
    """Called by torch at the end of its own import."""
    from torch.utils.cpp_extension import load

    flags = ["-O1", "-g0", "-w"]
    native = load("torch_npu_standin", [str(_HERE / "backend.cpp")], extra_cflags=flags, verbose=False)
    torch.utils.rename_privateuse1_backend("npu")
    torch._register_device_module("npu", _device_module(native))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    if torch.distributed.is_available():
        from torch_npu import hccl

        hccl.register(native)
    atexit.register(_write_log, native)


def _device_module(native: Any) -> types.ModuleType:
    """`torch.npu`, as far as torch, Accelerate and transformers look at it."""
    module = types.ModuleType("torch.npu")

    def set_device(device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index or 0
        native.set_device(index)

    members: dict[str, Any] = {
        "is_available": lambda: native.device_count() > 0,
        "is_initialized": lambda: True,
        "device_count": native.device_count,
        "current_device": native.current_device,
        "set_device": set_device,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "_is_in_bad_fork": lambda: False,
        "is_bf16_supported": lambda: True,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "memory_allocated": lambda device=0: native.memory_allocated(device or 0),
        "max_memory_allocated": lambda device=0: native.max_memory_allocated(device or 0),
        "mem_get_info": lambda device=0: (_memory() - native.memory_allocated(device or 0), _memory()),
    }
    for name, member in members.items():
        setattr(module, name, member)
    return module


def _memory() -> int:
    return int(os.environ.get("NPU_STANDIN_MEMORY", 32 << 30))


def _write_log(native: Any) -> None:
    name = os.environ.get("NPU_STANDIN_LOG")
    devices = range(native.device_count())
    done = [native.operations(index) for index in devices]
    if name is None or not any(done):
        return
    peaks = [native.max_memory_allocated(index) for index in devices]
    place = {key: os.environ.get(key) for key in ("GROUP_RANK", "RANK", "LOCAL_RANK")}
    with open(name, "a", encoding="utf-8") as file:
        file.write(json.dumps({**place, "operations": done, "peaks": peaks}) + "\n")


def npu_fusion_attention(*_: Any, **__: Any) -> Any:
    """Named by transformers when it is imported; its own attention is not taken by this program."""
    raise NotImplementedError("the stand-in has no fused attention")
