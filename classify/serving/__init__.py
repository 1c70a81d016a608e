"""Serve a trained or exported model over HTTP.

`classify serve` runs one process. Several processes are uvicorn's, which loads the attribute `app` in each:
`CLASSIFY_MODEL=runs/my-1 OMP_NUM_THREADS=1 uvicorn --workers 4 classify.serving:app`, with the token in CLASSIFY_TOKEN.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
from typing import TYPE_CHECKING, Any

from classify import prediction

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

JSON = "application/json"
EXPECTED_TOKEN = "expected the header Authorization: Bearer TOKEN"


def is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def refuse_foreign(request: Request) -> Response | None:
    """The refusal of a request that another site's page may have sent through a browser of this machine."""
    from starlette.responses import JSONResponse

    if not is_loopback(request.url.hostname or ""):
        return JSONResponse({"detail": "without a token, the server answers to localhost alone"}, 403)
    if request.method == "POST" and request.headers.get("content-type", "").partition(";")[0].strip() != JSON:
        return JSONResponse({"detail": f"expected the header Content-Type: {JSON}"}, 415)
    return None


def check_token(request: Request, token: str) -> Response | None:
    """The refusal of a request that does not carry the token."""
    from starlette.responses import JSONResponse

    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # The bytes of a header, which starlette decodes as latin-1.
    if scheme.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), token.encode()):
        return None
    return JSONResponse({"detail": EXPECTED_TOKEN}, 401, {"WWW-Authenticate": "Bearer"})


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from classify.serving.app import make_app

    predictor = prediction.predictor.load_classifier(os.environ["CLASSIFY_MODEL"], use_cpu=True)
    return make_app(predictor, os.environ.get("CLASSIFY_TOKEN") or None)
