"""A vendor's accelerator that is not there: a real torch device in main memory on which the CPU computes.

The packages beside this folder take the place of the vendors' and begin it under their names when torch is imported.
`torch.<kind>` becomes a device module, tensors on `<kind>:0` are those of backend.cpp (compiled at first import), and
the vendor's collectives are a process group over gloo. STANDIN_DEVICES says how many devices there are (2),
STANDIN_MEMORY their bytes, STANDIN_LOG names a file to which each process appends, at its end, what it had each do,
and how exact it let products of fp32 be, in order.
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
_products: list[str] = []


def begin(kind: str, backend: str | None) -> None:
    """Put devices of this kind into torch, with a process group of that name for them where they have one."""
    from torch.utils.cpp_extension import load

    private = kind != "cuda"  # for which torch has a slot
    slot = "PrivateUse1" if private else kind.upper()
    names = [f"-DSTANDIN_SLOT={slot}", f"-DSTANDIN_FOR_{slot}"]
    if private:  # for CUDA torch has listed what autocast does
        names.append(f"-DSTANDIN_AUTOCAST=Autocast{slot}")
    native = load(
        f"standin_{'private' if private else kind}",
        [str(_HERE / "backend.cpp")],
        extra_cflags=["-O1", "-g0", "-w", *names],
        verbose=False,
    )
    if private:
        torch.utils.rename_privateuse1_backend(kind)
    _fill_device_module(kind, native)
    if private:
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    if backend is not None and torch.distributed.is_available():
        from tests.standins.accelerator import collectives

        collectives.register(native, kind, backend)
    atexit.register(_write_log, native)
    set_precision = torch._C._set_fp32_precision_setter

    def note_precision(device: str, operation: str, precision: str) -> Any:
        if (device, operation) == ("cuda", "matmul") and precision != torch.backends.cuda.matmul.fp32_precision:
            _products.append(precision)
        return set_precision(device, operation, precision)

    torch._C._set_fp32_precision_setter = note_precision


def _fill_device_module(kind: str, native: Any) -> None:
    """`torch.<kind>`, as far as torch, Accelerate and transformers look at it; torch has that of its own slots."""
    if not hasattr(torch, kind):
        torch._register_device_module(kind, types.ModuleType(f"torch.{kind}"))
    module = getattr(torch, kind)

    def set_device(device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index or 0
        native.set_device(index)

    def exchange(index: int) -> int:
        before = native.current_device()
        if index >= 0:
            native.set_device(index)
        return before

    members: dict[str, Any] = {
        "is_available": lambda: native.device_count() > 0,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: False,  # for Triton, which has no kernels for what is computed here
        "_lazy_init": lambda: None,
        "device_count": native.device_count,
        "current_device": native.current_device,
        "set_device": set_device,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "_is_in_bad_fork": lambda: False,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or kind != "cuda",
        "get_device_capability": lambda device=0: (7, 5),
        "get_device_properties": lambda device=0: types.SimpleNamespace(
            name=f"stand-in {kind}", total_memory=_memory(), multi_processor_count=1
        ),
        "is_current_stream_capturing": lambda: False,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "memory_allocated": lambda device=0: native.memory_allocated(device or 0),
        "max_memory_allocated": lambda device=0: native.max_memory_allocated(device or 0),
        "mem_get_info": lambda device=0: (_memory() - native.memory_allocated(device or 0), _memory()),
    }
    for name, member in members.items():
        setattr(module, name, member)


def _memory() -> int:
    return int(os.environ.get("STANDIN_MEMORY", 32 << 30))


def _write_log(native: Any) -> None:
    name = os.environ.get("STANDIN_LOG")
    devices = range(native.device_count())
    done = [native.operations(index) for index in devices]
    if name is None or not any(done):
        return
    peaks = [native.max_memory_allocated(index) for index in devices]
    place = {key: os.environ.get(key) for key in ("GROUP_RANK", "RANK", "LOCAL_RANK")}
    with open(name, "a", encoding="utf-8") as file:
        counts = {"operations": done, "peaks": peaks, "products": _products}
        file.write(json.dumps({**place, **counts}) + "\n")
