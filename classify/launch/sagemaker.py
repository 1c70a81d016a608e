"""Read hosts and data parallel library (smddp) of Amazon SageMaker's training container.

The variables are those of the sagemaker-training toolkit (https://github.com/aws/sagemaker-training-toolkit, section
"Environment Variables").
"""

from __future__ import annotations

import json
from collections.abc import Mapping

# Backend of process groups where a job was started with the library.
BACKEND = "smddp"


def is_data_parallel(environment: Mapping[str, str]) -> bool:
    """Whether the job was started with SageMaker's data parallel library."""
    return any(f"SMDATAPARALLEL_USE_{way}" in environment for way in ("SINGLENODE", "HOMOGENEOUS"))


def first_host(environment: Mapping[str, str]) -> str | None:
    """The name of the job's first machine; None outside a container."""
    if "SM_MASTER_ADDR" in environment:
        return environment["SM_MASTER_ADDR"]
    try:
        hosts = json.loads(environment.get("SM_HOSTS", "[]"))
    except ValueError:
        return None
    return str(hosts[0]) if isinstance(hosts, list) and hosts else None
