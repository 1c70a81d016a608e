"""Every setting changes what a run does: each is tried here, or the test that tries it is named."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from classify.config.run_config import FIELDS
from classify.errors import InputError
from classify.training.run import train
from tests.support import tiny
from tests.support.runs import make_config, read_json

# A short run in which each step counts.
SHORT = {"num_train_epochs": 1.0, "batch_size": 16, "dropout": 0.0, "precision": "fp32", "report_to": "none"}

Evidence = Callable[[Path], object]


def weights(out: Path) -> object:
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def files(out: Path) -> object:
    return sorted(entry.name for entry in out.iterdir())


def checkpoints(out: Path) -> object:
    return sorted(entry.name for entry in (out / "checkpoints").iterdir())


def predictions(out: Path) -> object:
    return (out / "predictions.csv").read_text(encoding="utf-8")


def logged(out: Path) -> object:
    return [json.loads(line).get("step") for line in (out / "train_log.jsonl").read_text().splitlines()]


def classes(out: Path) -> object:
    return list(read_json(out / "config.json")["id2label"].values())


def scores(part: str) -> Evidence:
    return lambda out: read_json(out / "metrics.json")[part]["per_class"]


def decision(key: str) -> Evidence:
    """What run.json has under a key, or as the decision of that name."""

    def read(out: Path) -> object:
        run = read_json(out / "run.json")
        return run[key] if key in run else [guess["value"] for guess in run["guesses"] if guess["what"] == key]

    return read


@dataclass
class Case:
    """Two runs: with `beside` alone, and with `changes` too. What `evidence` reads of their folders must differ."""

    changes: Mapping[str, Any]
    evidence: Evidence = weights
    beside: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""  # what the run with the changes is refused with
    refused_without: str = ""  # the same of the run without them


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, a second model and an earlier run, by the names that CASES have of them."""
    folder = tmp_path_factory.mktemp("tables")
    rows = tiny.table_rows(72)
    texts, labels = zip(*rows, strict=True)
    others = [text for text, _ in tiny.table_rows(72, seed=5)]

    def write(name: str, header: str, columns: list[list[str]]) -> None:
        lines = [header, *(",".join(cells) for cells in zip(*columns, strict=True))]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def cycle(*values: str) -> list[str]:
        return [values[number % len(values)] for number in range(72)]

    write("base.csv", "text,label", [list(texts), list(labels)])
    write("other.csv", "text,label", [others, list(labels)])
    write("wide.csv", "text,other,label,kind", [list(texts), others, list(labels), cycle("a", "a", "a", "b", "c")])
    write("tested.csv", "text,label", [others[:12], list(labels[:12])])
    write("lists.csv", "text,label", [list(texts), cycle("Food", "Drinks", '"Food, Drinks"')])
    write("groups.csv", "text,label,customer", [list(texts), list(labels), [f"c{n // 4}" for n in range(72)]])
    parts = cycle("train", "train", "train", "validation", "test", "train", "train")
    write("parts.csv", "text,label,part", [list(texts), list(labels), parts])
    days = [f"{n % 28 + 1:02}/01/2026" for n in range(72)]
    write("days.csv", "text,label,day", [list(texts), list(labels), days])
    write("dates.csv", "text,label,day", [list(texts), list(labels), [f"2026-01-{n % 28 + 1:02}" for n in range(72)]])
    write("gaps.csv", "text,label", [list(texts), ["" if n > 60 else label for n, label in enumerate(labels)]])
    write("mostly.csv", "text,label", [list(texts), ["" if n > 30 else label for n, label in enumerate(labels)]])
    write("marks.csv", "text,label", [list(texts), ["?" if n > 60 else label for n, label in enumerate(labels)]])
    write(
        "typed.csv", "text,label", [list(texts), [label.upper() if n > 60 else label for n, label in enumerate(labels)]]
    )
    write("formulas.csv", "text,label", [[f"=1+1 {text}" for text in texts], list(labels)])
    write(
        "uneven.csv", "text,label", [[text for n, (text, _) in enumerate(rows)], cycle(*("card",) * 6, "money", "app")]
    )
    write("quoted.csv", "text,label", [[f'"{text}"' for text in texts], list(labels)])
    (folder / "bare.csv").write_text("".join(f"{text},{label}\n" for text, label in rows))
    (folder / "carets.csv").write_text("".join(f"{text}^{label}\n" for text, label in [("text", "label"), *rows]))
    write("accents.csv", "text,label", [[f"{text} déjà vu à côté" for text in texts], list(labels)])
    broken = (folder / "base.csv").read_text(encoding="utf-8").splitlines()
    broken[30] += ",one,too,many"
    (folder / "broken.csv").write_text("\n".join(broken) + "\n", encoding="utf-8")
    book = openpyxl.Workbook()
    for sheet, table in ((book.active, rows), (book.create_sheet("second"), tiny.table_rows(72, seed=5))):
        for row in [("text", "label"), *table]:
            sheet.append(row)
    book.save(folder / "book.xlsx")
    tiny.make_model(folder / "model", seed=0)
    tiny.make_model(folder / "another", seed=1)
    tiny.make_model(folder / "wide", seed=0)
    train(make_config(folder / "model", folder / "base.csv", folder / "earlier", **SHORT, seed=7))
    return folder


