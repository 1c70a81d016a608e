"""SageMaker's container: its folders stand for flags that are not given, its MPI variables for ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from classify.config.parser import parse_training
from classify.config.run_config import RunConfig
from classify.config.sagemaker import container_values
from classify.errors import InputError
from classify.launch.device_plan import Hardware, plan_devices
from classify.launch.launcher import read_launch
from classify.launch.sagemaker import first_host


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """/opt/ml of a container, with one table a channel."""
    variables = {"SM_MODEL_DIR": str(tmp_path / "model")}
    for channel in ("train", "validation", "test"):
        folder = tmp_path / "input" / channel
        folder.mkdir(parents=True)
        (folder / f"{channel}.csv").write_text("text,label\n")
        variables[f"SM_CHANNEL_{channel.upper()}"] = str(folder)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def given_by_container(config: RunConfig) -> dict[str, str]:
    """The settings that the container has given, and the variable of each."""
    return {name: source.name for name, source in config.sources.items() if source.kind == "container"}


def test_channels_and_the_model_folder(container: dict[str, str]) -> None:
    config = parse_training(["--epochs", "2", "--bf16", "True", "--lora", "false"], "run_classify.py")
    assert Path(config.data.data or "").name == "train.csv"
    assert Path(config.data.eval_data or "").name == "validation.csv"
    assert Path(config.data.test_data or "").name == "test.csv"
    assert config.training.output_dir == container["SM_MODEL_DIR"]
    assert config.training.precision == "bf16"
    assert not config.model.lora
    assert given_by_container(config) == {
        "data": "SM_CHANNEL_TRAIN",
        "eval_data": "SM_CHANNEL_VALIDATION",
        "test_data": "SM_CHANNEL_TEST",
        "output_dir": "SM_MODEL_DIR",
    }


def test_what_the_person_names_wins(container: dict[str, str]) -> None:
    config = parse_training(["--data", "mine.csv", "--output-dir", "out"], "run_classify.py")
    assert (config.data.data, config.data.test_data, config.training.output_dir) == ("mine.csv", None, "out")
    assert given_by_container(config) == {}


def test_a_channel_with_several_tables(container: dict[str, str]) -> None:
    (Path(container["SM_CHANNEL_TRAIN"]) / "more.tsv").write_text("")
    with pytest.raises(InputError, match=r"expected one table .* Got 2 \(more.tsv, train.csv\) instead") as caught:
        parse_training([], "run_classify.py")
    assert "SM_CHANNEL_TRAIN=" in str(caught.value)
    config = parse_training(["--data", "mine.csv"], "run_classify.py")
    assert (config.data.data, config.training.output_dir) == ("mine.csv", container["SM_MODEL_DIR"])


def test_a_channel_with_a_table_of_another_form(container: dict[str, str]) -> None:
    folder = Path(container["SM_CHANNEL_TRAIN"])
    (folder / "readme.txt").write_text("About train.csv.")
    assert parse_training([], "run_classify.py").data.data == str(folder / "train.csv")
    (folder / "readme.txt").unlink()
    (folder / "train.csv").rename(folder / "train.jsonl.gz")
    assert parse_training([], "run_classify.py").data.data == str(folder / "train.jsonl.gz")


def test_a_folder_to_resume_from_is_the_output(container: dict[str, str]) -> None:
    assert parse_training(["--resume", "somewhere"], "run_classify.py").training.output_dir is None
    assert parse_training(["--resume"], "run_classify.py").training.output_dir == container["SM_MODEL_DIR"]
    for word, wanted in (("True", True), ("false", False)):
        training = parse_training(["--resume", word], "run_classify.py").training
        assert (training.output_dir, training.resume_from_checkpoint) == (container["SM_MODEL_DIR"], wanted)


def test_outside_a_container_nothing_is_assumed() -> None:
    assert container_values({"SM_CHANNEL_TRAIN": "/nowhere"}, {}) == {}
    assert first_host({}) is None
    assert first_host({"SM_HOSTS": "not JSON"}) is None


def variables(rank: int, local: int) -> dict[str, str]:
    """What a task of `mpirun ... smddprun` sees on the second of two machines with two GPUs each."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "1304035329",
        "SMDATAPARALLEL_USE_HOMOGENEOUS": "1",
        "SM_HOSTS": '["algo-1", "algo-2"]',
        "SM_CURRENT_HOST": "algo-1",  # mpirun hands on that of the machine where it was started
    }


def test_ranks_of_the_data_parallel_library() -> None:
    launch = read_launch(variables(3, 1))
    assert (launch.launcher, launch.rank, launch.local_rank, launch.world_size) == ("smddprun", 3, 1, 4)
    assert (launch.address, launch.machine) == ("algo-1", None)
    plan = plan_devices(use_cpu=False, local_rank=-1, environment=variables(3, 1), hardware=Hardware("cuda", 2))
    assert (plan.device, plan.backend, plan.strategy) == ("cuda:1", "smddp", "ddp")
    requested = plan_devices(
        use_cpu=False, local_rank=-1, environment=variables(3, 1), hardware=Hardware("cuda", 2), backend="nccl"
    )
    assert requested.backend == "nccl"
    assert plan_devices(
        use_cpu=True, local_rank=-1, environment=variables(3, 1), hardware=Hardware("cuda", 2)
    ).backend == "gloo"  # fmt: skip


def test_the_training_toolkits_torchrun_is_torchrun() -> None:
    launched = {
        "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "algo-1", "MASTER_PORT": "7777",
        "TORCHELASTIC_RUN_ID": "none", "SM_HOSTS": '["algo-1"]',
    }  # fmt: skip
    plan = plan_devices(use_cpu=False, local_rank=-1, environment=launched, hardware=Hardware("cuda", 2))
    assert (plan.launch.launcher, plan.backend) == ("torchrun", "nccl")
