"""Load a result folder and predict texts; imports no training code."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from classify.config.fields import describe
from classify.data.long_texts import POLICIES, TRUNCATE
from classify.data.tokenize import Tokens, get_padding_id, load_tokenizer, tokenize
from classify.distributed.process_group import start
from classify.distributed.world import World
from classify.errors import InputError
from classify.evaluation.inference import compute_local_logits, compute_logits
from classify.launch import launcher, process_settings
from classify.launch.device_plan import plan_alone, plan_here
from classify.modeling.attributions import STEPS, WordAttribution, explain
from classify.modeling.choose_packing import choose_packing
from classify.modeling.classifier import Classifier
from classify.modeling.coverage import check_ids
from classify.modeling.loading import load_trained, quiet_libraries
from classify.modeling.precision import for_prediction, fp32_products
from classify.modeling.result_folder import fingerprint, read_settings, trained_texts
from classify.tables.derived import TextColumns
from classify.tables.encoding import replace_surrogates
from classify.tasks.base import Task
from classify.tasks.registry import trained_task


@dataclass
class Predictor:
    """A trained classifier. In a single process it is thread-safe."""

    classifier: Classifier
    tokenizer: Any
    settings: dict[str, Any]
    world: World
    folder: str
    task: Task
    _is_ready: bool = False
    _preparing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.world.close(error)

    def close(self) -> None:
        """Leave the process group; the predictor cannot be used afterwards."""
        self.world.close()

    @property
    def labels(self) -> list[str]:
        return self.task.labels

    def probabilities(self, texts: Iterable[Any]) -> npt.NDArray[np.float64]:
        """Return probabilities (len(texts), classes), or scores (len(texts), 1), with the preprocessing of training.

        `texts` are strings, or tuples of two where the model was trained on text pairs. Raises TypeError for anything
        else, ValueError if the predictor is closed.
        """
        first, second = self._as_columns(texts)
        if not first:
            return np.zeros((0, len(self.labels)))
        return self.task.probabilities(self.compute_logits(self.tokenize(first, second)))

    def _as_columns(self, texts: Iterable[Any]) -> tuple[list[str], list[str] | None]:
        """Return the texts, or the first and the second texts of pairs. Raises TypeError for anything else."""
        return _as_pairs(texts) if self.texts.pair is not None else (_as_texts(texts), None)

    @property
    def texts(self) -> TextColumns:
        """Return the columns that it was trained on."""
        return trained_texts(self.settings)

    def compute_logits(self, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the logits (len(tokens), outputs) of tokenized texts, at least one. A collective.

        Raises InputError if the tokenizer does not match the model.
        """
        self._check_ids(tokens)
        self._prepare(tokens)
        with self._settings():
            return compute_logits(self.classifier, tokens, np.arange(len(tokens)), self.world)

    def compute_sharded(self, first: Sequence[str], second: Sequence[str] | None) -> npt.NDArray[np.float32]:
        """Return the logits (len(first), outputs) of texts, or pairs; each rank tokenizes and computes a shard.

        A collective, with the same texts on every rank, at least one.
        """
        rank, count = self.world.rank, self.world.world_size
        if len(first) < count:  # a rank without a text could not verify packing
            return self.compute_logits(self.tokenize(first, second))
        with self.world.sync_errors():  # each rank has other texts
            tokens = self.tokenize(first[rank::count], None if second is None else second[rank::count])
            self._check_ids(tokens)
        self._prepare(tokens)
        with self._settings():
            local = compute_local_logits(self.classifier, tokens, self.world)
        gathered = self.world.gather(local.to(self.world.device)).cpu().numpy()
        result = np.empty_like(gathered)
        result[np.concatenate([np.arange(rank, len(first), count) for rank in range(count)])] = gathered
        return result

    def tokenize(self, first: Sequence[str], second: Sequence[str] | None = None) -> Tokens:
        """Tokenize texts, or pairs with their `second` texts, as in training."""
        max_length, policy = self.settings["max_length"], POLICIES[self.settings.get("long_text", TRUNCATE.name)]
        return tokenize(self.tokenizer, first, max_length, second=second, long_texts=policy)

    def _check_ids(self, tokens: Tokens) -> None:
        check_ids(tokens, self.tokenizer, self.classifier.model, self.folder)

    def _prepare(self, tokens: Tokens) -> None:
        """Move the model to its device and verify packing, before the first texts.

        Raises ValueError if the predictor is closed.
        """
        if self.world.closed:
            raise ValueError(f"{self.folder}: the classifier is closed; load it again.")
        with self._preparing, self._settings():  # threads share the classifier; the first call prepares it
            if not self._is_ready:
                self.classifier.to(self.world.device)
                choose_packing(self.classifier, tokens, np.arange(len(tokens)), self.world, training=False)
                self._is_ready = True

    def explain(
        self, text: str | tuple[str, str], label: str | None = None, steps: int = STEPS
    ) -> list[WordAttribution]:
        """Return by how much each word raises the logit of a label, the predicted one by default.

        Of a model that predicts scores it is the score. Integrated gradients with `steps` points. A model of text
        pairs takes a tuple of two texts; the words of both are returned in order.

        Raises InputError for unknown labels, TypeError for anything but a text, or a pair where the model takes pairs.
        """
        first, second = self._as_columns([text])
        if label is not None and label not in self.labels:
            raise InputError(f"{self.folder}: no label {label!r}; it has: {', '.join(map(repr, self.labels[:10]))}.")
        output = int(self.probabilities([text])[0].argmax()) if label is None else self.labels.index(label)
        tokens = self.tokenize(first, second)
        self._check_ids(tokens)
        self._prepare(tokens)
        with self._settings():
            return explain(
                self.classifier, self.tokenizer, [*first, *(second or [])], tokens, output, self.world.device, steps
            )

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Compute on this predictor's device, in its precision; the process's own settings are restored."""
        device = self.world.device
        process_settings.prepare_threads()
        index = device.index if self.world.accelerator.in_torch_accelerator else None
        with torch.accelerator.device_index(index), fp32_products(self.classifier.precision.products):
            yield


def _as_texts(texts: Iterable[str]) -> list[str]:
    """Convert a list, array or column of strings to a list. Raises TypeError for anything else."""
    expected = "texts must be a list of strings. Got"
    if isinstance(texts, str):
        raise TypeError(f"{expected} the string {texts!r} instead.")
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable) or getattr(texts, "ndim", 1) != 1:
        raise TypeError(f"{expected} {describe(texts)} instead.")
    listed = list(texts)
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise TypeError(f"{expected} {describe(text)} at index {index} instead.")
    try:
        "".join(listed).encode()
    except UnicodeEncodeError:
        return list(map(replace_surrogates, listed))
    return listed


def _as_pairs(pairs: Iterable[Any]) -> tuple[list[str], list[str]]:
    """Return the first and the second texts of pairs.

    Raises TypeError for anything else, ValueError where one of a pair is empty.
    """
    if isinstance(pairs, str):
        raise TypeError(f"texts must be a list of pairs of strings. Got the string {pairs!r} instead.")
    listed = pairs.tolist() if isinstance(pairs, np.ndarray) else list(pairs)
    for index, pair in enumerate(listed):
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(f"texts must be a list of pairs of strings. Got {describe(pair)} at index {index} instead.")
    first, second = _as_texts(pair[0] for pair in listed), _as_texts(pair[1] for pair in listed)
    for index, (left, right) in enumerate(zip(first, second, strict=True)):
        if bool(left.strip()) != bool(right.strip()):
            raise ValueError(f"texts must be pairs of two texts. Got an empty one at index {index}.")
    return first, second


def start_world(use_cpu: bool) -> World:
    """Set up this process's device and, behind a launcher, the process group."""
    plan = plan_here(use_cpu, local_rank=-1) if launcher.here().is_launched else plan_alone(use_cpu)
    return start(plan, torch.device(plan.device))


