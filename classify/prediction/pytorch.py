"""Predict with a result folder in PyTorch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from classify.data.tokenize import Tokens, get_padding_id, load_tokenizer
from classify.distributed.group import announce_errors, start
from classify.distributed.world import World
from classify.errors import DeviceError, InputError
from classify.evaluation.inference import compute_local_logits, compute_logits
from classify.evaluation.scope import Scope
from classify.launch import process
from classify.launch.launch import Launch
from classify.launch.plan import plan_alone, plan_devices
from classify.modeling.choose_packing import choose_packing
from classify.modeling.classifier import Classifier
from classify.modeling.coverage import check_ids
from classify.modeling.loading import load_trained, quiet_libraries
from classify.modeling.precision import for_prediction, fp32_products
from classify.modeling.result_folder import fingerprint, read_settings
from classify.prediction.predictor import Predictor
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
        self.scope = Scope.read(Path(folder), settings)
        self._is_ready, self._preparing = False, threading.Lock()

    def compute_outputs(self, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return logits, and the probability of being in scope; see `Predictor.compute_outputs`."""
        self._check_ids(tokens)
        self._prepare()
        features = self.scope is not None
        with self._settings():
            computed = compute_logits(self.classifier, tokens, np.arange(len(tokens)), self.world, features=features)
        return self._as_outputs(computed)

    def _as_outputs(self, computed: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return logits as they are; of features the logits, and the probability of being in scope."""
        if self.scope is None:
            return computed
        layer = self.classifier.output_layer
        weight, bias = (tensor.detach().float().cpu().numpy() for tensor in (layer.weight, layer.bias))
        logits = computed @ weight.T + bias
        return np.column_stack([logits, self.scope.probabilities(computed, logits)])

    def compute_sharded(self, first: Sequence[str], second: Sequence[str] | None) -> npt.NDArray[np.float32]:
        """The outputs (len(first), ...) of texts, or pairs; each rank tokenizes and computes a shard.

        A collective, with the same texts on every rank, at least one.
        """
        rank, count = self.world.rank, self.world.world_size
        if len(first) < count:  # a rank without a text has nothing to compute
            return self.compute_outputs(self.tokenize(first, second))
        with self.world.sync_errors():  # each rank has other texts
            tokens = self.tokenize(first[rank::count], None if second is None else second[rank::count])
            self._check_ids(tokens)
        self._prepare()
        with self._settings():
            features = self.scope is not None
            local = compute_local_logits(self.classifier, tokens, self.world, features=features)
        gathered = self.world.gather(local.to(self.world.device)).cpu().numpy()
        result = np.empty_like(gathered)
        result[np.concatenate([np.arange(rank, len(first), count) for rank in range(count)])] = gathered
        return self._as_outputs(result)

    def _check_ids(self, tokens: Tokens) -> None:
        check_ids(tokens, self.tokenizer, self.classifier.model, self.folder)

    def _prepare(self) -> None:
        """Move the model to its device, and pack texts or pad them, before the first ones.

        Raises ValueError if the predictor is closed.
        """
        if self.world.closed:
            raise ValueError(f"{self.folder}: the classifier is closed; load it again.")
        with self._preparing, self._settings():  # threads share the classifier; the first call prepares it
            if not self._is_ready:
                self.classifier.to(self.world.device)
                choose_packing(self.classifier, self.world)
                self._is_ready = True

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Compute on this predictor's device, in its precision; the process's own settings are restored."""
        device = self.world.device
        process.prepare_threads()
        index = device.index if self.world.accelerator.in_torch_accelerator else None
        with (
            torch.accelerator.device_index(index),
            fp32_products(self.classifier.precision.products),
            process.default_modes(),
        ):
            yield


def start_world(launch: Launch, *, use_cpu: bool) -> World:
    """Set up this process's device and, behind a launcher, the process group."""
    return start(plan_devices(launch, use_cpu=use_cpu) if launch.is_launched else plan_alone(use_cpu))


def _make_local_world(use_cpu: bool) -> World:
    """The world of this process alone; its device, process group and threads stay as they are."""
    local_rank = -1
    with contextlib.suppress(DeviceError):  # variables that nobody asked about
        local_rank = Launch.read().local_rank
    plan = plan_alone(use_cpu, local_rank)
    return World(plan, torch.device(plan.device))


def _load_tokenizer(folder: str) -> Any:
    """Load the tokenizer of a result folder. Raises InputError for damaged files; libraries raise various errors."""
    try:
        return load_tokenizer(folder)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise InputError(
            f"--model {folder}: tokenizer.json or tokenizer_config.json cannot be read ({reason}); copy the folder "
            "again."
        ) from None


@quiet_libraries()
@process.default_modes()
def load(folder: str, *, use_cpu: bool, precision: str, launch: Launch | None) -> PyTorchPredictor:
    """Load a result folder; see `load_classifier`."""

    def start_here() -> World:
        return _make_local_world(use_cpu) if launch is None else start_world(launch, use_cpu=use_cpu)

    with announce_errors(launch or Launch(), start_here):
        settings = read_settings(folder)
        task = trained_task(folder)
        tokenizer = _load_tokenizer(folder)
        classifier = load_trained(Path(folder), pad_token_id=get_padding_id(tokenizer))
    world = start_here()
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
