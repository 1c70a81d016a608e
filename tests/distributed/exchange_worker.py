"""Worker of test_exchange: averages the gradients of a small model and stores them, beside each rank's own.

Arguments: folder for the results, and a way: "all" share memory, the last rank is "blind" and cannot see it, there is
"little" of it, or the system has "none" without a name.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn

from classify import exchange
from classify.config import TrainingConfig

STEPS = 3


class Odd(nn.Module):
    """Parameters of two types; one is a single number, another more than a bucket of DistributedDataParallel holds."""

    def __init__(self) -> None:
        super().__init__()
        self.single = nn.Parameter(torch.zeros(1))
        self.odd = nn.Parameter(torch.zeros(7, 5))
        self.wide = nn.Parameter(torch.zeros(6_600_011))
        self.short = nn.Parameter(torch.zeros(33, dtype=torch.bfloat16))

    def forward(self, factors: dict[str, torch.Tensor]) -> torch.Tensor:
        parts = [(parameter * factors[name]).float().sum() for name, parameter in self.named_parameters()]
        return torch.stack(parts).sum()


def main(results: Path, way: str) -> None:
    """Steps whose gradients are drawn, so that everybody can tell what the mean is."""
    runtime = TrainingConfig(use_cpu=True).runtime
    model = Odd()
    if way == "blind" and runtime.rank == runtime.world_size - 1:
        exchange._found = lambda *_: None
    if way == "little":
        exchange.main_memory = lambda: 1 << 20
    if way == "none" and hasattr(os, "memfd_create"):
        del os.memfd_create
    wrapped = runtime.wrap(model)
    stored = {"exchange": runtime.exchange, "steps": []}
    for step in range(STEPS):
        torch.manual_seed(10 * step + runtime.rank)
        factors = {name: torch.randn(p.shape).to(p.dtype) for name, p in model.named_parameters()}
        wrapped(factors).backward()
        assert all(p.grad is not None for p in model.parameters())
        means = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        stored["steps"].append((factors, means))
        model.zero_grad(set_to_none=True)
    torch.save(stored, results / f"{way}-{runtime.rank}.pt")
    runtime.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
