"""The world of a test: what a run does between its configuration and its first collective."""

from __future__ import annotations

from classify.config.schema import DeviceConfig
from classify.distributed.group import start
from classify.distributed.world import World
from classify.launch.launch import Launch


def start_world(config: DeviceConfig) -> World:
    """Plan the devices of this process, as its environment says, and start its process group."""
    return start(config._setup_devices(Launch.read(local_rank=config.local_rank)), config.ddp_timeout)
