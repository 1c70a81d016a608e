"""What a process knows of itself, and DataParallel over packed batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import classify.training.run as run
from classify.config.schema import TrainingConfig
from classify.data.tokenize import load_tokenizer, tokenize
from classify.distributed.world import World
from classify.launch.launch import Launch
from classify.launch.plan import ParallelMode
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained
from classify.modeling.precision import FP32, Precision
from classify.training.trainer import make_micro_batches
from tests.support import tiny
from tests.support.processes import free_port
from tests.support.runs import data_and_model, make_config, make_trainer
from tests.support.worlds import start_world


def test_values_are_those_of_transformers() -> None:
    from transformers import TrainingArguments

    theirs = TrainingArguments(output_dir="unused", use_cpu=True, report_to="none")
    ours = TrainingConfig(use_cpu=True)._setup_devices(Launch.read())
    assert (torch.device(ours.device), ours.n_gpu) == (theirs.device, theirs.n_gpu)
    assert ours.parallel_mode.value == theirs.parallel_mode.value
    assert (ours.launch.world_size, ours.launch.rank) == (theirs.world_size, theirs.process_index)
    assert ours.launch.local_rank == -1


def test_one_process_answers_without_a_group() -> None:
    world = start_world(TrainingConfig(use_cpu=True))
    assert world.all_reduce_sum([1.0, 2.0]) == [1.0, 2.0]
    assert world.all_reduce_any(True)
    assert world.broadcast({"a": [1]}) == {"a": [1]}
    assert world.gather(torch.arange(3)).tolist() == [0, 1, 2]
    world.close()
    world.close()


@pytest.mark.parametrize(
    ("backend", "error", "way"),
    [
        ("nccl", ValueError("broken"), "abort"),
        ("hccl", KeyboardInterrupt(), "abort"),
        ("nccl", None, "destroy"),
        ("gloo", ValueError("broken"), "destroy"),
    ],
)
def test_an_error_of_one_rank_does_not_wait_for_the_others(
    backend: str, error: BaseException | None, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They sit in a collective on their devices, and destroying the group there waits for it."""
    address = f"tcp://127.0.0.1:{free_port()}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    destroy, taken = torch.distributed.destroy_process_group, []

    def abort() -> None:
        taken.append("abort")
        raise RuntimeError("this backend does not support abort")

    monkeypatch.setattr(torch.distributed.distributed_c10d, "_abort_process_group", abort)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: taken.append("destroy"))
    world = start_world(TrainingConfig(use_cpu=True))
    plan = replace(world.plan, parallel_mode=ParallelMode.DISTRIBUTED, strategy="ddp", backend=backend)
    try:
        world = replace(world, plan=plan)
        world.close(error)
        world.close()
        assert taken == [way]
    finally:
        destroy()


def test_a_run_that_fails_says_so_to_the_process_group(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    original = World.close
    monkeypatch.setattr(World, "close", lambda self, error=None: closed.append(error) or original(self, error))
    fault = ValueError("broken")
    monkeypatch.setattr("classify.training.trainer.Trainer.train_step", lambda *_: (_ for _ in ()).throw(fault))
    with pytest.raises(ValueError, match="broken"):
        run.train(make_config(model_folder, table, tmp_path / "out"))
    assert closed[0] is fault


def test_large_steps_are_cut_on_a_cpu(model_folder: Path) -> None:
    """Each micro-batch holds about as many tokens as fit; every row is in one; more parts, if asked for, are kept."""
    texts = [text for text, _ in tiny.table_rows(40)]
    tokens = tokenize(load_tokenizer(str(model_folder)), texts, 64)
    model = load_pretrained(resolve_model(str(model_folder)), ["a", "b"], seed=0, pad_token_id=0, dropout=0.0)
    model.use_packing(True)
    lengths = tokens.lengths()
    at_once = int(lengths.sum()) // 5 + 1
    for rank, world_size, parts, wanted in ((0, 1, 1, 5), (0, 1, 9, 9), (1, 2, 1, 3)):
        micros = make_micro_batches(model, lengths, rank, world_size, parts, 1, at_once)
        assert len(micros) == wanted
        assert max(int(lengths[pieces[0]].sum()) for pieces in micros) <= 1.2 * at_once
        rows = np.concatenate([pieces[0] for pieces in micros])
        assert len(rows) == len(set(rows.tolist()))
        assert world_size > 1 or len(rows) == 40


def test_padded_steps_are_cut_by_tokens_and_on_a_cpu_alone(model_folder: Path) -> None:
    """A GPU takes all rows at once; on a CPU texts of like length share a micro-batch of so many tokens."""
    texts = [text for text, _ in tiny.table_rows(256)]
    tokens = tokenize(load_tokenizer(str(model_folder)), texts, 64)
    model = load_pretrained(resolve_model(str(model_folder)), ["a", "b"], seed=0, pad_token_id=0, dropout=0.0)
    lengths = tokens.lengths()
    longest = int(lengths.max())
    model.set_precision(Precision("fp32", None, "", "cuda"))
    assert model.max_tokens is None
    whole = make_micro_batches(model, lengths, 0, 1, 1, 1, model.max_tokens)
    assert [[len(piece) for piece in pieces] for pieces in whole] == [[256]]
    model.set_precision(FP32)
    at_once = model.max_tokens
    assert at_once == 1024
    for parts, wanted in ((1, 5), (20, 20)):
        cut = [pieces[0] for pieces in make_micro_batches(model, lengths, 0, 1, parts, 1, at_once)]
        assert len(cut) >= wanted
        assert sorted(np.concatenate(cut).tolist()) == list(range(256))
        padded = [len(piece) * int(lengths[piece].max()) for piece in cut]
        assert max(padded) <= max(at_once, 256 // parts * longest)
        assert sum(padded) < 0.7 * 256 * longest


@pytest.mark.parametrize(
    ("settings", "norm", "cut"),
    [({}, False, True), ({"precision": "bf16"}, False, True), ({"opt_level": "O2"}, False, False), ({}, True, False)],
)
def test_a_cut_step_changes_no_weight(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], norm: bool, cut: bool
) -> None:
    """Beyond the order of sums; and what it would change is not cut."""
    from classify.modeling.precision import choose_precision

    ends: list[torch.Tensor] = []
    micros: list[int] = []
    for most in (100_000, 40):
        monkeypatch.setattr("classify.modeling.classifier.tokens_at_once", lambda width, packed, most=most: most)
        data, model = data_and_model(model_folder)
        model.use_packing(True)
        if norm:
            torch.manual_seed(0)
            layers = (torch.nn.BatchNorm1d(model.hidden_size), model.model.classifier)
            model.model.classifier = torch.nn.Sequential(*layers)
        start = torch.cat([p.detach().flatten() for p in model.model.parameters()])
        # A larger epsilon, or gradients that are rounding alone would move a weight as far as any other.
        config = TrainingConfig(use_cpu=True, max_steps=3, learning_rate=1e-3, adam_epsilon=1e-3, **settings)
        model.set_precision(choose_precision(config.precision, torch.device("cpu"), config.opt_level))
        trainer = make_trainer(model, data, config, start_world(config), 16)
        list(trainer.steps())
        micros.append(len(trainer._divide(trainer.batches.step_at(0))))
        ends.append(torch.cat([p.detach().float().flatten() for p in model.model.parameters()]))
    assert micros[0] == 1
    assert (micros[1] > 1) is cut
    share = float((ends[1] - ends[0]).norm() / (ends[0] - start).norm())
    assert share <= (0.0 if not cut else 0.1 if "precision" in settings else 1e-4), "of what the steps moved"