# Names of files stand for those of `folder`, as does the model's.
TABLES = {"data", "eval_data", "test_data", "split_like", "model"}
WIDE = {"data": "wide.csv", "text_column": "text", "label_column": "label"}
DROPPED = {"dropout": 0.3}
ADAPTED = {"lora": True}

CASES: dict[str, Case] = {
    "data": Case({"data": "other.csv"}),
    "eval_data": Case({"eval_data": "tested.csv"}, scores("eval")),
    "test_data": Case({"test_data": "tested.csv"}, scores("test")),
    "text_column": Case({"text_column": "other"}, beside=WIDE),
    "label_column": Case({"label_column": "kind"}, classes, beside=WIDE),
    "text_pair_column": Case({"text_pair_column": "other"}, beside=WIDE),
    "text_column_delimiter": Case({"text_column_delimiter": " and "}, beside={**WIDE, "text_column": "text,other"}),
    "task": Case({"task": "single"}, classes, beside={"data": "lists.csv"}),
    "encoding": Case({"encoding": "latin-1"}, predictions, beside={"data": "accents.csv"}),
    "sheet": Case({"sheet": "second"}, beside={"data": "book.xlsx"}, refused_without="--sheet"),
    "header": Case({"header": True}, beside={"data": "bare.csv"}),
    "no_header": Case({"no_header": True}, classes, beside={"data": "base.csv"}, refused="line 1"),
    "delimiter": Case({"delimiter": "^"}, beside={"data": "carets.csv"}, refused_without="Got the one column"),
    "quote": Case({"quote": "none"}, beside={"data": "quoted.csv"}),
    "skip_lines": Case({"skip_lines": 3}, beside={"data": "base.csv"}),
    "label_separator": Case({"label_separator": "#"}, classes, beside={"data": "lists.csv"}),
    "group_column": Case({"group_column": "customer"}, beside={"data": "groups.csv"}),
    "split_column": Case({"split_column": "none"}, beside={"data": "parts.csv"}),
    "split_by_time": Case({"split_by_time": "day"}, beside={"data": "dates.csv"}),
    "time_format": Case(
        {"time_format": "%d/%m/%Y"},
        beside={"data": "days.csv", "split_by_time": "day"},
        refused_without="--time-format",
    ),
    "split_like": Case({"split_like": "earlier"}),
    "folds": Case({"folds": 3}),
    "drop_unlabelled": Case({"drop_unlabelled": True}, files, beside={"data": "gaps.csv"}),
    "predict_unlabelled": Case(
        {"predict_unlabelled": True}, beside={"data": "mostly.csv"}, refused_without="--predict-unlabelled"
    ),
    "unlabelled_value": Case({"unlabelled_value": "?"}, classes, beside={"data": "marks.csv"}),
    "label_names": Case({"label_names": "card=Cards"}, classes),
    "normalize_labels": Case({"normalize_labels": "none"}, classes, beside={"data": "typed.csv"}),
    "on_bad_rows": Case({"on_bad_rows": "skip"}, beside={"data": "broken.csv"}, refused_without="line 31"),
    "max_length": Case({"max_length": 6}),
    "max_train_samples": Case({"max_train_samples": 20}),
    "model": Case({"model": "another"}),
    "head": Case({"head": "random"}),
    "pooling": Case({"pooling": "mean"}),
    "packing": Case({"packing": "padded"}, decision("packing")),
    "kernels": Case({"kernels": "off"}, decision("kernels")),
    "compact_vocabulary": Case({"compact_vocabulary": False}, decision("vocabulary")),
    "freeze_embeddings": Case({"freeze_embeddings": True}),
    "freeze_layers": Case({"freeze_layers": 1}),
    "lora": Case({"lora": True}),
    "lora_rank": Case({"lora_rank": 2}, beside=ADAPTED),
    "lora_alpha": Case({"lora_alpha": 2}, beside=ADAPTED),
    "dropout": Case({"dropout": 0.4}),
    "precision": Case({"precision": "bf16"}, decision("precision")),
    "opt_level": Case({"opt_level": "O2"}, beside={"precision": "bf16"}),
    "output_dir": Case({"output_dir": "named"}, lambda out: out.name),
    "save_steps": Case({"save_steps": 1}, checkpoints, beside={"save_total_limit": 100}),
    "save_total_limit": Case({"save_total_limit": 1}, checkpoints, beside={"save_steps": 1}),
    "excel_safe": Case({"excel_safe": True}, predictions, beside={"data": "formulas.csv"}),
    "logging_steps": Case({"logging_steps": 1}, logged),
    "report_to": Case({"report_to": "tensorboard"}, files),
    "preset": Case({"preset": "fast"}, beside={"num_train_epochs": None}),
    "num_train_epochs": Case({"num_train_epochs": 2.0}),
    "max_steps": Case({"max_steps": 2}),
    "max_minutes": Case({"max_minutes": 1e-3}, beside={"num_train_epochs": 3.0}),
    "batch_size": Case({"batch_size": 8}),
    "per_device_train_batch_size": Case({"per_device_train_batch_size": 8, "batch_size": None}),
    "gradient_accumulation_steps": Case({"gradient_accumulation_steps": 2}, beside=DROPPED),
    "learning_rate": Case({"learning_rate": 2e-3}),
    "lr_scheduler_type": Case({"lr_scheduler_type": "constant"}),
    "contrastive_steps": Case({"contrastive_steps": 2}),
    "weight_decay": Case({"weight_decay": 0.5}),
    "adam_beta1": Case({"adam_beta1": 0.5}),
    "adam_beta2": Case({"adam_beta2": 0.5}),
    "adam_epsilon": Case({"adam_epsilon": 1e-3}),
    "layerwise_lr_decay": Case({"layerwise_lr_decay": 0.5}),
    "label_smoothing_factor": Case({"label_smoothing_factor": 0.2}),
    "class_weights": Case({"class_weights": "balanced"}, beside={"data": "uneven.csv"}),
    "loss": Case({"loss": "focal"}),
    "sampler": Case({"sampler": "balanced"}, beside={"data": "uneven.csv"}),
    "save_dtype": Case({"save_dtype": "bfloat16"}),
    "calibrate": Case({"calibrate": "none"}),
    "max_grad_norm": Case({"max_grad_norm": 0.1}),
    "warmup_steps": Case({"warmup_steps": 0.9}),
    "seed": Case({"seed": 1}),
}

