"""What a run leaves behind: its folder, its checkpoints, the weights that are kept, its logs."""

from __future__ import annotations

from dataclasses import dataclass

from classify.config.fields import above, at_least, option


@dataclass(frozen=True)
class OutputConfig:
    """Part of `TrainingConfig`; field names are those of `transformers.TrainingArguments` wherever it has the field."""

    output_dir: str | None = option(
        None, "folder for the result; runs/<name of data>-<n> if not given", "--output-dir", metavar="DIR"
    )
    overwrite_output_dir: bool = option(
        False, "empty the folder first if it holds an earlier run", "--overwrite-output-dir"
    )
    resume_from_checkpoint: bool | str = option(
        False,
        "go on from the newest checkpoint (of this folder, if one is named; alone with it: as that run's command said)",
        "--resume",
        "--resume-from-checkpoint",
        metavar="DIR",
    )
    save_steps: int | None = option(
        None,
        "a checkpoint every so many steps, besides the one at each epoch's end",
        "--save-steps",
        check=above(0),
    )
    save_on_each_node: bool = option(
        False, "each machine gets all files, for machines without a shared disk", "--save-on-each-node"
    )
    excel_safe: bool = option(
        False, "in predictions.csv no cell begins like a formula: such cells get a ' in front", "--excel-safe"
    )
    save_total_limit: int = option(
        2, "checkpoints kept, the best one among them", "--save-total-limit", check=at_least(1)
    )
    logging_steps: int = option(10, "steps between two lines of train_log.jsonl", "--logging-steps", check=above(0))
    report_to: str = option(
        "auto", "tensorboard, wandb, mlflow, ...; none; auto: tensorboard where it is installed", "--report-to"
    )
