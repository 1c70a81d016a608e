"""Two machines for real: two network namespaces joined by a cable, torchrun in each, gloo between them.

Nobody sets GLOO_SOCKET_IFNAME: the program finds the interface by the route to the first machine.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.comparison import difference
from tests.support.documents import DISTRIBUTED, commands, make_place
from tests.support.processes import SCRIPT, finish, forked_python, free_port, not_here, rank_environments, start

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

NAMES = (f"classify-a-{os.getpid()}", f"classify-b-{os.getpid()}")
ADDRESSES = ("10.0.0.1", "10.0.0.2")  # as in docs/distributed.md; nothing outside the namespaces sees them


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[str, str]]:
    """The names of two network namespaces that see each other and nothing else."""
    if shutil.which("ip") is None:
        not_here("two machines need the command ip (package iproute2)")
    try:
        for name in NAMES:
            ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        not_here(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
    try:
        ip("link", "add", "cable0", "netns", NAMES[0], "type", "veth", "peer", "name", "cable0", "netns", NAMES[1])
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable0")
            ip("-n", name, "link", "set", "cable0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield NAMES
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)


def run_on_both(
    machines: tuple[str, str],
    per_machine: tuple[int, int],
    words: list[str],
    *folders: Path,
    codes: tuple[int, ...] | None = None,
) -> list[str]:
    """The program on both machines as torchrun would start it, in a folder each or a shared one; each rank's output."""
    ranks = []
    for place in rank_environments(*per_machine, address=ADDRESSES[0]):
        machine = int(place["GROUP_RANK"])
        folder = folders[min(machine, len(folders) - 1)]
        ranks.append(start(folder, *words, network=machines[machine], **place))
    return finish(ranks, 60, codes or [0] * len(ranks))


def _finished(processes: list[subprocess.Popen[str]], code: int) -> list[str]:
    """Wait for both; returns what they printed, and leaves none behind."""
    try:
        outputs = [process.communicate(timeout=150)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=40)
    assert [process.returncode for process in processes] == [code, code], "\n".join(outputs)
    return outputs


def two_homes(folder: Path) -> tuple[Path, Path]:
    """A folder with the table for each machine: they share no disk."""
    homes = (folder / "first", folder / "second")
    for home in homes:
        home.mkdir()
        tiny.write_table(home / "my.csv", tiny.table_rows(60))
    return homes


def words_for(table: Path, model: Path) -> list[str]:
    return [
        "run_classify.py", "--data", str(table), "--model", str(model), "--cpu",
        "--contrastive-steps", "0", "--max-steps", "3", "--report-to",
        "none", "--output-dir", "out", "--batch-size", "32",
    ]  # fmt: skip


def start_on_both(
    machines: tuple[str, str], folder: Path, lines: list[str], environments: list[dict[str, str]], code: int = 0
) -> list[str]:
    """Type one line on each machine; returns what each printed."""
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *shlex.split(line)],
            cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for name, line, environment in zip(machines, lines, environments, strict=True)
    ]  # fmt: skip
    return _finished(processes, code)


def documented(program: str) -> list[str]:
    """The lines of docs/distributed.md that a person types on the two machines."""
    return [line for line in commands(DISTRIBUTED) if line.startswith(program) and ADDRESSES[0] in line]


def test_ranks_on_two_machines(machines: tuple[str, str], model_folder: Path, tmp_path: Path) -> None:
    """Local rank 0 is there twice, global rank 0 once; it alone writes, though both machines share the folder."""
    environment = make_place(tmp_path, model_folder, forked_python())
    shown = start_on_both(machines, tmp_path, documented("torchrun"), [environment, environment])
    (folder,) = (tmp_path / "runs").iterdir()
    run = json.loads((folder / "run.json").read_text())
    places = [(entry["machine"], entry["rank"], entry["local_rank"]) for entry in run["topology"]]
    assert places == [(0, 0, 0), (0, 1, 1), (1, 2, 0), (1, 3, 1)]
    assert sum(entry["rows_per_step"] for entry in run["topology"]) == 8
    assert run["status"] == "finished"
    assert shown[0].count("result: runs/my-1") == 1
    assert "result: " not in shown[1]
    log = [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]
    assert [("eval" in line, line["step"]) for line in log] == [(False, 2), (True, 2)], "each once"


def test_the_script_for_two_unequal_machines(machines: tuple[str, str], tmp_path: Path) -> None:
    """Each process finds its place in what the script's torchrun set."""
    environment = make_place(tmp_path, None)
    shown = start_on_both(
        machines, tmp_path, documented("bash"), [{**environment, "PROCESSES": str(n)} for n in (2, 1)]
    )
    lines = [line for output in shown for line in output.splitlines() if line.startswith("{")]
    launches = sorted((json.loads(line) for line in lines), key=lambda one: one["rank"])
    places = [(one["machine"], one["rank"], one["local_rank"], one["local_world_size"]) for one in launches]
    assert places == [(0, 0, 0, 2), (0, 1, 1, 2), (1, 2, 0, 1)]
    assert {(one["launcher"], one["world_size"]) for one in launches} == {("torchrun", 3)}


