"""What a run will hold in memory, for --plan: before anything is tokenised or loaded."""

from __future__ import annotations

from classify.data.tokenize import DEFAULT_LIMIT
from classify.distributed.world import World
from classify.modeling import memory_estimate
from classify.modeling.precision import choose_precision
from classify.training.inputs import RunInputs

# A rule of thumb for BERT's vocabularies and European languages, good enough to estimate memory by.
_CHARACTERS_A_TOKEN = 4


def memory(checked: RunInputs, world: World) -> str:
    """A line on what each device will hold, rather too much: a CPU may train in bf16 where nobody asks for it.

    Raises InputError where the device cannot compute as asked.
    """
    train = checked.splits.train
    characters = float(train.table.lengths(checked.splits.text_column)[train.rows].mean())
    limit = checked.config.data.max_length or min(DEFAULT_LIMIT, checked.model.max_length)
    length = min(characters / _CHARACTERS_A_TOKEN + 2, limit)
    words = need(checked, world, length).words()
    return f"memory: {words}, for texts of about {length:.0f} tokens; a vocabulary cut to what occurs takes less"


def need(checked: RunInputs, world: World, length: float) -> memory_estimate.Need:
    """What each device will hold, for texts of `length` tokens on the mean. Raises InputError as `memory` does."""
    config, plan = checked.config, world.plan
    training, model = config.training, config.model
    devices = world.world_size * max(1, plan.n_gpu if plan.spec.processes == "one" else 1)
    rows = training.train_batch_size / training.gradient_accumulation_steps
    half = choose_precision(training.precision, world.device, training.opt_level).half is not None
    each = rows if plan.spec.spreads_layers else rows / devices
    if plan.spec.cuts_steps and world.accelerator.cuts_steps and training.opt_level in (None, "O0", "O1"):
        at_once = memory_estimate.tokens_at_once(memory_estimate.width_of(checked.model.config))
        each = min(each, at_once // world.cache_sharers / length)
    lora = (lambda _: True) if model.lora else None  # what LoRA adds is small beside the rest
    is_frozen = lora or memory_estimate.frozen_names(model.freeze_embeddings, model.freeze_layers)
    return memory_estimate.training_need(
        checked.model.config,
        memory_estimate.count_weights(checked.model.path, is_frozen, checked.model.added_layers),
        each,
        length,
        half=half,
        level=training.opt_level,
        frozen_layers=model.freeze_layers,
        added_layers=checked.model.added_layers,
        checkpointing=training.gradient_checkpointing,
    ).divided(devices, *plan.spec.splits)
