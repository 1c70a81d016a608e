"""Requests per second of `classify serve`, beside FastAPI around transformers' pipeline and the exported model.

    python benchmarks/serving.py --model runs/my-1 --data new.csv [--exported runs/my-1/onnx-int8] [--clients 64]

All servers answer the same requests of one text each, one server after the other, from clients that ask again as soon
as they are answered. Needs the extras serve and export.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from classify.tables.read import read_table
from classify.tables.source import ReadOptions

PIPELINE = """
import sys
import fastapi, pydantic, uvicorn
from transformers import pipeline

classify = pipeline("text-classification", model=sys.argv[1], top_k=None, truncation=True)
app = fastapi.FastAPI()

class Texts(pydantic.BaseModel):
    texts: list[str]

@app.post("/predict")
def predict(request: Texts):
    return classify(request.texts)

@app.get("/health")
def health():
    return {}

uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[psutil.Process]:
    """Start a server and wait until it answers."""
    process = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


async def ask(port: int, texts: list[str], first: int, step: int, until: float, seconds: list[float]) -> None:
    """Ask for one text after the other on one connection until a time, and keep how long each answer took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = first
    while time.perf_counter() < until:
        body = json.dumps({"texts": [texts[number % len(texts)]]}).encode()
        begin = time.perf_counter()
        head = ("POST /predict HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}")
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        status = await reader.readline()
        assert b" 200 " in status, status
        length = 0
        while (line := await reader.readline()).strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        await reader.readexactly(length)
        seconds.append(time.perf_counter() - begin)
        number += step
    writer.close()


async def load(port: int, texts: list[str], clients: int, duration: float) -> list[float]:
    """Return the seconds of each answer that `clients` got."""
    seconds: list[float] = []
    until = time.perf_counter() + duration
    await asyncio.gather(*(ask(port, texts, client, clients, until, seconds) for client in range(clients)))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--exported")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    table = read_table(options.data, options=ReadOptions())
    texts = table.take(options.text_column, np.arange(min(2_000, len(table))))
    texts = [text for text in texts if text.strip()]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = [sys.executable, "-m", "classify", "serve", "--cpu", "--port", str(port), "--model"]
    pipeline = [sys.executable, "-c", PIPELINE, options.model, str(port)]
    servers = {"pipeline": pipeline, "classify": [*serve, options.model]}
    if options.exported:
        servers[Path(options.exported).name] = [*serve, options.exported]
    print("| server | requests/s | p50, ms | p95, ms | p99, ms | memory, MiB (after the first second) |")
    print("|---|---|---|---|---|---|")
    for name, command in servers.items():
        with running(command, port) as process:
            asyncio.run(load(port, texts, options.clients, 1))
            before = process.memory_info().rss >> 20
            seconds = asyncio.run(load(port, texts, options.clients, options.seconds))
            after = process.memory_info().rss >> 20
        p50, p95, p99 = (1000 * np.percentile(seconds, share) for share in (50, 95, 99))
        rate = len(seconds) / options.seconds
        print(f"| {name} | {rate:.0f} | {p50:.0f} | {p95:.0f} | {p99:.0f} | {after} ({before}) |", flush=True)


if __name__ == "__main__":
    main()
