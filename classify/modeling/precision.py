"""Arithmetic of the model: fp32, tf32, bf16 or fp16, decided once and applied around forward and backward.

Apex's names (https://nvidia.github.io/apex/amp.html) are understood too. O0 is fp32. O1 is autocast: weights in fp32,
products in half precision, with a gradient scaler under fp16. O2 keeps the weights themselves in half precision, norms
in fp32, and lets the optimizer move fp32 masters of them (Micikevicius et al., 2018, "Mixed Precision Training",
section 3.1). O3 is half precision throughout.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from classify.errors import InputError
from classify.launch import accelerators
from classify.launch.accelerator import Accelerator
from classify.modeling.kernels.linear import capabilities

# Width of hidden states from which a CPU's bf16 products save more than rounding to bf16 takes.
_WIDE = 256
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
# A weight and the fp32 copy of it. The optimizer moves those of trained weights; others lie in main memory.
Masters = dict[nn.Parameter, nn.Parameter]


@dataclass(frozen=True)
class Precision:
    """The precision in force: its name, the type of products (None for fp32 and tf32), and why it was chosen.

    `level` is 1 for autocast, 2 for half weights with fp32 masters, 3 for half precision throughout. Scores are
    computed in full precision, as any program computes them from the folder that comes out, unless weights are half or
    `for_scores`. `automatic`: nobody asked for it.
    """

    name: str
    half: torch.dtype | None
    why: str
    device_type: str
    level: int = 1
    for_scores: bool = False
    automatic: bool = False

    def autocast(self, training: bool) -> contextlib.AbstractContextManager[Any]:
        """The context of a forward pass with weights in fp32."""
        if self.half is None or not (training or self.for_scores):
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, dtype=self.half)

    @property
    def rounds(self) -> bool:
        """Whether products are rounded to fewer bits than fp32 has."""
        return self.half is not None or self.name == "tf32"

    @property
    def rounds_weights(self) -> bool:
        """Whether the model computes with other weights than those that are saved."""
        return self.half is not None and self.level != 1

    @property
    def scales_gradients(self) -> bool:
        """Whether small gradients have to be kept from vanishing; not where fp16 ones reach the optimizer itself."""
        return self.half is torch.float16 and self.level in (1, 2)

    def scaler(self) -> torch.amp.GradScaler:
        """The gradient scaler: at work where gradients are scaled, passing everything through otherwise."""
        return torch.amp.GradScaler(self.device_type, enabled=self.scales_gradients)

    def cast_to_half(self, model: nn.Module) -> Masters:
        """Turn a model's weights to half precision where this precision wants it; returns the masters, if any.

        At level 2 all weights have one, and the norms stay in fp32 and hand on what they get in half precision. At
        level 3 frozen weights have one, since rounding must not change for good what is not trained.
        """
        if self.half is None or self.level < 2:
            return {}
        norms = [module for module in model.modules() if _is_norm(module)]
        if self.level == 2:
            for norm in norms:
                norm.half = self.half  # type: ignore[assignment]
                norm.register_forward_pre_hook(_widen)
                norm.register_forward_hook(_narrow)
        masters: Masters = {}
        whole = {id(p) for norm in norms for p in norm.parameters()} if self.level == 2 else set()
        for parameter in model.parameters():
            if id(parameter) not in whole:
                if not parameter.requires_grad:
                    masters[parameter] = nn.Parameter(parameter.detach().to("cpu", copy=True), requires_grad=False)
                elif self.level == 2:
                    masters[parameter] = nn.Parameter(parameter.detach().clone())
                parameter.data = parameter.data.to(self.half)
        return masters


FP32 = Precision("fp32", None, "the default", "cpu")


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Inside, products of fp32 numbers are computed in fp32, also where a run asks for tf32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def restore_fp32(model: nn.Module, masters: Masters) -> None:
    """Undo `Precision.cast_to_half`: all weights in fp32 again, those with a master as exact as it is."""
    for parameter in model.parameters():
        parameter.data = masters.get(parameter, parameter).data.to(parameter.device, torch.float32)
    for module in model.modules():
        if _is_norm(module):
            module.half = None  # type: ignore[assignment]


@torch.no_grad()
def copy_grads_to_masters(masters: Masters) -> None:
    """Add each weight's gradient to its master's, in fp32."""
    for weight, master in masters.items():
        if weight.grad is not None:
            wide = weight.grad.to(master.dtype)
            master.grad = wide if master.grad is None else master.grad.add_(wide)
            weight.grad = None


@torch.no_grad()
def copy_from_masters(masters: Masters) -> None:
    """Round the masters to the weights that the model computes with."""
    trained = {weight: master for weight, master in masters.items() if master.requires_grad}
    if trained:
        torch._foreach_copy_(tuple(trained), tuple(trained.values()))


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm | nn.modules.batchnorm._NormBase) or type(module).__name__.endswith("Norm")


def _widen(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Hook before a norm: its input in fp32."""
    return tuple(one.float() if isinstance(one, torch.Tensor) else one for one in args)


