"""Write the stack of a rank that has stalled: the others wait for it in a collective, until torch's time-out."""

from __future__ import annotations

import contextlib
import faulthandler
import sys
from collections.abc import Iterator

from classify.launch import process_settings

# Share of the time-out after which the stack is written, so that it stands there before the waiting ranks end the job.
_SHARE = 0.8


@contextlib.contextmanager
def dump_if_stalled(timeout: float) -> Iterator[None]:
    """Write this process's stacks to standard error if the block takes most of `timeout` seconds; 0: never.

    It stands around each step and each batch that is scored. faulthandler needs no lock of the interpreter, so it also
    sees a call that holds it. Its timer belongs to the process, so a caller's own process keeps it as it is.
    """
    if not timeout or not process_settings.is_program() or sys.__stderr__ is None:
        yield
        return
    faulthandler.dump_traceback_later(_SHARE * timeout, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