def test_resuming_needs_the_checkpoint_on_the_first_machine_only(
    machines: tuple[str, str], model_folder: Path, tmp_path: Path
) -> None:
    """Without a shared disk: the second machine has no checkpoint, and is sent everything."""
    table = tiny.write_table(tmp_path / "my.csv", tiny.table_rows(60))
    (tmp_path / "keep.yaml").write_text("save_total_limit: 9\n")  # whichever step is the best
    words = [*words_for(table, model_folder), "--save-steps", "2", "--config", str(tmp_path / "keep.yaml")]
    run_on_both(machines, (1, 1), words, tmp_path)
    assert not list((tmp_path / "out").glob(".*"))
    log = [json.loads(line) for line in (tmp_path / "out" / "train_log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [2, 2, 3, 3], "each line once"
    shutil.rmtree(tmp_path / "out" / "checkpoints" / "step-00000003")
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    (tmp_path / "out" / "run.json").write_text(json.dumps({**record, "status": "interrupted"}))
    shutil.copytree(tmp_path / "out", tmp_path / "whole")
    # The second machine sees an empty folder where the first has the run.
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (tmp_path / "go.sh").write_text(
        "#!/bin/sh\n"
        f'if [ "$GROUP_RANK" = 1 ]; then mount --bind {hidden} {tmp_path}/out; fi\n'
        f'exec {forked_python()} {SCRIPT} "$@"\n'
    )
    port = free_port()
    processes = []
    for number, name in enumerate(machines):
        start = [
            "ip", "netns", "exec", name, "unshare", "--mount", sys.executable, "-m", "torch.distributed.run",
            "--no-python", "--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1", "--master-addr",
            ADDRESSES[0], "--master-port", str(port), "sh", str(tmp_path / "go.sh"), *words[1:], "--resume",
        ]  # fmt: skip
        processes.append(
            subprocess.Popen(start, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    outputs = _finished(processes, 0)
    assert "resuming from step-00000002" in outputs[0]
    # Not the same bits: under torchrun a process alone on its machine takes more threads than before.
    assert difference(tmp_path / "out", tmp_path / "whole") <= 1e-6
    assert list(hidden.iterdir()) == []


def test_each_machine_gets_all_files(machines: tuple[str, str], model_folder: Path, tmp_path: Path) -> None:
    """--save-on-each-node without a shared disk: the same files on both, and a resumed run writes both again."""
    homes = two_homes(tmp_path)
    words = [*words_for(Path("my.csv"), model_folder), "--save-on-each-node"]
    outputs = run_on_both(machines, (2, 1), words, *homes)
    assert outputs[0].count("result: out") == 1
    assert "result: out" not in outputs[1]
    files = [sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.is_file()) for home in homes]
    assert files[0] == files[1]
    assert "out/checkpoints/step-00000003/manifest.json" in files[0]
    for name in ("model.safetensors", "predictions.csv", "checkpoints/step-00000003/optimizer.safetensors"):
        assert (homes[0] / "out" / name).read_bytes() == (homes[1] / "out" / name).read_bytes()


def test_somebodys_folder_on_the_other_machine_is_left_alone(
    machines: tuple[str, str], model_folder: Path, tmp_path: Path
) -> None:
    """The name is free on the first machine and holds another run on the second: nothing is written there."""
    homes = two_homes(tmp_path)
    theirs = homes[1] / "out"
    theirs.mkdir()
    (theirs / "run.json").write_text("{}")
    words = [*words_for(Path("my.csv"), model_folder), "--save-on-each-node"]
    outputs = run_on_both(machines, (1, 1), words, *homes, codes=(2, 2))
    assert "rank 1 on machine 1 stopped: --output-dir out: the folder exists and is not empty" in outputs[0]
    assert outputs[1].count("error: --output-dir out: the folder exists and is not empty") == 1
    assert [path.name for path in theirs.iterdir()] == ["run.json"]
    assert list((homes[0] / "out").iterdir()) == []  # or the name would be taken next time


def test_a_table_missing_on_one_machine_ends_the_other(
    machines: tuple[str, str], model_folder: Path, tmp_path: Path
) -> None:
    """Each machine's terminal says what is wrong, and nobody waits for the process group's time-out."""
    homes = two_homes(tmp_path)
    (homes[1] / "my.csv").unlink()
    outputs = run_on_both(machines, (2, 1), words_for(Path("my.csv"), model_folder), *homes, codes=(2, 2, 2))
    assert outputs[2].count("error: --data my.csv: no such file") == 1
    assert outputs[0].count("error: rank 2 on machine 1 stopped: --data my.csv: no such file") == 1
    assert outputs[0].count("error: ") == 1
    assert not (homes[0] / "out").exists()


def test_predictions_of_two_machines(
    machines: tuple[str, str], model_folder: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    """They share the work. Where one lacks a file, or has another one, the other is told and does not wait."""
    rows = tiny.table_rows(60)
    tables = [tiny.write_table(tmp_path / f"{name}.csv", rows) for name in ("first", "second")]
    assert command(*words_for(tables[0], model_folder)).returncode == 0

    def predict(code: int) -> list[str]:
        words = ["classify", "predict", "--model", "out", "--out", "predictions.csv", "--overwrite", "--cpu", "--data"]
        places = rank_environments(1, 1, address=ADDRESSES[0])
        ranks = [
            start(tmp_path, *words, str(table), network=name, **place)
            for name, table, place in zip(machines, tables, places, strict=True)
        ]
        return finish(ranks, 60, [code, code])

    assert "predictions.csv: 60 rows" in predict(0)[0]
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 61
    tiny.write_table(tables[1], tiny.table_rows(30))
    shown = predict(2)
    assert "error: rank 1: expected the same data as on rank 0" in "".join(shown)
    tables[1].unlink()
    shown = predict(2)
    assert shown[1].count(f"error: --data {tables[1]}: no such file") == 1
    assert shown[0].count(f"error: rank 1 on machine 1 stopped: --data {tables[1]}: no such file") == 1
    assert "aborted" not in "".join(shown).lower()
