"""How good are the models that come out, nothing set, beside what other tools make of the same rows and weights.

    python benchmarks/quality.py FOLDER [--seeds 0 1 2] [--sets trec irony] [--sizes 2000 k5] [--ours default fast]
    python benchmarks/quality.py FOLDER --peers [NAME ...]
    python benchmarks/quality.py FOLDER --validation --ours default "longer=--epochs 20"

FOLDER holds quality/NAME/{train,test}.csv and languages/NAME/{train,test}.csv with the columns text and label,
banking77/{train,test}.csv, sst2/{train,dev}.tsv and chinese/waimai_10k.csv (label, review; cut in two by the seed).
Texts that are not English are for --sets alone, and the other tools get the multilingual default model for them.
Sizes: 1000 or 2000 training rows, or 5, 8 or 10 of each class (k5, k8, k10). data/tickets.csv is cut in five.
With --validation models are scored on further training rows, which choices may be made by; without it on test rows.
With --peers the other tools run instead, SetFit and AutoIntent in the interpreters that --setfit and --autointent
name, since they want versions of their own. Everything measured is kept with its versions in benchmarks/quality.json
(--store), and the tables are of that.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import json
import math
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    **{name: f"quality/{name}/{{}}.csv" for name in ("agnews", "emotion", "imdb", "irony", "sst5", "trec")},
    "banking77": "banking77/{}.csv",
    "sst2": "sst2/{}.tsv",
}
LANGUAGES = {
    **{name: f"languages/{name}/{{}}.csv" for name in ("arabic", "german", "hindi", "spanish")},
    "chinese": "chinese/waimai_10k.csv",
}
TICKETS, SPLITS = "tickets", 5
SIZES = ("2000", "k5", "k10")
ROWS, SCORED = 2_000, 1_500
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MANY_CLASSES = ("banking77",)
DEFAULT, FAST = "default", "fast"
OURS = {DEFAULT: "", FAST: "--preset fast"}

Rows = list[tuple[str, str]]
Task = tuple[str, str, int]  # set, size, seed
Pairs = dict[str, tuple[float, float]]  # of each set: this program, the other tool


def read(path: Path) -> Rows:
    """(text, label) of each row; the label may be the first column where its name says so."""
    csv.field_size_limit(1 << 30)
    tab = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file, **tab)  # type: ignore[arg-type]
        label = int(next(reader)[0] != "label")
        return [(row[1 - label], row[label]) for row in reader]


def write(path: Path, rows: Rows) -> None:
    """A CSV with the columns text and label."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


