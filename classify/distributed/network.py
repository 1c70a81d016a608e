"""Check the address of the ranks' store, and find the network interface towards it."""

from __future__ import annotations

import socket

from classify.errors import DeviceError

# Ports are below this number.
_PORTS = 65_536


def interface_towards(address: str) -> str | None:
    """The network interface that routes to `address`, or None if unknown.

    "Connecting" a UDP socket looks up the routing table and sends nothing.
    """
    import psutil

    for family, kind in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                local_address = probe.getsockname()[0]
        except OSError:
            continue
        for name, addresses in psutil.net_if_addrs().items():
            if local_address != kind and any(entry.address.split("%")[0] == local_address for entry in addresses):
                return name
    return None


def check_master_address(address: str, port: int) -> None:
    """Raise DeviceError if MASTER_ADDR cannot be resolved, which torch would try until its time-out."""
    if not 0 < port < _PORTS:
        raise DeviceError(f"MASTER_PORT={port}: expected a port from 1 to {_PORTS - 1}, the same for all processes.")
    try:
        socket.getaddrinfo(address, port)
    except (OSError, UnicodeError) as error:  # the latter of a name with an empty or too long part
        reason = error.strerror if isinstance(error, OSError) else error
        raise DeviceError(
            f"MASTER_ADDR={address} cannot be resolved on this machine ({reason}); give the address of the first "
            "machine as all others see it."
        ) from None
