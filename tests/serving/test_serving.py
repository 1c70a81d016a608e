"""classify serve: a real server on this machine, asked over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from classify.cli import main
from classify.prediction.predictor import load_classifier
from classify.serving.batching import Batcher, QueueFullError
from classify.training.run import train
from tests.support import tiny
from tests.support.browser import start_browser
from tests.support.processes import ROOT, unlaunched
from tests.support.runs import make_config
from tests.support.server import Server, start_server
from tests.support.tasks import CASES

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

STEPS = {"num_train_epochs": 1.0, "folds": 0}


# A server whose predictions take a minute, as long requests do on a slow machine.
SLOW = """
import sys, time
from classify.cli import main
from classify.prediction.predictor import Predictor

predict = Predictor.predict
Predictor.predict = lambda self, texts: time.sleep(60) or predict(self, texts)
sys.exit(main(sys.argv[1:]))
"""


def serve(folder: Path, *words: str, **more: Any) -> contextlib.AbstractContextManager[Server]:
    return start_server("serve", "--model", str(folder), *words, **more)


def wait_until_it_listens(server: Server, seconds: float = 120) -> None:
    """uvicorn reports its start before it listens, so its log does not tell when it does."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            assert server.ask("GET", "/health")[0] == 200
            return
        assert server.process.poll() is None, "uvicorn ended"
        assert time.monotonic() < end, "uvicorn does not listen"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def finished(model_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_config(model_folder, table, tmp_path_factory.mktemp("runs") / "run", **STEPS))


@pytest.fixture(scope="module")
def server(finished: Path) -> Iterator[Server]:
    with serve(finished) as running:
        yield running


def test_many_clients_get_what_predict_gives(finished: Path, server: Server) -> None:
    """Whatever else was in the batch."""
    texts = [text for text, _ in tiny.table_rows(120, seed=9)]
    with load_classifier(str(finished), use_cpu=True) as predictor:
        expected = predictor.probabilities(texts)
        labels = predictor.answers(expected, None)
    parts = [texts[start : start + 1 + start % 5] for start in range(100)]
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(server.predict, parts))
    for start, answer in enumerate(answers):
        for place, one in enumerate(answer, start):
            assert one["prediction"] == labels[place]
            assert one["confidence"] == pytest.approx(expected[place].max(), abs=1e-5)
            given = [one["probabilities"][label] for label in predictor.labels]
            np.testing.assert_allclose(given, expected[place], atol=1e-5)
    _, metrics = server.ask("GET", "/metrics")
    batches = float(metrics.split("classify_batch_rows_count ")[1].split()[0])
    assert batches < len(parts), "requests that came together were computed together"


def test_what_is_asked_for(server: Server) -> None:
    (one,) = server.predict(["my card was stolen"], top_k=2, min_confidence=0.01)
    assert len(one["probabilities"]) == 2
    assert next(iter(one["probabilities"])) == one["prediction"]
    assert one["accepted"] is True
    (one,) = server.predict(["my card was stolen"], min_confidence=0.999)
    assert one["accepted"] is False
    assert server.ask("GET", "/health") == (200, {"status": "ok"})
    assert server.ask("GET", "/ready") == (200, {"ready": True})
    assert [server.ask("HEAD", path)[0] for path in ("/health", "/ready")] == [200, 200], "as health checks ask"
    status, model = server.ask("GET", "/model")
    assert (status, model["task"], model["labels"]) == (200, "single_label", ["app", "card", "money"])
    assert 0 <= model["scores"]["accuracy"] <= 1
    status, words = server.ask("POST", "/explain", {"texts": ["my card was stolen"]})
    assert (status, {word["word"] for word in words}) == (200, {"my", "card", "was", "stolen"})
    status, page = server.ask("GET", "/openapi.json")
    assert "/predict" in page["paths"]
    schema = page["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["texts"]["examples"]


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b"{", 422, "invalid JSON"),
        (b"\xff\xfe", 422, "invalid JSON"),
        (b"", 422, "invalid JSON"),
        (b"[" * 100_000, 422, "invalid JSON"),
        ({"texts": []}, 422, "at least 1"),
        ({"texts": [" "]}, 422, "texts.0: the text is empty"),
        ({"texts": [["a", "b"]]}, 422, "texts.0: Input should be a valid string"),
        ({"texts": "a"}, 422, "valid list"),
        ({"texts": [1]}, 422, "valid string"),
        ({"texts": ["a"], "top": 1}, 422, "top"),
        ({"texts": ["a"], "top_k": 0}, 422, "top_k"),
        ({"texts": ["a"], "top_k": True}, 422, "top_k"),
        ({"texts": ["a"], "min_confidence": "0.5"}, 422, "min_confidence"),
        ({"texts": ["x" * 1_000_000]}, 422, "texts.0: String should have at most 100000 characters"),
        ({"texts": ["x"] * 1_001}, 422, "at most 1000"),
        (b" " * (9 << 20), 413, "bytes"),
        (b" " * (30 << 20), 413, "bytes"),
    ],
)
def test_bad_requests_get_one_clear_answer(server: Server, body: Any, status: int, expected: str) -> None:
    got, answer = server.ask("POST", "/predict", body)
    assert (got, list(answer)) == (status, ["detail"])
    assert expected in answer["detail"]
    assert "\n" not in answer["detail"]
    assert server.predict(["it still answers"])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["pair", "lists", "scores"])
