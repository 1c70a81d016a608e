"""The settings of a run as a whole: their sources, contradictions between them, and what a run uses.

The fields are declared in `classify.config.schema`; `resolve` fills in the recipe's values.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from classify.config.fields import Effect, convert, shown_name
from classify.config.recipe import FEW_ROWS, FOLDS, PRESETS, choose_recipe
from classify.config.schema import DataConfig, ModelConfig, TrainingConfig
from classify.errors import ErrorList

# Apex's levels at which the model itself holds half weights.
_HALF_WEIGHT_LEVELS = ("O2", "O3")
# Kinds of sources of automatic values; in run.json such a source is only its kind.
AUTOMATIC = frozenset({"recipe", "texts", "model"})


@dataclass(frozen=True)
class ValueSource:
    """Origin of a value: a flag, a file, the run to resume, the recipe, the texts, or the model."""

    kind: Literal["flag", "file", "earlier run", "recipe", "texts", "model"]
    name: str = ""

    @property
    def is_automatic(self) -> bool:
        """Whether the value was chosen automatically: a resumed run chooses it again."""
        return self.kind in AUTOMATIC

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


@dataclass(frozen=True)
class RunConfig:
    """Settings of a run, and the source of each that is not a default; `resolve` fills in the recipe's values."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    sources: Mapping[str, ValueSource] = field(default_factory=dict)
    # Arguments of other scripts that have no effect here.
    ignored: tuple[str, ...] = ()

    @classmethod
    def from_values(
        cls,
        values: Mapping[str, Any],
        names: Mapping[str, str] | None = None,
        faults: Sequence[str] = (),
        **others: Any,
    ) -> RunConfig:
        """Build from {field name: raw value}; convert strings. Raises InputError with all faults.

        `names` maps a field to its name in messages; `faults` are those of parsing; `others` are fields of RunConfig.
        """
        names, faults = names or {}, ErrorList(faults)
        parts: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
        for name, raw in values.items():
            part, spec = FIELDS[name]
            with faults.collect():
                parts[part][name] = convert(spec, HINTS[name], raw, names.get(name, shown_name(spec)))
        config = cls(**{part: kind(**parts[part]) for part, kind in _PARTS.items()}, **others)
        config._check_combinations(faults)
        faults.raise_if_any()
        return config

    def validate(self) -> RunConfig:
        """The settings with each value converted to its field's type. Raises InputError with all faults."""
        others = {name: getattr(self, name) for name in ("sources", "ignored")}
        values = {name: getattr(getattr(self, part), name) for name, (part, _) in FIELDS.items()}
        return RunConfig.from_values(values, **others)

    def replace(self, **values: Any) -> RunConfig:
        """A copy with other values, by field name."""
        parts: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
        for name, value in values.items():
            parts[FIELDS[name][0]][name] = value
        return dataclasses.replace(
            self, **{part: dataclasses.replace(getattr(self, part), **parts[part]) for part in parts}
        )

    def choose_folds(self, labelled: int) -> int:
        """The number of folds for a table of `labelled` rows; 0: hold rows out.

        Without `--folds`, few rows are cross-validated unless something needs validation rows while it trains.
        """
        data, training = self.data, self.training
        if data.folds is not None:
            return data.folds
        given = (data.eval_data, data.split_by_time, data.split_like, data.out_of_scope_label)
        held_out = any(value is not None for value in given)
        validated = training.patience is not None or training.keep != "auto"
        limited = training.max_steps > 0 or training.max_minutes is not None
        epochs = training.num_train_epochs
        trains_epochs = epochs > 0 if epochs is not None else not self._uses_contrastive_steps
        holds_out = held_out or validated or limited or trains_epochs or labelled >= FEW_ROWS
        return 0 if holds_out else FOLDS

    @property
    def _uses_contrastive_steps(self) -> bool:
        """Whether contrastive steps are of use: the head starts from the probe."""
        return self.model.head in ("auto", "probe") and self.training.contrastive_steps != 0

    def resolve(self, rows: int, width: int, labelled: int | None = None) -> RunConfig:
        """The settings with the recipe's values where none is set.

        `rows` are the training rows, `width` is the encoder's hidden size, `labelled` the rows of `--data` with a label
        (default: `rows`); see `recipe.choose_recipe`.
        """
        training = self.training
        recipe = dataclasses.asdict(
            choose_recipe(
                rows,
                width,
                labelled=labelled,
                contrastive=self._uses_contrastive_steps,
                preset=training.preset,
                lora=self.model.lora,
            )
        )
        if training.per_device_train_batch_size is not None:
            del recipe["batch_size"]
        defaults = {name: value for name, value in recipe.items() if getattr(training, name) is None}
        sources = {**self.sources, **dict.fromkeys(defaults, ValueSource("recipe"))}
        return dataclasses.replace(self.replace(**defaults), sources=sources)

    def with_default(self, name: str, value: Any, kind: Literal["texts", "model"]) -> RunConfig:
        """The settings with a default that follows from what was read."""
        return dataclasses.replace(self.replace(**{name: value}), sources={**self.sources, name: ValueSource(kind)})

    def trains_on_few(self, labelled: int) -> bool:
        """Whether a table of `labelled` rows is so small that resolved settings train no epochs on it."""
        return labelled < FEW_ROWS and self.training.epochs == 0 and self.training.max_steps < 0

    def flags_without_effect(self, *, fits_head: bool) -> list[str]:
        """The explicit flags for steps, or the head's fit, that the resolved settings do without."""
        training = self.training
        if training.epochs > 0 or training.max_steps > 0:
            return []
        explicit = self.explicit_values()
        unused: tuple[Effect, ...] = ("epochs",) if training.contrastive_steps else ("epochs", "steps")
        names = [name for name in fields_that_affect(*unused) if name in explicit]
        if "class_weights" in explicit and not fits_head:
            names.append("class_weights")
        return [shown_name(FIELDS[name][1]) for name in names]

    def notes_without_effect(self, *, fits_head: bool) -> list[str]:
        """Return notes of explicit flags that the other resolved settings leave without effect."""
        unused, explicit = self.flags_without_effect(fits_head=fits_head), self.explicit_values()
        notes = [_note_unused("epochs", unused, "--epochs 3")] if unused else []
        of_lora = [shown_name(FIELDS[name][1]) for name in ("lora_rank", "lora_alpha") if name in explicit]
        if of_lora and not self.model.lora:
            notes.append(_note_unused("--lora,", of_lora, "--lora"))
        metric = shown_name(FIELDS["metric_for_best_model"][1])
        if "metric_for_best_model" in explicit and self.training.keep == "last" and metric not in unused:
            notes.append(f"with --keep last, {metric} selects no weights; drop one of them")
        return notes

    @property
    def names_model(self) -> bool:
        source = self.sources.get("model")
        return self.model.model is not None and (source is None or source.kind != "texts")

    def explicit_values(self) -> dict[str, Any]:
        """The settings that differ from the defaults and were not chosen automatically."""
        automatic = {name for name, source in self.sources.items() if source.is_automatic}
        return {
            name: value
            for name, value in self.flat().items()
            if name not in automatic and value != FIELDS[name][1].default
        }

    def _check_combinations(self, faults: list[str]) -> None:
        """Add contradictions between fields to `faults`."""
        training = self.training
        if self.data.data is None and not faults:  # a mistyped flag is the likelier reason, and already named
            faults.append("--data must be given, e.g. --data my.csv.")
        if training.batch_size is not None and training.per_device_train_batch_size is not None:
            faults.append(
                f"--batch-size {training.batch_size} and --per-device-train-batch-size "
                f"{training.per_device_train_batch_size} both set the rows of a step; give one of them."
            )
        if training.use_cpu and training.precision in ("fp16", "tf32"):
            faults.append(f"--precision {training.precision} needs a GPU; use bf16 or fp32, or drop --cpu.")
        if training.opt_level is not None:
            self._check_level(training.opt_level, faults)
        epochs, flag = training.num_train_epochs, "--epochs 0"
        if epochs is None:
            epochs, flag = PRESETS[training.preset].get("num_train_epochs"), f"--preset {training.preset}"
        if self.model.head == "random" and training.max_steps < 0 and epochs == 0:
            faults.append(f"{flag} trains nothing, but --head random needs training; drop one of them.")
        if self.model.lora and (self.model.freeze_embeddings or self.model.freeze_layers):
            faults.append("--lora freezes all but the head; drop --freeze-embeddings and --freeze-layers.")
        strategy = training.strategy_spec
        if self.model.lora and strategy.shards_weights:
            faults.append(f"--lora does not support --strategy {training.strategy}; drop one of them.")
        if self.data.drop_unlabelled and self.data.predict_unlabelled:
            faults.append("--drop-unlabelled and --predict-unlabelled contradict each other; give one of them.")
        faults += self.find_fold_conflicts(self.data.folds or 0, f"--folds {self.data.folds}")
        if training.patience is not None and training.keep == "last":
            faults.append("--patience keeps the best weights, which contradicts --keep last; drop one of them.")
        printing = [f"--{name}" for name in ("verbose", "quiet", "json") if getattr(training, name)]
        if len(printing) > 1:
            faults.append(f"{' and '.join(printing)} contradict each other; give one of them.")
        if training.resume_from_checkpoint and training.overwrite_output_dir:
            faults.append("--resume needs the folder that --overwrite-output-dir empties; give one of them.")

    def find_fold_conflicts(self, folds: int, flag: str) -> list[str]:
        """The contradictions between `folds`, which come from `flag`, and other options."""
        data, training = self.data, self.training
        faults: list[str] = []
        if not folds:
            return faults
        if data.folds == 1:
            faults.append("--folds 1 leaves no row to train on; give 2 or more, or 0 to hold rows out.")
        if data.split_like is not None and data.folds:
            faults.append(f"{flag} and --split-like {data.split_like} both define the folds; drop one of them.")
        if training.max_minutes is not None:
            faults.append(
                f"--max-minutes limits a single training, but {flag} trains {folds + 1} models; drop one of them."
            )
        validating = {
            "--eval-data": data.eval_data is not None,
            "--split-by-time": data.split_by_time is not None,
            "--out-of-scope-label": data.out_of_scope_label is not None,
            "--patience": training.patience is not None,
            f"--keep {training.keep}": training.keep == "best",
        }
        clash = [flag for flag, is_given in validating.items() if is_given]
        if clash:
            faults.append(
                f"{flag} leaves no validation rows, which {' and '.join(clash)} "
                f"{'need' if len(clash) > 1 else 'needs'}; drop one of them."
            )
        return faults

    def _check_level(self, level: str, faults: list[str]) -> None:
        """Add contradictions between --opt-level and other options to `faults`."""
        precision = self.training.precision
        if precision not in (("auto", "fp32") if level == "O0" else ("auto", "bf16", "fp16")):
            faults.append(
                f"--opt-level {level} and --precision {precision} contradict each other; give one of them"
                + ("." if level == "O0" else ", or --precision bf16 or fp16 to choose the half precision.")
            )
        if level in _HALF_WEIGHT_LEVELS and self.training.strategy_spec.splits_weights:
            faults.append(
                f"--opt-level {level} keeps half weights, which --strategy {self.training.strategy} does not support; "
                "give O1."
            )

    def flat(self) -> dict[str, Any]:
        """Return {field name: value} of all settings."""
        return {name: value for part in self.to_dict().values() for name, value in part.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return {"data", "model", "training": {field name: value}}, for run.json."""
        values = {part: dataclasses.asdict(getattr(self, part)) for part in _PARTS}
        values["model"]["model"] = self.model.name
        return values


def _note_unused(missing: str, flags: Sequence[str], remedy: str) -> str:
    """The note that flags have no effect without something, which `remedy` adds."""
    verb, them = ("have", "them") if len(flags) > 1 else ("has", "it")
    return f"without {missing} {', '.join(flags)} {verb} no effect; add {remedy}, or drop {them}"


_PARTS: dict[str, Any] = {"data": DataConfig, "model": ModelConfig, "training": TrainingConfig}
FIELDS = {spec.name: (part, spec) for part, kind in _PARTS.items() for spec in dataclasses.fields(kind)}
HINTS: dict[str, Any] = {name: hint for kind in _PARTS.values() for name, hint in typing.get_type_hints(kind).items()}


def fields_that_affect(*effects: Effect) -> list[str]:
    """The names of the fields that declare one of the effects."""
    return [name for name, (_, spec) in FIELDS.items() if not spec.metadata["affects"].isdisjoint(effects)]
