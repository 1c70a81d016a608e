"""Precision of the model: fp32, tf32, bf16 or fp16, chosen once and applied to forward and backward passes.

Apex's levels (https://nvidia.github.io/apex/amp.html) are supported. O0 is fp32. O1 is autocast: weights in fp32,
products in half precision, with a gradient scaler under fp16. O2 keeps weights in half precision and norms in fp32;
the optimizer updates fp32 master weights (`training.strategies.half_weights`). O3 is half precision throughout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from classify.distributed.torch_settings import get_products, set_products
from classify.distributed.world import World
from classify.errors import InputError
from classify.launch.devices import Accelerator, accelerator_of
from classify.modeling.cpu_layers import capabilities

# Hidden size from which bf16 products on a CPU save more time than rounding to bf16 costs.
_WIDE = 256
# The setting before `fp32_products`, once for each thread inside it, by the setting inside.
_inside: dict[str, list[tuple[str, str]]] = {"ieee": [], "tf32": []}
_LOCK = threading.Lock()
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """The precision: its name, the dtype of products (None for fp32 and tf32), and the reason for it.

    `level` is 1 for autocast, 2 for half weights with fp32 masters, 3 for half precision throughout. Scores are
    computed in fp32, as from the saved folder, unless weights are half or `rounds_scores`. `automatic` is true for a
    default that no flag requested.
    """

    name: str
    half_dtype: torch.dtype | None
    why: str
    device_type: str
    level: int = 1
    rounds_scores: bool = False
    automatic: bool = False

    def autocast(self, training: bool) -> contextlib.AbstractContextManager[Any]:
        """The context of a forward pass with weights in fp32."""
        rounds = training or self.rounds_scores
        if self.name == "tf32" and not rounds:
            return fp32_products("ieee")
        if self.half_dtype is None or not rounds:
            return contextlib.nullcontext()
        return _autocast(self.device_type, self.half_dtype)

    @property
    def products(self) -> str:
        return "tf32" if self.name == "tf32" else "ieee"

    @property
    def rounds_weights(self) -> bool:
        return self.half_dtype is not None and self.level != 1

    @property
    def scales_gradients(self) -> bool:
        """Whether gradients are scaled against underflow; not under O3, whose gradients stay fp16."""
        return self.half_dtype is torch.float16 and self.level < 3

    def scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(self.device_type, enabled=self.scales_gradients)


FP32 = Precision("fp32", None, "the default", "cpu")


@contextlib.contextmanager
def _autocast(device_type: str, dtype: torch.dtype) -> Iterator[None]:
    """Autocast in this block.

    torch keeps its casts of the weights until the outermost autocast ends, which may be the caller's, after the
    training: each step would compute with the weights of the first.
    """
    with torch.autocast(device_type, dtype=dtype):
        yield
    torch.clear_autocast_cache()


@contextlib.contextmanager
def fp32_products(setting: str) -> Iterator[None]:
    """Compute products of fp32 numbers as `setting` says in this block: "ieee" in fp32, or "tf32"."""
    inside = _inside[setting]
    with _LOCK:  # the setting is the process's: the first thread sets it, the last restores it
        before = inside[0] if inside else get_products()
        inside.append(before)
        set_products((setting, setting))
    try:
        yield
    finally:
        with _LOCK:
            inside.pop()
            if not inside:
                set_products(before)


def for_prediction(name: str, device: torch.device) -> Precision:
    """The precision of `classify predict`: fp32, the requested one, or bf16 where that is "fastest".

    See `choose_precision`.
    """
    if name == "fastest":
        by_processor = accelerator_of(device.type).is_host and has_bf16_instructions()
        precision = cpu_default("bf16", "") if by_processor else choose_precision("auto", device)
        return dataclasses.replace(precision, rounds_scores=True)
    precision = choose_precision(name, device)
    return dataclasses.replace(precision, rounds_scores=not precision.automatic)


def choose_precision(name: str, device: torch.device, opt_level: str | None = None) -> Precision:
    """The requested precision; for "auto" bf16 on GPUs that support it, else fp32.

    A CPU may train in another one, see `choose_cpu_precision`, which depends on the model. Raises InputError if the
    device does not support the request.
    """
    kind, accelerator = device.type, accelerator_of(device.type)
    if opt_level == "O0":
        return Precision("fp32", None, "--opt-level O0: everything in full precision", kind)
    if name == "fp16" and accelerator.is_host:
        raise InputError(
            "--precision fp16 needs a GPU: on a CPU fp16 is slow and small gradients underflow; use bf16 or fp32."
        )
    if opt_level is not None:
        return _precision_for_level(opt_level, name, accelerator)
    if name == "auto":
        if accelerator.has_bf16():
            why = "this GPU supports bfloat16; scores are computed in fp32"
            return Precision("bf16", torch.bfloat16, why, kind, automatic=True)
        return Precision("fp32", None, f"full precision, the default on {kind}", kind, automatic=True)
    if name == "bf16" and accelerator.has_bf16() is False:
        raise InputError("--precision bf16: this GPU computes it by emulation, slower than fp32; use fp16 or fp32.")
    if name == "tf32" and not accelerator.has_tf32:
        raise InputError(f"--precision tf32 needs an NVIDIA GPU. Got device {kind} instead; use fp32 or bf16.")
    return Precision(name, HALF.get(name), "as requested", kind)


def _precision_for_level(opt_level: str, name: str, accelerator: Accelerator) -> Precision:
    """Apex's O1, O2 or O3 with fp16, or with bf16 on CPUs or if requested."""
    short = name if name in HALF else "bf16" if accelerator.is_host else "fp16"
    full, words = {
        "O1": (short, "autocast"),
        "O2": (f"{short} weights, fp32 masters", "norms in fp32"),
        "O3": (f"{short} throughout", "fastest, least accurate"),
    }[opt_level]
    why = f"--opt-level {opt_level}: {words}{', a CPU has no fast fp16' if accelerator.is_host else ''}"
    return Precision(full, HALF[short], why, accelerator.kind, int(opt_level[1]))