def draw_rows(folder: Path, task: Task, validation: bool) -> tuple[Rows, Rows]:
    """Training rows and the rows to score on, drawn by the seed."""
    name, size, seed = task
    draw = random.Random(seed)
    if name == TICKETS:
        rows = read(ROOT / "data" / "tickets.csv")
        random.Random(0).shuffle(rows)
        part = [row for number, row in enumerate(rows) if number % SPLITS == seed]
        rest = [row for number, row in enumerate(rows) if number % SPLITS != seed]
        return (rest[len(rest) // 5 :], rest[: len(rest) // 5]) if validation else (rest, part)
    file = {**FILES, **LANGUAGES}[name]
    rows = read(folder / file.format("train"))
    draw.shuffle(rows)
    most = ROWS if len(rows) > ROWS * 1.2 or not validation else len(rows) * 4 // 5
    if validation or "{}" not in file:
        scored = rows[most : most + (1_000 if validation else SCORED)]
    else:
        scored = read(folder / file.format("dev" if name == "sst2" else "test"))
        draw.shuffle(scored)
    if size.isdigit():
        return rows[: min(int(size), most)], scored[:SCORED]
    each, counts, few = int(size[1:]), Counter[str](), []
    for row in rows[:most] + rows[most + len(scored) :]:
        counts[row[1]] += 1
        if counts[row[1]] <= each:
            few.append(row)
    return few, scored[:SCORED]


def ours(folder: Path, flags: str, seed: int, curve: bool) -> dict[str, Any]:
    """This program on train.csv and scored.csv of a folder.

    `curve` runs it once more, with nine tenths of train.csv to train on as before and scored.csv to evaluate on, and
    adds [seconds since the command, accuracy] of the start and of each epoch.
    """
    metrics, wall = _run(folder, ["--test-data", str(folder / "scored.csv"), *shlex.split(flags)], seed)
    entry = {
        "accuracy": metrics["test"]["accuracy"],
        "macro_f1": metrics["test"]["macro_f1"],
        "rows": metrics["test"]["rows"],
        "wall": wall,
        "loading": metrics["start_seconds"] - (metrics["probe"] or {"seconds": 0.0})["seconds"],
        "train_seconds": metrics["train"]["seconds"],
        "log_loss": metrics["calibration"]["after"]["log_loss"],
        "ece": metrics["calibration"]["after"]["ece"],
        "ece_by_chance": metrics["calibration"]["after"]["ece_by_chance"],
    }
    if curve:
        rows = read(folder / "train.csv")
        write(folder / "most.csv", [row for number, row in enumerate(rows) if number % 10])
        words = ["--data", str(folder / "most.csv"), "--eval-data", str(folder / "scored.csv")]
        metrics, _ = _run(folder, [*words, *shlex.split(flags)], seed)
        log = (folder / "out" / "train_log.jsonl").read_text().splitlines()
        scored = [line for line in map(json.loads, log) if "eval" in line]
        begin, epoch = metrics["start_seconds"], metrics["train"]["seconds"] / max(1, metrics["train"]["epochs"])
        epochs = [[begin + epoch * line["epoch"], line["eval"]["accuracy"]] for line in scored if line["epoch"]]
        entry["curve"] = [[begin, metrics["probe"]["accuracy"]], *epochs]
    return entry


def _run(folder: Path, words: list[str], seed: int) -> tuple[dict[str, Any], float]:
    """metrics.json of a run into the folder's `out`, and the seconds that it took."""
    command = [sys.executable, str(ROOT / "run_classify.py"), "--cpu", "--report-to", "none", "--seed", str(seed)]
    command += ["--data", str(folder / "train.csv"), "--output-dir", str(folder / "out"), "--overwrite-output-dir"]
    begin = time.perf_counter()
    done = subprocess.run([*command, *words], capture_output=True, text=True, env=_offline())
    wall = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{folder}: {done.stderr}")
    return json.loads((folder / "out" / "metrics.json").read_text()), wall


def _offline() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}


def peer(name: str, python: str, folder: Path, seed: int, model: str) -> dict[str, Any]:
    """Another tool on the same files, in a process of its own; the last line it prints is its figures."""
    words = [python, __file__, str(folder), "--worker", name, "--seeds", str(seed), "--model", model]
    begin = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, env=_offline())
    wall = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return {**json.loads(done.stdout.splitlines()[-1]), "wall": wall}


def model_folder(name: str, place: str) -> str:
    """The weights that this program would take for a set, as a folder that the other tools can load."""
    from classify.modeling.find import MULTILINGUAL_MODEL, resolve_model
    from classify.modeling.load import load_pretrained, load_tokenizer

    folder = resolve_model(MULTILINGUAL_MODEL if name in LANGUAGES else MODEL, pooling="first")
    if folder.quantized is None:
        return str(folder.path)
    tokenizer = load_tokenizer(folder)
    model = load_pretrained(folder, ["0", "1"], seed=0, pad_token_id=tokenizer.pad_token_id).model.base_model
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def figures(targets: list[str], predicted: list[str], *packages: str) -> dict[str, Any]:
    """A worker's result."""
    from sklearn.metrics import f1_score

    return {
        "accuracy": sum(a == b for a, b in zip(targets, predicted, strict=True)) / len(targets),
        "macro_f1": float(f1_score(targets, predicted, average="macro")),
        "rows": len(targets),
        "versions": {package: importlib.metadata.version(package) for package in packages},
    }


def trainer(
    train: Rows, scored: Rows, model: str, seed: int, padding: bool | str = "max_length", **settings: Any
) -> dict[str, Any]:
    """transformers' Trainer as run_classification.py sets it up: texts padded to 128 tokens, the last weights kept."""
    import datasets
    import transformers

    transformers.set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    labels = sorted({label for _, label in train})

    def encode(rows: Rows) -> datasets.Dataset:
        texts = tokenizer([text for text, _ in rows], padding=padding, max_length=128, truncation=True)
        return datasets.Dataset.from_dict({**texts, "labels": [labels.index(label) for _, label in rows]})

    stock = transformers.AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(labels))
    with tempfile.TemporaryDirectory() as place:
        arguments = transformers.TrainingArguments(
            output_dir=place,
            use_cpu=True,
            report_to="none",
            seed=seed,
            save_strategy="no",
            disable_tqdm=True,
            **settings,
        )
        loop = transformers.Trainer(stock, arguments, train_dataset=encode(train), processing_class=tokenizer)
        begin = time.perf_counter()
        loop.train()
        seconds = time.perf_counter() - begin
        arguments.train_sampling_strategy = "random"  # else predictions come in the order of lengths, too
        best = loop.predict(encode([(text, labels[0]) for text, _ in scored])).predictions.argmax(axis=1)
    predicted = [labels[number] for number in best]
    entry = figures([label for _, label in scored], predicted, "transformers", "torch", "accelerate")
    return {**entry, "train_seconds": seconds}


