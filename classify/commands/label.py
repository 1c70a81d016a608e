"""Label texts on a page: the loop of asking, answering and learning, without files between."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from classify import distributed, modeling, prediction, tables
from classify.commands import serve, start
from classify.config.fields import option
from classify.config.parser import CommandParser
from classify.config.schema import ReadConfig
from classify.console import allow_progress
from classify.errors import InputError, escape_controls
from classify.files import why_not_writable
from classify.findings import Finding
from classify.launch.launch import Launch
from classify.launch.plan import plan_devices
from classify.modeling.kept_features import KeptFeatures, choose_rows
from classify.prediction.labels_file import LABEL
from classify.tables.roles import TextColumns
from classify.tables.source import ReadOptions
from classify.tables.table import Table
from classify.tasks import single_label

if TYPE_CHECKING:
    from classify.prediction.labelling import Labelling
    from classify.prediction.pytorch import PyTorchPredictor


# Features of each class of a run that every head of the page learns from: more would make it slow.
_ANCHORS = 20


@dataclass(frozen=True)
class Options(ReadConfig, serve.ServerOptions):
    data: str = option("", "the table with the texts; rows with a label are left out", metavar="FILE", several=True)
    labels: str | None = option(None, "YAML list of classes, or of name: sentence", metavar="FILE")
    model: str | None = option(
        None, "result folder whose classes and predictions to begin with; with --labels, the encoder", metavar="FOLDER"
    )
    text_column: str | None = option(
        None, "text column (default: that of the model, else text)", metavar="COLUMN", several=True
    )
    out: str = option("labels.csv", "the labels, written at once; where it exists it is continued", metavar="FILE")
    use_cpu: bool = option(False, "use the CPU only", "--cpu", "--use-cpu", "--no-cuda")


make_parser = functools.partial(
    CommandParser,
    Options,
    description="Label texts on a page of this machine. Every ten answers a linear model on the encoder's features "
    "learns from them and chooses the next texts; one of five is drawn at random, for an honest score. Without "
    "--labels and --model, classes are typed.",
)


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).read(arguments, ["data"])
    allow_progress(True)
    token = options.check("label")
    names = None if options.labels is None else start.read_names(options.labels)
    out = Path(options.out)
    if out.suffix.lower() != ".csv":
        raise InputError(f"--out {out}: labels are written as CSV; give a name that ends in .csv.")
    if any(
        out.exists() and Path(file).exists() and out.samefile(file) for file in tables.source.list_files(options.data)
    ):
        raise InputError(f"--out {out}: this is a file of --data; give another.")
    if (reason := why_not_writable(out.absolute().parent)) is not None:
        raise InputError(f"--out {out}: the folder is not writable ({reason}); give another file.")
    is_trained = names is None and options.model is not None
    settings = modeling.result_folder.read_settings(options.model) if is_trained and options.model else {}
    reading = ReadOptions.from_settings(vars(options))
    if settings:
        table, texts = prediction.inputs.read_texts(options.data, settings, options.text_column, None, reading)
    else:
        table = tables.read.read_table(options.data, "--data", reading)
        texts = tables.roles.find_first_texts(table, options.text_column)
        table = texts.derive(table)
    with serve.listen(options.host, options.port) as listener:
        plan = plan_devices(Launch(), strategy="none", use_cpu=options.use_cpu)
        with distributed.group.start(plan) as world, modeling.load.quiet_libraries():
            if is_trained:
                predictor = prediction.predictor.load_predictor(
                    str(options.model), use_cpu=options.use_cpu, precision="auto", launch=None
                )
                if not isinstance(predictor, prediction.pytorch.PyTorchPredictor):
                    raise InputError(
                        f"--model {options.model}: an exported model has no features; give the trained one."
                    )
                if not predictor.task.answers.has_labels:
                    raise InputError(f"--model {options.model}: it predicts scores; a page is for labels.")
                if predictor.task.columns:
                    raise InputError(f"--model {options.model}: it has several label columns; a page is for one.")
            else:
                predictor = prediction.zero_shot.load_encoder(
                    table, texts, list(names or ()) or [""], world, reading.given, options.model
                )
            labelling = _prepare(predictor, table, texts, names, options)
            print(escape_controls("\n".join(_describe(labelling, options, table.findings))), flush=True)

            from classify.serving.label_app import make_label_app

            serve.serve(make_label_app(labelling, predictor.features, token), listener, options.out)
    words = ["classify", "train", "--data", options.out, "--label-column", LABEL]
    words += ["--text-column", ",".join(texts.fields)]
    words += [] if texts.pair is None else ["--text-pair-column", texts.pair]
    words += ["--task", "multi"] if labelling.has_sets else []
    if any(answer.label == prediction.labelling.NONE for answer in labelling.file.answers.values()):
        words += ["--out-of-scope-label", prediction.labelling.NONE]
    print(escape_controls(f"\n{len(labelling.file.answers):,} labels in {options.out}\nnext:   {shlex.join(words)}"))
    return 0


def _describe(labelling: Labelling, options: Options, findings: Sequence[Finding]) -> list[str]:
    known = f"{len(labelling.file.answers):,} labels in it" if labelling.file.answers else "new"
    return [
        f"texts: {len(labelling.rows):,} different ones of {options.data}",
        f"labels: {options.out} ({known}; --out)",
        *(f"note: {finding.sentence}" for finding in findings),
    ]


def _prepare(
    predictor: PyTorchPredictor, table: Table, texts: TextColumns, names: dict[str, list[str]] | None, options: Options
) -> Labelling:
    """The texts without a label, each once, with their features and the head to begin with."""
    labelling = prediction.labelling
    rows, left_out = prediction.suggest.find_candidates(predictor, table, texts)
    if len(rows) < 2:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in left_out.items())
        raise InputError(f"{table.path}: {len(rows)} texts are left to label ({reasons}).")
    if names is not None and len(rows) < len(names):
        raise InputError(
            f"--labels {options.labels}: {len(names):,} classes for {len(rows):,} texts. Give fewer classes."
        )
    cells = list(zip(*(table.take(name, rows) for name in texts.named), strict=True))
    file = prediction.labels_file.LabelsFile(Path(options.out), texts.named)
    features = predictor.features(*(table.take(name, rows) for name in texts.inputs))
    task, layer, anchors = predictor.task, None, None
    if names is not None:
        weight, bias, _, notes = prediction.zero_shot.learn_names(predictor, names, features)
        layer = weight, bias
        for note in notes:
            print(escape_controls(f"note: {note}"))
    elif options.model is not None:
        layer = predictor.layer()
        if (kept := KeptFeatures.read(options.model)) is not None:
            some = choose_rows(kept.targets, _ANCHORS, seed=0)
            ones = np.ones(len(some), dtype=np.float32)
            anchors = labelling.Anchors(kept.features[some].astype(np.float32), kept.targets[some], ones)
    else:
        task = single_label.make([])
    return labelling.Labelling(task, cells, features, file, layer, anchors)
