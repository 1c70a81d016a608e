"""Where the ranks meet: the interface towards it, and whether it can be met at."""

from __future__ import annotations

import errno
import socket

from classify.errors import DeviceError


def interface_towards(address: str) -> str | None:
    """The network interface from which this machine reaches `address`, or None where that cannot be told.

    The operating system's routing table is asked by "connecting" a UDP socket, which sends nothing.
    """
    import psutil

    for family, kind in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                own = probe.getsockname()[0]
        except OSError:
            continue
        for name, addresses in psutil.net_if_addrs().items():
            if own != kind and any(entry.address.split("%")[0] == own for entry in addresses):
                return name
    return None


def check_meeting_place(address: str, port: int, *, listens: bool) -> None:
    """Raise DeviceError where MASTER_ADDR is no machine's name, or MASTER_PORT is taken where this process `listens`.

    torch would try again for half an hour, or fail with a message about sockets.
    """
    try:
        socket.getaddrinfo(address, port)
    except OSError as error:
        raise DeviceError(
            f"MASTER_ADDR={address} is not known on this machine ({error.strerror}); give the address of the first "
            "machine as all others see it."
        ) from None
    if not listens:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch does: a port just left may be taken
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise DeviceError(
                f"MASTER_PORT={port} cannot be listened on ({error.strerror}); give a free port above 1023, the same "
                "to all processes."
            ) from None
