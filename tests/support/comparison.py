"""Runs on different devices and in different modes, made comparable, and compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np

# Without dropout, which each process draws for itself, and with an epsilon that does not blow up gradients that are
# rounding alone.
SETTINGS = (
    "dropout: 0.0\nhead: random\nbatch-size: 32\nlearning-rate: 1.0e-3\nadam-epsilon: 1.0e-3\nlogging-steps: 1\n"
    "report-to: none\n"
)


def difference(one: Path, other: Path, file: str = "model.safetensors") -> float:
    """Between two folders' tensors, as a share of their size; names and types must be the same."""
    from safetensors.numpy import load_file

    a, b = load_file(one / file), load_file(other / file)
    assert {name: tensor.dtype for name, tensor in a.items()} == {name: tensor.dtype for name, tensor in b.items()}
    return float(np.sqrt(sum(np.sum((a[n] - b[n]) ** 2) for n in b) / sum(np.sum(b[n] ** 2) for n in b)))


def drift(one: Path, other: Path, start: Path) -> float:
    """Between two folders' encoders, as a share of how far training has moved the other's from the model it began with.

    A tolerance in these terms cannot be met by a run that has not trained.
    """
    from safetensors.numpy import load_file

    a, b, before = (load_file(folder / "model.safetensors") for folder in (one, other, start))
    names = {f"bert.{name}": name for name in before if f"bert.{name}" in b}
    assert names
    apart = sum(np.sum((a[name] - b[name]) ** 2) for name in names)
    return float(np.sqrt(apart / sum(np.sum((b[name] - before[own]) ** 2) for name, own in names.items())))