def test_other_tasks(case: str, model_folder: Path, tmp_path: Path) -> None:
    table = CASES[case].write(tmp_path / "my.csv")
    run = train(make_config(model_folder, table, tmp_path / "run", **STEPS, **CASES[case].options))
    texts = [["a card", "money"], ["my app", "a phone"]] if case == "pair" else ["a card", "money for my app"]
    with serve(run) as server, load_classifier(str(run), use_cpu=True) as predictor:
        given = [one["prediction"] for one in server.predict(texts)]
        probabilities = predictor.probabilities([tuple(text) for text in texts] if case == "pair" else texts)
    expected = predictor.answers(probabilities, None)
    assert given == (pytest.approx(expected, abs=1e-4) if case == "scores" else list(expected))


def test_a_lone_surrogate_is_one_unknown_character(server: Server) -> None:
    """As `predict` reads it; JSON can hold half a character."""
    status, answer = server.ask("POST", "/predict", b'{"texts": ["my card", "my \\ud800 card"]}')
    assert (status, len(answer["predictions"])) == (200, 2)
    (same,) = server.predict(["my \ufffd card"])
    assert answer["predictions"][1]["confidence"] == pytest.approx(same["confidence"], abs=1e-6)


def test_a_page_of_another_site_gets_no_answer(server: Server) -> None:
    """A browser sends its host, or a body that is no JSON, without asking before."""
    body = {"texts": ["my card"]}
    assert server.ask("POST", "/predict", body, Host="evil.example")[0] == 403
    assert server.ask("GET", "/model", Host=f"evil.example:{server.port}")[0] == 403
    assert server.ask("POST", "/predict", body, **{"Content-Type": "text/plain"})[0] == 415
    for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:80"):
        assert server.ask("POST", "/predict", body, Host=host)[0] == 200


def test_explanations_wait_in_the_same_queue() -> None:
    """Each counts as the rows that it takes as long as; too many are refused at once."""
    go = threading.Event()

    async def ask() -> None:
        batcher = Batcher(lambda texts: np.zeros((len(texts), 1)), most_rows=4, wait=0.0, longest=6)
        waiting = [asyncio.create_task(batcher.call(lambda: go.wait(30), 3)) for _ in range(2)]
        await asyncio.sleep(0)
        assert batcher.waiting_rows == 6
        with pytest.raises(QueueFullError):
            await batcher.call(go.set, 3)
        with pytest.raises(QueueFullError):
            await batcher.predict(["a"])
        go.set()
        assert await asyncio.gather(*waiting) == [True, True]
        assert batcher.waiting_rows == 0

    asyncio.run(ask())


def test_a_token(finished: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "token").write_text("secret\n")
    with serve(finished, "--token-file", str(tmp_path / "token")) as server:
        body = {"texts": ["my card"]}
        for headers in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "Bearer sécret"}):
            encoded = {name: value.encode().decode("latin-1") for name, value in headers.items()}
            assert server.ask("POST", "/predict", body, **encoded)[0] == 401
        for scheme in ("Bearer", "bearer"):
            assert server.ask("POST", "/predict", body, Authorization=f"{scheme} secret")[0] == 200
        assert server.ask("GET", "/health")[0] == 200
        assert server.ask("GET", "/metrics")[0] == 401
        assert server.ask("GET", "/metrics", Host="localhost/health?")[0] in (400, 401)
        assert server.ask("POST", "/predict", body, Authorization="Bearer secret", Host="elsewhere.example")[0] == 200
    assert main(["serve", "--model", str(finished), "--host", "0.0.0.0"]) == 2
    assert "give --token-file" in capsys.readouterr().err


def test_a_token_of_any_letters() -> None:
    from starlette.requests import Request

    from classify.serving.app import refusal

    for given, is_right in (("sécret", True), ("secret", False)):
        headers = [(b"authorization", f"Bearer {given}".encode())]
        request = Request({"type": "http", "method": "GET", "path": "/model", "headers": headers})
        assert (refusal(request, "sécret") is None) == is_right


@pytest.mark.slow
def test_sigterm_does_not_wait_for_what_takes_long(finished: Path) -> None:
    """After ten seconds nobody waits for the answer any more, and the process ends while it computes."""
    with serve(finished, program=("-c", SLOW)) as server, ThreadPoolExecutor(1) as client:
        answer = client.submit(server.ask, "POST", "/predict", {"texts": ["it is warm"]})
        time.sleep(1)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=25) == 0
        assert answer.result(timeout=5)[0] == 500


def test_sigterm_answers_what_it_has_and_ends_with_0(finished: Path) -> None:
    with serve(finished) as server, ThreadPoolExecutor(1) as client:
        server.predict(["it is warm"])
        answer = client.submit(server.predict, ["a long text " * 50] * 1_000)
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        assert len(answer.result(timeout=60)) == 1_000
        assert server.process.wait(timeout=15) == 0


