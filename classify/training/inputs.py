"""Check all that can be wrong before torch is imported and before anything is written."""

from __future__ import annotations

import functools
import importlib.util
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from classify import modeling
from classify.config.fields import shown_name
from classify.config.recipe import FEW_ROWS, FEW_ROWS_PER_CLASS, FEWER_FOLDS, takes_fewer_folds
from classify.config.run_config import FIELDS, RunConfig
from classify.config.schema import MULTILINGUAL_MODEL, NO_TEACHER, SELF_TEACHER
from classify.data.languages import Languages, detect_languages, is_english_code, sample_rows
from classify.data.reading import InputTables, read_tables
from classify.data.sources import Verdict
from classify.data.split_record import SplitRecord
from classify.data.split_table import split_table
from classify.data.splits import Rows, Splits
from classify.data.tokenize import TRUNCATE, tokenize_columns
from classify.errors import ErrorList, InputError, list_some
from classify.files import split_paths
from classify.findings import Finding, decided, note
from classify.launch.launch import Launch
from classify.modeling.coverage import check_coverage
from classify.modeling.find import ModelFolder, check_frozen, resolve_model
from classify.modeling.kept_features import KeptFeatures
from classify.modeling.result_folder import earlier_labels, is_result_folder, read_settings, trained_texts
from classify.tables.labels import class_counts
from classify.tables.roles import TextColumns
from classify.tables.rules import SPLITS
from classify.tables.source import STANDARD_INPUT, is_stream
from classify.tables.table import Table
from classify.tasks.base import Task
from classify.tasks.columns import FOLD_COLUMN, PredictionColumns, note_renamed
from classify.tasks.label_columns import label_texts
from classify.tasks.registry import check_teacher, recognize
from classify.training.output_dir import OutputDirPlan, plan_output_dir
from classify.training.parts import NO_PARTS, Parts
from classify.training.table_report import Report, count_tokens, inspect_splits

# Names of --report-to, as Accelerate and transformers have them; each needs the package of that name.
PACKAGES = ("tensorboard", "wandb", "mlflow", "comet_ml", "clearml", "aim", "dvclive", "swanlab", "trackio")
# Texts with several labels that `classify inspect --json` lists.
_LISTED_CONFLICTS = 1000


@dataclass(frozen=True)
class RunInputs:
    """A run that can begin: resolved settings, task, data, model, output folder, and what is to be printed of them.

    `labelled` rows of `--data` have a label, one that is trusted; `head` is the decision on an earlier run's head, and
    `kept` are its features, where it is extended by new classes or rows of some of its classes.
    """

    config: RunConfig
    task: Task
    splits: Splits
    languages: Languages
    model: ModelFolder
    output_dir: OutputDirPlan
    trackers: tuple[str, ...]
    labelled: int
    head: tuple[Finding, ...]
    kept: KeptFeatures | None = None
    parts: Parts = NO_PARTS
    findings: tuple[Finding, ...] = ()
    label_texts: tuple[str, ...] = ()
    refits_head: bool = False
    verdicts: tuple[Verdict, ...] = ()

    @functools.cached_property
    def inspection(self) -> Report:
        return inspect_splits(self.splits)


