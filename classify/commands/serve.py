"""Serve a trained model over HTTP."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from classify.commands import flags
from classify.config.fields import at_least, between, parse
from classify.config.parser import Parser
from classify.errors import InputError, escape_controls
from classify.launch.launch import Launch
from classify.serving import is_loopback

_EXTRA = ("fastapi", "uvicorn", "prometheus_client")
# Requests that have come are answered within this many seconds after SIGTERM.
_GRACE = 10
_TOKEN = "CLASSIFY_TOKEN"


def make_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        description="Serve a trained or exported model over HTTP: POST /predict, a page at /, /openapi.json, /metrics. "
        "Requests that come together are computed together.",
    )
    flags.add_model(parser)
    parser.add_argument("--port", metavar="INT", default="8000", help="port (default: 8000; 0: any free one)")
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="address (default: 127.0.0.1)")
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"file with the token that requests have to carry; needed beyond this machine (default: ${_TOKEN})",
    )
    parser.add_argument(
        "--max-wait-ms", metavar="FLOAT", default="5", help="how long a request waits for others (default: 5)"
    )
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).parse(arguments, ["model"])
    port = int(parse(options.port, (int,), "--port", between(0, 65_535, include_high=True)))
    wait = float(parse(options.max_wait_ms, (float,), "--max-wait-ms", at_least(0))) / 1000
    if Launch.read().is_launched:
        raise InputError("classify serve is one process; start it without a launcher.")
    token = _read_token(options.token_file)
    if token is None and not is_loopback(options.host):
        raise InputError(
            f"--host {options.host}: other machines could use the server; give --token-file, or set {_TOKEN}."
        )
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"classify serve needs {', '.join(missing)}; type pip install 'classify-text[serve]'.")
    from classify.modeling.result_folder import read_settings

    read_settings(options.model)
    with _listen(options.host, port) as listener:
        return _serve(options, listener, wait, token)


def _serve(options: argparse.Namespace, listener: socket.socket, wait: float, token: str | None) -> int:
    """Serve until a signal comes; the address is printed when requests are taken."""
    import uvicorn

    from classify.prediction.predictor import load_classifier
    from classify.serving.app import make_app
    from classify.serving.batching import Batcher

    predictor = load_classifier(options.model, use_cpu=options.cpu, precision=options.precision)
    host, port = listener.getsockname()[:2]
    where = f"[{host}]" if ":" in host else host
    started: list[Batcher] = []

    def on_start(batcher: Batcher) -> None:
        started.append(batcher)
        print(escape_controls(f"serving: http://{where}:{port}/ ({predictor.folder}; Ctrl-C ends it)"), flush=True)

    app = make_app(predictor, token, wait, on_start)
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=_GRACE, access_log=False)
    # uvicorn raises the signal that ended it again, but SIGTERM is the usual end of a server.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
    if any(batcher.is_computing for batcher in started):  # for requests that were given up
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # the interpreter would wait for the thread
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InputError where the address cannot be taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        why = "the port is in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error)
        raise InputError(f"--host {host} --port {port}: {why}; give another one.") from None
    return listener


def _read_token(file: str | None) -> str | None:
    """The token of a file, or of the environment; None without either. Raises InputError for an empty one."""
    if file is None:
        return os.environ.get(_TOKEN) or None
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"--token-file {file}: cannot be read ({error}).") from None
    if not token:
        raise InputError(f"--token-file {file}: expected a token. Got an empty file.")
    return token
