"""Serve a trained model over HTTP."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from classify import modeling
from classify.commands import flags
from classify.config.fields import at_least, between, option
from classify.config.parser import CommandParser
from classify.errors import InputError, escape_controls
from classify.launch.launch import Launch
from classify.serving import is_loopback

if TYPE_CHECKING:
    from fastapi import FastAPI

_EXTRA = ("fastapi", "uvicorn", "prometheus_client")
# Requests that have come are answered within this many seconds after SIGTERM.
_GRACE = 10
_TOKEN = "CLASSIFY_TOKEN"


@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens, and whom it answers."""

    port: int = option(8000, "port; 0: any free one", check=between(0, 65_535, include_high=True))
    host: str = option("127.0.0.1", "address", metavar="ADDRESS")
    token_file: str | None = option(
        None, f"file with the token that requests have to carry; needed beyond this machine (default: ${_TOKEN})",
        metavar="FILE",
    )  # fmt: skip

    def check(self, command: str) -> str | None:
        """The token, if there is one. Raises InputError where the server cannot, or should not, be started."""
        if Launch.read().is_launched:
            raise InputError(f"classify {command} is one process; start it without a launcher.")
        token = _read_token(self.token_file)
        if token is None and not is_loopback(self.host):
            raise InputError(
                f"--host {self.host}: other machines could use the server; give --token-file, or set {_TOKEN}."
            )
        missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
        if missing:
            raise InputError(f"classify {command} needs {', '.join(missing)}; type pip install 'classify-text[serve]'.")
        return token


@dataclass(frozen=True)
class Options(flags.ModelOptions, ServerOptions):
    max_wait_ms: float = option(5, "how long a request waits for others", check=at_least(0))


make_parser = functools.partial(
    CommandParser,
    Options,
    description="Serve a trained or exported model over HTTP: POST /predict, a page at /, /openapi.json, /metrics. "
    "Requests that come together are computed together.",
)


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).read(arguments, ["model"])
    token = options.check("serve")
    modeling.result_folder.read_settings(options.model)
    with listen(options.host, options.port) as listener:
        # The attribute `app` of the package is the application that uvicorn's workers load.
        from classify.serving.app import make_app

        predictor = options.load()
        serve(make_app(predictor, token, options.max_wait_ms / 1000), listener, predictor.folder)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the interpreter would wait for a thread that computes for a request which was given up


def serve(app: FastAPI, listener: socket.socket, what: str) -> None:
    """Serve an application, which the person knows as `what`, until a signal comes."""
    import uvicorn

    # uvicorn raises the signal that ended it again, but SIGTERM is the usual end of a server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=_GRACE, access_log=False)
    host, port = listener.getsockname()[:2]
    where = f"[{host}]" if ":" in host else host
    # The socket listens: requests that come before uvicorn runs wait.
    print(escape_controls(f"serving: http://{where}:{port}/ ({what}; Ctrl-C ends it)"), flush=True)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        uvicorn.Server(config).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InputError where the address cannot be taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        why = "the port is in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error)
        raise InputError(f"--host {host} --port {port}: {why}; give another one.") from None


def _read_token(file: str | None) -> str | None:
    """The token of a file, or of the environment, if any. Raises InputError for an empty file."""
    if file is None:
        return os.environ.get(_TOKEN) or None
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"--token-file {file}: cannot be read ({error}).") from None
    if not token:
        raise InputError(f"--token-file {file}: expected a token. Got an empty file.")
    return token