def check(
    config: RunConfig,
    parts: Parts = NO_PARTS,
    in_memory: Mapping[str, Table] | None = None,
    launch: Launch = Launch(),  # noqa: B008
) -> RunInputs:
    """Check settings and output folder, then tables, task, model, splits and the recipe, which follow from each other.

    Other machines may have other files. Tables `in_memory`, by flag, take the place of files. Raises InputError with
    all faults.
    """
    config = config.validate()
    config.training.check_start(launch)
    faults, task = ErrorList(), None
    with faults.collect():
        output_dir = plan_output_dir(config, launch)
    with faults.collect():
        trackers = choose_trackers(config.training.report_to)
    if config.model.lora and importlib.util.find_spec("peft") is None:
        faults.append("--lora: the package peft (extra lora) is not installed; pip install peft, or drop the flag.")
    with faults.collect():
        _check_standard_input(config, launch)
        extends = config.model.head in ("auto", "probe") and config.training.keep_features > 0
        kept = KeptFeatures.read(config.model.model) if extends else None
        tables = read_tables(config.data, in_memory)
        tables = tables if kept is None else replace(tables, known_labels=kept.labels)
        task = recognize(tables)
        is_labelled = task.targets.labelled(tables.train, tables.columns.label)
        labelled = np.flatnonzero(is_labelled if tables.origins is None else is_labelled & tables.origins.are_trusted)
        languages = _detect_languages(tables, labelled, config.training.seed)
        kept = None if kept is None else _extend(kept, task, tables)
        if kept is not None:
            _check_extension(config, tables.columns.texts)
        config, head = _choose_head(config, task, kept)
        if tables.columns.texts.pair is not None:
            if config.data.long_texts != TRUNCATE.name:
                raise InputError(f"--long-texts {config.data.long_texts}: text pairs are truncated; drop the flag.")
            if config.training.contrastive_steps is None:
                config = config.with_default("contrastive_steps", 0, "texts")
        if not config.names_model and not _reads(config.data.language, languages):
            config = config.with_default("model", MULTILINGUAL_MODEL, "texts")
        task.check_settings(config.training, parts.metrics)
        parts.check(task, config.training)
        if config.data.teacher is not None and is_result_folder(config.data.teacher):
            check_teacher(config.data.teacher, task)
    model = _resolve_model(config, faults)
    with faults.collect():
        if task is not None:
            folds, fewer = _choose_folds(config, tables, labelled, model)
            splits = split_table(tables, task.targets, config.training.seed, folds)
            if empty := [one.name for one in task.columns if not len(one.rows(splits.train.targets))]:
                where = f"{tables.train.path}: column {empty[0]!r}"
                raise InputError(f"{where} is empty in all rows to train on; leave it out of --label-column.")
            if fewer and splits.num_folds:
                config = config.with_default("folds", folds, "texts")
    faults.raise_if_any()
    assert task is not None
    assert model is not None
    count = len(labelled)
    return apply_recipe(
        RunInputs(config, task, splits, languages, model, output_dir, trackers, count, head, kept, parts)
    )


def apply_recipe(inputs: RunInputs) -> RunInputs:
    """Fill in the recipe's values for the rows to train on, and list all decisions.

    Where sources are left out it is called again, and chooses again.
    """
    config, task, splits, model, languages = inputs.config, inputs.task, inputs.splits, inputs.model, inputs.languages
    added_rows = splits.num_learned - len(splits.train)
    rows = min(inputs.labelled, config.data.max_train_samples or inputs.labelled) + added_rows
    config = config.resolve(splits.num_learned, model.width, rows, max(1, len(task.columns)))
    refits_head = task.head.refits and inputs.parts.loss is None and config.refits_head(rows, len(task.labels))
    few = f"at most {FEW_ROWS_PER_CLASS} labelled rows a class" if refits_head else None
    refits_head |= inputs.kept is not None and config.trains_epochs
    if config.trains_on_few(inputs.labelled + added_rows):
        few = f"fewer than {FEW_ROWS} labelled rows"
    texts, chosen = _choose_label_texts(config, task, splits, languages, few)
    findings = [*_list_decisions(config, splits, model, languages), *inputs.head, *_recipe(config, splits, model.width)]
    findings += [*chosen, *(verdict.finding() for verdict in inputs.verdicts)]
    added = [*PredictionColumns(task).names, *([FOLD_COLUMN] if splits.num_folds else [])]
    written = [split.table for split in (splits.scored, *splits.unlabelled.values())]
    earlier = None if inputs.kept is None else read_settings(config.model.name).get("in_scope")
    if earlier is not None and config.data.out_of_scope_label is None:
        again = f"add --out-of-scope-label {shlex.quote(earlier['label'])} to keep that"
        findings.append(note(f"{config.model.name} knows texts of no class, this model does not; {again}"))
    noted = [
        *([f"no effect in this program: {', '.join(config.ignored)}"] if config.ignored else []),
        *_note_trained_rows(config.model.model, splits),
        *([] if any(source.by_fold for source in splits.sources) else _note_trained_rows(config.data.teacher, splits)),
        *dict.fromkeys(text for table in written if (text := note_renamed(table, added))),
        *config.notes_without_effect(fits_head=config.model.head != "keep"),
    ]
    findings += map(note, noted)
    return replace(inputs, config=config, findings=tuple(findings), label_texts=texts, refits_head=refits_head)


def _detect_languages(tables: InputTables, labelled: Rows, seed: int) -> Languages:
    """Detect the languages of a sample of the labelled rows, of those to train on where a column says so."""
    column, rows = tables.columns.split, labelled
    if column is not None:
        values, numbers = tables.train.dictionary_encode(column.name)
        train = SPLITS.index("train")
        is_train = np.array([column.meaning[value] == train for value in values], dtype=np.bool_)
        rows = labelled[is_train[numbers[labelled]]]
    return detect_languages(tables.train.take(tables.columns.text, sample_rows(rows, seed)))


