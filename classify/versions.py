"""Versions of the program and its libraries, and the systems that it runs on."""

from __future__ import annotations

import sys

from classify.errors import InputError

__version__ = "0.1.0"

_LIBRARIES = (
    "torch", "transformers", "datasets", "scikit-learn", "accelerate", "safetensors", "numpy", "onnx", "onnxruntime",
)  # fmt: skip


def check_platform() -> None:
    """Raise InputError on a system that the program does not support."""
    if sys.platform == "win32":
        raise InputError(
            "Windows is not supported: file locks and signals are POSIX. Use Linux, also as WSL 2, or macOS."
        )


def versions() -> dict[str, str]:
    """The versions of Python, this program and the libraries that decide its numbers."""
    import importlib.metadata
    import platform

    installed = {"python": platform.python_version(), "classify": __version__}
    for name in _LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
