"""Table of torch.distributed's backends, described by their properties."""

from __future__ import annotations

from dataclasses import dataclass

from classify.launch import sagemaker


@dataclass(frozen=True)
class Backend:
    """A backend of process groups; the defaults are those of a vendor's."""

    name: str
    # Tensors are exchanged in main memory, so CPU runs can use it and ranks may share a device.
    in_main_memory: bool = False
    # A CPU run may name it.
    allowed_on_cpu: bool = False
    # It adds float64.
    adds_doubles: bool = False
    # Its processes detect a lost peer themselves; those of other backends would wait for it on their devices.
    detects_lost_peers: bool = False
    # Its threads release a collective's tensors after it has returned.
    releases_late: bool = False
    # Module that registers it with torch, and what to do where that cannot be imported.
    module: str | None = None
    without_module: str = "install it"


_ALL = (
    Backend(
        "gloo", in_main_memory=True, allowed_on_cpu=True, adds_doubles=True, detects_lost_peers=True, releases_late=True
    ),
    Backend("nccl", adds_doubles=True),
    Backend("xccl"),
    Backend("hccl"),
    Backend("cncl"),
    Backend("mccl"),
    # Amazon's, for SageMaker's GPUs; an explicit request on a CPU is honored.
    # https://docs.aws.amazon.com/sagemaker/latest/dg/data-parallel-modify-sdp-pt.html
    Backend(
        sagemaker.BACKEND,
        allowed_on_cpu=True,
        module="smdistributed.dataparallel.torch.torch_smddp",
        without_module="use an image that has it, or give --ddp-backend nccl",
    ),
)
BACKENDS = {backend.name: backend for backend in _ALL}


def of(name: str) -> Backend:
    """The entry of a backend, or one with the defaults."""
    return BACKENDS.get(name) or Backend(name)
