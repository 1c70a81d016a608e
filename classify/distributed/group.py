"""Start the process group of a device plan and exchange the topology."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch

from classify.distributed.world import World
from classify.errors import ClassifyError, DeviceError, InputError
from classify.launch import process, signals
from classify.launch.devices import SMDDP, SMDDP_MODULE, accelerator_of
from classify.launch.launch import Launch, export, take_listener
from classify.launch.plan import DevicePlan, ParallelMode, check_devices, choose_threads, device_identity

# Ports are below this number.
_PORTS = 65_536
# A reserved address (RFC 5737); the route to it is the one to other machines. Nothing is sent there.
_OUTSIDE = "192.0.2.1"
# Seconds after which a rank that still waits for the others says so.
_PATIENCE_SECONDS = 20.0
_TIMEOUT = re.compile(r"time(d |-)?out", re.IGNORECASE)
# How torch's store says that another program has its port, or that only root may listen on it.
_NOT_LISTENING = re.compile(r"name: E(?:ADDRINUSE|ACCES), message: ([\w ]+)")
# Number of process groups formed by this process: a script may train, or load a classifier, more than once.
_formed = 0
# The store of --nproc, whose socket there is once; it serves all groups.
_own_store: torch.distributed.Store | None = None


def start(plan: DevicePlan, timeout_seconds: int = 600) -> World:
    """Carry out a plan: set the device and the number of threads; several processes form the process group.

    A collective. Raises DeviceError where not all ranks come, InputError where two of them are on one device.
    """
    device = torch.device(plan.device)
    if plan.parallel_mode is ParallelMode.DISTRIBUTED:
        export(plan.launch)  # before the device is used: some vendors' software reads the local rank
    threads = choose_threads(os.environ, plan.launch, process.available_cores())
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)
    if accelerator_of(device.type).in_torch_accelerator:
        torch.accelerator.set_device_index(device.index)
    places = [_describe_place(plan)]
    if plan.parallel_mode is ParallelMode.DISTRIBUTED:
        places = _form_group(plan, datetime.timedelta(seconds=timeout_seconds))
    # If the launcher does not number the machines, they are numbered in order of their first rank.
    hosts = list(dict.fromkeys(place["host"] for place in places))
    topology = [{name: place[name] for name in plan.place()} for place in places]
    for entry, place in zip(topology, places, strict=True):
        entry["machine"] = hosts.index(place["host"]) if place["machine"] is None else place["machine"]
    return World(plan, device, topology, timeout=timeout_seconds)


@contextlib.contextmanager
def announce_errors(launch: Launch, start_world: Callable[[], World]) -> Iterator[None]:
    """Tell the ranks of other machines of an error in this block, before the group is formed.

    They may not have failed, and wait in the first `agree` of the world that `start_world` forms. On one machine
    nothing is sent: a rank that fails alone prints its error and ends, and its launcher ends the others.
    """
    try:
        yield
    except Exception as error:
        if launch.spans_machines:
            fault = str(error) if isinstance(error, ClassifyError) else f"{type(error).__name__}: {error}"
            with contextlib.suppress(InputError), start_world() as world:  # this rank's own error is the one to print
                world.agree(fault)
        raise


def _form_group(plan: DevicePlan, timeout: datetime.timedelta) -> list[dict[str, Any]]:
    """Meet the other ranks and form the default process group; the places of all ranks, in rank order."""
    global _formed
    launch = plan.launch
    if torch.distributed.is_initialized():
        raise DeviceError(
            "this process is already in a process group (torch.distributed.init_process_group); end it first with "
            "torch.distributed.destroy_process_group(), or train in processes that have formed none."
        )
    address, port = launch.address or "127.0.0.1", launch.port or 0
    _check_master_address(address, port)
    interface = _interface_towards(address)
    if interface is not None and interface.startswith("lo") and launch.world_size > launch.local_world_size:
        interface = _interface_towards(_OUTSIDE)  # /etc/hosts often maps the host name to loopback
    if interface is not None:
        # gloo's default is the interface that the host name resolves to; NCCL's is another one than loopback.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if interface.startswith("lo"):
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    _import_backend(plan)
    with _explain_failure(f"rank {launch.rank} of {launch.world_size}", address, port, timeout):
        store = _open_store(launch, timeout)
        places = _exchange(store, launch, _describe_place(plan))
        check_devices(plan, places)
        torch.distributed.init_process_group(
            plan.backend,
            store=store,
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timeout,
            # The ranks connect here, inside the block that explains a hang, and not at the first collective.
            device_id=torch.device(plan.device) if plan.owns_device else None,
        )
    _formed += 1
    return places


def _import_backend(plan: DevicePlan) -> None:
    """Import the package that registers a backend with torch, if torch does not load it itself.

    https://docs.habana.ai/en/latest/PyTorch/PyTorch_Scaling_Guide/DDP_Based_Scaling.html
    """
    vendors = accelerator_of(torch.device(plan.device).type).backend_module
    module = SMDDP_MODULE if plan.backend == SMDDP else vendors
    try:
        if module is not None:
            importlib.import_module(module)
    except ImportError as error:
        raise DeviceError(
            f"backend {plan.backend}: {module} cannot be imported ({error}); use an image that has it, or give another "
            "--ddp-backend."
        ) from None


def _interface_towards(address: str) -> str | None:
    """The network interface that routes to `address`, or None if unknown.

    "Connecting" a UDP socket looks up the routing table and sends nothing.
    """
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


def _check_master_address(address: str, port: int) -> None:
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


@contextlib.contextmanager
def _explain_failure(rank: str, address: str, port: int, timeout: datetime.timedelta) -> Iterator[None]:
    """Say what this block waits for if it takes long: a firewall, or a rank that was not started, looks like a hang.

    Raises DeviceError where torch stops waiting for a rank, or cannot listen on the port. Ctrl-C ends the process at
    once, because torch handles no signals.
    """

    def print_note() -> None:
        what = f"{rank} waits for the others at {address}:{port}; check that all ranks are started and can reach it"
        print(f"note: {what}", file=sys.stderr, flush=True)

    timer = threading.Timer(_PATIENCE_SECONDS, print_note)
    timer.daemon = True
    timer.start()
    try:
        with signals.default_sigint():
            yield
    except RuntimeError as error:  # DistStoreError and DistNetworkError are such
        if (reason := _NOT_LISTENING.search(str(error))) is not None:
            raise DeviceError(
                f"MASTER_PORT={port} is not available ({reason[1]}); set a free port above 1023, the same for all "
                "processes."
            ) from None
        if not _TIMEOUT.search(str(error)):
            raise
        raise DeviceError(
            f"{rank}: not all ranks came to {address}:{port} within {timeout.total_seconds():g} s (--ddp-timeout); "
            "check that all are started, with the same address and port, and can reach it."
        ) from None
    finally:
        timer.cancel()


def _open_store(launch: Launch, timeout: datetime.timedelta) -> torch.distributed.Store:
    """The ranks' store, with a new prefix for each process group.

    torchrun with a fixed address keeps one store for all attempts of a job, with the addresses of earlier groups (torch
    2.13 gives them the same names in every attempt). On several machines each agent counts its own restarts, so the
    count does not identify an attempt; there torchrun needs --rdzv-backend c10d, which creates a store per attempt.
    """
    global _own_store
    listener = take_listener()
    if listener is not None:  # of --nproc: torch itself would listen on all addresses of the machine
        _own_store = torch.distributed.TCPStore(
            launch.address or "127.0.0.1",
            launch.port or 0,
            launch.world_size,
            is_master=True,
            timeout=timeout,
            master_listen_fd=listener,
        )
    store = _own_store
    if store is None:
        store, _, _ = next(torch.distributed.rendezvous("env://", timeout=timeout))
    attempt = 0 if launch.spans_machines else launch.restarts
    # _formed is the same number in all processes: forming a group is a collective.
    return torch.distributed.PrefixStore(f"classify/attempt-{attempt}/group-{_formed}", store)


def _describe_place(plan: DevicePlan) -> dict[str, Any]:
    """Machine, device and backend of this rank, which all ranks see before the group is formed."""
    device, host = torch.device(plan.device), socket.gethostname()
    # XLA has no module in torch, and some vendors' have no properties.
    get_properties = getattr(getattr(torch, device.type, None), "get_device_properties", None)
    properties = get_properties(device) if plan.owns_device and get_properties is not None else None
    identity = device_identity(plan, os.environ, properties, host) if plan.owns_device else ""
    return {**plan.place(), "host": host, "kind": device.type, "backend": plan.backend, "identity": identity}


def _exchange(store: torch.distributed.Store, launch: Launch, place: dict[str, Any]) -> list[dict[str, Any]]:
    """Gather the ranks' places, in rank order, before the group is formed. A collective.

    Rank 0 may serve the store, so it returns last: the places may make every rank exit.
    """
    ranks = range(launch.world_size)
    store.set(f"device/{launch.rank}", json.dumps(place))
    places = [json.loads(value) for value in store.multi_get([f"device/{rank}" for rank in ranks])]
    store.set(f"device-read/{launch.rank}", "")
    if launch.is_main:
        store.wait([f"device-read/{rank}" for rank in ranks])
    return places
