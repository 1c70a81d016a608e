"""What a run is told: three small config classes, and every fault of a value found in one pass.

Field names are those of `transformers.TrainingArguments` wherever it has the field. A field's metadata carries its
command-line flag, the aliases people know from other scripts and the help text, so that flags, YAML keys and
documentation come from one place (`classify.config.parser` reads it).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from classify.config.devices import DeviceConfig
from classify.config.fields import above, above_or_off, at_least, between, convert, option, shown_name
from classify.config.output import OutputConfig
from classify.config.recipe import PRESETS, Recipe, choose
from classify.errors import InputError
from classify.launch.strategies import STRATEGIES

# Apex's levels at which the model itself holds half weights.
HALF_WEIGHT_LEVELS = ("O2", "O3")
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@dataclass(frozen=True)
class DataConfig:
    """The table: where it lies, which columns matter, how much of a text is read."""

    data: str | None = option(
        None,
        "the table to learn from: CSV and its kin, JSON, JSON Lines, Parquet, Arrow, Excel; also compressed",
        "--data",
        "--train-file",
        metavar="FILE",
    )
    eval_data: str | None = option(
        None,
        "a table to choose the best epoch by; split off --data otherwise",
        "--eval-data",
        "--validation-file",
        metavar="FILE",
    )
    test_data: str | None = option(
        None,
        "a table for the final score; split off --data if no other table is given",
        "--test-data",
        "--test-file",
        metavar="FILE",
    )
    labels: str | None = option(
        None,
        "a file with the label of each line of --data, where that is a file of texts alone",
        "--labels",
        metavar="FILE",
    )
    eval_labels: str | None = option(None, "the same for --eval-data", "--eval-labels", metavar="FILE")
    test_labels: str | None = option(None, "the same for --test-data", "--test-labels", metavar="FILE")
    text_column: str | None = option(
        None,
        "column of the text; auto-detected if not given",
        "--text-column",
        "--text-column-names",
        metavar="COLUMN",
    )
    label_column: str | None = option(
        None,
        "column of the label; auto-detected if not given",
        "--label-column",
        "--label-column-name",
        metavar="COLUMN",
    )
    task: Literal["auto", "single"] = option(
        "auto",
        "single: each value of the label column is a class; auto: refuse lists and scores, which look like other tasks",
        "--task",
    )
    encoding: str | None = option(None, "encoding of the tables, e.g. gb18030; recognised if not given", "--encoding")
    sheet: str | None = option(None, "sheet of an Excel workbook; the first if not given", "--sheet")
    no_header: bool = option(
        False, "the first row of the tables is data; their columns are column_1, column_2, ...", "--no-header"
    )
    group_column: str | None = option(
        None,
        "column whose equal values stay in one part when --data is divided, e.g. a customer",
        "--group-column",
        metavar="COLUMN",
    )
    split_column: str | None = option(
        None,
        "column that says which part a row is in: train, validation, test; found if not given, none: there is none",
        "--split-column",
        metavar="COLUMN",
    )
    split_by_time: str | None = option(
        None,
        "column with dates: the newest rows are tested, those before them evaluated",
        "--split-by-time",
        metavar="COLUMN",
    )
    split_like: str | None = option(
        None, "output folder of a run: rows that it knows stay in the part they were in", "--split-like", metavar="DIR"
    )
    near_duplicates: bool = option(
        False, "texts that are nearly the same stay in one part when --data is divided", "--near-duplicates"
    )
    drop_unlabelled: bool = option(
        False, "leave rows without a label out; else they are predicted: unlabelled.csv", "--drop-unlabelled"
    )
    predict_unlabelled: bool = option(
        False,
        "predict rows without a label where they are most of a table, too, or where a test table has no label column",
        "--predict-unlabelled",
    )
    unlabelled_value: str | None = option(
        None, "label of rows without one, e.g. -1, besides an empty cell", "--unlabelled-value"
    )
    label_names: str | None = option(
        None, "other names for labels: 0=negative,1=positive", "--label-names", metavar="A=B"
    )
    normalize_labels: Literal["auto", "none"] = option(
        "auto",
        "auto: labels that differ in case, spaces or Unicode form are one class; none: they are several",
        "--normalize-labels",
        switch=("auto", "none"),
    )
    on_bad_rows: Literal["stop", "skip"] = option(
        "stop", "rows that cannot be read: stop and name their lines, or skip and count them", "--on-bad-rows"
    )
    max_length: int | None = option(
        None,
        "tokens kept of a text; 128, or the 99th percentile where texts are longer, up to 512",
        "--max-length",
        "--max-seq-length",
        check=at_least(4),
    )
    max_train_samples: int | None = option(
        None,
        "train on this many rows only (label names still come from all)",
        "--max-train-samples",
        check=at_least(2),
    )

    @property
    def paths(self) -> list[str | None]:
        """What is read of a person's files."""
        tables = [self.data, self.eval_data, self.test_data]
        return [*tables, self.labels, self.eval_labels, self.test_labels, self.split_like]


