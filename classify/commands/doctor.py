"""Check the installation: versions, devices, memory, disk, models, and a training of a few rows."""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from classify.config.parser import Parser, parse_training
from classify.errors import ClassifyError, escape_controls

_TEXTS = {
    "billing": ("the invoice is wrong", "I was charged twice", "refund my payment", "the price on my bill changed"),
    "login": ("I cannot log in", "the password reset fails", "my account is locked", "the code never arrives"),
}
_FAILED = "failed"
_WORDS = ("today", "again", "please", "since monday", "on my phone")


def make_parser(program: str) -> Parser:
    parser = Parser(prog=program, description="Check this installation; print what a bug report needs.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--no-self-check", action="store_true", help="leave out the training of a few rows")
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    """Run the command; 1 where the device or the self-check fails."""
    options = make_parser(program).parse(arguments)
    facts = describe()
    if not options.no_self_check:
        facts["self-check"] = _self_check()
    if options.json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            print(escape_controls(f"{name:{width}}  {value}"))
    return int(any(str(facts.get(name, "")).startswith(_FAILED) for name in ("device", "self-check")))


def describe() -> dict[str, Any]:
    """Return what a bug report needs, by name."""
    import psutil
    import torch

    from classify.config.schema import DEFAULT_MODEL, MULTILINGUAL_MODEL, TrainingConfig
    from classify.launch import launcher
    from classify.launch.process_settings import set_variables
    from classify.modeling.precision import has_bf16_instructions
    from classify.tables import cache
    from classify.versions import versions

    try:
        with TrainingConfig().start() as world:
            device = f"{world.describe()} ({world.plan.reason})"
    except ClassifyError as error:  # a launcher's variables, say, which are among these facts
        device = f"{_FAILED}: {error}"
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(Path.cwd())
    return {
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": f"{_processor()}, {launcher.available_cores()} cores, {torch.get_num_threads()} threads",
        "bf16": "hardware support" if has_bf16_instructions() else "no hardware support",
        "device": device,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda or 'no'}",
        "memory": f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free",
        "disk": f"{disk.free / 2**30:.1f} GiB free in {Path.cwd()}",
        "cache": str(cache.cache_folder()),
        "models": ", ".join(f"{name}: {_origin(name)}" for name in (DEFAULT_MODEL, MULTILINGUAL_MODEL)),
        "variables": ", ".join(f"{name}={value}" for name, value in set_variables().items()) or "none set",
    }


def _origin(name: str) -> str:
    """Return where a default model comes from."""
    from classify.errors import ClassifyError
    from classify.modeling.hub import resolve_model

    try:
        return str(resolve_model(name).origin)
    except ClassifyError as error:
        return f"not available ({error})"


def _processor() -> str:
    """Return the name of the processor, with the instructions that matter here."""
    from classify.modeling.kernels.linear import capabilities

    values = capabilities()
    features = [name for name in ("avx2", "avx512_f", "avx512_bf16", "amx_bf16") if values.get(name)]
    return f"{values.get('cpu_name') or platform.machine()} ({', '.join(features) or 'no AVX2'})"


def _self_check() -> str:
    """Train on a few rows, and predict them from the folder."""
    from classify.prediction.predictor import load_classifier
    from classify.training.run import train

    rows = [(f"{text} {word}", label) for label, texts in _TEXTS.items() for text in texts for word in _WORDS]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="classify-") as folder:
        table, out = Path(folder) / "rows.csv", Path(folder) / "run"
        table.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows), encoding="utf-8")
        words = ["--data", str(table), "--output-dir", str(out), "--preset", "fast", "--folds", "0"]
        words += ["--report-to", "none", "--language", "en", "--quiet"]
        try:
            train(parse_training(words, "classify doctor"))
            with load_classifier(str(out)) as classifier:
                best = classifier.probabilities([text for text, _ in rows]).argmax(axis=1)
                right = sum(classifier.labels[number] == label for number, (_, label) in zip(best, rows, strict=True))
        except Exception as error:
            return f"{_FAILED}: {type(error).__name__}: {error}"
    seconds = time.perf_counter() - begin
    if right < 0.9 * len(rows):
        return f"{_FAILED}: {right} of {len(rows)} rows are right after training on them"
    return f"trained on {len(rows)} rows and predicted {right} of them correctly in {seconds:.1f} s"
