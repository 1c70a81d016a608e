"""Law 1: 1, 2 or 3 processes, 1, 2 or 4 micro-batches, packed or padded - the same weights after 20 AdamW steps.

So too on two machines, and where each of two processes holds a part of the weights (FSDP2).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from classify.config.schema import TrainingConfig
from classify.distributed.sharding import gather_full
from classify.distributed.world import World
from classify.evaluation.inference import compute_logits
from classify.modeling.classifier import Classifier
from classify.modeling.load import freeze_unused
from tests.support import tiny
from tests.support.processes import run_distributed_test
from tests.support.runs import LEARNING_RATE, ROWS, SEED, STEPS, data_and_model, make_trainer
from tests.support.worlds import start_world

pytestmark = pytest.mark.distributed

BATCH = 8

# Each number of micro-batches, and each form of a batch: on one process all pairs of them, elsewhere each once.
ALL = [(micro, way) for micro in (1, 2, 4) for way in ("packed", "padded")]
SOME = [(1, "packed"), (2, "padded"), (4, "packed")]
CASES = [f"1-{micro}-{way}" for micro, way in ALL]
CASES += [f"{place}-{micro}-{way}" for place in ("2", "3", "2-apart", "2-sharded") for micro, way in SOME]


def count_exchanges(model_folder: Path, world: World, micro: int) -> tuple[int, list[str]]:
    """Gradient exchanges of three DistributedDataParallel steps, of a model with a layer that its forward never uses.

    Also the names of what was found unused.
    """
    data, model = data_and_model(model_folder)
    model.use_packing(True)
    model.model.spare = torch.nn.Linear(3, 3)
    unused = freeze_unused(model, data.tokens, 0)
    config = TrainingConfig(use_cpu=True, max_steps=3, gradient_accumulation_steps=micro, seed=SEED)
    exchanges: list[int] = []

    def counted(state, bucket):  # type: ignore[no-untyped-def]  # torch wants its own annotations, or none
        exchanges.append(bucket.index())
        return allreduce_hook(state, bucket)

    trainer = make_trainer(model, data, config, world, BATCH)
    assert isinstance(trainer.strategy.module, DistributedDataParallel)
    trainer.strategy.module.register_comm_hook(None, counted)
    list(trainer.steps())
    return len(exchanges), unused


def _digest(model: Classifier) -> str:
    """Of the weights' bits."""
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.model.parameters())).hexdigest()