def trainer_script(train: Rows, scored: Rows, model: str, seed: int) -> dict[str, Any]:
    """With the script's defaults."""
    return trainer(train, scored, model, seed, per_device_train_batch_size=8, learning_rate=5e-5, num_train_epochs=3)


def trainer_grouped(train: Rows, scored: Rows, model: str, seed: int) -> dict[str, Any]:
    """With the script's defaults, but batches of texts of like length, padded to the longest: the same in less time."""
    return trainer(
        train, scored, model, seed, padding=False, train_sampling_strategy="group_by_length",
        per_device_train_batch_size=8, learning_rate=5e-5, num_train_epochs=3,
    )  # fmt: skip


def trainer_readme(train: Rows, scored: Rows, model: str, seed: int) -> dict[str, Any]:
    """With the flags of the script's README."""
    return trainer(train, scored, model, seed, per_device_train_batch_size=32, learning_rate=2e-5, num_train_epochs=3)


def tfidf(train: Rows, scored: Rows, model: str, seed: int) -> dict[str, Any]:
    """TF-IDF of words and of characters into a logistic regression, as the program's own baseline."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.pipeline import make_pipeline, make_union

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    pipe = make_pipeline(make_union(words, characters), LogisticRegression(C=10))
    pipe.fit([text for text, _ in train], [label for _, label in train])
    targets, texts = [label for _, label in scored], [text for text, _ in scored]
    loss = log_loss(targets, pipe.predict_proba(texts), labels=pipe.classes_)
    return {**figures(targets, list(pipe.predict(texts)), "scikit-learn"), "log_loss": float(loss)}


def frozen(train: Rows, scored: Rows, model: str, seed: int) -> dict[str, Any]:
    """A logistic regression on the frozen model's mean-pooled output, scikit-learn's defaults."""
    import torch
    import transformers
    from sklearn.linear_model import LogisticRegression

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    encoder = transformers.AutoModel.from_pretrained(model).eval()

    @torch.no_grad()
    def embed(rows: Rows) -> Any:
        parts = []
        for start in range(0, len(rows), 32):
            texts = [text for text, _ in rows[start : start + 32]]
            batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
            states, mask = encoder(**batch).last_hidden_state, batch["attention_mask"][..., None]
            parts.append(torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1))
        return torch.cat(parts).numpy()

    head = LogisticRegression(max_iter=1_000).fit(embed(train), [label for _, label in train])
    return figures([label for _, label in scored], list(head.predict(embed(scored))), "scikit-learn", "transformers")


def setfit(train: Rows, scored: Rows, model: str, seed: int) -> dict[str, Any]:
    """SetFit (Tunstall et al., 2022) with its defaults: one epoch over pairs, then a logistic regression."""
    import datasets
    from setfit import SetFitModel, Trainer, TrainingArguments

    stock = SetFitModel.from_pretrained(model)
    data = datasets.Dataset.from_dict({"text": [text for text, _ in train], "label": [label for _, label in train]})
    with tempfile.TemporaryDirectory() as place:
        arguments = TrainingArguments(output_dir=place, seed=seed, report_to="none", save_strategy="no")
        Trainer(model=stock, args=arguments, train_dataset=data).train()
    predicted = stock.predict([text for text, _ in scored])
    targets = [label for _, label in scored]
    return figures(targets, [str(label) for label in predicted], "setfit", "sentence-transformers", "torch")


def autointent(train: Rows, scored: Rows, model: str, seed: int) -> dict[str, Any]:
    """AutoIntent's light preset (Alekseev et al., 2025) on the same encoder, refitted on all rows after its search."""
    from autointent import Dataset, Pipeline
    from autointent.configs import SentenceTransformerEmbeddingConfig

    labels = sorted({label for _, label in train})
    rows = [{"utterance": text, "label": labels.index(label)} for text, label in train]
    pipeline = Pipeline.from_preset("classic-light", seed=seed + 1)  # it refuses 0
    pipeline.set_config(SentenceTransformerEmbeddingConfig(model_name=model))
    pipeline.fit(Dataset.from_dict({"train": rows}), refit_after=True)
    best = pipeline.predict([text for text, _ in scored])
    predicted = ["" if number is None else labels[number] for number in best]  # None: out of scope
    return figures([label for _, label in scored], predicted, "autointent", "sentence-transformers", "torch")


