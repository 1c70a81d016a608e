"""Versions of the program and of the libraries that decide its numbers."""

from __future__ import annotations

import importlib.metadata
import platform

_LIBRARIES = ("classify", "torch", "transformers", "datasets", "scikit-learn", "accelerate", "safetensors", "numpy")


def versions() -> dict[str, str]:
    """Return the versions of Python, this program and the libraries that decide its numbers."""
    installed = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
