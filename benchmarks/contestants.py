"""Who takes part in benchmarks/training.py: each trains in a process of its own and tells what it measured.

Run as a program, this file is one of transformers' Trainers: it trains as `--worker NAME` says and prints its figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
OURS = {
    "classify": [],
    "classify, random head": ["--head", "random"],
    "classify, fp32": ["--precision", "fp32"],
    "classify, fp32, random head": ["--precision", "fp32", "--head", "random"],
}
# As run_classification.py sets Trainer up (every text padded to 128), and as an expert would.
UNTUNED = "Trainer, padded to 128"
THEIRS: dict[str, dict[str, Any]] = {
    UNTUNED: {"pad_to": 128},
    "Trainer, dynamic padding": {},
    "Trainer, grouped": {"train_sampling_strategy": "group_by_length"},
    "Trainer, grouped, bf16": {"train_sampling_strategy": "group_by_length", "bf16": True},
    "Trainer, batch_rebalance": {"train_sampling_strategy": "batch_rebalance"},
    "Trainer, batch_rebalance, bf16": {"train_sampling_strategy": "batch_rebalance", "bf16": True},
}
THEIRS["Trainer, grouped, compiled"] = {**THEIRS["Trainer, grouped"], "torch_compile": True}


@dataclass(frozen=True)
class Race:
    """What all contestants do alike. `folder` holds train.csv and test.csv."""

    folder: Path
    model: str
    epochs: float
    max_steps: int
    batch_size: int
    max_length: int
    processes: int
    gpu: bool
    seed: int

    def words(self) -> list[str]:
        """The race for a worker's command line."""
        return [
            f"--{key.replace('_', '-')}={value}"
            for key, value in vars(self).items()
            if not isinstance(value, bool)
        ] + (["--gpu"] if self.gpu else [])  # fmt: skip


