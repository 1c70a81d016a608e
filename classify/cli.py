"""Run commands, print errors and return exit codes. Heavy imports are inside the handlers."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from classify import __version__
from classify.config.parser import Parser, parse_training, print_help, unknown_words
from classify.config.recipe import Recipe
from classify.config.schema import TrainingConfig
from classify.errors import ClassifyError, InputError, disk_refusal, escape_controls, is_lost_peer
from classify.launch import device_plan, interrupts, launcher, process_settings, spawn

if TYPE_CHECKING:
    from classify.distributed.world import World

_USAGE = """usage: classify COMMAND [flags]

Fine-tune a BERT classifier on your own table of texts and labels, and use it.

  classify train --data my.csv                                  train (the same as python run_classify.py)
  classify predict --model runs/my-1 --data new.csv --out p.csv  predict every row of a table
  classify inspect --data my.csv                                inspect a table without training
  classify cache                                                show or clear the cache
  classify devices                                              show the ranks and devices of this machine
  classify COMMAND --help                                       the flags of a command
  classify --version                                            the version"""


def main(argv: Sequence[str] | None = None, program: str = "classify") -> int:
    """Run a command and return its exit code: 0, 1 internal error, 2 invalid input, 3 checkpoint, 130/143 signal."""
    if argv is not None:
        return _run(list(argv), program)
    # The libraries create a million objects that stay. Garbage collection over them, and at exit, would take a quarter
    # of a short command's time.
    gc.set_threshold(100_000, 50, 100)
    process_settings.prepare_process()
    interrupts.handle_sigint()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot encode must not end a run
    try:
        return _run(sys.argv[1:], program)
    finally:
        gc.freeze()


def _run(arguments: list[str], program: str) -> int:
    debug = "--debug" in arguments
    try:
        return _dispatch(arguments) if program == "classify" else _train(arguments, program)
    except (Exception, KeyboardInterrupt) as error:
        if interrupts.was_interrupted(error):
            return _fail("interrupted", 128 + signal.SIGINT, debug)
        return _print_error(error, debug)


def _print_error(error: BaseException, debug: bool) -> int:
    """Print an error's message and return its exit code."""
    if isinstance(error, ClassifyError):
        if error.reported:
            if debug:
                traceback.print_exc()
            return error.exit_code
        return _fail(str(error), error.exit_code, debug, everywhere=error.everywhere)
    if isinstance(error, BrokenPipeError):
        # The reader of the output has ended, e.g. `| head`; that is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, ModuleNotFoundError):
        where = f"{error.name!r} is not installed in {sys.prefix}"
        return _fail(f"the package {where}; run make, or pip install -e .", 1, debug)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        code = 1 if disk_refusal(error) is None else InputError.exit_code
        return _fail(f"{where}{error.strerror or error}", code, debug, everywhere=False)
    _wait_for_peer_error(error)
    line = " ".join(str(error).split())[:300]
    return _fail(f"internal error: {type(error).__name__}: {line} (--debug shows where)", 1, debug, everywhere=False)


def _dispatch(arguments: list[str]) -> int:
    commands = {"train": _train, "predict": _predict, "inspect": _inspect, "cache": _cache, "devices": _devices}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"classify {__version__}")
        return 0
    if arguments[0] not in commands:
        raise InputError(
            f"unknown command {arguments[0]!r}; expected one of {', '.join(commands)}. See classify --help."
        )
    return commands[arguments[0]](arguments[1:], f"classify {arguments[0]}")


def _train(arguments: list[str], program: str) -> int:
    if print_help(arguments, program):
        return 0
    config = parse_training(arguments, program)
    from classify.training.inputs import check_inputs, check_start

    check_start(config.training)
    with launcher.forward_errors(config.training.start, print_error_early):
        inputs = check_inputs(config)
    if config.training.nproc is not None and not launcher.is_nproc_worker():
        count = device_plan.one_per_device() if config.training.nproc == "gpu" else config.training.nproc
        return spawn.run_processes(["train", *arguments], count)
    if config.plan:
        from classify.launch import describe
        from classify.training import memory_forecast

        world = inputs.config.training.start()
        try:
            world.raise_if_any_rank_failed(None)
            memory = memory_forecast.describe_memory(inputs, world)
            if world.is_main:
                for line in inputs.describe_all():
                    print(escape_controls(line))
                print()
                training = inputs.config.training
                batch, each = training.train_batch_size, training.save_on_each_node
                describe.show(world.topology, world.plan, batch, os.environ, each)
                print(f"\n{memory}")
        finally:
            world.close()
        return 0
    import psutil

    from classify.training.run import train

    folder = train(config, inputs, started=psutil.Process().create_time())
    if launcher.is_main_process() or (config.training.save_on_each_node and launcher.should_print_errors()):
        _write_report(folder)
    return 0