def _resolve_model(config: RunConfig, faults: ErrorList) -> ModelFolder | None:
    """The model's folder, downloaded if there are no faults so far; add the model's faults."""
    with faults.collect():
        model = resolve_model(
            config.model.name, download=not faults, pooling=config.model.pooling, named=config.names_model
        )
        requested, most = config.data.max_length, model.max_length
        if requested is not None and requested > most:
            faults.append(
                f"--max-length {requested}: {config.model.name} reads at most {most} tokens; give that or less."
            )
        with faults.collect():
            check_frozen(config.model.freeze_layers, model.layers)
        return model
    return None


def _choose_folds(
    config: RunConfig, tables: InputTables, labelled: Rows, model: ModelFolder | None
) -> tuple[int, bool]:
    """The number of folds, that of an earlier run with --split-like, and whether it is fewer since all are slow.

    Raises InputError for contradictions.
    """
    earlier = config.data.split_like
    if earlier is None:
        folds = config.choose_folds(len(labelled))
        if not folds or config.data.folds is not None or model is None:
            return folds, False
        # Contrastive steps in every fold take long on a common CPU where texts are long and the model is large.
        characters = float(tables.train.lengths(tables.columns.text)[labelled].mean())
        has_pairs = bool(config.resolve(len(labelled), model.width).training.contrastive_steps)
        is_slow = has_pairs and takes_fewer_folds(characters, model.layers or 1, model.width)
        return (FEWER_FOLDS, True) if is_slow else (folds, False)
    folds = SplitRecord.read(earlier).num_folds
    if folds and config.data.folds == 0:
        raise InputError(f"--split-like {earlier} has {folds} folds, and --folds 0 holds rows out; drop one of them.")
    conflicts = config.find_contradictions(folds, f"--split-like {earlier} with its {folds} folds")
    if conflicts:
        raise InputError(*conflicts)
    return folds, False


def _reads(language: str | None, languages: Languages) -> bool:
    return is_english_code(language) if language is not None else languages.is_english


def _choose_label_texts(
    config: RunConfig, task: Task, splits: Splits, languages: Languages, few: str | None
) -> tuple[tuple[str, ...], list[Finding]]:
    """The label names that a table of few rows (`few` says how few) trains on as texts, and the decision."""
    is_wanted = few is not None and config.training.label_texts == "auto"
    if not is_wanted or splits.columns.texts.pair or not task.answers.has_confidence:
        return (), []
    texts = label_texts(task.labels, is_english=_reads(config.data.language, languages))
    if not texts:
        return (), []
    why = f"{few}; the names are words"
    return texts, [decided("label texts", f"{len(texts)}, such as {texts[0]!r}", why, "--label-texts none")]


def _check_standard_input(config: RunConfig, launch: Launch) -> None:
    """Raise InputError where standard input would be read by several flags or processes."""
    data = config.data
    paths = {"--data": data.data, "--eval-data": data.eval_data, "--test-data": data.test_data}
    paths["--unlabelled-data"] = data.unlabelled_data
    streams = {flag: path for flag, path in paths.items() if path and any(map(is_stream, split_paths(path)))}
    if list(streams.values()).count(STANDARD_INPUT) > 1:
        raise InputError(f"{' and '.join(streams)} both name standard input (-), which holds one table; give a file.")
    if streams and (launch.is_launched or config.training.nproc is not None):
        flag, path = next(iter(streams.items()))
        raise InputError(f"{flag} {path}: only one of several processes can read a stream; give a file.")
    if streams and data.unlabelled_data is not None and not is_result_folder(data.teacher or ""):
        flag, path = next(iter(streams.items()))
        raise InputError(
            f"{flag} {path}: the teacher's training reads the tables, too, and a stream once; give a file."
        )


def choose_trackers(report_to: str) -> tuple[str, ...]:
    """The trackers by name. Raises InputError for one that is unknown or not installed. Nothing is imported."""
    if report_to == "none":
        return ()
    if report_to in ("auto", "all"):
        return tuple(filter(_installed, PACKAGES if report_to == "all" else ("tensorboard",)))
    names = tuple(dict.fromkeys(name.strip() for name in report_to.split(",")))
    for name in names:
        if name not in PACKAGES:
            raise InputError(
                f"--report-to must be auto, none, or some of {', '.join(PACKAGES)}, with commas between. "
                f"Got {report_to!r} instead."
            )
        if not _installed(name):
            extra = " (extra tensorboard)" if name == "tensorboard" else ""
            raise InputError(
                f"--report-to {name}: the package {name}{extra} is not installed; pip install {name}, or give none."
            )
    return names