def _narrow(module: Any, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
    """Hook behind a norm: its output in the type that the other weights have."""
    return output if module.half is None else output.to(module.half)


def for_prediction(name: str, device: torch.device) -> Precision:
    """The precision of `classify predict`: fp32, or what was asked for; see `choose_precision`."""
    precision = choose_precision(name, device)
    return dataclasses.replace(precision, for_scores=not precision.automatic)


def choose_precision(name: str, device: torch.device, opt_level: str | None = None) -> Precision:
    """The precision asked for, or for "auto" bf16 on GPUs that have it, else fp32.

    A CPU may train in another one, see `faster_on_cpu`, which wants to know the model.
    Raises InputError where the device cannot do what was asked. Sets torch's float32 matmul mode for tf32.
    """
    kind, accelerator = device.type, accelerators.of(device.type)
    if opt_level == "O0":
        return Precision("fp32", None, "--opt-level O0: everything in full precision", kind)
    if name == "fp16" and not accelerator.has_fp16:
        raise InputError(
            "--precision fp16 needs a GPU: a CPU has no fast half-precision arithmetic, and small gradients "
            "would vanish; use bf16 or fp32."
        )
    if opt_level is not None:
        return _of_level(opt_level, name, accelerator)
    if name == "auto":
        if accelerator.prefers_bf16():
            why = "this GPU computes in bfloat16; scores are computed in fp32"
            return Precision("bf16", torch.bfloat16, why, kind, automatic=True)
        return Precision("fp32", None, f"full precision, the safe choice on {kind}", kind, automatic=True)
    if name == "tf32":
        if not accelerator.has_tf32:
            raise InputError(
                f"--precision tf32 exists on NVIDIA GPUs only. Got device {kind} instead; use fp32 or bf16."
            )
        torch.set_float32_matmul_precision("high")
    return Precision(name, HALF.get(name), "as requested", kind)


def multiplies_bf16() -> bool:
    """Whether this x86 processor has instructions for products in bf16; False where an older torch cannot tell."""
    return any(capabilities().get(name) for name in ("avx512_bf16", "amx_bf16"))


def for_training(name: str, why: str) -> Precision:
    """The precision, "bf16" or "fp32", that a CPU trains in where none was asked for."""
    return Precision(name, HALF.get(name), why, "cpu", automatic=True)


def faster_on_cpu(width: int) -> Precision:
    """What a processor that multiplies bf16 trains packed texts in, with hidden states that wide."""
    if width >= _WIDE:
        return for_training("bf16", "this processor multiplies bfloat16 faster; scores are computed in fp32")
    return for_training("fp32", "full precision, as fast in a model this narrow")


def _of_level(opt_level: str, name: str, accelerator: Accelerator) -> Precision:
    """Apex's O1, O2 or O3; its half precision is fp16, which becomes bf16 on CPUs and where that was asked for."""
    short = name if name in HALF else "fp16" if accelerator.has_fp16 else "bf16"
    why = "" if short == "fp16" else ", bf16 was requested" if name == "bf16" else ", a CPU has no fast fp16"
    scaler = " with a gradient scaler" if short == "fp16" else ""
    names = {
        "O1": (short, f"autocast{scaler}"),
        "O2": (f"{short} weights, fp32 masters", f"norms in fp32{scaler and ' and a gradient scaler'}"),
        "O3": (f"{short} throughout", "the fastest and the least exact"),
    }
    full, words = names[opt_level]
    return Precision(full, HALF[short], f"--opt-level {opt_level}: {words}{why}", accelerator.kind, int(opt_level[1]))
