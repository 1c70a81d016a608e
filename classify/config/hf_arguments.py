"""Handle arguments of TrainingArguments, `run_glue.py` and `run_classification.py` that are not options here.

Options with the same name are aliases among the flags. The others have another name here (`TRANSLATED`), have no effect
(`NO_EFFECT`), or are refused with an alternative (`REFUSED`). Names are written with underscores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from classify.config.fields import as_switch, between, parse

# Ignored with any value.
NO_EFFECT = frozenset(
    """
    do_train do_eval do_predict
    eval_on_start greater_is_better include_for_metrics include_inputs_for_metrics batch_eval_metrics
    prediction_loss_only per_device_eval_batch_size eval_accumulation_steps eval_do_concat_batches
    eval_use_gather_object bf16_full_eval fp16_full_eval
    save_only_model save_safetensors enable_jit_checkpoint ignore_data_skip restore_callback_states_from_checkpoint
    logging_strategy logging_first_step logging_nan_inf_filter log_on_each_node log_level log_level_replica
    disable_tqdm include_num_input_tokens_seen include_tokens_per_second skip_memory_metrics
    average_tokens_across_devices auto_find_batch_size torch_empty_cache_steps use_cache
    gradient_checkpointing_kwargs activation_checkpointing_kwargs
    torch_compile torch_compile_backend torch_compile_mode torchdynamo use_liger_kernel liger_kernel_config
    half_precision_backend fp16_backend jit_mode_eval use_ipex
    dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_multiprocessing_context dataloader_in_order dispatch_batches split_batches
    preprocessing_num_workers remove_unused_columns remove_columns overwrite_cache use_fast_tokenizer
    pad_to_max_length group_by_length length_column_name
    shuffle_train_dataset shuffle_seed ignore_mismatched_sizes
    accelerator_config ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph fsdp_config
    hub_token hub_private_repo hub_strategy hub_always_push hub_revision
    use_legacy_prediction_loop past_index mp_parameters ray_scope
    """.split()  # noqa: SIM905
)

_STRATEGIES = ("eval_strategy", "evaluation_strategy")
# Values, besides false and none, that match what a run does anyway.
_USUAL: dict[str, tuple[str, ...]] = {
    "eval_strategy": ("epoch",),
    "evaluation_strategy": ("epoch",),
    "save_strategy": ("epoch", "steps"),
    "eval_delay": ("0", "0.0"),
    "optim": ("adamw_torch", "adamw_torch_fused", "adamw_hf"),
    "metric_name": ("accuracy", "f1", "precision", "recall", "glue", "mse", "pearsonr", "spearmanr"),
    "model_revision": ("main",),
    "project": ("huggingface",),
    "train_sampling_strategy": ("random", "group_by_length"),
}

# What to do instead, and the arguments that are refused with it.
_INSTEAD = {
    "the optimizer is AdamW; remove this flag": "adafactor optim optim_args optim_target_modules",
    "--strategy fsdp shards weights, gradients and optimizer state over the processes": "deepspeed fsdp sharded_ddp",
    "use --strategy and --sync-batch-norm instead": "parallelism_config",
    "a run evaluates after each epoch, and every --eval-steps; give that, or remove this flag": (
        "eval_delay eval_strategy evaluation_strategy"
    ),
    "--keep best keeps the best weights; checkpoints are written at each epoch's end": "save_strategy",
    "name the data set and its configuration with --data, as in --data hub:nyu-mll/glue:mrpc": "dataset_config_name",
    "name the column with the split of each row: --split-column": (
        "remove_splits train_split_name validation_split_name test_split_name"
    ),
    "every row of a table is scored; give a smaller table with --test-data": "max_predict_samples",
    "the rows are shuffled anew in each epoch; remove this flag": "train_sampling_strategy",
    "the last, smaller batch of an epoch is always trained on; remove this flag": "dataloader_drop_last",
    "use --seed, which also seeds the order of the rows": "data_seed",
    "the same command on the same CPUs gives the same bits; remove this flag": "full_determinism",
    "the schedules take no arguments; give --lr-scheduler-type and --warmup-steps": "lr_scheduler_kwargs",
    "NEFTune is not supported; use --dropout": "neftune_noise_alpha",
    "metrics.json has the usual scores of each task; remove this flag": "metric_name",
    "a model's folder holds its config and tokenizer; give that folder with --model": "config_name tokenizer_name",
    "download it (hf download NAME --revision REVISION --local-dir DIR) and give --model DIR": "model_revision",
    "code from a model repository is never run; use a model that transformers implements": "trust_remote_code",
    "set HF_HUB_CACHE to the folder for downloaded models": "cache_dir",
    "set HF_TOKEN, or run hf auth login": "token use_auth_token",
    "train first, then upload the model alone, since the output folder holds texts, too: hf upload NAME OUTPUT_DIR "
    "--include model.safetensors --include config.json --include classify.json --include 'tokenizer*' --include "
    "README.md, and with --out-of-scope-label --include in_scope.safetensors": "hub_model_id push_to_hub",
    "TensorBoard's files lie in the output folder, under tensorboard; remove this flag": "logging_dir",
    "a run is named after its folder; give --output-dir": "run_name",
    "trackers read their own environment variables; set it there": (
        "project trackio_bucket_id trackio_space_id trackio_static_space_id"
    ),
    "a TPU trains in one process here: set PJRT_DEVICE=TPU, start with python alone, and remove this flag": (
        "tpu_num_cores"
    ),
    "an Apple GPU is used automatically; remove this flag": "use_mps_device",
    "not a setting; give the flag --debug": "debug",
}
REFUSED = {name: instead for instead, names in _INSTEAD.items() for name in names.split()}

NO_TRAINING = (
    "do_eval or do_predict without do_train trains nothing; run classify evaluate, or classify predict, with --model "
    "DIR --data FILE, or add --do_train."
)


def asks_for_no_training(flags: Mapping[str, Any], file: Mapping[str, Any]) -> bool:
    """Whether a command, with the arguments of its file, asks for an evaluation or predictions without training.

    TrainingArguments write do_train false unless it is set, and set do_eval themselves with an evaluation strategy.
    """

    def is_on(arguments: Mapping[str, Any], name: str) -> bool:
        return name in arguments and as_switch(arguments[name]) is not False

    if "do_train" in flags:
        return not is_on(flags, "do_train")
    by_file = is_on(file, "do_eval") and is_unset(file.get("eval_strategy", file.get("evaluation_strategy")))
    asked = is_on(flags, "do_eval") or is_on(flags, "do_predict") or is_on(file, "do_predict")
    return (asked or ("do_train" in file and by_file)) and not is_on(file, "do_train")


def _warmup(raw: Any) -> tuple[str, Any]:
    """A ratio as warmup_steps below 1: a ratio of 1 is all steps, but `warmup_steps` of 1 is one step."""
    ratio = parse(raw, (float,), "warmup_ratio", between(0, 1, include_high=True))
    return "warmup_steps", min(ratio, 1 - 1e-9)


def _data_set(name: str) -> str:
    """Name a data set as --data takes it: a path that exists, else its name on the hub."""
    return name if name.startswith("hub:") or Path(name.partition(":")[0]).exists() else f"hub:{name}"


# Switches with another name here: the field and its value where they are on.
_SWITCHES = {
    "load_best_model_at_end": ("keep", "best"),
    "do_regression": ("task", "regression"),
    "bf16": ("precision", "bf16"),
    "fp16": ("precision", "fp16"),
    "tf32": ("precision", "tf32"),
}
# Other arguments with another name here: a function from the value to (field, value).
_TRANSLATED: dict[str, Callable[[Any], tuple[str, Any]]] = {
    "task_name": lambda raw: ("data", f"hub:nyu-mll/glue:{str(raw).lower()}"),
    "dataset_name": lambda raw: ("data", _data_set(str(raw))),
    "warmup_ratio": _warmup,
    "per_gpu_train_batch_size": lambda raw: ("per_device_train_batch_size", raw),
}
TRANSLATED = frozenset(_SWITCHES.keys() | _TRANSLATED.keys())
# Every name of the three lists.
NAMES = tuple(sorted(NO_EFFECT | REFUSED.keys() | TRANSLATED))


def translate(name: str, raw: Any) -> tuple[str, Any]:
    """The field and value of an argument in `TRANSLATED`. Raises InputError for a value that is none."""
    return _SWITCHES[name] if name in _SWITCHES else _TRANSLATED[name](raw)


def simplify(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one command or file, without the ones whose meaning depends on another.

    A data set's configuration becomes a part of its name, as --data takes it. In the JSON of transformers 4 warm-up
    steps of 0 mean the ratio.
    """
    simple = dict(arguments)
    name, configuration = simple.get("dataset_name"), simple.get("dataset_config_name")
    if name is not None and not is_unset(configuration):
        simple |= {"dataset_name": f"{name}:{simple.pop('dataset_config_name')}"}
    if str(simple.get("warmup_steps")) in ("0", "0.0") and not is_unset(simple.get("warmup_ratio")):
        del simple["warmup_steps"]
    return simple


