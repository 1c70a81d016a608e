"""Options that several commands share."""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from classify import distributed, modeling, prediction, tables
from classify.config.fields import between, option, parse
from classify.config.schema import DeviceConfig, ReadConfig
from classify.errors import InputError
from classify.files import split_paths
from classify.launch.launch import Launch
from classify.tables.source import ReadOptions

if TYPE_CHECKING:
    from classify.prediction.predictor import Predictor
    from classify.tables.roles import TextColumns
    from classify.tables.table import Table

SHARE = between(0, 1, include_high=True)

model = functools.partial(option, "", "the output folder of a training run", metavar="FOLDER")
overwrite = functools.partial(option, False, "replace the output file if it exists")


def announce_errors(launch: Launch, settings: DeviceConfig) -> AbstractContextManager[None]:
    """Tell the ranks of other machines of an error in this block, before the process group is formed."""
    if not launch.spans_machines:
        return contextlib.nullcontext()
    group = distributed.group
    return group.announce_errors(launch, lambda: group.start(settings._setup_devices(launch), settings.ddp_timeout))


@dataclass(frozen=True)
class ModelOptions:
    """A trained model and its device."""

    model: str = model()
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = option(
        "auto", "precision of the predictions; auto: fp32"
    )
    use_cpu: bool = option(False, "use the CPU only", "--cpu", "--use-cpu", "--no-cuda")

    def load(self, launch: Launch | None = None) -> Predictor:
        return prediction.predictor.load_predictor(
            self.model, use_cpu=self.use_cpu, precision=self.precision, launch=launch
        )


@dataclass(frozen=True)
class TableOptions(ReadConfig, ModelOptions):
    """A table and its text columns, which a trained model reads."""

    data: str = option(
        "", "the table, in any format that training reads; several become one; - is standard input",
        metavar="FILE", several=True,
    )  # fmt: skip
    text_column: str | None = option(None, "text column (default: as in training)", metavar="COLUMN", several=True)
    text_pair_column: str | None = option(
        None, "column of the second text, for text pairs (default: as in training)", metavar="COLUMN"
    )

    @property
    def reading(self) -> ReadOptions:
        """How to read the table. Raises InputError where flags contradict each other."""
        return ReadOptions.from_settings(vars(self))

    def check_inputs(self, launch: Launch) -> AbstractContextManager[None]:
        """Tell the ranks of other machines of an error in this block, which reads the table.

        Raises InputError where several processes would read standard input.
        """
        if any(map(tables.source.is_stream, split_paths(self.data))) and launch.is_launched:
            raise InputError(f"--data {self.data}: only one of several processes can read a stream; give a file.")
        return announce_errors(launch, DeviceConfig(use_cpu=self.use_cpu))

    def read_texts(self) -> tuple[Table, TextColumns]:
        settings = modeling.result_folder.read_settings(self.model)
        return prediction.inputs.read_texts(
            self.data, settings, self.text_column, self.text_pair_column, self.reading
        )  # fmt: skip


@dataclass(frozen=True)
class ThresholdOptions:
    """The thresholds of labels, where a row has several."""

    threshold: tuple[str, ...] = option(
        (), "of several labels a row: predict this one from another probability on; may be given again",
        metavar="LABEL=FLOAT",
    )  # fmt: skip

    @property
    def thresholds(self) -> dict[str, float]:
        """The thresholds by label. Raises InputError for other words."""
        found = {}
        for word in self.threshold:
            label, _, value = word.rpartition("=")
            if not label:
                raise InputError(f"--threshold {word}: expected a label and its threshold, e.g. urgent=0.4.")
            found[label] = float(parse(value, (float,), f"--threshold {label}=", SHARE))
        return found
