"""Commands and files written for transformers' scripts: each argument means the same, has no effect, or is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from classify.config.fields import flags_of
from classify.config.hf_arguments import NAMES
from classify.config.parser import KEYS, parse_training, training_parser
from classify.config.run_config import FIELDS
from classify.training.inputs import check
from tests.config.test_parser import faults, parse
from tests.support.findings import notes_of

# Arguments of run_glue.py and run_classification.py (transformers, examples/pytorch/text-classification), besides
# those of TrainingArguments.
SCRIPTS = """
task_name dataset_name dataset_config_name max_seq_length overwrite_cache pad_to_max_length max_train_samples
max_eval_samples max_predict_samples train_file validation_file test_file do_regression text_column_names
text_column_delimiter train_split_name validation_split_name test_split_name remove_splits remove_columns
label_column_name preprocessing_num_workers shuffle_train_dataset shuffle_seed metric_name model_name_or_path
config_name tokenizer_name cache_dir use_fast_tokenizer model_revision token use_auth_token trust_remote_code
ignore_mismatched_sizes
""".split()  # noqa: SIM905
# Names that older versions of TrainingArguments had.
OLDER = """
overwrite_output_dir evaluation_strategy warmup_ratio logging_dir no_cuda per_gpu_train_batch_size fp16_opt_level
fp16_backend half_precision_backend group_by_length save_safetensors adafactor sharded_ddp use_mps_device tpu_num_cores
jit_mode_eval use_ipex torchdynamo ray_scope dispatch_batches split_batches include_inputs_for_metrics
include_tokens_per_second past_index mp_parameters use_legacy_prediction_loop
""".split()  # noqa: SIM905


COMMAND = """
--train_file a.csv --validation_file b.csv --do_train --do_eval --evaluation_strategy epoch --save_strategy
epoch --load_best_model_at_end --metric_for_best_model eval_loss --logging_steps 50 --weight_decay 0.1
--warmup_ratio 0.06 --save_total_limit 1 --overwrite_cache --max_seq_length 64 --text_column_names body
--label_column_name topic --metric_name accuracy --optim adamw_torch --dataloader_num_workers 4 --tf32 True
--disable_tqdm False --no_remove_unused_columns --torch_compile --ddp_find_unused_parameters False --report_to
tensorboard mlflow --seed 7 --per_device_train_batch_size 16 --num_train_epochs 2 --push_to_hub False
--fp16_full_eval
"""


def test_every_argument_is_known() -> None:
    import dataclasses

    from transformers import TrainingArguments

    names = {field.name for field in dataclasses.fields(TrainingArguments)} | {*SCRIPTS, *OLDER}
    assert names - KEYS.keys() - set(NAMES) == set()
    assert not KEYS.keys() & set(NAMES), "a name is a setting of its own or one of the others"


def test_a_command_of_run_classification() -> None:
    config = parse(*COMMAND.split())
    data, training = config.data, config.training
    assert (data.data, data.eval_data, data.text_column, data.label_column) == ("a.csv", "b.csv", "body", "topic")
    assert (training.keep, training.metric_for_best_model, training.precision) == ("best", "loss", "tf32")
    assert (training.warmup_steps, training.weight_decay, training.logging_steps) == (0.06, 0.1, 50)
    assert (training.save_total_limit, training.report_to, training.seed) == (1, "tensorboard,mlflow", 7)
    assert set(config.ignored) == {
        "--do_train", "--do_eval", "--evaluation_strategy epoch", "--save_strategy epoch", "--overwrite_cache",
        "--metric_name accuracy", "--optim adamw_torch", "--dataloader_num_workers 4", "--disable_tqdm False",
        "--remove_unused_columns False", "--torch_compile", "--ddp_find_unused_parameters False", "--push_to_hub False",
        "--fp16_full_eval",
    }  # fmt: skip


def test_arguments_without_effect_are_named_in_one_line(model_folder: Path, table: Path) -> None:
    words = ["--train_file", str(table), "--model_name_or_path", str(model_folder), "--no_cuda"]
    inputs = check(parse(*words, "--do_train", "--optim", "adamw_torch"))
    assert "no effect in this program: --do_train, --optim adamw_torch" in notes_of(inputs)


@pytest.mark.parametrize(("flag", "value"), [("--fp16", "fp16"), ("--bf16", "bf16"), ("--tf32", "tf32")])
def test_short_forms_of_precision(flag: str, value: str) -> None:
    assert parse("--data", "x", flag).training.precision == value
    assert parse("--data", "x", flag, "True", "--precision", value).training.precision == value
    line = f"--precision and {flag} set --precision to fp32 and {value}; give one of them."
    assert faults("--data", "x", flag, "--precision", "fp32") == (line,)


def test_evaluation_by_steps() -> None:
    config = parse("--data", "x", "--eval_strategy", "steps", "--eval_steps", "20", "--max_eval_samples", "9")
    assert (config.training.eval_steps, config.data.max_eval_samples) == (20, 9)
    assert config.ignored == ("--eval_strategy steps",)
    assert parse("--data", "x", "--early-stopping-patience", "2").training.patience == 2


def test_the_words_of_a_switch() -> None:
    """Those that transformers reads; a short one is a name where a name may stand."""
    words = "--data x --fp16 0 --load_best_model_at_end f --do_regression n --use_cpu 1"
    config = parse(*words.split())
    default = parse("--data", "x")
    assert (config.training.precision, config.data.task) == (default.training.precision, default.data.task)
    assert config.training.keep == default.training.keep
    assert config.training.use_cpu
    assert not parse("--data", "x", "--use_cpu", "0").training.use_cpu
    assert parse("--data", "x", "--resume", "t").training.resume_from_checkpoint == "t"
    assert parse("--data", "x", "--epochs", "1", "--seed", "0").training.seed == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--push_to_hub", "--push_to_hub: train first, then upload"),
        ("--deepspeed ds.json", "--deepspeed ds.json: --strategy fsdp shards"),
        ("--trust-remote-code True", "--trust_remote_code True: code from a model repository is never run"),
        ("--optim sgd", "--optim sgd: the optimizer is AdamW"),
        ("--eval_strategy steps", "--eval_strategy steps: a run evaluates after each epoch"),
        ("--max_predict_samples 9", "--max_predict_samples 9: every row of a table is scored"),
        ("--task_name sst2", "--data and --task_name set --data to x and hub:nyu-mll/glue:sst2; give one of them"),
        ("--dataset_config_name mrpc", "--dataset_config_name mrpc: name the data set and its configuration with"),
        ("--warmup_ratio much", "--warmup_ratio must be a number from 0 to 1. Got 'much' instead."),
        ("--warmup_ratio 5", "--warmup_ratio must be a number from 0 to 1. Got '5' instead."),
        ("--warmup_ratio -1", "--warmup_ratio must be a number from 0 to 1. Got '-1' instead."),
        ("--warmup_ratio 0.1 --warmup_steps 9", "--warmup-steps and --warmup_ratio set --warmup-steps to 9 and 0.1"),
        *(
            (words, "do_eval or do_predict without do_train trains nothing; run classify evaluate, or classify predict")
            for words in ("--do_eval", "--do_eval False --do_predict", "--do_train no --do_predict", "--no-do-train")
        ),
    ],
)
def test_what_asks_for_something_else_is_refused_with_the_way_to_it(words: str, line: str) -> None:
    (fault,) = faults("--data", "x", *words.split())
    assert fault.startswith(line)


@pytest.mark.parametrize(
    ("words", "data"),
    [
        ("--task_name MRPC", "hub:nyu-mll/glue:mrpc"),
        ("--dataset_name imdb", "hub:imdb"),
        ("--dataset_name hub:imdb", "hub:imdb"),
        ("--dataset_name nyu-mll/glue --dataset_config_name stsb", "hub:nyu-mll/glue:stsb"),
    ],
)
def test_a_data_set_of_the_hub(words: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's commands of run_glue.py and run_classification.py name it so; a path that exists stays one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert parse("--dataset_name", "./here", "--do_train").data.data == "./here"
    assert parse(*words.split(), "--do_train").data.data == data


def test_the_json_of_training_arguments(tmp_path: Path) -> None:
    """As `to_json_string` writes it, with every field: also those that nobody has set."""
    from transformers import TrainingArguments

    wanted = TrainingArguments(str(tmp_path / "out"), learning_rate=1e-4, save_total_limit=3, report_to=["tensorboard"])
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps({**json.loads(wanted.to_json_string()), "train_file": "a.csv"}))
    for words in ([str(file)], ["--config", str(file)]):
        config = parse_training(words, "run_classify.py")
        training = config.training
        assert (config.data.data, training.output_dir) == ("a.csv", str(tmp_path / "out"))
        assert (training.learning_rate, training.save_total_limit, training.report_to) == (1e-4, 3, "tensorboard")
        assert (training.per_device_train_batch_size, training.warmup_steps) == (8, 0)


def test_the_help_lists_the_common_flags_and_help_all_every_one() -> None:
    short, full = training_parser("x", full_help=False).format_help(), training_parser("x").format_help()
    for name, (_, spec) in FIELDS.items():
        flag = f"\n  {flags_of(spec)[0]} "
        assert flag in full.replace("\n  --debug\n", "\n  --debug \n") or flag.rstrip() + "\n" in full, name
        assert (flag in short or flag.rstrip() + "\n" in short) == spec.metadata["common"], name
    assert sum(spec.metadata["common"] for _, spec in FIELDS.values()) <= 22


@pytest.mark.parametrize(
    ("content", "words", "is_refused"),
    [
        ({"do_train": False, "do_predict": True}, "", True),
        ({"do_train": False, "do_eval": True, "eval_strategy": "epoch"}, "", False),
        ({"do_train": False, "do_eval": True}, "--do_train", False),
        ({"do_train": False}, "", False),
        ({"do_eval": True}, "", False),
        ({"do_train": True}, "--do_eval", False),
    ],
)
def test_a_file_that_asks_for_no_training(
    tmp_path: Path, content: dict[str, object], words: str, is_refused: bool
) -> None:
    """TrainingArguments set do_eval themselves with an evaluation strategy, and do_train is false unless it is set."""
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps({"data": "x", **content}))
    if is_refused:
        (line,) = faults("--config", str(file), *words.split())
        assert line.startswith("do_eval or do_predict without do_train trains nothing; run classify evaluate")
    else:
        parse("--config", str(file), *words.split())


SWITCHED = {
    "fp16": ("precision", "fp16"),
    "load_best_model_at_end": ("keep", "best"),
    "do_regression": ("task", "regression"),
}


@pytest.mark.parametrize("name", SWITCHED)
@pytest.mark.parametrize("is_own_name", [False, True])
def test_a_switch_turned_off_overrides_the_file(tmp_path: Path, name: str, is_own_name: bool) -> None:
    field, value = SWITCHED[name]
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps({"data": "x", **({field: value} if is_own_name else {name: True})}))
    assert parse("--config", str(file)).flat()[field] == value
    config = parse("--config", str(file), f"--{name}", "False")
    assert config.flat()[field] == "auto"
    assert config.ignored == (), "it has an effect"


def test_flags_of_other_scripts_override_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "arguments.json"
    wanted = {"fp16": True, "push_to_hub": True, "dataset_name": "nyu-mll/glue", "dataset_config_name": "mrpc"}
    file.write_text(json.dumps(wanted))
    words = ["--config", str(file), "--fp16", "False", "--bf16", "--push_to_hub", "False", "--dataset_name", "imdb"]
    config = parse(*words)
    assert (config.training.precision, config.data.data) == ("bf16", "hub:imdb")
    assert config.ignored == ("--push_to_hub False",)


@pytest.mark.parametrize(
    ("content", "steps"),
    [
        ({"warmup_ratio": 0.1, "warmup_steps": 0}, 0.1),
        ({"warmup_ratio": 0.0, "warmup_steps": 0}, 0),
        ({"warmup_ratio": 0.0, "warmup_steps": 50}, 50),
        ({"warmup_ratio": 1}, 1 - 1e-9),
    ],
)
def test_warmup_steps_of_0_mean_the_ratio(tmp_path: Path, content: dict[str, float], steps: float) -> None:
    """As in transformers 4, whose JSON holds both."""
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps({"data": "x", **content}))
    assert parse("--config", str(file)).training.warmup_steps == steps
    if content["warmup_ratio"]:
        words = [f"--{name}={value}" for name, value in content.items()]
        assert parse("--data", "x", *words).training.warmup_steps == steps


@pytest.mark.parametrize(
    ("content", "words", "level"),
    [
        ({"fp16": False}, "", None),
        ({}, "", None),
        ({"fp16": True}, "--fp16 False", None),
        ({"bf16": True}, "", None),
        ({"fp16": True}, "", "O1"),
        ({}, "--fp16", "O1"),
        ({}, "--fp16_opt_level O2", "O2"),
    ],
)
def test_a_level_of_fp16_counts_with_fp16(
    tmp_path: Path, content: dict[str, bool], words: str, level: str | None
) -> None:
    """The JSON of transformers 4 names one always."""
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps({"data": "x", "fp16_opt_level": "O1", **content}))
    config = parse("--config", str(file), *words.split())
    assert config.training.opt_level == level
    assert (f"{file}: fp16_opt_level O1" in config.ignored) is (level != "O1")
