"""Files of weights: those that an installed package carries, and the shapes in a file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import safetensors

from classify.errors import InputError
from classify.files import file_sha256


def find_packaged_file(package: str, name: str, sha256: str) -> Path | None:
    """The path of file `name` in an installed package; None if it is not installed, or has no such file.

    The package is not imported. Raises InputError if the file is not the published one.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / name
    try:
        digest = file_sha256(path)
    except OSError:
        return None
    if digest != sha256:
        raise InputError(
            f"{path}: expected the published weights (SHA-256 {sha256[:12]}...). Got {digest[:12]}... instead; "
            f"reinstall the package {package.replace('_', '-')}, or name another --model."
        )
    return path


def tensor_shapes(path: Path) -> dict[str, list[int]]:
    """The shape of each tensor of a safetensors file, by name.

    Raises ValueError if the file is truncated or not safetensors; its message continues the file's name.
    """
    path.stat()  # FileNotFoundError names the file
    if path.is_dir():
        raise ValueError("is a folder")
    try:
        with safetensors.safe_open(path, "np") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError:
        raise ValueError("is not a safetensors file, or is truncated") from None
