"""Settings of a run's output folder, checkpoints and logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from classify.config.fields import above, at_least, option


@dataclass(frozen=True)
class OutputConfig:
    """Part of `TrainingConfig`; fields are named as in `transformers.TrainingArguments` wherever it has them."""

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
        "auto",
        "weights to keep: last, or best on the validation split; auto: last, unless earlier ones are more accurate by "
        "two standard errors; best for several labels, scores, and metrics that are errors",
        affects={"result"},
    )
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