def is_unset(raw: Any) -> bool:
    return raw is None or as_switch(raw) is False or raw in ("", "no", "none", "None", [], {}, 0)


def is_switch_off(name: str, raw: Any) -> bool:
    """Whether an argument such as `--fp16 False` turns a switch off: it means what its absence means."""
    return name in _SWITCHES and is_unset(raw)


def turned_off(arguments: dict[str, Any]) -> list[tuple[str, Any]]:
    """The field and value that each switch which is turned off would have set; a file's may not."""
    return [_SWITCHES[name] for name, raw in arguments.items() if is_switch_off(name, raw)]


def has_no_effect(name: str, raw: Any, given: Mapping[str, Any]) -> bool:
    """Whether this argument does not change a run with the `given` fields."""
    if name in NO_EFFECT or (name in _STRATEGIES and raw == "steps" and "eval_steps" in given):
        return True
    return name != "warmup_ratio" and (is_unset(raw) or str(raw).lower() in _USUAL.get(name, ()))


def to_value(field: str, raw: Any) -> Any:
    """The value of a field as this program writes it."""
    if raw == [] and field == "report_to":
        return "none"
    if isinstance(raw, str) and field == "metric_for_best_model":
        name = raw.removeprefix("eval_")
        return "mcc" if name == "matthews_correlation" else name
    return raw
