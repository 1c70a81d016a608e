"""Serve a trained or exported model over HTTP.

`classify serve` runs one process. Several processes are uvicorn's, which loads the attribute `app` in each:
`CLASSIFY_MODEL=runs/my-1 OMP_NUM_THREADS=1 uvicorn --workers 4 classify.serving:app`, with the token in CLASSIFY_TOKEN.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from typing import Any

from classify import prediction


def is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from classify.serving.app import make_app

    predictor = prediction.predictor.load_classifier(os.environ["CLASSIFY_MODEL"], use_cpu=True)
    return make_app(predictor, os.environ.get("CLASSIFY_TOKEN") or None)
