"""The settings that contradict each other: a table of values that may not meet, with the sentence that says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A row holds where each field has one of the values, or any value at all (`True`). A sentence may name fields.
_TABLE: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"batch_size": True, "per_device_train_batch_size": True},
        "--batch-size {batch_size} and --per-device-train-batch-size {per_device_train_batch_size} both set the rows "
        "of a step; give one of them.",
    ),
    (
        {"use_cpu": True, "precision": ("fp16", "tf32")},
        "--precision {precision} needs a GPU; use bf16 or fp32, or drop --cpu.",
    ),
    (
        {"opt_level": ("O0",), "precision": ("tf32", "bf16", "fp16")},
        "--opt-level O0 and --precision {precision} contradict each other; give one of them.",
    ),
    (
        {"opt_level": ("O1", "O2", "O3"), "precision": ("fp32", "tf32")},
        "--opt-level {opt_level} and --precision {precision} contradict each other; give one of them, or --precision "
        "bf16 or fp16 to choose the half precision.",
    ),
    # At these of Apex's levels the model itself holds half weights.
    (
        {"opt_level": ("O2", "O3"), "splits_weights": True},
        "--opt-level {opt_level} keeps half weights, which --strategy {strategy} does not support; give O1.",
    ),
    (
        {"head": ("random",), "max_steps": (-1,), "num_train_epochs": (0,)},
        "--epochs 0 trains nothing, but --head random needs training; drop one of them.",
    ),
    (
        {"head": ("random",), "max_steps": (-1,), "num_train_epochs": (None,), "preset": ("fast",)},
        "--preset fast trains nothing, but --head random needs training; drop one of them.",
    ),
    ({"lora": True, "freeze_embeddings": True}, "--lora freezes all but the head; drop --freeze-embeddings."),
    ({"lora": True, "freeze_layers": True}, "--lora freezes all but the head; drop --freeze-layers."),
    ({"lora": True, "shards_weights": True}, "--lora does not support --strategy {strategy}; drop one of them."),
    (
        {"drop_unlabelled": True, "predict_unlabelled": True},
        "--drop-unlabelled and --predict-unlabelled contradict each other; give one of them.",
    ),
    (
        {"patience": True, "keep": ("last",)},
        "--patience keeps the best weights, which contradicts --keep last; drop one of them.",
    ),
    ({"verbose": True, "quiet": True}, "--verbose and --quiet contradict each other; give one of them."),
    ({"verbose": True, "json": True}, "--verbose and --json contradict each other; give one of them."),
    ({"quiet": True, "json": True}, "--quiet and --json contradict each other; give one of them."),
    (
        {"resume_from_checkpoint": True, "overwrite_output_dir": True},
        "--resume needs the folder that --overwrite-output-dir empties; give one of them.",
    ),
    ({"folds": (1,)}, "--folds 1 leaves no row to train on; give 2 or more, or 0 to hold rows out."),
    (
        {"folds": True, "split_like": True},
        "{flag} and --split-like {split_like} both define the folds; drop one of them.",
    ),
    (
        {"models": True, "max_minutes": True},
        "--max-minutes limits a single training, but {flag} trains {models} models; drop one of them.",
    ),
    *(
        ({"models": True, field: wanted}, f"{{flag}} leaves no validation rows, which {flag} needs; drop one of them.")
        for field, wanted, flag in (
            ("eval_data", True, "--eval-data"),
            ("split_by_time", True, "--split-by-time"),
            ("out_of_scope_label", True, "--out-of-scope-label"),
            ("patience", True, "--patience"),
            ("keep", ("best",), "--keep best"),
        )
    ),
)


def find_contradictions(values: Mapping[str, Any]) -> list[str]:
    """The sentences of all rows that hold for the values of fields."""
    return [
        sentence.format_map(values)
        for fields, sentence in _TABLE
        if all(bool(values[name]) if wanted is True else values[name] in wanted for name, wanted in fields.items())
    ]