SCRIPT, README, TFIDF, FROZEN, SETFIT = "Trainer, script", "Trainer, README", "TF-IDF", "frozen", "SetFit"
GROUPED, AUTOINTENT = "Trainer, grouped", "AutoIntent"
PEERS: dict[str, Callable[[Rows, Rows, str, int], dict[str, Any]]] = {
    SCRIPT: trainer_script,
    GROUPED: trainer_grouped,
    README: trainer_readme,
    TFIDF: tfidf,
    FROZEN: frozen,
    SETFIT: setfit,
    AUTOINTENT: autointent,
}


class Store:
    """Everything measured, by tool, set, size, seed and the rows that were scored."""

    def __init__(self, path: Path):
        self.path = path
        self.entries = self._stored()

    def _stored(self) -> dict[str, dict[str, Any]]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def key(self, tool: str, task: Task, validation: bool) -> str:
        """Of an entry."""
        return "/".join([tool, *map(str, task), "validation" if validation else "test"])

    def add(self, key: str, entry: dict[str, Any]) -> None:
        """Keep an entry, at once: a table takes hours, and others may be adding to it."""
        self.entries = {**self._stored(), key: entry}
        self.path.write_text(json.dumps(self.entries, indent=1, sort_keys=True) + "\n")

    def mean(self, tool: str, name: str, size: str, validation: bool, what: str = "accuracy") -> float | None:
        """Over the seeds that were measured."""
        values = self.values(tool, name, size, validation, what)
        return statistics.mean(values) if values else None

    def values(self, tool: str, name: str, size: str, validation: bool, what: str = "accuracy") -> list[Any]:
        """Of each seed."""
        return list(self.by_seed(tool, name, size, validation, what).values())

    def by_seed(self, tool: str, name: str, size: str, validation: bool, what: str = "accuracy") -> dict[str, Any]:
        """{seed: value}; a seed draws other rows, so only values of the same seed can be compared."""
        tail = "validation" if validation else "test"
        parts = ((key.split("/"), entry) for key, entry in self.entries.items())
        return {
            seed: entry[what]
            for (tool_, name_, size_, seed, tail_), entry in parts
            if (tool_, name_, size_, tail_) == (tool, name, size, tail) and what in entry
        }


def table(store: Store, tools: list[str], size: str, validation: bool) -> list[str]:
    """Mean accuracy (and wall seconds) of each tool on each set, as Markdown."""
    names = [*FILES, *LANGUAGES, TICKETS]
    names = [name for name in names if any(store.values(tool, name, size, validation) for tool in tools)]
    tools = [tool for tool in tools if any(store.values(tool, name, size, validation) for name in names)]
    if not names:
        return []
    lines = [f"| {size} | " + " | ".join(tools) + " |", "|---" * (1 + len(tools)) + "|"]
    sums: dict[str, list[tuple[float, float]]] = {tool: [] for tool in tools}
    for name in names:
        cells = []
        for tool in tools:
            accuracy = store.mean(tool, name, size, validation)
            wall = store.mean(tool, name, size, validation, "wall")
            cells.append("" if accuracy is None or wall is None else f"{accuracy:.3f} ({wall:.0f} s)")
            if accuracy is not None and wall is not None:
                sums[tool].append((accuracy, wall))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    whole = [
        f"{statistics.mean(a for a, _ in sums[tool]):.3f} ({sum(w for _, w in sums[tool]):.0f} s)"
        if len(sums[tool]) == len(names)
        else ""
        for tool in tools
    ]
    return [*lines, "| mean (sum) | " + " | ".join(whole) + " |"]


