"""SLURM and Open MPI for real: a SLURM of two nodes on this machine, and mpirun. Skipped where not installed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import DISTRIBUTED, commands, make_place, type_in
from tests.support.processes import ROOT, forked_python, free_port, not_here

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

SLURM = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_1} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_2} CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""


def ranks_of(folder: Path) -> tuple[str, list[tuple[int, int, int]]]:
    """Launcher, and (machine, rank, local rank) of each process."""
    run = json.loads((folder / "run.json").read_text())
    assert run["status"] == "finished"
    return run["launcher"], [(entry["machine"], entry["rank"], entry["local_rank"]) for entry in run["topology"]]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a SLURM of two nodes that lives as long as this module."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "srun", "sbatch") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        not_here(f"needs root and SLURM (package slurm-wlm); missing: {', '.join(missing) or 'root'}")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    ports = {name: free_port() for name in ("port", "port_1", "port_2")}
    (folder / "slurm.conf").write_text(SLURM.format(host=socket.gethostname(), folder=folder, **ports))
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "MASTER_ADDR": "127.0.0.1"}
    commands = [
        ["munged", "-F", "-f", f"--key-file={key}", f"--socket={folder}/munge.sock", f"--pid-file={folder}/munge.pid",
         f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"],
        ["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"],
    ]  # fmt: skip
    daemons = []
    try:
        with (folder / "daemons.log").open("w") as log:
            for command in commands:
                daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
                time.sleep(1.0)
        deadline = time.monotonic() + 30
        while "2 idle" not in _ask(environment, "sinfo", "--noheader", "--format", "%D %t"):
            if time.monotonic() > deadline:
                not_here(f"this SLURM does not start here: {(folder / 'daemons.log').read_text()[-300:]}")
            time.sleep(0.5)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()


def _ask(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=30, check=False
    ).stdout.strip()


def submit(environment: dict[str, str], log: Path, *command: str, folder: Path = ROOT) -> str:
    """Run a batch job to its end; returns what it printed."""
    answer = subprocess.run(
        ["sbatch", "--parsable", "--output", str(log), *command],
        env=environment, capture_output=True, text=True, timeout=30, check=False, cwd=folder,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    number = answer.stdout.strip()
    deadline = time.monotonic() + 90
    while _ask(environment, "squeue", "--noheader", "--jobs", number, "--states", "all", "--format", "%T") in (
        "PENDING", "CONFIGURING", "RUNNING", "COMPLETING",
    ):  # fmt: skip
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.3)
    return log.read_text()


FOUR = [(0, 0, 0), (0, 1, 1), (1, 2, 0), (1, 3, 1)]


def environment_of(slurm: dict[str, str], place: dict[str, str]) -> dict[str, str]:
    return {**slurm, **place, "SLURM_CONF": slurm["SLURM_CONF"], "MASTER_ADDR": slurm["MASTER_ADDR"]}


def test_the_documented_batch_script(slurm: dict[str, str], model_folder: Path, tmp_path: Path) -> None:
    """As it stands in docs/distributed.md, but asked for fewer tasks than its head says."""
    command_line = "sbatch configs/cluster/slurm.sh my.csv"
    assert command_line in commands(DISTRIBUTED)
    environment = environment_of(slurm, make_place(tmp_path, model_folder, forked_python()))
    fewer = ["--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=0", "--cpus-per-task=1", "--export=ALL"]
    printed = submit(environment, tmp_path / "log", *fewer, *shlex.split(command_line)[1:], folder=tmp_path)
    (folder,) = tmp_path.glob("runs/slurm-*")
    assert ranks_of(folder) == ("srun", FOUR), printed
    assert printed.count("result: ") == 1


def test_the_documented_tasks_of_srun(slurm: dict[str, str], tmp_path: Path) -> None:
    """Each finds its place in what srun set."""
    command_line = "srun --nodes 2 --ntasks-per-node 2 python run_classify.py --data my.csv"
    assert command_line in commands(DISTRIBUTED)
    done = type_in(tmp_path, command_line, environment_of(slurm, make_place(tmp_path, None)))
    assert done.returncode == 0, done.stderr
    launches = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: one["rank"])
    assert [(one["machine"], one["rank"], one["local_rank"]) for one in launches] == FOUR
    assert {(one["launcher"], one["world_size"], one["local_world_size"]) for one in launches} == {("srun", 4, 2)}


def test_mpirun(model_folder: Path, tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        not_here("needs Open MPI (package openmpi-bin)")
    command_line = "mpirun --oversubscribe -np 2 python run_classify.py --data my.csv"
    assert command_line in commands(DISTRIBUTED)
    environment = {**make_place(tmp_path, model_folder), "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"  # a container's only user
    done = type_in(tmp_path, command_line, environment)
    assert done.returncode == 0, done.stderr
    assert ranks_of(tmp_path / "runs" / "my-1") == ("mpirun", [(0, 0, 0), (0, 1, 1)])
    assert done.stdout.count("result: ") == 1
