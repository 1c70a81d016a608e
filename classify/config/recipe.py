"""Choose default batch size, epochs and learning rate for a table; docs/recipe.md has the experiments."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_EPOCHS = 3
# Without contrastive steps tables of fewer rows train for more epochs, up to this many.
_ROWS_FOR_EPOCHS = 1_500
_MOST_EPOCHS = 20
# Rows from which the batch size is 16, and 32.
_ROWS_FOR_16 = 4_000
_ROWS_FOR_32 = 10_000
# Encoders with a larger hidden size take smaller steps.
_WIDE = 512
# LoRA's matrices take larger ones (Hu et al., 2022, "LoRA", appendix D: 4e-4 and 5e-4).
_LORA = 10
# How much larger the rate of several label columns is at most: three were measured.
_MOST_FACTOR = 2.0
# Contrastive steps come first below this many rows.
_CONTRASTIVE_MAX_ROWS = 4_000
_CONTRASTIVE_STEPS = 100
# Below this many rows they replace epochs; each row gets two, within _SHORT_STEPS and _CONTRASTIVE_STEPS.
FEW_ROWS = 300
# Up to so many rows a class the head is fitted again after the epochs.
FEW_ROWS_PER_CLASS = 20
# But not of more rows: of 250 classes a fit takes seconds, and its time grows with the square.
MOST_ROWS_TO_REFIT = 5_000
_STEPS_PER_ROW = 2
_SHORT_STEPS = 50
# Batch size and learning rate of narrow encoders between these, with the smaller number of contrastive steps: as good
# as twice the steps with half the batch size and 5e-5, in 0.75 of the time.
_SHORT_BATCH = 16
_SHORT_RATE = 7e-5
# Folds of cross-validation where no rows are held out.
FOLDS = 5
# Fewer folds, where all of them would take over a minute on two cores: this many multiply-adds.
FEWER_FOLDS = 3
_MULTIPLICATIONS = 2e12
# Trainings of a run with folds, whose time is as many times that of a run without, at most.
FOLD_TRAININGS = FOLDS + 1
# Rows of a contrastive step, and the first tokens of each that it sees.
CONTRASTIVE_ROWS = 32
CONTRASTIVE_LENGTH = 128
CHARACTERS_PER_TOKEN = 4
# Changes of each preset to the recipe: "fast" trains only a logistic regression on the frozen model.
PRESETS: dict[str, dict[str, float]] = {"fast": {"num_train_epochs": 0, "contrastive_steps": 0}, "default": {}}


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a run; the defaults suit large tables and small models."""

    batch_size: int = 32
    num_train_epochs: float = _EPOCHS
    learning_rate: float = 5e-5
    contrastive_steps: int = 0


def choose_recipe(
    rows: int,
    width: int,
    *,
    labelled: int | None = None,
    contrastive: bool = True,
    preset: str = "default",
    lora: bool = False,
    columns: int = 1,
) -> Recipe:
    """Choose hyperparameters for `rows` training rows and an encoder's `width`; `contrastive` allows contrastive steps.

    With fewer than 300 `labelled` rows (default: `rows`) in the table no epochs are trained.

    Too few steps do not converge (Mosbach et al., 2021, "On the Stability of Fine-tuning BERT", section 6), so small
    tables take smaller batches. Contrastive steps (see `contrastive`) separate the classes first; without them epochs
    grow with the inverse root of the rows. Learning rates are from Devlin et al., 2019, appendix A.3. Each of several
    label `columns` has its share of the loss, so the rate grows with the root of their number (benchmarks/recipe.md).
    """
    batch = 32 if rows >= _ROWS_FOR_32 else 16 if rows >= _ROWS_FOR_16 else 8
    rate = (5e-5 if width <= _WIDE else 3e-5) * (_LORA if lora else 1)
    if not contrastive:
        epochs = round(min(_MOST_EPOCHS, max(_EPOCHS, _EPOCHS * math.sqrt(_ROWS_FOR_EPOCHS / rows))))
        recipe = Recipe(batch, epochs, rate)
    else:
        labelled = rows if labelled is None else labelled
        if rows >= _CONTRASTIVE_MAX_ROWS:
            recipe = Recipe(batch, _EPOCHS, rate)
        elif labelled < FEW_ROWS:
            steps = min(_CONTRASTIVE_STEPS, max(_SHORT_STEPS, _STEPS_PER_ROW * labelled))
            recipe = Recipe(batch, 0, rate, steps)
        elif width > _WIDE or lora:
            recipe = Recipe(batch, _EPOCHS, rate, _CONTRASTIVE_STEPS)
        else:
            recipe = Recipe(_SHORT_BATCH, _EPOCHS, _SHORT_RATE, _SHORT_STEPS)
    if columns > 1:
        factor = min(_MOST_FACTOR, math.sqrt(columns))
        recipe = replace(recipe, learning_rate=float(f"{factor * recipe.learning_rate:.2g}"))
    return replace(recipe, **PRESETS[preset])  # type: ignore[arg-type]


def takes_fewer_folds(characters: float, layers: int, width: int) -> bool:
    """Whether the contrastive steps of all folds would be slow, for an encoder and texts of that mean length.

    Counts multiply-adds, not seconds, so that all machines choose the same folds.
    """
    tokens = CONTRASTIVE_ROWS * min(characters / CHARACTERS_PER_TOKEN, CONTRASTIVE_LENGTH)
    return FOLDS * _CONTRASTIVE_STEPS * tokens * 12 * layers * width**2 > _MULTIPLICATIONS
