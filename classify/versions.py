"""Versions of the program and of the libraries that decide its numbers."""

from __future__ import annotations

__version__ = "0.1.0"

_LIBRARIES = ("torch", "transformers", "datasets", "scikit-learn", "accelerate", "safetensors", "numpy")


def versions() -> dict[str, str]:
    """Return the versions of Python, this program and the libraries that decide its numbers."""
    import importlib.metadata
    import platform

    installed = {"python": platform.python_version(), "classify": __version__}
    for name in _LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