@dataclass(frozen=True)
class ModelConfig:
    """The model to start from and the head put on it."""

    model: str | None = option(
        None,
        f"a folder, or a name on the Hugging Face hub; {DEFAULT_MODEL} if not given",
        "--model",
        "--model-name-or-path",
    )
    head: Literal["probe", "random"] = option(
        "probe",
        "where the classifier layer starts: a logistic regression on the model's own output, or random",
        "--head",
    )
    pooling: Literal["auto", "first", "mean"] = option(
        "auto",
        "what the classifier reads: the first token, or the mean of a text's tokens by one more layer; auto: the mean "
        "where the model was trained with it",
        "--pooling",
    )
    packing: Literal["auto", "packed", "padded"] = option(
        "auto",
        "pack texts end to end, or pad them; auto packs wherever packed and padded logits agree",
        "--packing",
        learning=True,
    )
    kernels: Literal["auto", "off"] = option(
        "auto",
        "off: torch's own operations instead of this program's faster kernels",
        "--kernels",
        learning=True,
        switch=("auto", "off"),
    )
    compact_vocabulary: bool = option(
        True,
        "train only the embeddings of tokens that occur; the others stay unchanged",
        "--compact-vocabulary",
    )
    freeze_embeddings: bool = option(False, "leave the embeddings as they are", "--freeze-embeddings")
    freeze_layers: int = option(
        0,
        "leave the first so many layers as they are, and the embeddings below them",
        "--freeze-layers",
        check=at_least(0),
    )
    lora: bool = option(
        False,
        "train low-rank matrices beside the frozen layers (LoRA) and merge them at the end; the default learning rate "
        "is ten times as high",
        "--lora",
    )
    lora_rank: int = option(16, "rank of LoRA's matrices", "--lora-rank", check=at_least(1))
    lora_alpha: int = option(32, "LoRA's product is scaled by this over the rank", "--lora-alpha", check=above(0))
    dropout: float | None = option(
        None, "dropout everywhere; the model's own if not given", "--dropout", check=between(0, 1), learning=True
    )

    @property
    def name(self) -> str:
        """The model to start from, named or not."""
        return self.model or DEFAULT_MODEL


