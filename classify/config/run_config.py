"""The settings of a run as a whole: their sources, and what a run uses.

The fields are declared in `classify.config.schema`; `resolve` fills in the recipe's values.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from classify.config.fields import Effect, convert, shown_name
from classify.config.recipe import FEW_ROWS, FEW_ROWS_PER_CLASS, FOLDS, MOST_ROWS_TO_REFIT, choose_recipe
from classify.config.schema import DataConfig, ModelConfig, TrainingConfig
from classify.errors import ErrorList
from classify.launch.devices import STRATEGIES

# Sources of values that were chosen automatically, and that a resumed run chooses again.
AUTOMATIC = frozenset({"recipe", "texts", "model"})


_SHARDED = tuple(name for name, spec in STRATEGIES.items() if spec.shards_weights)
_SPREAD = tuple(name for name, spec in STRATEGIES.items() if spec.spreads_layers)
# Settings that contradict each other where each has one of the values, or any value at all (`True`).
_CONTRADICTIONS: tuple[dict[str, Any], ...] = (
    {"batch_size": True, "per_device_train_batch_size": True},
    {"use_cpu": True, "precision": ("fp16", "tf32")},
    {"opt_level": ("O0",), "precision": ("tf32", "bf16", "fp16")},
    {"opt_level": ("O1", "O2", "O3"), "precision": ("fp32", "tf32")},
    # At these of Apex's levels the model itself holds half weights.
    {"opt_level": ("O2", "O3"), "strategy": (*_SHARDED, *_SPREAD)},
    # A random head needs training.
    {"num_train_epochs": (0,), "head": ("random",), "max_steps": (-1,)},
    {"preset": ("fast",), "head": ("random",), "max_steps": (-1,), "num_train_epochs": (None,)},
    # LoRA freezes all but the head.
    {"lora": True, "freeze_embeddings": True},
    {"lora": True, "freeze_layers": True},
    {"lora": True, "strategy": _SHARDED},
    {"drop_unlabelled": True, "predict_unlabelled": True},
    {"patience": True, "keep": ("last",)},
    {"verbose": True, "quiet": True},
    {"verbose": True, "json": True},
    {"quiet": True, "json": True},
    # The folder that the run resumes from would be emptied.
    {"resume_from_checkpoint": True, "overwrite_output_dir": True},
    {"folds": True, "split_like": True},
    # A source's rows would have to leave with the group or the time that is held out.
    {"source_column": True, "group_column": True},
    {"source_column": True, "split_by_time": True},
    # A time limit is for one training.
    {"folds": True, "max_minutes": True},
    # These need validation rows, and folds leave none.
    {"folds": True, "eval_data": True},
    {"folds": True, "split_by_time": True},
    {"folds": True, "out_of_scope_label": True},
    {"folds": True, "patience": True},
    {"folds": True, "keep": ("best",)},
)


@dataclass(frozen=True)
class RunConfig:
    """Settings of a run; `resolve` fills in the recipe's values.

    `sources` say where each that is not a default is from: "flag", "file NAME", "earlier run FILE", "recipe", "texts",
    or "model".
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    sources: Mapping[str, str] = field(default_factory=dict)
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

        `names` maps a field to its name in messages; `faults` come from parsing; `others` are fields of RunConfig.
        """
        names, faults = names or {}, ErrorList(faults)
        parts: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
        for name, raw in values.items():
            part, spec = FIELDS[name]
            with faults.collect():
                parts[part][name] = convert(spec, HINTS[name], raw, names.get(name, shown_name(spec)))
        config = cls(**{part: kind(**parts[part]) for part, kind in _PARTS.items()}, **others)
        if config.data.data is None and not faults:  # a mistyped flag is the likelier reason, and already named
            faults.append("--data must be given, e.g. --data my.csv.")
        faults += config.find_contradictions()
        faults.raise_if_any()
        return config

    def validate(self) -> RunConfig:
        """The settings with each value converted to its field's type. Raises InputError with all faults."""
        others = {name: getattr(self, name) for name in ("sources", "ignored")}
        values = {name: getattr(getattr(self, part), name) for name, (part, _) in FIELDS.items()}
        return RunConfig.from_values(values, **others)

    def replace(self, **values: Any) -> RunConfig:
        changed: dict[str, Any] = {}
        for name, value in values.items():
            part = FIELDS[name][0]
            changed[part] = dataclasses.replace(changed.get(part, getattr(self, part)), **{name: value})
        return dataclasses.replace(self, **changed)

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
        """Contrastive steps are of use where the head starts from the probe."""
        return self.model.head in ("auto", "probe") and self.training.contrastive_steps != 0

    def resolve(self, rows: int, width: int, labelled: int | None = None, columns: int = 1) -> RunConfig:
        """The settings with the recipe's values where none is set, or an earlier call has chosen one.

        `rows` are the training rows, `width` is the encoder's hidden size, `labelled` the rows of `--data` with a label
        (default: `rows`), `columns` the label columns; see `recipe.choose_recipe`.
        """
        chosen_before = [name for name, source in self.sources.items() if source == "recipe"]
        given = self.replace(**dict.fromkeys(chosen_before))
        training, contrastive = given.training, given._uses_contrastive_steps
        chosen = choose_recipe(
            rows,
            width,
            labelled=labelled,
            contrastive=contrastive,
            preset=training.preset,
            lora=self.model.lora,
            columns=columns,
        )
        recipe = dataclasses.asdict(chosen)
        if training.per_device_train_batch_size is not None:
            del recipe["batch_size"]
        defaults = {name: value for name, value in recipe.items() if getattr(training, name) is None}
        sources = {**self.sources, **dict.fromkeys(defaults, "recipe")}
        return dataclasses.replace(given.replace(**defaults), sources=sources)

    def with_default(self, name: str, value: Any, kind: Literal["texts", "model"]) -> RunConfig:
        return dataclasses.replace(self.replace(**{name: value}), sources={**self.sources, name: kind})

    @property
    def trains_epochs(self) -> bool:
        return self.training.epochs > 0 or self.training.max_steps > 0

    def trains_on_few(self, labelled: int) -> bool:
        return labelled < FEW_ROWS and not self.trains_epochs

    def refits_head(self, labelled: int, classes: int) -> bool:
        """Whether the head is fitted again after the epochs, which few rows a class have trained little.

        `labelled` rows of --data have a label.
        """
        training, few = self.training, labelled <= min(MOST_ROWS_TO_REFIT, FEW_ROWS_PER_CLASS * classes)
        # The fit knows neither another loss nor another sampling of rows.
        is_plain = training.loss == "cross_entropy" and training.sampler == "uniform"
        is_plain &= training.label_smoothing_factor == 0 and self.data.out_of_scope_label is None
        return few and is_plain and self.trains_epochs and self.model.head == "probe"

    def notes_without_effect(self, *, fits_head: bool) -> list[str]:
        """A note on explicit flags that are for epochs, or the head's fit, where the resolved settings train none."""
        training, explicit = self.training, self.explicit_values()
        if self.trains_epochs:
            return []
        unused: tuple[Effect, ...] = ("epochs",) if training.contrastive_steps else ("epochs", "steps")
        names = fields_that_affect(*unused) + ([] if fits_head else ["class_weights"])
        flags = [shown_name(FIELDS[name][1]) for name in names if name in explicit]
        return [f"without epochs no effect: {', '.join(flags)}; add --epochs 3, or drop that"] if flags else []

    @property
    def names_model(self) -> bool:
        return self.model.model is not None and self.sources.get("model") != "texts"

    def explicit_values(self) -> dict[str, Any]:
        """The settings that differ from the defaults and were not chosen automatically."""
        automatic = {name for name, source in self.sources.items() if source in AUTOMATIC}
        return {
            name: value
            for name, value in self.flat().items()
            if name not in automatic and value != FIELDS[name][1].default
        }

    def find_contradictions(self, folds: int | None = None, flag: str = "") -> list[str]:
        """A sentence for each row of `_CONTRADICTIONS` that holds; `flag` has set other `folds` than the given ones."""
        values = self.flat() | ({} if folds is None else {"folds": folds, "split_like": None})
        faults = []
        for row in _CONTRADICTIONS:
            if all(bool(values[name]) if wanted is True else values[name] in wanted for name, wanted in row.items()):
                given = [name for name in row if values[name] != FIELDS[name][1].default]
                shown = [flag if flag and name == "folds" else _show(name, values[name]) for name in given]
                faults.append(f"{' and '.join(shown)} contradict each other; give one of them.")
        return faults

    def flat(self) -> dict[str, Any]:
        return {name: value for part in self.to_dict().values() for name, value in part.items()}

    def to_dict(self) -> dict[str, Any]:
        values = {part: dataclasses.asdict(getattr(self, part)) for part in _PARTS}
        values["model"]["model"] = self.model.name
        return values


def _show(name: str, value: Any) -> str:
    flag, shown = shown_name(FIELDS[name][1]), f"{value:g}" if isinstance(value, float) else str(value)
    return flag if value is True else f"{flag} {shown}"


_PARTS: dict[str, Any] = {"data": DataConfig, "model": ModelConfig, "training": TrainingConfig}
FIELDS = {spec.name: (part, spec) for part, kind in _PARTS.items() for spec in dataclasses.fields(kind)}
HINTS: dict[str, Any] = {name: hint for kind in _PARTS.values() for name, hint in typing.get_type_hints(kind).items()}


def fields_that_affect(*effects: Effect) -> list[str]:
    return [name for name, (_, spec) in FIELDS.items() if not spec.metadata["affects"].isdisjoint(effects)]