def goals(store: Store, tool: str, validation: bool) -> list[str]:
    """What the recipe aims at, beside what `tool`, a set-up of this program, was measured at.

    Over the sets and seeds that both of two tools have.
    """
    full = str(ROWS)

    def by_seed(other: str, name: str, size: str = full, what: str = "accuracy") -> dict[str, Any]:
        return store.by_seed(other, name, size, validation, what)

    def beside(first: str, second: str, size: str = full, what: str = "accuracy") -> Pairs:
        """Means over the seeds that both were measured with."""
        pairs = {}
        for name in FILES:
            own, others = by_seed(first, name, size, what), by_seed(second, name, size, what)
            if both := sorted(own.keys() & others.keys()):
                pairs[name] = (statistics.mean(own[s] for s in both), statistics.mean(others[s] for s in both))
        return pairs

    def few(what: str) -> Pairs:
        """5 and 10 rows a class, of each set."""
        by_size = {size: beside(tool, SETFIT, size, what) for size in SIZES[1:]}
        return {f"{name}, {size}": pair for size, pairs in by_size.items() for name, pair in pairs.items()}

    def deviations() -> Pairs:
        pairs = {}
        for name in FILES:
            own, others = by_seed(tool, name), by_seed(SCRIPT, name)
            both = own.keys() & others.keys()
            if len(both) > 1:
                pairs[name] = (statistics.stdev(own[s] for s in both), statistics.stdev(others[s] for s in both))
        return pairs

    of_script, of_readme = beside(tool, SCRIPT), beside(tool, README)
    over_trainer = {
        name: max(pair, of_readme.get(name, pair), key=lambda two: two[1]) for name, pair in of_script.items()
    }
    few_classes = {name: pair for name, pair in over_trainer.items() if name not in MANY_CLASSES}
    rows = {name: statistics.mean(by_seed(tool, name, what="rows").values() or [SCORED]) for name in over_trainer}
    behind = [
        name for name, (mine, theirs) in over_trainer.items() if mine < theirs - standard_error(theirs, rows[name])
    ]
    over_words = beside(tool, TFIDF)
    after_loading = {
        name: (wall - statistics.mean(by_seed(FAST, name, what="loading").values()), theirs)
        for name, (wall, theirs) in beside(FAST, TFIDF, what="wall").items()
    }
    lines = [
        ("over the better Trainer, median points", "+1.0", over_trainer, points(over_trainer, statistics.median)),
        ("the same, mean without banking77", "+1.0", few_classes, points(few_classes)),
        ("below it by more than a standard error", "none", over_trainer, ", ".join(behind) or "none"),
        ("above TF-IDF", "all", over_words, above(over_words)),
        ("wall time over the script's defaults, summed", "0.4 x",
         *ratio(beside(tool, SCRIPT, what="wall"))),
        ("time to the script's accuracy over its own, median", "0.25 x",
         *ratio(times_to(store, tool, validation), median=True)),
        ("deviation over seeds, over the script's", "0.5 x", *ratio(deviations())),
        ("--preset fast over TF-IDF, mean points", "+0.0", beside(FAST, TFIDF), points(beside(FAST, TFIDF))),
        ("its time behind loading the model over TF-IDF's", "2 x", *ratio(after_loading)),
        ("5 and 10 rows a class over SetFit, mean points", "+0.0", few("accuracy"), points(few("accuracy"))),
        ("its wall time over SetFit's", "0.5 x", *ratio(few("wall"))),
    ]  # fmt: skip
    return [
        f"| aim, {tool} | number | measured | sets |",
        "|---|---|---|---|",
        *(
            f"| {name} | {aim} | {value if pairs else 'not measured'} | {len(pairs)} |"
            for name, aim, pairs, value in lines
        ),
    ]


def points(pairs: Pairs, of: Callable[[list[float]], float] = statistics.mean) -> str:
    """The mean difference of accuracies, in points."""
    return f"{100 * of([a - b for a, b in pairs.values()]):+.1f}" if pairs else ""


def ratio(pairs: Pairs, median: bool = False) -> tuple[Pairs, str]:
    """The pairs, and the ratio of their sums or the median of their ratios."""
    if not pairs:
        return pairs, ""
    if median:
        return pairs, f"{statistics.median(a / b for a, b in pairs.values()):.2f} x"
    return pairs, f"{sum(a for a, _ in pairs.values()) / sum(b for _, b in pairs.values()):.2f} x"


def above(pairs: Pairs) -> str:
    """On how many sets the first is the better one."""
    return f"{sum(a > b for a, b in pairs.values())} of {len(pairs)}"


def standard_error(accuracy: float, rows: float) -> float:
    """Of an accuracy on so many rows."""
    return math.sqrt(accuracy * (1 - accuracy) / rows)


