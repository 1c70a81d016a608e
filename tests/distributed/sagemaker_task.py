"""A task of SageMaker's launcher: the variables of torchrun become those of mpirun, then the program runs."""

from __future__ import annotations

import os
import sys

from classify.cli import main

if __name__ == "__main__":
    for name, other in (("RANK", "RANK"), ("LOCAL_RANK", "LOCAL_RANK"), ("WORLD_SIZE", "SIZE")):
        os.environ[f"OMPI_COMM_WORLD_{other}"] = os.environ.pop(name)
    os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"] = os.environ.pop("LOCAL_WORLD_SIZE")
    sys.exit(main(["train", *sys.argv[1:]]))