def _installed(name: str) -> bool:
    """Whether a package is installed; a folder of that name, as trackers write, has no code."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def _extend(kept: KeptFeatures, task: Task, tables: InputTables) -> KeptFeatures | None:
    """The features of an earlier run by the classes of this one; None where the training table has all of them.

    Such rows train it on, as those of any table do.
    """
    if not task.targets.are_extended:
        return None
    classes = task.targets.classes
    known = {name for label in kept.labels if (name := classes.of(label)) is not None}
    of_rows = {*class_counts(tables.train, tables.columns.label, classes)}
    return None if known == of_rows == {*task.labels} else kept.rename(classes.of, task.labels)


def _check_extension(config: RunConfig, texts: TextColumns) -> None:
    """Raise InputError for settings under which the classes of the earlier run would be lost."""
    teacher, level = config.data.teacher, config.training.opt_level
    without = "--keep-features 0 trains on this table alone"
    if (trained_texts(read_settings(config.model.name)).pair is None) != (texts.pair is None):
        what = "single texts" if texts.pair else "text pairs"
        raise InputError(f"--model {config.model.name} keeps features of {what}, this table has others; {without}.")
    pooling = resolve_model(config.model.name, download=False).pooling
    if config.model.pooling not in ("auto", pooling):
        raise InputError(
            f"--pooling {config.model.pooling}: --model {config.model.name} keeps features of its own pooling; "
            f"drop the flag, or {without}."
        )
    if teacher not in (None, SELF_TEACHER, NO_TEACHER) and not is_result_folder(str(teacher)):
        raise InputError(
            f"--teacher {teacher}: trained on this table alone it would not know the other classes of --model "
            f"{config.model.name}; give --teacher self, or a run's folder."
        )
    if config.trains_epochs and level in ("O2", "O3"):
        raise InputError(
            f"--opt-level {level}: half weights round the features that --model {config.model.name} keeps of its other "
            "classes; drop the flag, or --epochs."
        )


def _choose_head(config: RunConfig, task: Task, kept: KeptFeatures | None) -> tuple[RunConfig, tuple[Finding, ...]]:
    """The settings with the head that "auto" means: that of an earlier run which knows all labels, else a new one.

    Where features of that run are `kept` its encoder stays as it is, unless epochs are asked for. Where --model is an
    earlier run's folder there is a decision, too. Raises InputError for --head keep where a label is not known to it.
    """
    requested, folder = config.model.head, config.model.model
    earlier = None if folder is None else earlier_labels(folder, task.name)
    known, labels = set(earlier or ()), set(task.labels)
    new = [label for label in task.labels if label not in known]
    if requested == "keep" and new:
        listed = list_some(new, show=repr)
        what = "has no head to keep for this task" if earlier is None else f"was not trained on {listed}"
        raise InputError(f"--head keep: --model {config.model.name} {what}; give --head probe.")
    if requested == "auto":
        config = config.with_default("head", "probe" if new or kept is not None else "keep", "model")
    if kept is not None:
        for name in ("num_train_epochs", "contrastive_steps"):
            config = config if config.flat()[name] is not None else config.with_default(name, 0, "model")
        texts = f"features of {len(kept.targets):,} texts of {len(kept.known)} classes"
        value = f"a {task.head.probe} on these rows and {texts}"
        why = f"{config.model.name} keeps them, and its encoder stays as it is"
        if config.training.trains_encoder:
            why = f"{config.model.name} keeps them, from before this training, which they fit less"
        return config, (decided("head", value, why, "--keep-features 0 leaves them out", True),)
    if earlier is None or config.model.head == "random":
        return config, ()
    shared = f"{len(task.labels) - len(new) or 'none'}" if new else "all"
    why = f"{config.model.name} was trained on {shared} of these {len(task.labels)} labels"
    if not task.answers.has_labels:
        why = f"{config.model.name} was trained on scores called {earlier[0]!r}"
    elif dropped := [label for label in earlier if label not in labels]:
        why += f"; dropped, without a row here: {list_some(dropped, show=repr)}"
    value = "kept" if config.model.head == "keep" else f"replaced by a new {task.head.probe}"
    return config, (decided("head", value, why, "--head", True),)


def _note_trained_rows(model: str | None, splits: Splits) -> tuple[str, ...]:
    """Notes where the model is a run that was trained on rows which are scored here."""
    if model is None:
        return ()
    record, notes = SplitRecord.find(model), list[str]()
    name = "cross-validated" if splits.num_folds else "validation" if splits.test is None else "test"
    scored = {name: ("--test-data", splits.scored), "validation": ("--eval-data", splits.validation)}
    for name, (flag, split) in scored.items():
        trained = int(record.find_trained(split.table.text_hashes(splits.columns.text)[split.rows]).sum())
        if trained and not (name == "validation" and splits.num_folds):
            way = (
                ""
                if record.num_folds or SPLITS.index("eval") in record.learned
                else f", or --split-like {shlex.quote(model)}"
            )
            notes.append(
                f"{model} was trained on {trained} of the {len(split)} {name} texts, so the scores may be too high; "
                f"give {flag} with other rows{way and way + ' for this table'}"
            )
    return tuple(notes)


def _list_decisions(config: RunConfig, splits: Splits, model: ModelFolder, languages: Languages) -> tuple[Finding, ...]:
    """Describe the decisions so far."""
    main, values = splits.tables[0], config.flat()
    texts, labels = ("+".join(map(repr, names)) for names in (splits.columns.texts.named, splits.columns.labels))
    where = {id(main): f", texts in {texts}, labels in {labels}"}
    flags = {id(main): "--text-column"}
    taught = [source.split for source in splits.sources if source.is_taught]
    flags |= {id(split.table): "--unlabelled-data" for split in (splits.to_teach, *taught) if split is not None}
    return (
        *(
            decided(name.replace("_", " "), str(values[name]), f"from {file}", shown_name(FIELDS[name][1]), True)
            for name, source in config.sources.items()
            if (file := source.removeprefix("earlier run ")) != source
        ),
        *(
            decided(
                "table",
                f"{table.path}, {len(table):,} rows{where.get(id(table), '')}",
                table.form,
                ", ".join(filter(None, [table.flag, flags.get(id(table), "--eval-data, --test-data")])),
                True,
            )
            for table in splits.tables
        ),
        *splits.findings,
        _language(config.data.language, languages),
        decided("model", config.model.name, model.origin, "--model", True),
        _pooling(config.model.pooling, model),
    )


def _language(language: str | None, languages: Languages) -> Finding:
    if language is not None:
        return decided("language", language, "as requested", "--language")
    value = "English" if languages.is_english else "not English"
    if not languages.is_clear:
        return decided("language", f"unclear, treated as {value}", languages.describe(), "--language", True)
    return decided("language", value, languages.describe(), "--language", not languages.is_english)


def _pooling(requested: str, model: ModelFolder) -> Finding:
    value = "mean over tokens" if model.pooling == "mean" else "first token"
    value += ", computed by one added layer" if model.added_layers else ""
    why = "the model was trained with it" if model.pooling == "mean" else "the model's files name no mean pooling"
    return decided("pooling", value, why if requested == "auto" else "as requested", "--pooling")


def _recipe(config: RunConfig, splits: Splits, width: int) -> tuple[Finding, ...]:
    """Describe the settings that the recipe chose, if any."""
    training = config.training
    words = {
        "batch_size": f"batch size {training.batch_size}",
        "learning_rate": f"learning rate {training.peak_learning_rate:g}",
    }
    if training.max_steps < 0:
        words["num_train_epochs"] = f"{training.epochs:g} epochs"
    if training.contrastive_steps:
        words["contrastive_steps"] = f"{training.contrastive_steps} contrastive steps"
    automatic = [name for name, source in config.sources.items() if source == "recipe" and name in words]
    if not automatic:
        return ()
    why = f"{splits.num_learned:,} training rows, hidden size {width}"
    if splits.columns.are_separate:
        why += f", {len(splits.columns.labels)} label columns"
    flags = ", ".join(shown_name(FIELDS[name][1]) for name in automatic)
    return (decided("recipe", ", ".join(words[name] for name in automatic), why, flags, True),)


def inspect_run(inputs: RunInputs) -> Report:
    """Report on a run's tables without training on them, with what the tokenizer makes of the texts.

    A model that cannot read them is noted.
    """
    splits, cap, config = inputs.splits, inputs.model.max_length, inputs.config
    report = inspect_splits(splits, listed=_LISTED_CONFLICTS)
    report.task = inputs.task.name
    with modeling.load.quiet_libraries():
        tokenizer = modeling.load.load_tokenizer(inputs.model)
        tokens = tokenize_columns(tokenizer, splits.train.table, splits.columns.texts.inputs, cap)
        count_tokens(report, splits, tokens, config.data.max_length, cap, tokenizer)
        try:
            warning = check_coverage(
                splits.train, splits.columns.text, tokens, tokenizer, config.model.name, named=config.names_model
            )
            faults = [] if warning is None else [warning]
        except InputError as error:
            faults = list(error.faults)
    report.findings += map(note, faults)
    return report