@pytest.mark.slow
def test_workers_of_uvicorn_answer(finished: Path) -> None:
    """Each loads the model; a proxy, a container or uvicorn itself starts them."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "classify.serving:app", "--workers", "2", "--port", str(port)]
    environment = {**unlaunched(), "CLASSIFY_MODEL": str(finished), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        server, texts = Server(process, port), [text for text, _ in tiny.table_rows(200)]
        wait_until_it_listens(server)
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(server.predict, [texts] * 8))
        with load_classifier(str(finished), use_cpu=True) as predictor:
            expected = predictor.answers(predictor.probabilities(texts), None)
        assert all([one["prediction"] for one in answer] == list(expected) for answer in answers)
        process.terminate()
        assert process.wait(timeout=30) == 0
    finally:
        for child in psutil.Process(process.pid).children() if process.poll() is None else ():
            child.kill()
        process.kill()
        process.communicate(timeout=30)


@pytest.mark.slow
def test_an_exported_folder_is_served_without_torch(finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    assert main(["export", "--model", str(finished), "--out", str(tmp_path / "onnx")]) == 0
    with serve(tmp_path / "onnx") as server, load_classifier(str(finished), use_cpu=True) as predictor:
        (one,) = server.predict(["my card was stolen"])
        assert one["confidence"] == pytest.approx(predictor.probabilities(["my card was stolen"]).max(), abs=1e-4)
        assert server.ask("POST", "/explain", {"texts": ["my card"]})[0] == 200
        maps = Path(f"/proc/{server.process.pid}/maps").read_text() if os.path.exists("/proc/self/maps") else ""
        assert "libtorch" not in maps


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--port", "70000"], "--port"),
        (["--port", "{taken}"], "the port is in use"),
        (["--max-wait-ms", "-1"], "--max-wait-ms"),
        (["--token-file", "/nowhere"], "cannot be read"),
        (["--model", "/nowhere"], "no such folder"),
    ],
)
def test_wrong_words(words: list[str], expected: str, finished: Path, capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = [word.format(taken=taken.getsockname()[1]) for word in words]
        model = [] if "--model" in words else ["--model", str(finished)]
        assert main(["serve", *model, *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_a_queue_that_is_full_refuses_at_once() -> None:
    go = threading.Event()
    sizes: list[int] = []

    def compute(texts: list[Any]) -> Any:
        go.wait(30)
        sizes.append(len(texts))
        return np.arange(len(texts), dtype=np.float64)[:, None] + float(texts[0])

    async def ask() -> None:
        batcher = Batcher(compute, most_rows=4, wait=0.0, longest=6)
        task = asyncio.create_task(batcher.run())
        first = asyncio.create_task(batcher.predict([0.0]))
        await asyncio.sleep(0.1)  # it computes now
        waiting = [asyncio.create_task(batcher.predict([float(n)] * 2)) for n in range(1, 4)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await batcher.predict([9.0])
        go.set()
        answers = [rows[:, 0].tolist() for rows in await asyncio.gather(first, *waiting)]
        assert answers == [[0.0], [1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]
        assert sizes == [1, 4, 2], "as many as fit, in the order in which they came"
        assert batcher.waiting_rows == 0
        task.cancel()

    asyncio.run(ask())


def test_an_error_of_one_batch_is_not_the_end() -> None:
    async def ask() -> None:
        batcher = Batcher(lambda texts: 1 / texts[0] * np.ones((1, 1)), most_rows=4, wait=0.0, longest=6)
        task = asyncio.create_task(batcher.run())
        with pytest.raises(ZeroDivisionError):
            await batcher.predict([0])
        assert (await batcher.predict([2])).tolist() == [[0.5]]
        task.cancel()

    asyncio.run(ask())


@pytest.mark.slow
def test_the_page_in_a_browser(server: Server) -> None:
    """On a desktop and at a phone's width: classes, words, errors; no request to elsewhere."""
    with start_browser() as browser:
        for width in (1200, 390):
            browser.set_window_size(width, 800)
            browser.get(f"http://127.0.0.1:{server.port}/")
            browser.find_element("id", "text").send_keys("my card was stolen <b>twice</b>")
            browser.find_element("css selector", "button").click()
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and not browser.find_element("id", "words").text:
                time.sleep(0.1)
            assert "card" in browser.find_element("id", "classes").text
            assert not browser.find_element("id", "pair").is_displayed(), "the model takes one text"
            assert not browser.find_element("id", "token").is_displayed()
            assert "stolen" in browser.find_element("id", "words").text
            assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        browser.find_element("id", "text").clear()
        browser.find_element("css selector", "button").click()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not browser.find_element("id", "error").text:
            time.sleep(0.1)
        assert "the text is empty" in browser.find_element("id", "error").text
        urls = [
            message["params"]["request"]["url"]
            for message in (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
            if message["method"] == "Network.requestWillBeSent"
        ]
        assert urls
        assert all(url.startswith(f"http://127.0.0.1:{server.port}/") for url in urls)
