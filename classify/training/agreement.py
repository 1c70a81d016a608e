"""What must hold for all ranks together before a run begins."""

from __future__ import annotations

import json

from classify.distributed.world import World
from classify.errors import InputError
from classify.training.inputs import Checked


def require_enough(checked: Checked, world: World) -> None:
    """Raise InputError where some device would never get a row."""
    part, devices = checked.corpus.train, world.world_size * world.replicas
    if len(part) < devices:
        raise InputError(
            f"{part.table.path}: {len(part)} training rows are fewer than the {devices} devices that are to share "
            "them; start fewer processes."
        )


def require_same(checked: Checked, world: World) -> None:
    """Raise InputError where the ranks were started with different arguments or tables; they would train nonsense."""
    arguments = checked.config.to_dict()
    for own in ("local_rank", "nproc"):  # differ by nature
        arguments["training"].pop(own)
    world.check_same({"arguments": json.dumps(arguments, sort_keys=True), "data": checked.corpus.fingerprint})