def _make_local_world(use_cpu: bool) -> World:
    """Return the world of this process alone; its device, process group and threads stay as they are."""
    plan = plan_alone(use_cpu, launcher.here().local_rank)
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
def load_classifier(
    folder: str, *, use_cpu: bool = False, precision: str = "auto", distributed: bool = False
) -> Predictor:
    """Load a result folder, e.g. `classify.load_classifier("runs/my-1").probabilities(["..."])`.

    This process predicts by itself, also in a job of several. With `distributed` the processes that a launcher started
    form a group and share the texts: each calls `probabilities` with the same texts, gets all results, and closes the
    predictor, or uses it as a context manager. Raises InputError if it is not a result folder.
    """
    with launcher.forward_errors(lambda: start_world(use_cpu)) if distributed else contextlib.nullcontext():
        settings = read_settings(folder)
        task = trained_task(folder)
        tokenizer = _load_tokenizer(folder)
        classifier = load_trained(Path(folder), pad_token_id=get_padding_id(tokenizer))
    world = start_world(use_cpu) if distributed else _make_local_world(use_cpu)
    try:
        world.receive_faults()
        if world.distributed:  # the fingerprint reads the whole model
            world.check_same({"model": fingerprint(folder), "precision": precision})
        classifier.install_kernels(world.device)
        classifier.set_precision(for_prediction(precision, world.device))
    except BaseException as error:
        world.close(error)
        raise
    return Predictor(classifier, tokenizer, settings, world, folder, task)