def train_every_case(model_folder: Path, results: Path, strategy: Any = "auto") -> None:
    """Train 20 steps in every case of this start, in one process group, and store weights, logits and losses."""
    first = TrainingConfig(use_cpu=True, strategy=strategy)
    world = start_world(first)
    kind = "-sharded" if strategy == "fsdp" else "-apart" if world.plan.launch.spans_machines else ""
    name = f"{world.world_size}{kind}"
    mode, launch = world.plan.parallel_mode.value, world.plan.launch
    place = (mode, launch.world_size, launch.rank, max(0, launch.local_rank), world.plan.n_gpu)
    (results / f"place-{name}-{world.rank}.txt").write_text(repr(place))
    for micro, way in ALL if world.world_size == 1 else SOME:
        data, model = data_and_model(model_folder)
        model.use_packing(way == "packed")
        config = TrainingConfig(
            use_cpu=True,
            learning_rate=LEARNING_RATE,
            max_steps=STEPS,
            gradient_accumulation_steps=micro,
            seed=SEED,
            logging_steps=1,
        )
        trainer = make_trainer(model, data, config, world, BATCH)
        seeds: list[int] = []
        hook = model.register_forward_pre_hook(lambda *_, to=seeds: to.append(torch.initial_seed()))
        events = list(trainer.steps())
        hook.remove()
        everywhere = world.gather(torch.tensor(seeds)).tolist()
        assert len(everywhere) >= STEPS
        assert len(set(everywhere)) == len(everywhere), "two micro-batches would drop the same entries"
        logits = compute_logits(model, data.tokens, data.rows, world)
        tensors = gather_full(dict(model.model.named_parameters()), keep=world.is_main)
        digests = world.gather_texts(_digest(model) if strategy != "fsdp" else "")
        assert len(set(digests)) == 1, "the ranks hold other weights"
        if world.is_main:
            weights = {f"w/{name}": tensor.numpy() for name, tensor in tensors.items()}
            np.savez(
                results / f"{name}-{micro}-{way}.npz",
                logits=logits,
                losses=np.array([event.loss for event in events if event.loss is not None]),
                **weights,
            )
    if world.world_size == 2 and strategy == "auto":
        actual = {micro: count_exchanges(model_folder, world, micro) for micro in (1, 4)}
        (results / f"exchanges-{name}-{world.rank}.json").write_text(json.dumps(actual))
    world.close()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Weights, logits and losses of every case, and of the plain run."""
    folder = tmp_path_factory.mktemp("exact")
    model = tiny.make_model(folder / "model", spread=0.1)
    for world in (1, 2, 3):
        run_distributed_test(train_every_case, world, model, folder)
    run_distributed_test(train_every_case, 2, model, folder, machines=2)
    run_distributed_test(train_every_case, 2, model, folder, "fsdp")
    actual = {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}
    actual["plain"] = plain_run(model)
    actual["exchanges"] = {path.stem: json.loads(path.read_text()) for path in folder.glob("exchanges-*.json")}
    actual["places"] = {path.stem: path.read_text() for path in folder.glob("place-*.txt")}
    return actual


def plain_run(folder: Path) -> dict[str, Any]:
    """The textbook loop on the stock model: padded batches, mean loss, AdamW; nothing of the trainer is used."""
    from transformers import BertForSequenceClassification

    from classify.data.sampler import BatchSampler

    torch.set_num_threads(1)
    data, loaded = data_and_model(folder)
    loaded.use_packing(False)
    model = loaded.model
    assert isinstance(model, BertForSequenceClassification)
    start = {f"start/{name}": p.detach().numpy().copy() for name, p in model.named_parameters()}
    decayed = [p for n, p in model.named_parameters() if not n.endswith("bias") and "LayerNorm" not in n]
    others = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.999),
        eps=1e-8,
    )
    plan = BatchSampler(ROWS, BATCH, SEED)
    warmup = 2  # a tenth of the 20 steps
    losses = []
    position = 0
    for number in range(STEPS):
        step = plan.step_at(position)
        position = step.end
        rate = (number + 1) / warmup if number < warmup else (20 - number) / (20 - warmup)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate
        texts = [data.tokens.collate(np.array([row])).ids.tolist() for row in step.indices]
        longest = max(map(len, texts))
        ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
        model.train()
        loss = model(input_ids=ids, attention_mask=mask, labels=torch.from_numpy(data.targets[step.indices])).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        logits = [
            model(input_ids=torch.from_numpy(data.tokens.collate(np.array([row])).ids)[None]).logits[0].numpy()
            for row in range(ROWS)
        ]
    weights = {f"w/{name}": p.detach().numpy() for name, p in model.named_parameters()} | start
    return {"logits": np.stack(logits), "losses": np.array(losses), **weights}


def tensors(result: dict[str, Any]) -> dict[str, Any]:
    """Parameters without key biases: attention does not depend on them, so Adam steps along their rounding."""
    return {k: v.astype(np.float64) for k, v in result.items() if k.startswith("w/") and not k.endswith("key.bias")}


def relative(a: Any, b: Any) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("case", CASES)
def test_weights_losses_and_logits_are_those_of_the_plain_run(results: dict[str, dict[str, Any]], case: str) -> None:
    """A logged loss is the mean over all rows of all ranks, also where these hold unequal numbers, or a single row."""
    got, plain = tensors(results[case]), tensors(results["plain"])
    assert got.keys() == plain.keys()
    whole = relative(
        np.concatenate([v.ravel() for v in got.values()]), np.concatenate([v.ravel() for v in plain.values()])
    )
    assert whole <= 1e-5
    worst = max(plain, key=lambda name: relative(got[name], plain[name]))
    assert relative(got[worst], plain[worst]) <= 1e-5, worst
    assert np.abs(results[case]["logits"] - results["plain"]["logits"]).max() <= 1e-4
    np.testing.assert_allclose(results[case]["losses"], results["plain"]["losses"], rtol=2e-5, atol=2e-6)


def test_the_runs_went_somewhere(results: dict[str, dict[str, Any]]) -> None:
    """The agreement above says something only if 20 steps moved the weights by far more than the tolerance."""
    end = tensors(results["plain"])
    start = {name: results["plain"]["start/" + name[2:]].astype(np.float64) for name in end}
    for name in end:
        if not name.endswith("token_type_embeddings.weight"):
            assert relative(start[name], end[name]) > 1e-3, name


def test_gradients_are_exchanged_once_a_step_and_not_for_unused_parameters(results: dict[str, dict[str, Any]]) -> None:
    """Four micro-batches cost as many exchanges as one; DistributedDataParallel would fail on the unused layer."""
    assert len(results["exchanges"]) == 4, "two ranks on one machine, and two apart"
    for actual in results["exchanges"].values():
        (one, unused), (four, _) = actual["1"], actual["4"]
        assert one == four
        assert one >= 3, "three steps"
        assert unused == ["spare.weight", "spare.bias"]


def test_each_process_knows_its_place(results: dict[str, dict[str, Any]]) -> None:
    """Parallel mode, world size, rank, local rank and number of accelerators."""
    wanted = {
        f"place-{world}-{rank}": repr(("distributed" if world > 1 else "not_parallel", world, rank, rank, 0))
        for world in (1, 2, 3)
        for rank in range(world)
    }
    for rank in range(2):
        wanted[f"place-2-apart-{rank}"] = repr(("distributed", 2, rank, 0, 0))
        wanted[f"place-2-sharded-{rank}"] = wanted[f"place-2-{rank}"]
    assert results["places"] == wanted