# Settings of processes, devices, time and earlier runs, where one run in this process shows nothing.
ELSEWHERE: dict[str, tuple[str, str]] = {
    "use_cpu": ("tests.launch.test_plan", "test_decision"),
    "nproc": ("tests.training.test_coverage", "test_two_processes_refuse_in_one_line"),
    "strategy": ("tests.launch.test_plan", "test_decision"),
    "sync_batch_norm": ("tests.training.test_strategies", "test_synchronized_batch_norm_needs_gpus"),
    "ddp_backend": ("tests.distributed.test_failures", "test_nccl_is_refused_where_no_accelerator_is_found"),
    "local_rank": ("tests.launch.test_plan", "test_the_flag_of_the_old_launcher_stands_for_the_variable"),
    "ddp_timeout": ("tests.distributed.test_failures", "test_a_rank_waits_no_longer_than_it_may"),
    "save_on_each_node": ("tests.distributed.test_two_machines", "test_each_machine_gets_all_files"),
    "overwrite_output_dir": ("tests.training.test_run", "test_a_folder_in_use_is_refused_and_overwritten_on_demand"),
    "resume_from_checkpoint": ("tests.training.test_resume", "test_resumed_is_uninterrupted_to_the_last_bit"),
    "gradient_checkpointing": ("tests.training.test_settings", "test_gradient_checkpointing_changes_nothing"),
    "eval_steps": ("tests.training.test_eval_steps", "test_scores_within_an_epoch"),
    "max_eval_samples": ("tests.training.test_eval_steps", "test_a_sample_of_the_validation_rows"),
    "out_of_scope_label": ("tests.training.test_open_set", "test_a_run"),
    "save_minutes": ("tests.training.test_not_finite", "test_checkpoints_by_time"),
    "patience": ("tests.training.test_run", "test_patience_ends_a_run_that_gets_no_better"),
    "label_texts": ("tests.training.test_folds", "test_names_of_labels_are_training_texts"),
    "language": ("tests.training.test_multilingual", "test_the_flag_wins_over_what_is_detected"),
    "keep": ("tests.training.test_run", "test_the_best_epoch_is_kept"),
    "long_texts": ("tests.prediction.test_long_texts", "test_predict_does_as_training_did"),
    "metric_for_best_model": ("tests.training.test_run", "test_the_best_epoch_is_kept"),
    "verbose": ("tests.training.test_terminal", "test_six_lines_of_decisions"),
    "quiet": ("tests.training.test_terminal", "test_quiet"),
    "json": ("tests.training.test_terminal", "test_json_lines"),
}