@dataclass(frozen=True)
class TrainingConfig(OutputConfig, DeviceConfig):
    """How to train and on what; TrainingArguments-like. `batch_size` is the global batch, on all devices together."""

    preset: Literal["fast", "default"] = option(
        "default",
        "default: the recipe for the table's size; fast: only a logistic regression on the frozen encoder",
        "--preset",
    )
    num_train_epochs: float | None = option(
        None,
        "times each row is seen; 3 if not given; below 250 rows 0, which keeps the start, or more without pairs",
        "--epochs",
        "--num-train-epochs",
        check=at_least(0),
        learning=True,
    )
    max_steps: int = option(
        -1,
        "stop after this many steps, whatever --epochs says; -1: no limit",
        "--max-steps",
        check=above_or_off(0, -1),
        learning=True,
    )
    max_minutes: float | None = option(
        None,
        "train no more epochs than a measured rate lets finish in this time, counted from the command",
        "--max-minutes",
        check=above(0),
        learning=True,
    )
    batch_size: int | None = option(
        None,
        "rows of an optimizer step, all devices together; 32 for large tables, 16 or 8 for small ones if not given",
        "--batch-size",
        check=above(0),
    )
    per_device_train_batch_size: int | None = option(
        None,
        "rows per device; times the number of devices = --batch-size",
        "--per-device-train-batch-size",
        check=above(0),
    )
    gradient_accumulation_steps: int = option(
        1,
        "micro-batches a device cuts its share of the batch into (the batch stays what it is); saves memory, changes "
        "nothing but dropout's draws",
        "--gradient-accumulation-steps",
        check=above(0),
        learning=True,
    )
    gradient_checkpointing: bool = option(
        False,
        "keep less for the backward pass and compute it again: less memory, slower",
        "--gradient-checkpointing",
        "--activation-checkpointing",
        learning=True,
    )
    learning_rate: float | None = option(
        None,
        "peak learning rate of AdamW; 5e-5, or 3e-5 for wide models, if not given",
        "--learning-rate",
        check=above(0),
        learning=True,
    )
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup", "inverse_sqrt"] = option(
        "linear", "how the learning rate goes on after warm-up", "--lr-scheduler-type", learning=True
    )
    contrastive_steps: int | None = option(
        None,
        "steps on pairs of rows before the head starts; 100 below 4,000 rows if not given; 0: none",
        "--contrastive-steps",
        check=at_least(0),
    )
    weight_decay: float = option(
        0.01, "AdamW's weight decay; none on biases and norms", "--weight-decay", check=between(0, 1), learning=True
    )
    adam_beta1: float = option(0.9, "AdamW's beta 1", "--adam-beta1", check=between(0, 1), learning=True)
    adam_beta2: float = option(0.999, "AdamW's beta 2", "--adam-beta2", check=between(0, 1), learning=True)
    adam_epsilon: float = option(1e-8, "AdamW's epsilon", "--adam-epsilon", check=above(0), learning=True)
    layerwise_lr_decay: float = option(
        1.0,
        "learning rate of a layer: that of the layer above times this",
        "--layerwise-lr-decay",
        check=between(0, 1, include_high=True),
        learning=True,
    )
    label_smoothing_factor: float = option(
        0.0, "share of a label spread over all classes", "--label-smoothing-factor", check=between(0, 1), learning=True
    )
    class_weights: Literal["none", "balanced"] = option(
        "none", "balanced: rare classes weigh more, so that all count alike", "--class-weights", learning=True
    )
    patience: int | None = option(
        None,
        "stop when so many evaluations in a row (one an epoch) brought no better score; the best weights are kept",
        "--patience",
        check=above(0),
        learning=True,
    )
    keep: Literal["auto", "last", "best"] = option(
        "auto",
        "weights to keep: the last, or those that scored best on the evaluation part; auto: the last, unless earlier "
        "ones were more accurate by two standard errors",
        "--keep",
        learning=True,
    )
    metric_for_best_model: Literal["macro_f1", "accuracy", "loss"] = option(
        "macro_f1",
        "score on the evaluation part that says which weights are best",
        "--metric-for-best-model",
        learning=True,
    )
    max_grad_norm: float = option(
        1.0, "gradients are clipped to this norm; 0: never", "--max-grad-norm", check=at_least(0), learning=True
    )
    warmup_steps: float = option(
        0.1,
        "steps over which the learning rate rises; below 1: share of all steps",
        "--warmup-steps",
        check=at_least(0),
        learning=True,
    )
    seed: int = option(42, "seed of the split, the shuffle, the head and dropout", "--seed", check=between(0, 2**31))

    @property
    def train_batch_size(self) -> int:
        """Rows of an optimizer step on all devices together."""
        if self.per_device_train_batch_size is None:
            return self.batch_size or Recipe.batch_size
        return self.per_device_train_batch_size * self.world_size * self.device_plan.replicas

    @property
    def epochs(self) -> float:
        """Times each row is seen."""
        return Recipe.num_train_epochs if self.num_train_epochs is None else self.num_train_epochs

    @property
    def weights_kept(self) -> str:
        """`keep`; a run that ends when scores get no better goes back to where they were best."""
        return "best" if self.keep == "auto" and self.patience is not None else self.keep

    @property
    def peak_learning_rate(self) -> float:
        """AdamW's learning rate behind the warm-up."""
        return self.learning_rate or Recipe.learning_rate


