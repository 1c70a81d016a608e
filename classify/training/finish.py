"""The end of a run: the best epoch's weights, the test score, and every file of the output folder."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from classify.data.corpus import Part
from classify.data.files import write_json
from classify.evaluation import advice, baseline, metrics
from classify.evaluation.predictions_file import write_predictions
from classify.modeling.lora import merge_adapters
from classify.modeling.result_folder import FORMAT, save_model
from classify.training import train_state
from classify.training.job import Job
from classify.training.resume import take_weights
from classify.training.run_record import RunRecord


def finish(job: Job, state: train_state.TrainState, record: RunRecord) -> None:
    """Go back to the weights that are kept, score the test part, write every file, say where they lie."""
    progress, corpus = state.progress, job.checked.corpus
    metric = job.config.training.metric_for_best_model
    kept = progress.kept(job.config.training.weights_kept, metric, len(corpus.eval))
    best_epoch, step = kept["epoch"], int(kept["step"])
    job.strategy.end_training()  # what is scored is what will be saved
    if step != progress.step:
        if take_weights(job, step):
            job.say(_kept(best_epoch, step))
        else:
            best_epoch, step = progress.position / len(corpus.train), progress.step
    elif progress.best is not None and progress.best[metric] != kept[metric]:
        job.say(_last(progress.best, kept, metric, len(corpus.eval)))
    if job.adapted is not None:
        merge_adapters(job.adapted)
    part = corpus.test or corpus.eval
    logits, score = job.predict(part)
    eval_score = (
        score
        if part is corpus.eval
        else _eval_score(job, step, as_scored=not job.precision.rounds_weights and job.adapted is None)
    )
    weights = job.strategy.stock_weights(keep=job.writes)
    with job.world.awaited(), job.writing("tensorboard"):
        job.tracker.close()
    if job.config.training.save_on_each_node:
        job.world.close()  # while there is a group transformers saves on rank 0 alone
    # Nobody leaves before the files are written, so that a script that goes on to load the folder finds it. Where one
    # process of each machine writes, there is no group any more to wait in.
    with contextlib.nullcontext() if job.world.closed else job.world.awaited():
        if job.writes:
            _write(job, state, record, weights, logits, (eval_score, score), best_epoch)


def _kept(epoch: float, step: int) -> str:
    """The line on weights that are not the last ones."""
    if step > 0:
        return f"the weights of epoch {epoch:g} are kept: they scored best on the evaluation part"
    return (
        "note: fine-tuning did not improve on the logistic regression that it began with, so the weights before it are "
        "kept; try a lower --learning-rate, more --epochs or more rows"
    )


def _last(best: dict[str, float], last: dict[str, float], metric: str, rows: int) -> str:
    """The line on weights that are kept though earlier ones scored higher."""
    what = f"epoch {best['epoch']:g}" if best["step"] else "the start"
    return (
        f"note: the last weights are kept: {metrics.NAMES[metric]} {last[metric]:.3f} of {rows} evaluation rows, and "
        f"{what} had {best[metric]:.3f}, which may be chance (--keep to change)"
    )


def _write(
    job: Job,
    state: train_state.TrainState,
    record: RunRecord,
    weights: dict[str, Any],
    logits: npt.NDArray[np.float32],
    scores: tuple[metrics.Score, metrics.Score],
    best_epoch: float,
) -> None:
    """Every file of the output folder, from the logits of the scored part and the scores of evaluation and test."""
    progress, corpus = state.progress, job.checked.corpus
    part, (eval_score, score) = corpus.test or corpus.eval, scores
    if job.vocabulary is not None:
        weights = job.vocabulary.expand(weights)
    with job.writing("the model"):
        save_model(job.folder, job.model.stock, weights, job.tokenizer, _settings(job))
    file = job.folder / "predictions.csv"
    with job.writing(file.name):
        write_predictions(file, part.table, part.rows, corpus.labels, metrics.softmax(logits))
    rival = _baseline(job, part)
    majority = baseline.always_largest(corpus.train.truth, part.truth, corpus.labels)
    with job.writing("metrics.json"):
        write_json(
            job.folder / "metrics.json",
            {
                "train": _train_metrics(job, progress),
                "eval": eval_score.as_json(),
                "test": score.as_json() if corpus.test is not None else None,
                "baseline": None if rival is None else rival.as_json(),
                "majority": majority.as_json(),
                "probe": job.probe,
                "best_epoch": best_epoch,
                "start_seconds": job.start_seconds,
                "wall_seconds": job.elapsed,
            },
        )
    with job.writing("run.json"):
        record.write("finished")
    name = "test" if corpus.test is not None else "evaluation"
    notes = advice.notes(
        score,
        name,
        majority=majority,
        baseline_f1=None if rival is None else rival.macro_f1,
        loss=_training_loss(job, progress),
        balanced=job.config.training.class_weights == "balanced",
    )
    _summary(job, score, rival, name, notes)


def _eval_score(job: Job, step: int, as_scored: bool) -> metrics.Score:
    """The evaluation score of the weights of `step`, computed again only where they are not bit for bit `as_scored`."""
    score = job.scores.get(step)
    return score if score is not None and as_scored else job.score(job.checked.corpus.eval)


def _baseline(job: Job, part: Part) -> baseline.BaselineResult | None:
    """The baseline's score on the same rows, or None with the reason said: some tables have no words to count."""
    corpus = job.checked.corpus
    try:
        return baseline.fit_and_score(
            corpus.train.texts(corpus.text_column),
            corpus.train.truth,
            part.texts(corpus.text_column),
            part.truth,
            job.config.training.seed,
        )
    except (ValueError, MemoryError) as error:
        job.say(f"note: the TF-IDF baseline cannot be fitted: {error}")
        return None


