"""A server of the program on this machine, asked over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.processes import ROOT, unlaunched


class Server:
    """A running server; its answers as (status, JSON)."""

    def __init__(self, process: subprocess.Popen[str], port: int | None = None):
        self.process = process
        if port is None:
            lines = iter(process.stdout.readline, "") if process.stdout else iter(())
            line = next((line for line in lines if line.startswith("serving: http://127.0.0.1:")), "")
            assert line, process.stderr.read() if process.stderr else ""
            port = int(line.split(":")[3].split("/")[0])
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json", **headers}
        content = body if isinstance(body, str | bytes | None) else json.dumps(body)
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        answer = response.read().decode()
        self.headers = response.headers
        connection.close()
        is_json = "json" in response.headers.get("Content-Type", "")
        return response.status, json.loads(answer) if is_json and answer else answer

    def predict(self, texts: Any, **options: Any) -> Any:
        status, answer = self.ask("POST", "/predict", {"texts": texts, **options})
        assert status == 200, answer
        return answer["predictions"]


@contextlib.contextmanager
def start_server(
    *words: str, program: Sequence[str] = ("-m", "classify"), folder: Path | None = None, **environment: str
) -> Iterator[Server]:
    """Start a command that serves on any free port; it is killed at the end."""
    command = [sys.executable, *program, *words, "--port", "0", "--cpu"]
    environment = {**unlaunched(), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **environment}
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Server(process)
    finally:
        process.kill()
        process.communicate(timeout=30)
