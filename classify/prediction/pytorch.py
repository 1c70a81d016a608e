"""Predict with a result folder in PyTorch."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from classify.data.tokenize import get_padding_id, load_tokenizer
from classify.distributed.group import announce_errors, start
from classify.distributed.torch_settings import default_modes, prepare_threads
from classify.distributed.world import World
from classify.errors import DeviceError, InputError, list_some
from classify.evaluation.inference import compute_local_logits
from classify.launch.devices import accelerator_of
from classify.launch.launch import Launch
from classify.launch.plan import DevicePlan, plan_devices
from classify.modeling.classifier import Classifier, choose_packing
from classify.modeling.load import load_quietly, quiet_libraries
from classify.modeling.precision import for_prediction, fp32_products
from classify.modeling.result_folder import fingerprint, read_settings
from classify.prediction.predictor import Outputs, Predictor
from classify.tasks.base import Task
from classify.tasks.registry import trained_task


class PyTorchPredictor(Predictor):
    """A result folder, computed by this program's own classifier."""

    world: World

    def __init__(
        self, folder: str, settings: dict[str, Any], task: Task, tokenizer: Any, classifier: Classifier, world: World
    ):
        super().__init__(folder, settings, task, tokenizer)
        self.classifier, self.world, self.precision = classifier, world, classifier.precision.name
        self._is_ready, self._preparing = False, threading.Lock()

    def outputs(self, first: Sequence[str], second: Sequence[str] | None = None) -> Outputs:
        computed = self._compute(first, second, features=self.task.scope is not None)
        if self.task.scope is None:
            return computed
        weight, bias = self.layer()
        logits = computed @ weight.T + bias
        return np.column_stack([logits, self.task.scope.probabilities(computed, logits)])

    def layer(self) -> tuple[Outputs, Outputs]:
        """The output layer's weight (labels, width) and bias (labels,)."""
        layer = self.classifier.output_layer
        weight, bias = (tensor.detach().float().cpu().numpy() for tensor in (layer.weight, layer.bias))
        return weight, bias

    def features(self, first: Sequence[str], second: Sequence[str] | None = None) -> Outputs:
        """Compute the output layer's inputs (len(first), width) of texts, or pairs, in blocks. A collective."""
        columns = [first] if second is None else [first, second]
        return self.compute(
            len(first),
            lambda a, b: (column[a:b] for column in columns),
            lambda *block: self._compute(*block, features=True),
        )

    def _compute(self, first: Sequence[str], second: Sequence[str] | None = None, *, features: bool) -> Outputs:
        # Each rank tokenizes and computes a shard. Of fewer texts than ranks some rank would have none, so all compute
        # all of them.
        world, rows = self.world, np.arange(len(first))
        count = world.world_size if len(first) >= world.world_size else 1
        shard = slice(world.rank % count, None, count)
        with world.sync_errors():  # each rank has other texts
            tokens = self.tokenize(first[shard], None if second is None else second[shard])
            self.classifier.check_ids(tokens, self.tokenizer, self.folder)
        if world.closed:
            raise ValueError(f"{self.folder}: the classifier is closed; load it again.")
        with self._settings():
            with self._preparing:  # threads share the classifier; the first call moves it to its device
                if not self._is_ready:
                    self.classifier.to(world.device)
                    choose_packing(self.classifier, world)
                    self._is_ready = True
            local = compute_local_logits(self.classifier, tokens, world, features=features)
            if count > 1:
                local = world.gather(local.to(world.device)).cpu()
        computed = np.empty_like(local.numpy())
        computed[np.concatenate([rows[rank::count] for rank in range(count)])] = local.numpy()
        return computed

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Compute on this predictor's device, in its precision; the process's own settings are restored."""
        device = self.world.device
        prepare_threads()
        index = device.index if self.world.accelerator.in_torch_accelerator else None
        with torch.accelerator.device_index(index), fp32_products(self.classifier.precision.products), default_modes():
            yield


def _start_world(launch: Launch | None, *, use_cpu: bool) -> World:
    """Set up this process's device and, behind a launcher, the process group.

    Without a `launch` the process is somebody else's: its device, process group and threads stay as they are.
    """
    if launch is not None:
        return start(plan_devices(launch, use_cpu=use_cpu) if launch.is_launched else _plan_alone(use_cpu))
    local_rank = -1
    with contextlib.suppress(DeviceError):  # variables that nobody asked about
        local_rank = Launch.read().local_rank
    plan = _plan_alone(use_cpu, local_rank)
    return World(plan, torch.device(plan.device))


def _plan_alone(use_cpu: bool, local_rank: int = -1) -> DevicePlan:
    """Plan one device for this process by itself: the one of its `local_rank` in a job of several, else the current."""
    plan = plan_devices(Launch(), strategy="none", use_cpu=use_cpu)
    accelerator = accelerator_of(torch.device(plan.device).type)
    if not accelerator.in_torch_accelerator:
        return plan
    number = local_rank if 0 <= local_rank < accelerator.count() else torch.accelerator.current_device_index()
    return dataclasses.replace(plan, device=accelerator.device(number))


def _load_tokenizer(folder: str) -> Any:
    try:
        return load_tokenizer(folder)
    except Exception as error:  # libraries raise various ones for damaged files
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise InputError(
            f"--model {folder}: tokenizer.json or tokenizer_config.json cannot be read ({reason}); copy the folder "
            "again."
        ) from None


@load_quietly()
def load_trained(path: Path, *, pad_token_id: int) -> Classifier:
    """Load a classifier that this program saved. Raises InputError if weights are missing."""
    model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
        path, output_loading_info=True, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
    )
    missing = sorted(loading["missing_keys"])
    if missing:
        raise InputError(
            f"--model {path}: {len(missing)} weights are missing in model.safetensors: {list_some(missing)}; "
            "copy the folder again."
        )
    for parameter in model.parameters():  # they are mapped: overwriting the file would end the process
        parameter.data = parameter.data.clone()
    return Classifier(model, pad_token_id).eval()


@quiet_libraries()
@default_modes()
def load(folder: str, *, use_cpu: bool, precision: str, launch: Launch | None) -> PyTorchPredictor:
    """Load a result folder; see `load_classifier`."""
    with announce_errors(launch or Launch(), lambda: _start_world(launch, use_cpu=use_cpu)):
        settings = read_settings(folder)
        task = trained_task(folder)
        tokenizer = _load_tokenizer(folder)
        classifier = load_trained(Path(folder), pad_token_id=get_padding_id(tokenizer))
    world = _start_world(launch, use_cpu=use_cpu)
    try:
        world.agree(None)
        if world.distributed:  # the fingerprint reads the whole model
            world.check_same({"model": fingerprint(folder), "precision": precision})
        classifier.install_kernels(world.device)
        classifier.set_precision(for_prediction(precision, world.device))
    except BaseException as error:
        world.close(error)
        raise
    return PyTorchPredictor(folder, settings, task, tokenizer, classifier, world)
