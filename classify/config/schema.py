"""Settings of a run, declared in classes by subject; `classify.config.run_config` combines them.

Field names are those of `transformers.TrainingArguments` wherever it has the field. A field's metadata holds its
flag, the aliases of other scripts and the help text; `classify.config.parser` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from classify.config.devices import DeviceConfig
from classify.config.fields import Check, above, accept_flag_names, at_least, between, language_code, option
from classify.config.output import OutputConfig
from classify.config.recipe import Recipe

# The default for English texts, and for any other.
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MULTILINGUAL_MODEL = "intfloat/multilingual-e5-small"


@accept_flag_names
@dataclass(frozen=True)
class ReadConfig:
    """How the tables are read, where their files do not say."""

    encoding: str | None = option(None, "encoding of the tables, e.g. gb18030 (default: auto-detected)", "--encoding")
    delimiter: str | None = option(
        None, "what separates columns: one character, or tab (default: auto-detected)", "--delimiter", metavar="TEXT"
    )
    quote: str | None = option(
        None, "the character around fields, or none (default: auto-detected)", "--quote", metavar="TEXT"
    )
    header: bool = option(False, "the first row names the columns (default: auto-detected)", "--header")
    no_header: bool = option(
        False, "the tables have no header row; their columns are column_1, column_2, ...", "--no-header"
    )
    skip_lines: int | None = option(
        None, "lines above the table (default: auto-detected)", "--skip-lines", check=at_least(0)
    )
    sheet: str | None = option(None, "sheet of an Excel workbook (default: the first that holds texts)", "--sheet")
    on_bad_rows: Literal["stop", "skip"] = option(
        "stop", "unreadable rows: stop and list their lines, or skip and count them", "--on-bad-rows"
    )


@accept_flag_names
@dataclass(frozen=True)
class DataConfig(ReadConfig):
    """The tables: files, columns, splits and tokenization length."""

    data: str | None = option(
        None,
        "training table: CSV, TSV, JSON, JSON Lines, Parquet, Arrow or Excel; may be compressed; several become one",
        "--data",
        "--train-file",
        metavar="FILE",
        several=True,
        common=True,
        path="table",
    )
    eval_data: str | None = option(
        None,
        "validation table (default: split off --data)",
        "--eval-data",
        "--validation-file",
        metavar="FILE",
        several=True,
        common=True,
        path="table",
    )
    test_data: str | None = option(
        None,
        "test table for the final score (default: split off --data if no other table is given)",
        "--test-data",
        "--test-file",
        metavar="FILE",
        several=True,
        common=True,
        path="table",
    )
    text_column: str | None = option(
        None,
        "text column, or several to join: title,body (default: auto-detected)",
        "--text-column",
        "--text-column-name",
        "--text-column-names",
        metavar="COLUMN",
        several=True,
        common=True,
    )
    text_pair_column: str | None = option(
        None,
        "column of the second text, for text pairs (default: auto-detected by names such as sentence1, sentence2)",
        "--text-pair-column",
        metavar="COLUMN",
    )
    text_column_delimiter: str = option(
        " ", "separator that joins the texts of several --text-column", "--text-column-delimiter", metavar="TEXT"
    )
    label_column: str | None = option(
        None,
        "label column, or several of 0 and 1: toxic,insult (default: auto-detected)",
        "--label-column",
        "--label-column-name",
        metavar="COLUMN",
        several=True,
        common=True,
    )
    task: Literal["auto", "single", "multi", "regression"] = option(
        "auto",
        "auto: by the content of the label column; single: each label value is a class; multi: any number of labels "
        "per row; regression: labels are scores",
        "--task",
    )
    label_separator: str | None = option(
        None,
        "what separates the labels of a cell: #, |, tab, newline, space, brackets (default: auto-detected)",
        "--label-separator",
        metavar="TEXT",
    )
    language: str | None = option(
        None,
        "language of the texts (ISO 639, e.g. en, de, zh); selects the default model (default: auto-detected)",
        "--language",
        metavar="CODE",
        check=language_code(),
    )
    group_column: str | None = option(
        None, "column whose equal values stay in one split, e.g. a customer ID", "--group-column", metavar="COLUMN"
    )
    split_column: str | None = option(
        None,
        "column with each row's split (train, validation, test); auto-detected; 'none' disables detection",
        "--split-column",
        metavar="COLUMN",
    )
    split_by_time: str | None = option(
        None,
        "date column: the newest rows are the test split, the next newest the validation split",
        "--split-by-time",
        metavar="COLUMN",
    )
    time_format: str | None = option(
        None,
        "format of --split-by-time as of strptime, e.g. '%d/%m/%Y' (default: ISO 8601, or numbers)",
        "--time-format",
        metavar="FORMAT",
    )
    split_like: str | None = option(
        None,
        "output folder of an earlier run, whose rows keep their split or fold",
        "--split-like",
        metavar="DIR",
        path="table",
    )
    folds: int | None = option(
        None,
        "cross-validation folds, after which all rows train the final model; 0: hold out validation and test rows "
        "(default: 5 below 300 labelled rows, 3 if 5 are slow; 0 above, or if epochs are trained)",
        "--folds",
        check=between(0, 101),
    )
    drop_unlabelled: bool = option(
        False, "drop rows without a label (default: predict them in unlabelled.csv)", "--drop-unlabelled"
    )
    predict_unlabelled: bool = option(
        False,
        "predict unlabelled rows even if most rows have no label, or the test table has no label column",
        "--predict-unlabelled",
    )
    unlabelled_value: str | None = option(
        None, "label value that means unlabelled, e.g. -1, besides an empty cell", "--unlabelled-value"
    )
    out_of_scope_label: str | None = option(
        None,
        "the label of texts that belong to none of the other classes, in the table or not; predicted where a text is "
        "unlike all classes",
        "--out-of-scope-label",
        metavar="LABEL",
    )
    label_names: str | None = option(
        None,
        "names of labels, those of one name are one class: 0=negative,1=positive",
        "--label-names",
        metavar="A=B",
        several=True,
    )
    normalize_labels: Literal["auto", "none"] = option(
        "auto",
        "auto: labels that differ only in case, spaces or Unicode form are one class; none: separate classes",
        "--normalize-labels",
        switch=("auto", "none"),
    )
    max_length: int | None = option(
        None,
        "maximum tokens per text (default: 128, or the 99th percentile if texts are longer, up to 512)",
        "--max-length",
        "--max-seq-length",
        check=at_least(4),
        affects={"identity"},
        common=True,
    )
    long_texts: Literal["truncate", "head-tail", "chunks"] = option(
        "truncate",
        "texts longer than --max-length; truncate: first tokens; head-tail: first and last tokens; chunks: all tokens, "
        "logits averaged over chunks",
        "--long-texts",
        affects={"start"},
    )
    max_train_samples: int | None = option(
        None,
        "train on this many rows only (classes still come from all rows)",
        "--max-train-samples",
        check=at_least(2),
        common=True,
    )
    max_eval_samples: int | None = option(
        None,
        "validate on this many rows only: always the same ones, of each class in proportion",
        "--max-eval-samples",
        check=at_least(2),
    )


@accept_flag_names
@dataclass(frozen=True)
class ModelConfig:
    """The model to start from, and its head."""

    model: str | None = option(
        None,
        f"folder, or name on the Hugging Face hub (default: {DEFAULT_MODEL}, or {MULTILINGUAL_MODEL} "
        "for texts that are not English)",
        "--model",
        "--model-name-or-path",
        affects={"identity"},
        common=True,
        path="model",
    )
    head: Literal["auto", "probe", "random", "keep"] = option(
        "auto",
        "initial classification head; probe: a linear model fitted on the encoder's features; random; keep: the head "
        "of the run whose folder is --model; auto: keep if its labels fit, else probe",
        "--head",
        affects={"start"},
    )
    pooling: Literal["auto", "first", "mean"] = option(
        "auto",
        "classifier input: the first token, or the mean over tokens by one added layer; auto: the mean if the model "
        "was trained with it",
        "--pooling",
        affects={"identity"},
    )
    packing: Literal["auto", "packed", "padded"] = option(
        "auto",
        "pack texts end to end, or pad them; auto: pack architectures that tests have shown to give the same logits",
        "--packing",
        affects={"computation"},
    )
    kernels: Literal["auto", "off"] = option(
        "auto",
        "auto: use this program's faster kernels where they apply; off: use torch's operations only",
        "--kernels",
        switch=("auto", "off"),
        affects={"computation"},
    )
    compact_vocabulary: bool = option(
        True,
        "remove embeddings of unused tokens while the model trains, and restore them unchanged; false: keep them, also "
        "unchanged",
        "--compact-vocabulary",
        affects={"identity"},
    )
    freeze_embeddings: bool = option(
        False, "freeze the embeddings", "--freeze-embeddings", affects={"steps", "identity"}
    )
    freeze_layers: int = option(
        0,
        "freeze the embeddings and this many layers, counted from the input; 0: none",
        "--freeze-layers",
        check=at_least(0),
        affects={"steps", "identity"},
    )
    lora: bool = option(
        False,
        "train low-rank adapters (LoRA) on frozen layers and merge them at the end; the default learning rate is ten "
        "times as high",
        "--lora",
        affects={"steps", "identity"},
    )
    lora_rank: int = option(16, "rank of LoRA's matrices", "--lora-rank", check=at_least(1))
    lora_alpha: int = option(32, "LoRA's scale is alpha / rank", "--lora-alpha", check=above(0))
    dropout: float | None = option(
        None,
        "dropout probability (default: the model's)",
        "--dropout",
        check=between(0, 1),
        affects={"later steps", "steps"},
    )

    @property
    def name(self) -> str:
        return self.model or DEFAULT_MODEL


@accept_flag_names
@dataclass(frozen=True)
class TrainingConfig(OutputConfig, DeviceConfig):
    """Training settings, like `TrainingArguments`. `batch_size` is the global batch size."""

    preset: Literal["fast", "default"] = option(
        "default",
        "default: the recipe for the table's size; fast: only a logistic regression on the frozen encoder",
        "--preset",
        affects={"start"},
        common=True,
    )
    num_train_epochs: float | None = option(
        None,
        "number of epochs (default: 3; 0 below 300 labelled rows; up to 20 without contrastive steps)",
        "--epochs",
        "--num-train-epochs",
        check=at_least(0),
        affects={"later steps"},
        common=True,
    )
    max_steps: int = option(
        -1,
        "maximum number of steps; overrides --epochs; -1: no limit",
        "--max-steps",
        check=Check("above 0, or -1", lambda steps: steps > 0 or steps == -1),
        affects={"later steps"},
    )
    max_minutes: float | None = option(
        None,
        "time limit in minutes from the command's start; the learning rate falls with the time",
        "--max-minutes",
        check=above(0),
        affects={"later steps"},
        common=True,
    )
    batch_size: int | None = option(
        None,
        "global batch size, over all devices (default: 32 for large tables, 16 or 8 for small ones)",
        "--batch-size",
        check=above(0),
        affects={"epochs", "identity"},
        common=True,
    )
    per_device_train_batch_size: int | None = option(
        None,
        "batch size per device, instead of the global --batch-size",
        "--per-device-train-batch-size",
        check=above(0),
        affects={"epochs"},
    )
    gradient_accumulation_steps: int = option(
        1,
        "micro-batches per device and step; the global batch size is unchanged",
        "--gradient-accumulation-steps",
        check=above(0),
        affects={"computation", "epochs"},
    )
    gradient_checkpointing: bool = option(
        False,
        "recompute activations in the backward pass: less memory, slower",
        "--gradient-checkpointing",
        "--activation-checkpointing",
        affects={"computation", "steps"},
    )
    learning_rate: float | None = option(
        None,
        "peak learning rate of AdamW (default: 5e-5; 3e-5 above hidden size 512; ten times that with --lora)",
        "--learning-rate",
        check=above(0),
        affects={"later steps", "steps", "start without epochs"},
        common=True,
    )
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup", "inverse_sqrt"] = option(
        "linear",
        "learning-rate schedule after warmup, in whose last step the rate is the peak",
        "--lr-scheduler-type",
        affects={"later steps", "epochs"},
    )
    contrastive_steps: int | None = option(
        None,
        "contrastive steps before the head is initialized (default: 100 below 4,000 rows, else 0)",
        "--contrastive-steps",
        check=at_least(0),
        affects={"start"},
    )
    label_texts: Literal["auto", "none"] = option(
        "auto",
        "auto: below 300 labelled rows, add the label names as training texts if they are words; none: do not",
        "--label-texts",
        affects={"later steps"},
    )
    weight_decay: float = option(
        0.01,
        "AdamW's weight decay; none on biases and norms",
        "--weight-decay",
        check=between(0, 1),
        affects={"later steps", "steps"},
    )
    adam_beta1: float = option(
        0.9, "AdamW's beta 1", "--adam-beta1", check=between(0, 1), affects={"later steps", "steps"}
    )
    adam_beta2: float = option(
        0.999, "AdamW's beta 2", "--adam-beta2", check=between(0, 1), affects={"later steps", "steps"}
    )
    adam_epsilon: float = option(
        1e-8, "AdamW's epsilon", "--adam-epsilon", check=above(0), affects={"later steps", "steps"}
    )
    layerwise_lr_decay: float = option(
        1.0,
        "learning-rate factor of each layer relative to the layer above",
        "--layerwise-lr-decay",
        check=between(0, 1, include_high=True),
        affects={"later steps", "steps"},
    )
    label_smoothing_factor: float = option(
        0.0,
        "label smoothing: share of each target that is spread over all classes",
        "--label-smoothing-factor",
        check=between(0, 1),
        affects={"later steps", "epochs"},
    )
    class_weights: str = option(
        "none",
        "balanced: weight classes inversely to their frequency; or JSON, or a file of it: {label: weight}",
        "--class-weights",
        metavar="balanced|FILE",
        affects={"later steps", "start without epochs"},
    )
    loss: Literal["cross_entropy", "focal"] = option(
        "cross_entropy",
        "focal: down-weight rows that are predicted correctly with high confidence (Lin et al., 2017, gamma 2)",
        "--loss",
        affects={"later steps", "epochs"},
    )
    sampler: Literal["uniform", "balanced"] = option(
        "uniform",
        "balanced: draw rows with replacement, all classes equally often",
        "--sampler",
        affects={"later steps", "epochs"},
    )
    eval_steps: int | None = option(
        None,
        "evaluate every N steps, too, not only at each epoch's end; better weights are saved",
        "--eval-steps",
        check=above(0),
        affects={"later steps", "epochs"},
    )
    patience: int | None = option(
        None,
        "early stopping: evaluations (each epoch, and --eval-steps) without improvement; the best weights are kept",
        "--patience",
        "--early-stopping-patience",
        check=above(0),
        affects={"later steps", "epochs"},
    )
    metric_for_best_model: str | None = option(
        None,
        "validation metric that selects the best weights: loss or any of metrics.json (default: macro_f1; "
        "average_precision for several labels, pearson for scores)",
        "--metric-for-best-model",
        affects={"result", "epochs"},
    )
    calibrate: Literal["auto", "none"] = option(
        "auto",
        "auto: fit a temperature (several labels: a scale and shift per label) on validation or out-of-fold rows and "
        "fold it into the output layer",
        "--calibrate",
        affects={"result"},
    )
    max_grad_norm: float = option(
        1.0,
        "clip gradients to this norm; 0: off",
        "--max-grad-norm",
        check=at_least(0),
        affects={"later steps", "steps"},
    )
    warmup_steps: float = option(
        0.1,
        "warmup steps; below 1: fraction of all steps",
        "--warmup-steps",
        check=at_least(0),
        affects={"later steps", "epochs"},
    )
    seed: int = option(
        42,
        "seed of the split, the shuffle, the head and dropout",
        "--seed",
        check=between(0, 2**31),
        affects={"identity"},
        common=True,
    )

    def rows_per_step(self, devices: int) -> int:
        """The rows of an optimizer step on `devices` devices in all."""
        if self.per_device_train_batch_size is None:
            return self.batch_size or Recipe.batch_size
        return self.per_device_train_batch_size * devices

    @property
    def epochs(self) -> float:
        return Recipe.num_train_epochs if self.num_train_epochs is None else self.num_train_epochs

    @property
    def trains_encoder(self) -> bool:
        return bool(self.epochs or self.max_steps > 0 or self.contrastive_steps)

    @property
    def weights_kept(self) -> str:
        return "best" if self.keep == "auto" and self.patience is not None else self.keep

    @property
    def peak_learning_rate(self) -> float:
        return self.learning_rate or Recipe.learning_rate