def _write_report(folder: Path) -> None:
    """Write report.html where the run has written new results; a failure is a note, since the run is done."""
    page, scores = folder / "report.html", folder / "metrics.json"
    if page.exists() and page.stat().st_mtime >= scores.stat().st_mtime:
        return
    try:
        from classify.report.page import write_report

        write_report(folder)
    except Exception as error:
        print(escape_controls(f"note: {page} is not written ({type(error).__name__}: {error})"))
    else:
        print(escape_controls(f"report: {page}"))


def _predict(arguments: list[str], program: str) -> int:
    parser = Parser(prog=program, description="Predict every row of a table with a trained classifier.")
    parser.add_argument("--model", metavar="FOLDER", help="the output folder of a training run")
    parser.add_argument("--data", metavar="FILE", help="the table, in any format that training reads")
    parser.add_argument("--encoding", metavar="X", help="its encoding (default: auto-detected)")
    parser.add_argument("--sheet", metavar="X", help="sheet of an Excel workbook (default: the first)")
    parser.add_argument(
        "--no-header", "--no_header", action="store_true", help="no header row; columns are column_1, ..."
    )
    parser.add_argument("--out", metavar="FILE", default="predictions.csv", help="output file (default: %(default)s)")
    parser.add_argument("--text-column", "--text_column", metavar="X", help="text column (default: as in training)")
    parser.add_argument(
        "--text-pair-column",
        "--text_pair_column",
        metavar="X",
        help="column of the second text, for text pairs (default: as in training)",
    )
    parser.add_argument(
        "--excel-safe",
        "--excel_safe",
        action="store_true",
        help="for Excel: a byte-order mark, four digits, and ' before cells that look like formulas (CSV injection)",
    )
    parser.add_argument(
        "--precision",
        choices=["auto", "fp32", "tf32", "bf16", "fp16"],
        default="auto",
        help="precision of the predictions; auto: fp32 (default: %(default)s)",
    )
    parser.add_argument("--cpu", "--use-cpu", "--no-cuda", action="store_true", help="use the CPU only")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    options, unknown = parser.parse_known_args(arguments)
    faults = unknown_words(unknown, parser)
    faults += [
        f"--{name} must be given. See {program} --help." for name in ("model", "data") if not getattr(options, name)
    ]
    if faults:
        raise InputError(*faults)
    from classify.data.formats.base import ReadOptions
    from classify.prediction.inputs import check_prediction

    def start_world() -> World:
        from classify.prediction.predict import start_world

        return start_world(options.cpu)

    with launcher.forward_errors(start_world, print_error_early):
        reading = ReadOptions(options.encoding, options.sheet, no_header=options.no_header)
        table, texts = check_prediction(
            options.model, options.data, options.out, options.text_column, reading, options.text_pair_column
        )
    from classify.prediction.predict import load_classifier, predict_table

    with load_classifier(options.model, use_cpu=options.cpu, precision=options.precision) as predictor:
        begin = time.perf_counter()
        out = Path(options.out).resolve()  # what a link points to
        notes = predict_table(predictor, table, texts, out, for_excel=options.excel_safe)
    seconds = time.perf_counter() - begin
    if predictor.world.is_main:
        rate = f"{len(table) / seconds:.0f} rows/s"
        print(escape_controls(f"{options.out}: {len(table)} rows, column {', '.join(map(repr, texts.named))}, {rate}"))
        for note in notes:
            print(f"note: {escape_controls(note)}")
    return 0


def _inspect(arguments: list[str], program: str) -> int:
    """Inspect a table; the flags are those of training."""
    if print_help(arguments, program):
        return 0
    config = parse_training(arguments, program)
    if config.training.nproc is not None or launcher.is_launched():
        raise InputError("classify inspect runs in one process; start it without --nproc or a launcher.")
    from classify.data.files import write_json
    from classify.training.inspection import inspect_run

    report = inspect_run(config)
    for line in report.lines():
        print(escape_controls(line))
    file = Path("inspect.json")
    replaced = " (overwritten)" if file.exists() else ""
    write_json(file, report.as_json())
    print(f"full report: {file}{replaced}")
    return 0


