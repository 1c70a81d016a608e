"""What the fork server imports and reads once for all processes of the tests. Nothing is computed here.

A process forked after an OpenMP region has run in its parent hangs in its own first one.
"""

from __future__ import annotations

import importlib
import threading

import torch
from tqdm import tqdm
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from classify.data.languages import detect_languages

MODULES = (
    "accelerate.state",
    "classify.cli",
    "classify.prediction.pytorch",
    "classify.training.run",
    "datasets",
    "safetensors.torch",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "sklearn.metrics",
    "sklearn.pipeline",
    "torch.distributed.fsdp",
    "torch.distributed.nn.functional",
    "torch.utils.tensorboard",
    "transformers.models.auto.modeling_auto",
    "transformers.models.bert.modeling_bert",
    "tests.support.processes",
)

for module in MODULES:
    importlib.import_module(module)

# What each process that reads a table, or loads a model, would make for half a second.
detect_languages(["English"])
get_checkpoint_conversion_mapping("bert")

assert torch.get_num_threads() == 1, "OMP_NUM_THREADS=1 must be set before the fork server starts"

# Its lock for processes would be a semaphore that nobody removes when a process is killed.
tqdm.set_lock(threading.RLock())
