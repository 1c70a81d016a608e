"""Find weights that an installed package carries, without importing the package."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from classify.errors import InputError


def find_packaged_file(package: str, name: str, sha256: str) -> Path | None:
    """Return the path of file `name` in an installed package; None if it is not installed, or has no such file.

    Raises InputError if the file is not the published one.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / name
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
    if digest != sha256:
        raise InputError(
            f"{path}: expected the published weights (SHA-256 {sha256[:12]}...). Got {digest[:12]}... instead; "
            f"reinstall the package {package.replace('_', '-')}, or name another --model."
        )
    return path
