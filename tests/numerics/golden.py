"""Losses of a fixed tiny training, recorded. `python -m tests.numerics.golden` records them anew."""

from __future__ import annotations

import json
import platform
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from classify.config.schema import TrainingConfig
from classify.data.tokenize import TokenizedSplit, load_tokenizer, tokenize
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained
from tests.support import tiny
from tests.support.runs import make_trainer
from tests.support.worlds import start_world

RECORD = Path(__file__).with_suffix(".json")
STEPS = 12


def circumstances() -> dict[str, Any]:
    """What decides the last bits: matrix products are done otherwise on another processor."""
    return {"torch": torch.__version__, "cpu": f"{processor()}, {torch.backends.cpu.get_cpu_capability()}"}


def processor() -> str:
    """The processor's model, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return ", ".join(fields.get(name, "") for name in ("vendor_id", "cpu family", "model", "model name"))


def losses(folder: Path) -> list[float]:
    """Train the tiny model from weights that depend on their names alone; returns each step's loss."""
    tiny.make_model(folder)
    rows = tiny.table_rows(60)
    labels = sorted({label for _, label in rows})
    tokens = tokenize(load_tokenizer(str(folder)), [text for text, _ in rows], 64)
    model = load_pretrained(resolve_model(str(folder)), labels, seed=0, pad_token_id=0, dropout=0.0)
    model.install_kernels(torch.device("cpu"))
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            draw = np.random.RandomState(zlib.crc32(name.encode()))
            values = draw.uniform(-0.1, 0.1, size=tuple(parameter.shape)).astype(np.float32)
            parameter.copy_(torch.from_numpy(values + (1.0 if name.endswith("LayerNorm.weight") else 0.0)))
    model.use_packing(True)
    config = TrainingConfig(use_cpu=True, learning_rate=1e-3, max_steps=STEPS, seed=5, logging_steps=1)
    data = TokenizedSplit(tokens, np.arange(60), np.array([labels.index(label) for _, label in rows]))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trainer = make_trainer(model, data, config, start_world(config), 16)
        events = trainer.steps()
        return [event.loss for event in events if event.loss is not None]
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        record = {**circumstances(), "losses": losses(Path(temporary))}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
