"""`--nproc N`: the same command in several processes of this machine, started as torchrun would start them."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence

from classify import launch


def run_processes(arguments: Sequence[str], count: int) -> int:
    """Run `python -m classify <arguments>` in `count` processes; returns the first failed worker's exit code, or 0.

    The workers speak for themselves: the launcher prints nothing.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # How long workers may take to save once they were told to stop, before they are killed; torch would give 30 s.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600")
    logging.disable(logging.CRITICAL)  # in this process, which does nothing but wait
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, launch.available_cores() // count)))
    os.environ[launch.STARTED_HERE] = str(count)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=f"classify-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",  # the machine's own name may not resolve
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "classify", *arguments)
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        return first.exitcode if first.exitcode >= 0 else 128 - first.exitcode
    except SignalException as error:
        return 128 + int(error.sigval)
    except KeyboardInterrupt:
        return 128 + int(signal.SIGINT)
    return 0
