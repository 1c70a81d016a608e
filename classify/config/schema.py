"""Settings of a run, declared in classes by subject; `classify.config.run_config` combines them.

Fields are named as in `transformers.TrainingArguments` wherever it has them. A field's metadata holds its
flag, the aliases of other scripts and the help text; `classify.config.parser` reads it.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Literal

from classify.config.fields import Check, Effect, above, at_least, between, option
from classify.config.recipe import Recipe
from classify.launch.launch import Launch
from classify.launch.nproc import check_count
from classify.launch.plan import DevicePlan, check_strategy, plan_devices

# The default for English texts, and for any other.
# Values of --teacher: the run's own model, and for the run of a teacher none.
SELF_TEACHER = "self"
NO_TEACHER = "none"
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MULTILINGUAL_MODEL = "intfloat/multilingual-e5-small"

_LANGUAGE = Check("such as en, de or zh (ISO 639)", re.compile("[A-Za-z]{2,3}([-_][A-Za-z]+)*").fullmatch)
_STEPS = Check("above 0, or -1", lambda steps: steps > 0 or steps == -1)
_FOLDS = Check("from 2 to 100, or 0", lambda folds: folds == 0 or 2 <= folds <= 100)
_SHARE = between(0, 1, include_high=True)
# What an option of every optimizer step changes, and one of epochs alone.
_EACH_STEP: set[Effect] = {"later steps", "steps"}
_EPOCHS: set[Effect] = {"later steps", "epochs"}

_table = functools.partial(option, None, metavar="FILE", several=True, common=True, is_path=True)
_column = functools.partial(option, None, metavar="COLUMN")


@dataclass(frozen=True)
class ReadConfig:
    """How the tables are read, where their files do not say; every command that reads a table has these flags."""

    encoding: str | None = option(None, "encoding of the tables, e.g. gb18030 (default: auto-detected)")
    delimiter: str | None = option(
        None, "what separates columns: one character, or tab (default: auto-detected)", metavar="TEXT"
    )
    quote: str | None = option(None, "the character around fields, or none (default: auto-detected)", metavar="TEXT")
    header: bool = option(False, "the first row names the columns (default: auto-detected)")
    no_header: bool = option(False, "the tables have no header row; their columns are column_1, column_2, ...")
    skip_lines: int | None = option(None, "lines above the table (default: auto-detected)", check=at_least(0))
    sheet: str | None = option(None, "sheet of an Excel workbook (default: the first that holds texts)")
    on_bad_rows: Literal["stop", "skip"] = option(
        "stop", "unreadable rows: stop and list their lines, or skip and count them"
    )


@dataclass(frozen=True)
class DataConfig(ReadConfig):
    """The tables: files, columns, splits and tokenization length."""

    data: str | None = _table(
        "training table: CSV, TSV, JSON, JSON Lines, Parquet, Arrow or Excel; may be compressed; several become one",
        "--data", "--train-file",
    )  # fmt: skip
    eval_data: str | None = _table("validation table (default: split off --data)", "--eval-data", "--validation-file")
    test_data: str | None = _table(
        "test table for the final score (default: split off --data if no other table is given)",
        "--test-data", "--test-file",
    )  # fmt: skip
    text_column: str | None = _column(
        "text column, or several to join: title,body (default: auto-detected)",
        "--text-column", "--text-column-name", "--text-column-names", several=True, common=True,
    )  # fmt: skip
    text_pair_column: str | None = _column(
        "column of the second text, for text pairs (default: auto-detected by names such as sentence1, sentence2)"
    )
    text_column_delimiter: str = option(" ", "separator that joins the texts of several --text-column", metavar="TEXT")
    label_column: str | None = _column(
        "label column, or several: of 0 and 1 (toxic,insult), or a task each (topic,urgency) (default: auto-detected)",
        "--label-column", "--label-column-name", several=True, common=True,
    )  # fmt: skip
    task: Literal["auto", "single", "multi", "regression"] = option(
        "auto", "one label per row, any number of labels, or a score; auto: by the content of the label column"
    )
    label_separator: str | None = option(
        None, "between the labels of a cell: #, |, tab, newline, space, brackets (default: auto-detected)"
    )
    hierarchy: Literal["auto", "on", "none"] = option(
        "auto", "labels are paths of nodes, such as 'billing > refund'; the sign between nodes is found, or is "
        "--label-separator (auto: where branches recur)", switch=("on", "none"),
    )  # fmt: skip
    soft_labels: bool = option(
        False, "train towards the probabilities in columns prob_<label>, as predict writes them, beside labels or alone"
    )
    weight_column: str | None = _column("column with each row's weight in training")
    annotator_column: str | None = _column(
        "column with who labelled each row: rows of one text train towards the shares of their labels"
    )
    source_column: str | None = _column(
        "column with where each row's label is from: rows that are not --trusted only train, and only if they help"
    )
    trusted: str | None = option(
        None, "values of --source-column whose rows are scored (default: with --soft-labels, rows without "
        "probabilities)", metavar="VALUE", several=True,
    )  # fmt: skip
    keep_source: bool = option(False, "train on all sources, whether they help or not")
    unlabelled_data: str | None = option(
        None, "table of texts without labels: a teacher labels them, and they train, too, unless that does harm",
        metavar="FILE", several=True, is_path=True,
    )  # fmt: skip
    teacher: str | None = option(
        None, "what labels --unlabelled-data: a result folder, a model to fine-tune first, or self: this run's own "
        "model, trained without them (default: self)", metavar="DIR|MODEL", is_path=True,
    )  # fmt: skip
    language: str | None = option(
        None,
        "language of the texts (ISO 639: en, de, ...); selects the model (default: auto-detected)",
        check=_LANGUAGE,
    )
    group_column: str | None = _column("column whose equal values stay in one split, e.g. a customer ID")
    split_column: str | None = _column(
        "column with each row's split (train, validation, test); auto-detected; 'none' disables detection"
    )
    split_by_time: str | None = _column(
        "date column: the newest rows are the test split, the next newest the validation split"
    )
    time_format: str | None = option(
        None, "format of --split-by-time as of strptime, e.g. '%d/%m/%Y' (default: ISO 8601, or numbers)"
    )
    split_like: str | None = option(
        None, "output folder of an earlier run, whose rows keep their split or fold", metavar="DIR", is_path=True
    )
    folds: int | None = option(
        None, "cross-validation folds, after which all rows train; 0: hold rows out (default: 5, or 3 if slow, below "
        "300 labelled rows; 0 above, or if epochs are trained)", check=_FOLDS,
    )  # fmt: skip
    drop_unlabelled: bool = option(False, "drop rows without a label (default: predict them in unlabelled.csv)")
    predict_unlabelled: bool = option(
        False, "predict unlabelled rows even if most rows, or the whole test table, have no label"
    )
    unlabelled_value: str | None = option(None, "label value that means unlabelled, e.g. -1, besides an empty cell")
    out_of_scope_label: str | None = option(
        None, "label, in the table or not, of texts of no other class; predicted where a text is unlike all classes",
        metavar="LABEL",
    )  # fmt: skip
    label_names: str | None = option(
        None, "names of labels; labels of one name become one class: 0=negative,1=positive; or the labels that one is "
        "divided into: billing=refund|late", metavar="A=B", several=True,
    )  # fmt: skip
    normalize_labels: Literal["auto", "none"] = option(
        "auto", "auto: labels that differ only in case, spaces or Unicode form are one class; none: separate classes",
        switch=("auto", "none"),
    )  # fmt: skip
    max_length: int | None = option(
        None, "maximum tokens per text (default: 128, or the 99th percentile if texts are longer, up to 512)",
        "--max-length", "--max-seq-length", check=at_least(4), affects={"identity"}, common=True,
    )  # fmt: skip
    long_texts: Literal["truncate", "head-tail", "chunks"] = option(
        "truncate", "texts longer than --max-length: the first tokens, first and last, or all in chunks, averaged",
        affects={"start"},
    )  # fmt: skip
    max_train_samples: int | None = option(
        None, "train on this many rows only (classes still come from all rows)", check=at_least(2), common=True
    )
    max_eval_samples: int | None = option(
        None, "validate on this many rows only: always the same ones, of each class in proportion", check=at_least(2)
    )


@dataclass(frozen=True)
class ModelConfig:
    """The model to start from, and its head."""

    model: str | None = option(
        None,
        f"folder, or name on the Hugging Face hub (default: {DEFAULT_MODEL}, or {MULTILINGUAL_MODEL} "
        "for texts that are not English)",
        "--model", "--model-name-or-path", affects={"identity"}, common=True, is_path=True,
    )  # fmt: skip
    head: Literal["auto", "probe", "random", "keep"] = option(
        "auto",
        "initial classification head; probe: a linear model fitted on the encoder's features; random; keep: the head "
        "of the run whose folder is --model; auto: keep if its labels fit, else probe",
        affects={"start"},
    )
    pooling: Literal["auto", "first", "mean"] = option(
        "auto",
        "classifier input: first token, or mean over tokens; auto: as the model was trained",
        affects={"identity"},
    )
    packing: Literal["auto", "packed", "padded"] = option(
        "auto",
        "pack texts end to end, or pad them; auto: pack where tests have shown it exact",
        affects={"computation"},
    )
    kernels: Literal["auto", "off"] = option(
        "auto", "auto: use this program's faster kernels where they apply; off: use torch's operations only",
        switch=("auto", "off"), affects={"computation"},
    )  # fmt: skip
    compact_vocabulary: bool = option(
        True, "train without the embeddings of unused tokens, and restore them unchanged", affects={"identity"}
    )
    freeze_embeddings: bool = option(False, "freeze the embeddings", affects={"steps", "identity"})
    freeze_layers: int = option(
        0, "freeze the embeddings and this many first layers", check=at_least(0), affects={"steps", "identity"}
    )
    lora: bool = option(
        False, "train low-rank adapters (LoRA), at ten times the rate, and merge them", affects={"steps", "identity"}
    )
    lora_rank: int = option(16, "rank of LoRA's matrices", check=at_least(1))
    lora_alpha: int = option(32, "LoRA's scale is alpha / rank", check=above(0))
    dropout: float | None = option(
        None, "dropout probability (default: the model's)", check=between(0, 1), affects=_EACH_STEP
    )

    @property
    def name(self) -> str:
        return self.model or DEFAULT_MODEL


@dataclass(frozen=True)
class OutputConfig:
    """The output folder, checkpoints and logs."""

    output_dir: str | None = option(
        None, "output folder (default: runs/<name of data>-<n>)", metavar="DIR", common=True, restored=False
    )
    overwrite_output_dir: bool = option(
        False, "empty the folder first if it holds an earlier run", common=True, restored=False
    )
    resume_from_checkpoint: bool | str = option(
        False, "resume from the newest checkpoint (of DIR if given; with that run's settings if --data is not given)",
        "--resume", "--resume-from-checkpoint", metavar="DIR", common=True, restored=False,
    )  # fmt: skip
    save_steps: int | None = option(
        None, "steps between checkpoints, besides the one at each epoch's end", check=above(0), affects={"epochs"}
    )
    save_minutes: float = option(
        10.0, "most minutes between checkpoints within an epoch, more where saving is slow; 0: no limit",
        check=at_least(0), affects={"epochs"},
    )  # fmt: skip
    save_on_each_node: bool = option(False, "write all files on each machine, for machines without a shared disk")
    excel_safe: bool = option(
        False, "predictions.csv for Excel: a byte-order mark, four digits, and ' before cells that look like formulas"
    )
    save_dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32", "dtype of the saved weights; 16 bits halve the file, and change probabilities a little",
        affects={"result"},
    )  # fmt: skip
    keep: Literal["auto", "last", "best"] = option(
        "auto", "weights to keep: last, or best on the validation split; auto: last, unless earlier ones are more "
        "accurate by two standard errors; best for several labels, scores, and metrics that are errors",
        affects={"result"},
    )  # fmt: skip
    save_total_limit: int = option(2, "number of checkpoints to keep, including the best", check=at_least(1))
    verbose: bool = option(
        False, "print every automatic decision, and the seconds of each phase", common=True, restored=False
    )
    quiet: bool = option(False, "print errors only", restored=False)
    json: bool = option(False, "print JSON lines: decisions, training log, result", restored=False)
    logging_steps: int = option(10, "steps between lines of train_log.jsonl", check=above(0))
    report_to: str = option(
        "auto", "tensorboard, wandb, mlflow, ...; none; auto: tensorboard if installed", several=True
    )


@dataclass(frozen=True)
class DeviceConfig:
    """Devices, processes, strategy and precision."""

    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = option(
        "auto", "precision of the model; auto: bf16 for training where supported, else fp32; scores in fp32",
        affects={"identity"}, common=True,
    )  # fmt: skip
    opt_level: Literal["O0", "O1", "O2", "O3"] | None = option(
        None, "Apex's levels: O0 fp32, O1 autocast, O2 half weights and fp32 master weights, O3 half precision",
        "--opt-level", "--fp16-opt-level", affects={"later steps"},
    )  # fmt: skip
    use_cpu: bool = option(False, "use the CPU only", "--cpu", "--use-cpu", "--no-cuda", common=True)
    nproc: int | Literal["gpu"] | None = option(
        None, "processes to start on this machine (gpu: one per GPU), without torchrun", check=above(0), common=True
    )
    strategy: Literal["auto", "none", "dp", "ddp", "fsdp", "model"] = option(
        "auto", "none: one device; dp: DataParallel; ddp: DistributedDataParallel; fsdp: sharded weights; model: "
        "layers spread over devices; auto: ddp, or dp or none without a launcher", affects={"computation"}, common=True,
    )  # fmt: skip
    sync_batch_norm: bool = option(
        False, "compute BatchNorm statistics over the rows of all processes (torch's SyncBatchNorm; on GPUs)",
        "--sync-batch-norm", "--sync-bn", affects={"later steps"},
    )  # fmt: skip
    ddp_backend: Literal["nccl", "gloo", "xccl", "hccl", "cncl", "mccl", "smddp"] | None = option(
        None, "communication backend (default: nccl on GPUs, gloo on CPUs)"
    )
    local_rank: int = option(
        -1, "rank of this process on its machine, set by a launcher", check=at_least(-1), restored=False
    )
    ddp_timeout: int = option(600, "seconds a rank waits for the others", check=above(0))

    def _setup_devices(self, launch: Launch, step_tokens: float | None = None) -> DevicePlan:
        """The device, parallel mode and strategy of the process in the place `launch`.

        The hardware is detected, which imports torch; see `plan_devices` for `step_tokens`. Named as in
        `transformers.TrainingArguments`, which also starts the process group here;
        `classify.distributed.group.start` does that.
        """
        return plan_devices(
            launch, strategy=self.strategy, backend=self.ddp_backend, use_cpu=self.use_cpu, step_tokens=step_tokens
        )

    def check_start(self, launch: Launch) -> None:
        """Raise InputError where the flags contradict how this process was started. Needs no torch."""
        if self.nproc is not None and not launch.is_worker:
            check_count(self.nproc, launch)
            launch = Launch("nproc", local_rank=0)  # the place of each process that will be started
        check_strategy(launch, self.strategy, self.ddp_backend, self.use_cpu)


@dataclass(frozen=True)
class TrainingConfig(OutputConfig, DeviceConfig):
    """Training settings, like `TrainingArguments`. `batch_size` is the global batch size."""

    preset: Literal["fast", "default"] = option(
        "default", "default: the recipe for the table's size; fast: only a logistic regression on the frozen encoder",
        affects={"start"}, common=True,
    )  # fmt: skip
    num_train_epochs: float | None = option(
        None, "number of epochs (default: 3; 0 below 300 labelled rows; up to 20 without contrastive steps)",
        "--epochs", "--num-train-epochs", check=at_least(0), affects={"later steps"}, common=True,
    )  # fmt: skip
    max_steps: int = option(
        -1, "maximum number of steps; overrides --epochs; -1: no limit", check=_STEPS, affects={"later steps"}
    )
    max_minutes: float | None = option(
        None, "time limit in minutes from the command's start; the learning rate falls with the time",
        check=above(0), affects={"later steps"}, common=True,
    )  # fmt: skip
    batch_size: int | None = option(
        None, "global batch size, over all devices (default: 32 for large tables, 16 or 8 for small ones)",
        check=above(0), affects={"epochs", "identity"}, common=True,
    )  # fmt: skip
    per_device_train_batch_size: int | None = option(
        None, "batch size per device, instead of the global --batch-size", check=above(0), affects={"epochs"}
    )
    gradient_accumulation_steps: int = option(
        1, "micro-batches per device and step, of one global batch", check=above(0), affects={"computation", "epochs"}
    )
    gradient_checkpointing: bool = option(
        False, "recompute activations in the backward pass: less memory, slower",
        "--gradient-checkpointing", "--activation-checkpointing", affects={"computation", "steps"},
    )  # fmt: skip
    learning_rate: float | None = option(
        None, "peak learning rate of AdamW (default: 5e-5; 3e-5 above hidden size 512; ten times that with --lora)",
        check=above(0), affects={"later steps", "steps", "start without epochs"}, common=True,
    )  # fmt: skip
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup", "inverse_sqrt"] = option(
        "linear", "learning-rate schedule after warmup, in whose last step the rate is the peak", affects=_EPOCHS
    )
    contrastive_steps: int | None = option(
        None, "contrastive steps before the head (default: 100 below 4,000 rows)", check=at_least(0), affects={"start"}
    )
    label_texts: Literal["auto", "none"] = option(
        "auto", "auto: below 300 labelled rows, add the label names as training texts if they are words; none: do not",
        affects={"later steps"},
    )  # fmt: skip
    weight_decay: float = option(
        0.01, "AdamW's weight decay; none on biases and norms", check=between(0, 1), affects=_EACH_STEP
    )
    adam_beta1: float = option(0.9, "AdamW's beta 1", check=between(0, 1), affects=_EACH_STEP)
    adam_beta2: float = option(0.999, "AdamW's beta 2", check=between(0, 1), affects=_EACH_STEP)
    adam_epsilon: float = option(1e-8, "AdamW's epsilon", check=above(0), affects=_EACH_STEP)
    layerwise_lr_decay: float = option(
        1.0, "learning-rate factor of each layer relative to the layer above", check=_SHARE, affects=_EACH_STEP
    )
    label_smoothing_factor: float = option(
        0.0, "share of each target that is spread over all classes", check=between(0, 1), affects=_EPOCHS
    )
    class_weights: str = option(
        "none", "balanced: weight classes inversely to their frequency; or JSON, or a file of it: {label: weight}",
        metavar="balanced|FILE", affects={"later steps", "start without epochs"},
    )  # fmt: skip
    loss: Literal["cross_entropy", "focal"] = option(
        "cross_entropy", "focal: down-weight rows that are predicted with high confidence (gamma 2)", affects=_EPOCHS
    )
    sampler: Literal["uniform", "balanced"] = option(
        "uniform", "balanced: draw rows with replacement, all classes equally often", affects=_EPOCHS
    )
    eval_steps: int | None = option(
        None, "evaluate every N steps, too; better weights are saved", check=above(0), affects=_EPOCHS
    )
    patience: int | None = option(
        None, "early stopping: evaluations (each epoch, and --eval-steps) without improvement; keeps the best weights",
        "--patience", "--early-stopping-patience", check=above(0), affects=_EPOCHS,
    )  # fmt: skip
    metric_for_best_model: str | None = option(
        None, "metric that selects the best weights (default: macro_f1; average_precision for several labels, pearson "
        "for scores)", affects={"result", "epochs"},
    )  # fmt: skip
    calibrate: Literal["auto", "none"] = option(
        "auto", "auto: fit a temperature on held-out rows, and fold it into the output layer", affects={"result"}
    )
    keep_features: int = option(
        50, "features of so many training texts a class are kept, without the texts, so that a class can be added "
        "later; 0: none, and adding one takes all rows again", check=at_least(0), affects={"result"},
    )  # fmt: skip
    max_grad_norm: float = option(1.0, "clip gradients to this norm; 0: off", check=at_least(0), affects=_EACH_STEP)
    warmup_steps: float = option(
        0.1, "warmup steps; below 1: fraction of all steps", check=at_least(0), affects=_EPOCHS
    )
    seed: int = option(
        42, "seed of split, shuffle, head and dropout", check=between(0, 2**31), affects={"identity"}, common=True
    )

    def rows_per_step(self, devices: int) -> int:
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