def _settings(job: Job) -> dict[str, Any]:
    """classify.json: what prediction must repeat."""
    return {
        "format": FORMAT,
        "text_column": job.checked.corpus.text_column,
        "max_length": job.max_length,
        "long_text": "truncate",
        "temperature": 1.0,
    }


def _train_metrics(job: Job, progress: train_state.Progress) -> dict[str, Any]:
    return {
        "seconds": progress.seconds,
        "rows_per_second": progress.position / progress.seconds if progress.step else 0.0,
        "tokens_per_second": progress.tokens / progress.seconds if progress.step else 0.0,
        "steps": progress.step,
        "epochs": progress.position / len(job.checked.corpus.train),
        "loss": progress.mean_loss,
    }


def _training_loss(job: Job, progress: train_state.Progress) -> advice.TrainingLoss:
    last, epochs = progress.mean_loss, progress.position / len(job.checked.corpus.train)
    return advice.TrainingLoss(last if progress.first_loss is None else progress.first_loss, last, epochs)


def _summary(
    job: Job, score: metrics.Score, rival: baseline.BaselineResult | None, part: str, notes: list[str]
) -> None:
    job.say("")
    job.say(metrics.table(score))
    line = f"{part}: accuracy {score.accuracy:.4f}, macro F1 {score.macro_f1:.4f}"
    if rival is not None:
        fitted = len(job.checked.corpus.train)
        on = f", fitted on {rival.rows} of {fitted} rows" if rival.rows < fitted else ""
        line += f"; TF-IDF baseline: accuracy {rival.accuracy:.4f}, macro F1 {rival.macro_f1:.4f}"
        line += f" ({rival.seconds:.1f} s{on})"
    job.say(line)
    for note in notes:
        job.say(f"note: {note}")
    job.say("")
    job.say(f"result: {job.folder}")
    words = ["predict", "--model", str(job.folder), "--data", "new.csv", "--out", "predictions.csv"]
    job.say(f"next:   {shlex.join([*_program(), *words])}")


def _program() -> list[str]:
    """How this program can be called from where the person stands: `classify` may not be on their PATH."""
    if shutil.which("classify"):
        return ["classify"]
    python = os.path.relpath(sys.executable)
    return [sys.executable if python.startswith("..") else python, "-m", "classify"]