def test_every_setting_is_tried() -> None:
    assert CASES.keys() | ELSEWHERE.keys() == FIELDS.keys()
    assert not CASES.keys() & ELSEWHERE.keys()
    assert all(name in case.changes for name, case in CASES.items())
    for module, test in ELSEWHERE.values():
        assert hasattr(importlib.import_module(module), test), f"{module}::{test}"


def outcome(folder: Path, out: Path, settings: Mapping[str, Any], evidence: Evidence) -> object:
    """What the evidence is after a run, or the message that it ended with."""
    values = {**SHORT, "data": "base.csv", "model": "model", **settings}
    for name in TABLES & values.keys():
        values[name] = str(folder / values[name])
    model, data = Path(values.pop("model")), Path(values.pop("data"))
    if "output_dir" in values:
        out = out.parent / values.pop("output_dir")
    try:
        return evidence(train(make_config(model, data, out, **values)))
    except InputError as error:
        return error


@pytest.fixture(scope="module")
def without() -> dict[str, object]:
    """Outcomes of runs that several cases begin with."""
    return {}


@pytest.mark.parametrize("name", CASES)
def test_a_setting_changes_what_it_says(name: str, folder: Path, tmp_path: Path, without: dict[str, object]) -> None:
    """Which shows something since the same settings give the same bits, as test_run.py sees to."""
    case = CASES[name]
    key = f"{case.beside}{case.evidence}"
    if key not in without:
        without[key] = outcome(folder, tmp_path / "before", case.beside, case.evidence)
    before, after = without[key], outcome(folder, tmp_path / "after", {**case.beside, **case.changes}, case.evidence)
    for result, refusal in ((before, case.refused_without), (after, case.refused)):
        if refusal:
            assert isinstance(result, InputError)
            assert refusal in str(result)
        elif isinstance(result, InputError):
            raise result
    assert before != after