def run(name: str, race: Race) -> dict[str, float]:
    """One contestant, from its command to its folder: rows/s, accuracy, seconds, peak memory; `half`: 1 in bf16.

    Memory is that of the processes or, on a GPU, of the first GPU.
    """
    launch = [sys.executable]
    if race.processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={race.processes}"]
    out = Path(tempfile.mkdtemp(dir=race.folder)) / "out"
    ours = name in OURS
    words = _our_words(name, race, out) if ours else [__file__, "--worker", name, "--out", str(out), *race.words()]
    begin = time.perf_counter()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if race.gpu and race.processes == 1:  # of several GPUs Trainer would take all, this program too
        environment.setdefault("CUDA_VISIBLE_DEVICES", "0")
    threads = str(max(1, (os.cpu_count() or 1) // race.processes))
    if race.processes > 1:
        environment["OMP_NUM_THREADS"] = threads
    process = subprocess.Popen(
        [*launch, *words], cwd=race.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    memory = _GpuMemory(process.pid) if race.gpu else _Memory(process.pid)
    output, errors = process.communicate()
    wall = time.perf_counter() - begin
    if process.returncode:
        raise SystemExit(f"{name}: exit {process.returncode}\n{errors[-2000:]}")
    found = _our_figures(out) if ours else {**json.loads(output.splitlines()[-1]), "half": float("bf16" in name)}
    return {**found, "wall": wall, "memory": memory.peak()}


def _resident(process: psutil.Process) -> int:
    """Bytes of a process in memory; 0 of one that has just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


class _Memory(threading.Thread):
    """Watches the resident memory of a process and its children, all together."""

    seconds = 0.1

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self._pid, self._peak = pid, 0.0
        self.start()

    def run(self) -> None:
        """Look again and again until the process is gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._pid)
            while parent.status() != psutil.STATUS_ZOMBIE:
                self._peak = max(self._peak, self.taken(parent))
                time.sleep(self.seconds)

    def taken(self, parent: psutil.Process) -> float:
        """MiB at this moment."""
        return sum(map(_resident, [parent, *parent.children(recursive=True)])) / (1 << 20)

    def peak(self) -> float:
        """MiB at the highest."""
        return self._peak


class _GpuMemory(_Memory):
    """Watches the first GPU's memory, beyond what was taken before the process came to it."""

    seconds = 0.5

    def __init__(self, pid: int):
        self._before = self._used()
        super().__init__(pid)

    @staticmethod
    def _used() -> float:
        command = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def taken(self, parent: psutil.Process) -> float:
        """MiB at this moment."""
        return self._used() - self._before


def _our_words(name: str, race: Race, out: Path) -> list[str]:
    (race.folder / "stock.yaml").write_text("pooling: first\n")  # of the same architecture as the others
    words = [
        str(ROOT / "run_classify.py"), "--data", str(race.folder / "train.csv"),
        "--eval-data", str(race.folder / "test.csv"), "--test-data", str(race.folder / "test.csv"),
        "--model", race.model, "--epochs", str(race.epochs), "--batch-size", str(race.batch_size),
        "--max-length", str(race.max_length), "--learning-rate", "5e-5", "--report-to", "none",
        "--output-dir", str(out), "--contrastive-steps", "0", "--seed", str(race.seed),
        "--config", str(race.folder / "stock.yaml"),
    ]  # fmt: skip
    words += [] if race.gpu else ["--cpu"]
    words += ["--max-steps", str(race.max_steps)] if race.max_steps > 0 else []
    return [*words, *OURS[name]]


def _our_figures(out: Path) -> dict[str, float]:
    found = json.loads((out / "metrics.json").read_text())
    return {
        "rows/s": found["train"]["rows_per_second"],
        "tokens/s": found["train"]["tokens_per_second"],
        "accuracy": found["test"]["accuracy"],
        "start": found["start_seconds"],
        "half": float("bf16" in json.loads((out / "run.json").read_text())["precision"]),
    }


def worker(name: str, race: Race, out: Path) -> None:
    """Train with Trainer, evaluating and keeping the best epoch as this program does; print one line of JSON."""
    import numpy as np
    import transformers
    from datasets import load_dataset

    spent = {"aside": 0.0, "start": 0.0}

    class Timed(transformers.Trainer):
        """Trainer that knows how much of its training time went into evaluating and saving."""

        def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = super()._maybe_log_save_evaluate(*args, **kwargs)
            spent["aside"] += time.perf_counter() - begin
            return result

    class Clock(transformers.TrainerCallback):
        """Notes when the first step begins."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            spent["start"] = spent["start"] or time.time() - psutil.Process().create_time()

    settings = dict(THEIRS[name])
    pad_to = settings.pop("pad_to", None)
    tokenizer = transformers.AutoTokenizer.from_pretrained(race.model)
    data = load_dataset("csv", data_files={part: str(race.folder / f"{part}.csv") for part in ("train", "test")})
    labels = sorted({str(label) for label in data["train"]["label"]})
    way = {"padding": "max_length", "max_length": pad_to} if pad_to else {"max_length": race.max_length}
    data = data.map(
        lambda rows: {
            **tokenizer(rows["text"], truncation=True, **way),
            "labels": [labels.index(str(label)) for label in rows["label"]],
        },
        batched=True,
        remove_columns=["text", "label"],
    )
    transformers.set_seed(race.seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(race.model, num_labels=len(labels))
    arguments = transformers.TrainingArguments(
        output_dir=str(out), num_train_epochs=race.epochs, max_steps=race.max_steps,
        per_device_train_batch_size=race.batch_size // race.processes, per_device_eval_batch_size=64,
        learning_rate=5e-5, weight_decay=0.01, warmup_steps=0.1, use_cpu=not race.gpu, report_to="none", seed=race.seed,
        save_strategy="epoch", eval_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="accuracy",
        save_total_limit=2, disable_tqdm=True, logging_strategy="no", **settings,
    )  # fmt: skip
    trainer = Timed(
        model, arguments, train_dataset=data["train"], eval_dataset=data["test"], processing_class=tokenizer,
        data_collator=transformers.default_data_collator if pad_to else transformers.DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda p: {"accuracy": float((np.argmax(p.predictions, axis=1) == p.label_ids).mean())},
        callbacks=[Clock()],
    )  # fmt: skip
    done = trainer.train()
    accuracy = trainer.predict(data["test"]).metrics["test_accuracy"]
    trainer.save_model(str(out))
    steps_an_epoch = -(-len(data["train"]) // race.batch_size)
    rows = len(data["train"]) * trainer.state.global_step / steps_an_epoch
    tokens = sum(sum(mask) for mask in data["train"]["attention_mask"]) / len(data["train"]) * rows
    seconds = done.metrics["train_runtime"] - spent["aside"]
    if trainer.is_world_process_zero():
        figures = {
            "rows/s": rows / seconds,
            "tokens/s": tokens / seconds,
            "accuracy": accuracy,
            "start": spent["start"],
        }
        print(json.dumps(figures))


def main() -> None:
    """The worker's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", required=True)
    for name in ("--folder", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--epochs", type=float, required=True)
    for name in ("--max-steps", "--batch-size", "--max-length", "--processes", "--seed"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--gpu", action="store_true")
    options = vars(parser.parse_args())
    worker(options.pop("worker"), out=options.pop("out"), race=Race(**options))


if __name__ == "__main__":
    main()
