"""What each kernel is worth: step times without it over those with all, in turns in one process.

    python benchmarks/each_kernel.py --data sst2.csv --precision fp32

The others are on. A kernel that is worth less than 5 % on every table is not worth its code.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch

from classify.config.schema import DEFAULT_MODEL, DataConfig, TrainingConfig
from classify.data.reading import read_tables
from classify.data.sampler import BatchSampler
from classify.data.split_table import split_table
from classify.data.tokenize import TokenizedSplit, get_padding_id, load_tokenizer, tokenize
from classify.distributed.group import start
from classify.launch.launch import Launch
from classify.modeling.attention import KERNELS
from classify.modeling.classifier import choose_packing
from classify.modeling.cpu_layers import capabilities, onednn_is_faster
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained
from classify.modeling.precision import choose_precision
from classify.tasks.registry import recognize
from classify.training.strategies.registry import make_strategy
from classify.training.trainer import Trainer

WARM_UP = 3  # turns that do not count


def main() -> None:
    """Print a line a kernel."""
    parser = argparse.ArgumentParser(description="Step times without each kernel over those with all.")
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16", "fp16"])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--steps-a-turn", type=int, default=4)
    options = parser.parse_args()
    device = torch.device(TrainingConfig(use_cpu=options.cpu)._setup_devices(Launch.read()).device)
    names = [KERNELS[device.type][0]] if device.type in KERNELS else []
    if device.type == "cpu":
        names += ["dropout", "linear"] if onednn_is_faster(capabilities()) else ["dropout"]
    for name in names:
        ratios = []
        runs = [steps(options, off) for off in ([name], [])]
        for turn in range(WARM_UP + options.turns):
            seconds = [0.0, 0.0]
            for place in (0, 1) if turn % 2 else (1, 0):
                begin = time.perf_counter()
                for _ in itertools.islice(runs[place], options.steps_a_turn):
                    pass
                if device.type != "cpu":
                    torch.accelerator.synchronize()
                seconds[place] = time.perf_counter() - begin
            if turn >= WARM_UP:
                ratios.append(seconds[0] / seconds[1])
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{name:18} without it {middle:.2f} x the time (quartiles {low:.2f}, {high:.2f})", flush=True)


def steps(options: argparse.Namespace, off: list[str]) -> Iterator[object]:
    """Training steps of the default recipe's size, without end."""
    config = TrainingConfig(use_cpu=options.cpu, num_train_epochs=1e6, learning_rate=5e-5, logging_steps=1_000_000)
    tables = read_tables(DataConfig(data=options.data))
    task = recognize(tables)
    splits = split_table(tables, task.targets, config.seed)
    folder = resolve_model(options.model)
    tokenizer = load_tokenizer(str(folder.path))
    texts = splits.train.texts(splits.columns.text)
    tokens = tokenize(tokenizer, texts, options.max_length)
    model = load_pretrained(folder, task.labels, seed=config.seed, pad_token_id=get_padding_id(tokenizer))
    world = start(config._setup_devices(Launch.read()))
    model.install_kernels(world.device, off)
    strategy = make_strategy(model, config, world)
    model.to(world.device)
    model.set_precision(choose_precision(options.precision, world.device, None))
    rows = np.arange(len(texts))
    choose_packing(model, world)
    batches = BatchSampler(len(texts), options.batch_size, config.seed)
    loss = task.head.loss(config, splits.train.targets)
    trainer = Trainer(strategy, TokenizedSplit(tokens, rows, splits.train.targets), batches, loss)
    trainer.strategy.setup()
    return trainer.steps()


if __name__ == "__main__":
    main()