def _cache(arguments: list[str], program: str) -> int:
    parser = Parser(prog=program, description="Show or clear the cache of tables.")
    parser.add_argument("--clear", action="store_true", help="delete all entries")
    options, unknown = parser.parse_known_args(arguments)
    faults = unknown_words(unknown, parser)
    if faults:
        raise InputError(*faults)
    from classify.data import cache

    if options.clear:
        cache.clear_cache()
    count, size = cache.cached_bytes()
    most = cache.MOST_BYTES >> 20
    print(f"{cache.cache_folder()}: {count} entries, {size / (1 << 20):.1f} of up to {most} MiB (--clear deletes them)")
    reason = cache.why_not_trusted()
    if reason is not None:
        print(f"note: the cache is not used: {reason}")
    return 0


def _devices(arguments: list[str], program: str) -> int:
    parser = Parser(prog=program, description="Show the device of each rank, and why; nothing is trained.")
    parser.add_argument("--nnodes", metavar="N", help="plan a cluster of N machines instead of this one")
    parser.add_argument(
        "--nproc-per-node", "--nproc_per_node", metavar="N", help="processes per machine; 2,1 if unequal"
    )
    parser.add_argument(
        "--device",
        metavar="KIND",
        default="cuda",
        help="device type of the planned cluster: cuda, npu, xpu, ..., cpu (default: %(default)s)",
    )
    size = str(Recipe.batch_size)
    parser.add_argument("--batch-size", "--batch_size", metavar="N", default=size, help="global batch size")
    parser.add_argument("--cpu", "--use-cpu", "--no-cuda", action="store_true", help="use the CPU only")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    options, unknown = parser.parse_known_args(arguments)
    faults = unknown_words(unknown, parser)
    counts = (options.nproc_per_node or "1").split(",")
    for name, texts in (
        ("--nnodes", [options.nnodes or "1"]),
        ("--nproc-per-node", counts),
        ("--batch-size", [options.batch_size]),
    ):
        if not all(text.isdecimal() and int(text) > 0 for text in texts):
            faults.append(f"{name} must be a whole number above 0. Got {','.join(texts)!r} instead.")
    if faults:
        raise InputError(*faults)
    from classify.launch import describe

    planned = options.nnodes is not None or options.nproc_per_node is not None
    if planned:
        machines = int(options.nnodes or len(counts))
        per_machine = [int(text) for text in counts] * (machines if len(counts) == 1 else 1)
        if len(per_machine) != machines:
            raise InputError(
                f"--nproc-per-node {options.nproc_per_node} names {len(counts)} machines, --nnodes {machines}. Give "
                "one count per machine."
            )
        topology, plan = describe.planned_cluster(per_machine, "cpu" if options.cpu else options.device)
    else:
        world = TrainingConfig(use_cpu=options.cpu).start()
        topology, plan = world.topology, world.plan
        world.close()
    if plan.launch.is_main:
        describe.show(topology, plan, int(options.batch_size), {} if planned else os.environ)
    return 0


def _fail(message: str, code: int, debug: bool, everywhere: bool = True) -> int:
    """Print the error once per machine, and return its code.

    If every rank has the error, one process per machine prints it. The others wait a second, because a launcher ends
    all processes when the first one exits.
    """
    if debug:
        traceback.print_exc()
    if everywhere and not launcher.should_print_errors():
        time.sleep(1.0)
        return code
    sys.stdout.flush()
    for line in escape_controls(message).split("\n"):
        print(f"error: {line}", file=sys.stderr)
    sys.stderr.flush()
    return code


def print_error_early(error: Exception) -> None:
    """Print an error before the other machines receive it, which may take long."""
    _print_error(error, debug=False)
    if isinstance(error, ClassifyError):
        error.reported = True


def _wait_for_peer_error(error: BaseException) -> None:
    """Wait for the launcher to end this process where a lost peer caused the error: the peer prints the cause.

    --nproc gives a rank time to print its error before it ends the others.
    """
    if launcher.is_launched() and is_lost_peer(error):
        interrupts.end_if_terminated()
        time.sleep(3.0 + (spawn.PRINTING_SECONDS if launcher.is_nproc_worker() else 0.0))
