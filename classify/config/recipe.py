"""How a table is trained on where nobody says otherwise: batch, epochs and learning rate.

docs/recipe.md tells what each number is for and what was tried. Each one has its flag.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_EPOCHS = 3
# Without pairs a table of fewer rows is seen more often, up to so many times.
_ROWS, _MOST_EPOCHS = 1_500, 20
# Rows from which a batch holds 16, and 32.
_ROWS_FOR_16, _ROWS_FOR_32 = 4_000, 10_000
# Wider encoders take smaller steps, LoRA's matrices larger ones (Hu et al., 2022, "LoRA", appendix D: 4e-4 and 5e-4).
_WIDE, _LORA = 512, 10
# Rows below which pairs are trained on before, and for how many steps; and rows below which they are instead of epochs.
_ROWS_FOR_PAIRS, _CONTRASTIVE_STEPS = 4_000, 100
_ROWS_FOR_EPOCHS = 250
# What a preset changes in the recipe: "fast" keeps the head's start, a logistic regression on the frozen model.
PRESETS: dict[str, dict[str, float]] = {
    "fast": {"num_train_epochs": 0, "contrastive_steps": 0},
    "default": {},
}


@dataclass(frozen=True)
class Recipe:
    """What a run trains with; the numbers here are those of large tables and small models."""

    batch_size: int = 32
    num_train_epochs: float = _EPOCHS
    learning_rate: float = 5e-5
    contrastive_steps: int = 0


def choose(rows: int, width: int, *, pairs: bool = True, preset: str = "default", lora: bool = False) -> Recipe:
    """Choose for `rows` training rows and an encoder of that width; `pairs`: may be trained on.

    Steps matter more than epochs: with too few of them fine-tuning has not converged (Mosbach et al., 2021, "On the
    Stability of Fine-tuning BERT", section 6). So batches shrink with the table. Steps on pairs (see `contrastive`)
    bring the classes apart before; without them epochs grow as the root of what rows are missing. Learning rates are of
    those that Devlin et al., 2019, name in appendix A.3.
    """
    batch = 32 if rows >= _ROWS_FOR_32 else 16 if rows >= _ROWS_FOR_16 else 8
    rate = (5e-5 if width <= _WIDE else 3e-5) * (_LORA if lora else 1)
    if not pairs:
        epochs = round(min(_MOST_EPOCHS, max(_EPOCHS, _EPOCHS * math.sqrt(_ROWS / rows))))
        recipe = Recipe(batch, epochs, rate)
    else:
        epochs = _EPOCHS if rows >= _ROWS_FOR_EPOCHS else 0
        recipe = Recipe(batch, epochs, rate, _CONTRASTIVE_STEPS if rows < _ROWS_FOR_PAIRS else 0)
    return replace(recipe, **PRESETS[preset])  # type: ignore[arg-type]