def times_to(store: Store, tool: str, validation: bool) -> Pairs:
    """Mean seconds to the first scored epoch (0: the start) as good as the script, from the command; the script's own.

    Over the seeds that both were measured with. Infinite where a run never gets there.
    """
    pairs = {}
    for name in FILES:
        curves = store.by_seed(tool, name, str(ROWS), validation, "curve")
        wanted = store.by_seed(SCRIPT, name, str(ROWS), validation)
        seconds = store.by_seed(SCRIPT, name, str(ROWS), validation, "train_seconds")
        if both := sorted(curves.keys() & wanted.keys() & seconds.keys()):
            reached = [next((t for t, score in curves[s] if score >= wanted[s]), math.inf) for s in both]
            pairs[name] = (statistics.mean(reached), statistics.mean(seconds[s] for s in both))
    return pairs


def main() -> None:
    """Run what is asked for, then print the tables of all that is in the store."""
    parser = argparse.ArgumentParser(description="Accuracy beside other tools on public data sets.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worker", choices=PEERS)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--sets", nargs="+", default=[*FILES, TICKETS], choices=[*FILES, *LANGUAGES, TICKETS])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=["1000", *SIZES, "k8"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--ours", nargs="+", metavar="NAME[=FLAGS]", help=f"{', '.join(OURS)}, or others with flags")
    parser.add_argument("--show", action="store_true", help="run nothing, print the tables of what is in the store")
    parser.add_argument("--curve", action="store_true", help="each epoch's accuracy too, in a second run")
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="run these again; all without a name")
    parser.add_argument("--setfit", metavar="PYTHON", default=".venv-setfit/bin/python")
    parser.add_argument("--autointent", metavar="PYTHON", default=".venv-autointent/bin/python")
    parser.add_argument("--validation", action="store_true", help="score on further training rows")
    parser.add_argument("--store", type=Path, default=ROOT / "benchmarks" / "quality.json")
    options = parser.parse_args()
    if options.worker:
        train, scored = (read(options.folder / f"{name}.csv") for name in ("train", "scored"))
        print(json.dumps(PEERS[options.worker](train, scored, options.model, options.seeds[0])))
        return
    sys.path.insert(0, str(ROOT))
    store = Store(options.store)
    peers = list(PEERS) if options.peers == [] else options.peers or []
    asked = options.ours or ([] if peers else [DEFAULT])
    named = [item.partition("=") for item in asked]
    if any(not equals and name not in OURS for name, equals, _ in named):
        parser.error(f"--ours takes {', '.join(OURS)} or NAME=FLAGS")
    own = {name: flags if equals else OURS[name] for name, equals, flags in named}
    if options.show:
        options.sets = []
    tasks = [(name, size, seed) for size in options.sizes for name in options.sets for seed in options.seeds]
    tasks += [(TICKETS, "2000", seed) for seed in range(SPLITS) if TICKETS in options.sets and "2000" in options.sizes]
    for task in dict.fromkeys(tasks):
        if task[0] == TICKETS and task[1] != "2000":
            continue
        with tempfile.TemporaryDirectory() as place:
            for name, rows in zip(
                ("train", "scored"), draw_rows(options.folder, task, options.validation), strict=True
            ):
                write(Path(place) / f"{name}.csv", rows)
            for tool, flags in own.items():
                entry = {"flags": flags, **ours(Path(place), flags, task[2], options.curve)}
                store.add(store.key(tool, task, options.validation), entry)
                print(*task, tool, f"{entry['accuracy']:.4f}", f"{entry['wall']:.0f} s", flush=True)
            for tool in peers:
                if tool == SETFIT and task[1].isdigit():  # hours of pairs
                    continue
                python = {SETFIT: options.setfit, AUTOINTENT: options.autointent}.get(tool, sys.executable)
                model = model_folder(task[0], f"{place}/model")
                entry = peer(tool, python, Path(place), task[2], model)
                store.add(store.key(tool, task, options.validation), entry)
                print(*task, tool, f"{entry['accuracy']:.4f}", f"{entry['wall']:.0f} s", flush=True)
    tools = [*dict.fromkeys([*(own or [DEFAULT]), *PEERS])]
    for size in options.sizes:
        print("\n".join(["", *table(store, tools, size, options.validation)]))
    for tool in own or [DEFAULT]:
        print("\n".join(["", *goals(store, tool, options.validation)]))
    print("\nAblations, on validation rows (benchmarks/recipe.md):\n" + ablations())


def ablations() -> str:
    """What benchmarks/recipe.md says was tried for the recipe, and how it came out."""
    return (ROOT / "benchmarks" / "recipe.md").read_text(encoding="utf-8").partition("\n\n")[2]


if __name__ == "__main__":
    main()