def agree_on_precision(precision: Precision, world: World, before: str | None, width: int | None = None) -> Precision:
    """The precision of this device, or the one that all ranks share where a default differs. A collective.

    A CPU with bf16 instructions trains packed texts in bf16; `width` is the hidden size of a model that is packed. A
    resumed run keeps `before`, in which it began: on any CPU, and on GPUs where each rank's has it.
    """
    accelerator = accelerator_of(precision.device_type)
    if accelerator.is_host:
        if not precision.automatic:
            return precision
        if before in ("bf16", "fp32"):
            return cpu_default(before, "as in the resumed run")
        if width is None or world.all_reduce_any(not has_bf16_instructions()):
            return precision
        return choose_cpu_precision(width)
    some_lack_it = world.all_reduce_any(accelerator.has_bf16() is False)
    if not precision.automatic:
        return precision
    if before in ("bf16", "fp32") and before != precision.name and not (before == "bf16" and some_lack_it):
        return dataclasses.replace(precision, name=before, half_dtype=HALF.get(before), why="as in the resumed run")
    if precision.name == "bf16" and some_lack_it:
        return dataclasses.replace(precision, name="fp32", half_dtype=None, why="a GPU of another rank has no bfloat16")
    return precision


def has_bf16_instructions() -> bool:
    """Whether this x86 processor has bf16 matrix instructions; False if torch is too old to tell."""
    return any(capabilities().get(name) for name in ("avx512_bf16", "amx_bf16"))


def cpu_default(name: str, why: str) -> Precision:
    """The default training precision of a CPU, "bf16" or "fp32"."""
    return Precision(name, HALF.get(name), why, "cpu", automatic=True)


def choose_cpu_precision(width: int) -> Precision:
    if width >= _WIDE:
        return cpu_default("bf16", "this processor multiplies bfloat16 faster; scores are computed in fp32")
    return cpu_default("fp32", "as fast as bf16 at this hidden size")