@dataclass(frozen=True)
class Source:
    """Who set a value: a flag, a file's key, a variable of the container, the run to resume, or the recipe."""

    kind: Literal["flag", "file", "container", "earlier run", "recipe"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


@dataclass(frozen=True)
class RunConfig:
    """Settings of a run, and the source of each that is not a default.

    As parsed, they are what was given; `resolve` returns what a run uses.
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    debug: bool = False
    plan: bool = False
    sources: Mapping[str, Source] = field(default_factory=dict)
    # Arguments of other scripts that were given and have no effect here.
    ignored: tuple[str, ...] = ()

    @classmethod
    def from_values(
        cls,
        values: Mapping[str, Any],
        names: Mapping[str, str] | None = None,
        faults: Sequence[str] = (),
        **others: Any,
    ) -> RunConfig:
        """Build from {field name: raw value}; strings are converted. Raises InputError with every fault.

        `names` maps a field to what was typed for it, for messages; `faults` are those of parsing; `others` are fields
        of RunConfig.
        """
        names, faults = names or {}, list(faults)
        parts: dict[str, dict[str, Any]] = {"data": {}, "model": {}, "training": {}}
        for name, raw in values.items():
            part, spec = FIELDS[name]
            try:
                parts[part][name] = convert(spec, HINTS[name], raw, names.get(name, shown_name(spec)))
            except InputError as error:
                faults.extend(error.faults)
        kinds = {"data": DataConfig, "model": ModelConfig, "training": TrainingConfig}
        config = cls(**{part: kind(**parts[part]) for part, kind in kinds.items()}, **others)
        config._combine(faults)
        if faults:
            raise InputError(*faults)
        return config

    def validated(self) -> RunConfig:
        """Return the settings with each value converted to its field's type: a Path to text, "3" to a number.

        Raises one InputError that lists the faults of all fields and of their combinations.
        """
        others = {name: getattr(self, name) for name in ("debug", "plan", "sources", "ignored")}
        values = {name: getattr(getattr(self, part), name) for name, (part, _) in FIELDS.items()}
        return RunConfig.from_values(values, **others)

    def replace(self, **values: Any) -> RunConfig:
        """Return a copy with other values, by field name."""
        parts: dict[str, dict[str, Any]] = {"data": {}, "model": {}, "training": {}}
        for name, value in values.items():
            parts[FIELDS[name][0]][name] = value
        return dataclasses.replace(
            self, **{part: dataclasses.replace(getattr(self, part), **parts[part]) for part in parts}
        )

    def resolve(self, rows: int, width: int) -> RunConfig:
        """Return the settings with the recipe's values where none was given.

        `rows` are the training rows, `width` is the encoder's hidden size; see `recipe.choose`.
        """
        training = self.training
        # Contrastive training is of use where the head starts from the probe.
        pairs = self.model.head == "probe" and training.contrastive_steps != 0
        recipe = dataclasses.asdict(choose(rows, width, pairs=pairs, preset=training.preset, lora=self.model.lora))
        if training.per_device_train_batch_size is not None:
            del recipe["batch_size"]
        chosen = {name: value for name, value in recipe.items() if getattr(training, name) is None}
        sources = {**self.sources, **dict.fromkeys(chosen, Source("recipe"))}
        return dataclasses.replace(self.replace(**chosen), sources=sources)

    @property
    def from_recipe(self) -> list[str]:
        """Names of the fields that the recipe has set."""
        return [name for name, source in self.sources.items() if source.kind == "recipe"]

    def _combine(self, faults: list[str]) -> None:
        """Faults that take two fields to see."""
        training = self.training
        if self.data.data is None and not faults:  # a mistyped flag is the likelier reason, and already named
            faults.append("--data must name a table, e.g. --data my.csv. Got nothing instead.")
        if training.batch_size is not None and training.per_device_train_batch_size is not None:
            faults.append(
                f"--batch-size {training.batch_size} and --per-device-train-batch-size "
                f"{training.per_device_train_batch_size} both set the rows of a step; give one of them."
            )
        if training.use_cpu and training.precision in ("fp16", "tf32"):
            faults.append(f"--precision {training.precision} needs a GPU; take bf16 or fp32, or drop --cpu.")
        if training.opt_level is not None:
            self._combine_level(training.opt_level, faults)
        epochs, flag = training.num_train_epochs, "--epochs 0"
        if epochs is None:
            epochs, flag = PRESETS[training.preset].get("num_train_epochs"), f"--preset {training.preset}"
        if self.model.head == "random" and training.max_steps < 0 and epochs == 0:
            faults.append(f"{flag} keeps the start, and --head random starts from chance; drop one of them.")
        if self.model.lora and (self.model.freeze_embeddings or self.model.freeze_layers):
            faults.append("--lora freezes all but the head; drop --freeze-embeddings and --freeze-layers.")
        strategy = training.strategy_spec
        if training.device_memory is not None and not strategy.takes_memory_budget:
            takers = " or ".join(name for name, spec in STRATEGIES.items() if spec.takes_memory_budget)
            faults.append(f"--device-memory belongs to --strategy {takers}; give both, or none.")
        if self.model.lora and not strategy.takes_lora:
            faults.append(
                f"--lora leaves little that --strategy {training.strategy} could cut over processes; drop one of them."
            )
        if training.patience is not None and training.keep == "last":
            faults.append("--patience keeps the best weights, --keep last the last ones; drop one of them.")
        if training.resume_from_checkpoint and training.overwrite_output_dir:
            faults.append("--resume goes on from a folder that --overwrite-output-dir would empty; give one of them.")

    def _combine_level(self, level: str, faults: list[str]) -> None:
        """Faults of --opt-level beside other options."""
        asked = self.training.precision
        if asked not in (("auto", "fp32") if level == "O0" else ("auto", "bf16", "fp16")):
            faults.append(
                f"--opt-level {level} and --precision {asked} contradict each other; give one of them"
                + ("." if level == "O0" else ", or --precision bf16 or fp16 to say which half precision.")
            )
        if level in HALF_WEIGHT_LEVELS and not self.training.strategy_spec.takes_half_weights:
            faults.append(
                f"--opt-level {level} keeps half weights, which --strategy {self.training.strategy} cannot place; "
                "take O1."
            )

    def flat(self) -> dict[str, Any]:
        """{field name: value}, for trackers."""
        return {name: value for part in self.to_dict().values() for name, value in part.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        values = {part: dataclasses.asdict(getattr(self, part)) for part in ("data", "model", "training")}
        values["model"]["model"] = self.model.name
        return values


def _fields() -> dict[str, tuple[str, dataclasses.Field[Any]]]:
    fields: dict[str, tuple[str, dataclasses.Field[Any]]] = {}
    for part, kind in (("data", DataConfig), ("model", ModelConfig), ("training", TrainingConfig)):
        for spec in dataclasses.fields(kind):
            fields[spec.name] = (part, spec)
    return fields


FIELDS = _fields()
HINTS: dict[str, Any] = {
    name: hint
    for kind in (DataConfig, ModelConfig, TrainingConfig)
    for name, hint in typing.get_type_hints(kind, localns={"torch": None, "World": None, "ParallelMode": None}).items()
}
