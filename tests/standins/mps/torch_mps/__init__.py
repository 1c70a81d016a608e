"""A stand-in for what a torch built for Apple GPUs has of its own; torch finds it as it finds vendors' packages.

Like Metal it knows no float64, and like Apple's machines it has one GPU and no collectives.
"""

from __future__ import annotations

import os


def _autoload() -> None:
    """Called by torch at the end of its own import."""
    from tests.standins.accelerator import begin

    os.environ["STANDIN_DEVICES"] = "1"
    begin("mps", None)
