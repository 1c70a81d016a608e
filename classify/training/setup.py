"""Everything that is decided before a run's first step."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from classify.config.run_config import RunConfig, fields_that_affect
from classify.data.splits import Split, Splits, Targets
from classify.data.tokenize import (
    POLICIES,
    TokenizedSplit,
    Tokens,
    default_max_length,
    get_padding_id,
    max_length_reason,
    tokenize,
    tokenize_columns,
)
from classify.distributed.torch_settings import set_products
from classify.distributed.world import World
from classify.errors import EXCERPT, InputError
from classify.evaluation.inference import compute_logits
from classify.evaluation.metrics import Array, Sampling, Scores
from classify.findings import Finding, decided, decisions, note, notes
from classify.launch import describe
from classify.modeling.classifier import Classifier, choose_packing
from classify.modeling.coverage import check_coverage
from classify.modeling.load import checkpoint_activations, freeze, freeze_unused, load_pretrained, load_tokenizer
from classify.modeling.precision import agree_on_precision, choose_precision
from classify.tables.table import Table
from classify.tasks.base import Task
from classify.training import resume
from classify.training.checkpoint import Checkpoint
from classify.training.inputs import RunInputs
from classify.training.output_dir import Output, acquire_output_dir
from classify.training.strategies.base import Strategy
from classify.training.strategies.cuda_graphs import GraphStrategy, explain_no_graphs
from classify.training.strategies.registry import find_strategy, make_strategy
from classify.training.terminal import Timeline, log, log_decision, log_detail

# Rows whose outputs are looked at before training.
_CHECKED = 8
# Rows of a label that may be a typing error.
_RARE = 2
_RESTARTED = (
    "the launcher restarted this job, and training starts from the beginning; add --output-dir and --resume to "
    "continue from the newest checkpoint"
)


@dataclass(frozen=True)
class TokenizedData:
    """The tables as token ids, by the content of their texts, and the names of the labels as training texts, if any.

    `text_columns` hold the texts. `decision` describes the max length, `warning` how few words the model knows.
    """

    tokenizer: Any
    text_columns: tuple[str, ...]
    by_content: dict[str, Tokens]
    max_length: int
    decision: Finding
    label_texts: Tokens | None = None
    warning: str | None = None

    def of(self, split: Split) -> TokenizedSplit:
        tokens = self.by_content[_digest(split.table, self.text_columns)]
        targets = split.targets if split.soft_targets is None else split.soft_targets
        return TokenizedSplit(tokens, split.rows, targets, split.weights)

    def join(self, splits: Sequence[Split], encoder: Targets) -> TokenizedSplit:
        """The rows of several splits, in order; where the targets of one are soft, all are."""
        joined, *others = map(self.of, splits)
        for other in others:
            joined = replace(joined, targets=encoder.in_form_of(joined.targets, other.targets))
            joined = joined.join(replace(other, targets=encoder.in_form_of(other.targets, joined.targets)))
        return joined

    def step_tokens(self, inputs: RunInputs) -> float:
        """The mean number of tokens of a step, on one device."""
        lengths = [split.tokens.lengths(split.rows) for split in map(self.of, inputs.splits.learned)]
        return float(np.concatenate(lengths).mean()) * inputs.config.training.rows_per_step(1)


def _digest(table: Table, columns: Sequence[str]) -> str:
    return " ".join(map(table.digest, columns))


@dataclass(frozen=True)
class TrainingContext:
    """A run on this process before its first step; frozen.

    `checkpoint` is the one to continue from.
    """

    inputs: RunInputs
    world: World
    output: Output
    data: TokenizedData
    strategy: Strategy
    findings: tuple[Finding, ...]
    checkpoint: Checkpoint | None
    timeline: Timeline

    @property
    def config(self) -> RunConfig:
        return self.inputs.config

    @property
    def splits(self) -> Splits:
        return self.inputs.splits

    @property
    def classifier(self) -> Classifier:
        return self.strategy.classifier

    @property
    def refits_head(self) -> bool:
        """Whether the head is fitted again after the epochs; half weights would round what it computes."""
        return self.inputs.refits_head and not self.classifier.precision.rounds_weights

    @property
    def refits_on_validation(self) -> bool:
        """Whether it then learns from the validation rows, too, once they are scored; a student's are no teacher's."""
        return self.refits_head and self.splits.learnable_validation and self.splits.to_teach is None

    @property
    def selection_metric(self) -> str:
        return self.config.training.metric_for_best_model or self.inputs.task.scores.selection[0]

    def score(self, task: Task, logits: Array, split: Split, predicted: Array | None = None) -> Scores:
        """The scores of a split's logits (rows, outputs), the caller's metrics among them; see `tasks.base`."""
        texts = split.table.text_hashes(self.splits.columns.text)[split.rows]
        sampling = Sampling(texts, self.splits.num_folds if split is self.splits.train else 0)
        scores = task.scores.score(logits, split.targets, self.config.training.seed, predicted, sampling)
        return self.inputs.parts.add_metrics(scores, task.answers.probabilities(logits), split.targets)

    def rows_to_learn(self, fold: int | None = None) -> TokenizedSplit:
        """The rows to train on: the training split, without those of a fold, and the rows of the sources."""
        train = self.splits.train if fold is None else self.splits.train.take(np.flatnonzero(self.splits.folds != fold))
        sources = (source.of_fold(fold) for source in self.splits.sources)
        return self.data.join([train, *sources], self.inputs.task.targets)

    def with_label_texts(self, data: TokenizedSplit) -> TokenizedSplit:
        """The rows that the model learns from before any epoch: `data`, and the names of the labels.

        A label of one or two rows beside one of ten times as many may be a typing error: its name is left out.
        """
        texts = self.data.label_texts
        if texts is None:
            return data
        task_targets = self.inputs.task.targets
        counts = task_targets.label_counts(self.splits.train.targets)
        labels = np.flatnonzero((counts > _RARE) | (10 * counts > counts.max()))
        return data.join(TokenizedSplit(texts, labels, task_targets.in_form_of(labels, data.targets)))

    @property
    def identity(self) -> dict[str, Any]:
        """The values that must be equal to continue from a checkpoint."""
        config, vocabulary = self.config, self.classifier.vocabulary
        model, training = config.model, config.training
        resolved = {
            "max_length": self.data.max_length,
            "batch_size": training.rows_per_step(self.world.num_devices),
            "precision": self.classifier.precision.name,
            "pooling": self.inputs.model.pooling,
            "lora": [model.lora_rank, model.lora_alpha] if model.lora else None,
            "compact_vocabulary": vocabulary is not None and vocabulary.compacted,
        }
        texts = {"texts": self.splits.fingerprint, "label_texts": list(self.inputs.label_texts) or None}
        parts = {"parts": self.inputs.parts.names()}
        flat = config.flat()
        return {**texts, **parts, **{name: resolved.get(name, flat[name]) for name in fields_that_affect("identity")}}

    @property
    def settings(self) -> dict[str, Any]:
        config = self.config
        weights = self.inputs.task.head.file_weights(config.training)
        return config.flat() if weights is None else {**config.flat(), "class_weights": weights.tolist()}

    def compute_logits(self, split: Split) -> npt.NDArray[np.float32]:
        """Compute the logits of a split in file order, as the model is now. A collective."""
        return compute_logits(self.classifier, self.data.of(split).tokens, split.rows, self.world)

    def compute_features(self, split: Split) -> npt.NDArray[np.float32]:
        """Compute the inputs of the output layer (rows, width) in the same way."""
        return compute_logits(self.classifier, self.data.of(split).tokens, split.rows, self.world, features=True)


def tokenize_tables(inputs: RunInputs) -> TokenizedData:
    """Tokenize every table once and decide the max length.

    Called before the process group is formed, so no rank waits in it.

    Raises InputError where the default model knows few of the words.
    """
    splits, requested = inputs.splits, inputs.config.data.max_length
    tokenizer = load_tokenizer(inputs.model)
    train, cap = splits.train, inputs.model.max_length
    columns = splits.columns.texts.inputs
    key = functools.partial(_digest, columns=columns)
    full = {key(table): tokenize_columns(tokenizer, table, columns, cap) for table in splits.tables}
    named = inputs.config.names_model
    warning = check_coverage(
        train, splits.columns.text, full[key(train.table)], tokenizer, inputs.config.model.name, named=named
    )
    lengths = full[key(train.table)].full_lengths(train.rows)
    max_length, policy = requested or default_max_length(lengths, cap), POLICIES[inputs.config.data.long_texts]
    tokens = {digest: table_tokens.cut(max_length, policy) for digest, table_tokens in full.items()}
    why = max_length_reason(tokens[key(train.table)], train.rows, cap, requested=requested is not None)
    decision = decided(
        "max length",
        f"{max_length} tokens",
        why,
        "--max-length, --long-texts",
        requested is None and max_length < lengths.max(),
    )
    names = tokenize(tokenizer, inputs.label_texts, max_length) if inputs.label_texts else None
    return TokenizedData(tokenizer, tuple(columns), tokens, max_length, decision, names, warning)


@contextlib.contextmanager
def prepare(inputs: RunInputs, data: TokenizedData, world: World, timeline: Timeline) -> Iterator[TrainingContext]:
    """Load and place the model, acquire the output folder, decide precision and packing; print every decision.

    The folder is released when the block ends. A collective.

    Raises InputError (arguments, memory, folder) and CheckpointError (there are checkpoints, but none is valid).
    """
    training = inputs.config.training
    if training.sync_batch_norm and world.device.type == "cpu":
        raise InputError("--sync-batch-norm: torch's SyncBatchNorm works on GPUs alone; drop it.")
    _check_ranks(inputs, world)
    classifier = load_for_training(inputs, data, world.device)
    timeline.end("model")
    with acquire_output_dir(inputs.output_dir, world, each_node=training.save_on_each_node) as output:
        checkpoint = resume.find(output) if output.plan.resume else None
        before = checkpoint.state["identity"].get("precision") if checkpoint is not None else None
        strategy, placed = place_model(classifier, inputs, data, world, before)
        timeline.end("precision and packing")
        found = [data.decision, *placed, *world.plan.findings, *([note(data.warning)] if data.warning else [])]
        if world.plan.launch.restarts and not output.plan.resume:
            found.append(note(_RESTARTED))
        if not output.is_writer:
            classifier.drop_unused_embeddings()
        findings = (*inputs.findings, *found)
        context = TrainingContext(inputs, world, output, data, strategy, findings, checkpoint, timeline)
        for finding in decisions(found):
            log_decision(finding)
        (log if world.world_size > 1 else log_detail)(f"ranks: {describe.line(world.topology)}")
        for finding in notes(findings):
            log(finding.line())
        yield context


def place_model(
    classifier: Classifier, inputs: RunInputs, data: TokenizedData, world: World, before: str | None = None
) -> tuple[Strategy, list[Finding]]:
    """Place a loaded model on its devices; decide precision, packing and strategy. A collective.

    A resumed run keeps `before`, the precision it began in.
    """
    training, train = inputs.config.training, inputs.splits.train
    precision = choose_precision(training.precision, world.device, training.opt_level)
    kind = find_strategy(world)
    placing, unused = kind.place(classifier, world), []
    packing_reason = choose_packing(classifier, world, inputs.config.model.packing)
    precision = agree_on_precision(precision, world, before, classifier.hidden_size if classifier.packed else None)
    classifier.set_precision(precision)
    set_products((precision.products, precision.products))
    check_outputs(classifier, data.of(train), inputs.config.model.name, world)
    if kind.buckets_gradients:  # it waits for the gradient of each parameter in each step
        unused = freeze_unused(classifier, data.of(train).tokens, int(train.rows[0]))
    batch_size = training.rows_per_step(world.num_devices)
    step_tokens = data.step_tokens(inputs) * batch_size / training.rows_per_step(1)
    strategy = make_strategy(classifier, training, world, step_tokens)
    found = _list_decisions(classifier, packing_reason, world, batch_size)
    if world.accelerator.records_graphs and not isinstance(strategy, GraphStrategy):
        found.append(decided("CUDA graphs", "off", _explain_no_graphs(strategy, step_tokens), "--strategy", True))
    found += [placing] if placing is not None else []
    if unused:
        found.append(note(f"parameters that the classifier never uses are not trained: {', '.join(unused)}"))
    return strategy, found


def check_outputs(classifier: Classifier, data: TokenizedSplit, name: str, world: World) -> None:
    """Raise InputError where the model computes no numbers in this precision, before hours are trained. A collective.

    A sum of squares overflows in fp16, say, or the weights of a damaged file are not finite.
    """
    try:
        with classifier.precision.autocast(training=True):
            features = compute_logits(classifier, data.tokens, data.rows[:_CHECKED], world, features=True)
    except (TypeError, ValueError, AttributeError, LookupError) as error:  # the first texts that the model sees
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:EXCERPT]}"
        raise InputError(
            f"--model {name}: the architecture {classifier.model.config.model_type!r} cannot read a text ({reason}); "
            "give a BERT-like model."
        ) from error
    if world.all_reduce_any(not np.isfinite(features).all()):
        raise InputError(
            f"--model {name}: its outputs are not finite in {classifier.precision.name}; give "
            f"{'another model' if classifier.precision.half_dtype is None else '--precision fp32, or another model'}."
        )


def _check_ranks(inputs: RunInputs, world: World) -> None:
    """Raise InputError where ranks have different arguments, files or models, or some device would never get a row."""
    arguments = inputs.config.to_dict()
    for field in ("local_rank", "nproc"):  # differ by nature
        arguments["training"].pop(field)
    weights = inputs.task.head.file_weights(inputs.config.training)
    kinds = {"arguments": json.dumps(arguments, sort_keys=True), "data": inputs.splits.fingerprint}
    kinds["class weights"] = "" if weights is None else str(weights.tolist())
    if world.distributed:  # a model's name may mean another folder, or revision, on another machine
        kinds["model"] = inputs.model.fingerprint
    world.check_same(kinds)
    train = inputs.splits.train
    if len(train) < world.num_devices:
        where = f"{train.table.path}: {len(train)} training rows"
        raise InputError(f"{where} cannot be split over {world.num_devices} devices; start fewer processes.")


def load_for_training(inputs: RunInputs, data: TokenizedData, device: torch.device) -> Classifier:
    """Load the classifier as the settings say, on the CPU, with padded batches."""
    config, tokenizer = inputs.config, data.tokenizer
    texts = [*data.by_content.values(), *([] if data.label_texts is None else [data.label_texts])]
    classifier = load_pretrained(
        inputs.model,
        inputs.task.labels,
        seed=config.training.seed,
        pad_token_id=get_padding_id(tokenizer),
        dropout=config.model.dropout,
        problem_type=inputs.task.head.problem_type,
        keep_head=config.model.head == "keep",
    )
    if config.model.head == "keep":
        layer = classifier.output_layer
        with torch.no_grad():
            inputs.task.head.standardize(layer.weight, layer.bias)
    if config.model.kernels == "auto":
        classifier.install_kernels(device)
    for tokens in texts:
        classifier.check_ids(tokens, tokenizer, config.model.name)
    classifier.compact_vocabulary(texts, tokenizer.all_special_ids, compact=config.model.compact_vocabulary)
    freeze(classifier.model, embeddings=config.model.freeze_embeddings, layers=config.model.freeze_layers)
    if config.model.lora:
        classifier.add_adapters(config.model.lora_rank, config.model.lora_alpha)
    if config.training.gradient_checkpointing:
        checkpoint_activations(classifier.model)
    return classifier


def _explain_no_graphs(strategy: Strategy, step_tokens: float) -> str:
    spec = strategy.world.plan.spec
    if not spec.records_graphs:
        return f"{spec.display_name} records none"
    reason = explain_no_graphs(strategy.classifier, strategy.config, strategy.world.device)
    return reason or f"a step has about {step_tokens:,.0f} tokens"


def _list_decisions(classifier: Classifier, packing_reason: str, world: World, batch_size: int) -> list[Finding]:
    """Describe the decisions on the model and the machine, each with its flag."""
    precision, vocabulary = classifier.precision, classifier.vocabulary
    padded = "off; padded" if world.accelerator.compiles else "off; padded by length"
    way = "on" if classifier.packed else padded
    is_slow = world.accelerator.records_graphs and not classifier.packed
    decisions = [
        decided("packing", way, packing_reason, "--packing", is_slow),
        decided(
            "device", world.plan.describe(), f"{world.plan.reason}; {batch_size} rows per step", "--cpu, --nproc", True
        ),
        decided("precision", precision.name, precision.why, "--precision"),
    ]
    if classifier.has_adapters:
        parameters = list(classifier.model.parameters())
        trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        share = f"{trained:,} of {sum(parameter.numel() for parameter in parameters):,} weights trained"
        decisions.append(decided("weights", share, "LoRA and the head; merged at the end", "--lora"))
    if vocabulary is not None and vocabulary.compacted:
        share = f"{len(vocabulary.used):,} of {len(vocabulary.full):,} tokens used"
        decisions.append(decided("vocabulary", share, "unused embeddings frozen", "--compact-vocabulary"))
    if classifier.loses_attention_dropout(world.device):
        decisions.append(decided("attention dropout", "0", "the kernel for packed texts has none", "--packing"))
    return decisions
