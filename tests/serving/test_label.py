"""classify label: a real server on this machine, asked over HTTP and by a browser's keys."""

from __future__ import annotations

import asyncio
import csv
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from classify.cli import main
from classify.training.run import train
from tests.support import tiny
from tests.support.browser import start_browser
from tests.support.runs import make_config
from tests.support.server import Server, start_server

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

ROWS = dict(tiny.table_rows(60))
LABELS = ["app", "card", "money"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.write_table(tmp_path / "texts.csv", [(text, "") for text in ROWS], ("text", "label"))
    (tmp_path / "labels.yaml").write_text("".join(f"- {label}\n" for label in LABELS))
    return tmp_path


@pytest.fixture
def words(folder: Path, model_folder: Path) -> list[str]:
    return ["label", "--data", "texts.csv", "--labels", "labels.yaml", "--model", str(model_folder)]


@pytest.fixture
def server(folder: Path, words: list[str]) -> Iterator[Server]:
    with start_server(*words, folder=folder) as running:
        yield running


def read(folder: Path) -> list[dict[str, str]]:
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_kill_loses_nothing(folder: Path, words: list[str], server: Server) -> None:
    """Nor does a page that is left open over a restart."""
    status, state = server.ask("POST", "/next?tab=one", {})
    assert (status, state["labels"], state["labelled"], state["texts"]) == (200, LABELS, 0, 60)
    for _ in range(12):  # over a fit of the head, too
        question = state["question"]
        body = {"tab": "one", "key": question["key"], "labels": [ROWS[question["texts"][0]]]}
        status, state = server.ask("POST", "/answer", body)
        assert status == 200
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(30)
    assert [row["label"] for row in read(folder)] == [ROWS[row["text"]] for row in read(folder)]
    assert len(read(folder)) == 12
    with start_server(*words, folder=folder) as again:
        body = {"tab": "one", "key": state["question"]["key"], "labels": ["card"]}
        status, state = again.ask("POST", "/answer", body)
        assert (status, state["labelled"]) == (200, 13)
        assert again.ask("POST", "/answer", body)[0] == 409
        status, state = again.ask("POST", "/undo?tab=one", {})
        assert (status, state["labelled"], state["question"]["key"]) == (200, 12, body["key"])
    assert len(read(folder)) == 12


def test_wrong_requests(folder: Path, server: Server) -> None:
    for body, code in (
        ({"tab": "one", "key": "1000", "labels": ["app"]}, 409),
        ({"tab": "one", "key": "1000", "labels": "app"}, 422),
        ({"tab": "one"}, 422),
    ):
        assert server.ask("POST", "/answer", body)[0] == code
    assert server.ask("POST", "/answer", "key=0", **{"Content-Type": "text/plain"})[0] == 415
    assert server.ask("POST", "/next?tab=one", {}, Host="elsewhere.example")[0] == 403
    assert not (folder / "labels.csv").exists()


def test_as_a_backend_of_label_studio(server: Server) -> None:
    """As its documentation states the requests of a project with one <Choices>."""
    assert server.ask("GET", "/health")[1]["status"] == "UP"
    choices = '<Choices name="topic" toName="body"><Choice value="app"/></Choices>'
    interface = f'<View><Text name="body" value="$words"/>{choices}</View>'
    body: dict[str, Any] = {"project": "1.5", "schema": interface, "hostname": "", "access_token": ""}
    status, answer = server.ask("POST", "/setup", body)
    assert status == 200
    version = answer["model_version"]
    tasks = [{"id": number, "data": {"words": text}} for number, text in enumerate([*ROWS][:3])]
    body = {"tasks": tasks, "label_config": interface, "project": "1.5", "params": {"context": {}}}
    status, answer = server.ask("POST", "/predict", body)
    assert (status, answer["model_version"], len(answer["results"])) == (200, version, 3)
    for one in answer["results"]:
        (result,) = one["result"]
        assert (result["from_name"], result["to_name"], result["type"]) == ("topic", "body", "choices")
        assert result["value"]["choices"][0] in LABELS
        assert 0 < one["score"] <= 1
    body["label_config"] = "<View><Image name='i' value='$i'/></View>"
    status, answer = server.ask("POST", "/predict", body)
    assert (status, "expected <Choices" in answer["detail"]) == (422, True)


def test_the_page_asks_for_the_token() -> None:
    from classify.serving.label_app import make_label_app

    app, nothing = make_label_app(cast(Any, None), cast(Any, None), token="secret"), {"type": "http.request"}

    def ask(method: str, path: str) -> int:
        answers, scope = (
            list[Any](),
            {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""},
        )

        async def receive() -> Any:
            return nothing

        async def send(message: Any) -> None:
            answers.append(message)

        asyncio.run(app(scope, receive, send))
        return int(answers[0]["status"])

    assert [ask("GET", "/"), ask("GET", "/health"), ask("POST", "/next")] == [200, 200, 401]


def test_a_run_goes_on_with_its_classes(folder: Path, model_folder: Path) -> None:
    table = tiny.write_table(folder / "old.csv", tiny.table_rows(60, seed=4))
    run = train(make_config(model_folder, table, folder / "run", num_train_epochs=1.0, folds=0))
    (folder / "token").write_text("secret\n")
    words = ["label", "--data", "texts.csv", "--model", str(run), "--out", "more.csv", "--token-file", "token"]
    with start_server(*words, folder=folder) as one:
        assert one.ask("POST", "/next?tab=one", {})[0] == 401
        state = one.ask("POST", "/next?tab=one", {}, Authorization="Bearer secret")[1]
        assert [label for label, _ in state["question"]["likely"]] == LABELS
        assert sum(share for _, share in state["question"]["likely"]) == pytest.approx(1, abs=1e-5)


def test_errors_before_the_server_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for words, message in (
        (["--data", "texts.csv", "--host", "0.0.0.0"], "other machines could use the server"),
        (["--data", "none.csv"], "none.csv"),
        (["--data", "texts.csv", "--labels", "none.yaml"], "cannot be read"),
        (["--data", "texts.csv", "--out", "no/such/labels.csv"], "--out"),
        (["--data", "texts.csv", "--out", "texts.csv"], "a file of --data"),
        (["--data", "texts.csv", "--out", "labels.xlsx"], "give a name that ends in .csv"),
    ):
        assert main(["label", *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_by_the_keys_of_a_browser(folder: Path, server: Server) -> None:
    """A desktop and a phone: keys, a typed class, a note, undo, skip; nothing from elsewhere; all within the width."""
    with start_browser() as browser:
        from selenium.webdriver.common.keys import Keys

        def find(name: str) -> str:
            return str(browser.find_element("id", name).text)

        def press(key: str) -> None:
            before = find("progress") + find("text")
            browser.find_element("tag name", "body").send_keys(key)
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and find("progress") + find("text") == before:
                time.sleep(0.02)

        browser.set_window_size(1200, 800)
        browser.get(f"http://127.0.0.1:{server.port}/")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and "of 60 texts" not in find("progress"):
            time.sleep(0.05)
        for count in range(1, 16):
            press(str(1 + LABELS.index(ROWS[find("text")])))
            assert find("progress").startswith(f"{count} labelled of 60")
        skipped = find("text")
        press("s")
        assert find("text") != skipped
        typed = find("text")
        browser.find_element("id", "note").send_keys("a note")
        browser.find_element("id", "typed").send_keys("other", Keys.ENTER)
        while len(read(folder)) < 16:
            assert time.monotonic() < deadline + 60
            time.sleep(0.05)
        press("0")
        press("u")
        rows = read(folder)
        assert (rows[-1]["text"], rows[-1]["label"], rows[-1]["note"]) == (typed, "other", "a note")
        assert [row["label"] for row in rows[:15]] == [ROWS[row["text"]] for row in rows[:15]]
        assert "random texts" not in find("standing") or "95 % CI" in find("standing")
        browser.set_window_size(390, 800)
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
