"""What happens between steps: evaluation with early stopping, and checkpoints."""

from __future__ import annotations

from classify.evaluation.metrics import Scores, display_name, format_metrics
from classify.training import checkpoint
from classify.training.setup import Run
from classify.training.train_log import Log
from classify.training.trainer import Callback, StepEnd, Trainer


class Evaluate(Callback):
    """Scores the evaluation part at each epoch's end. `scores` are those that this process has seen, by step."""

    def __init__(self, run: Run, log: Log):
        self.run, self.log = run, log
        self.scores: dict[int, Scores] = {}

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        """Score where an epoch has ended; stop where --patience is at its end."""
        if step.epoch_ended or step.last:
            self.score_epoch(trainer)
        patience = self.run.config.training.patience
        # Scores that differ in the last bit may be ranked otherwise on another rank's processor.
        if step.epoch_ended and not step.last and self.run.world.all_reduce_any(trainer.progress.waited_long(patience)):
            self._say_patience(trainer)
            trainer.stop()

    def score_start(self, trainer: Trainer) -> Scores:
        """Score the weights that training starts from: the first candidate for the best. It stands in no log."""
        return self._score(trainer)[0]

    def score_epoch(self, trainer: Trainer) -> None:
        """Score, print and log; remember the best, where these weights compete for being kept."""
        run, progress, training = self.run, trainer.progress, self.run.config.training
        score, better = self._score(trainer)
        planned = training.epochs
        if training.max_minutes is not None and progress.end is not None:
            planned = progress.end / trainer.batches.rows
        planned = max(planned, trainer.epoch)  # --max-steps, where the recipe has no epochs
        mean = progress.mean_loss
        if progress.first_loss is None:
            progress.first_loss = mean
        run.output.say(
            f"epoch {trainer.epoch:.4g} of {planned:.4g}: loss {mean:.4f}, {_words(score)}, "
            f"{progress.position / progress.seconds:.0f} rows/s{' - best so far' if better else ''}"
        )
        self.log.write_score(trainer, score)

    def score_of(self, step: int, *, as_scored: bool) -> Scores:
        """The score of the weights of `step`, which the model has; computed again unless they are bit for bit so."""
        score = self.scores.get(step)
        return score if score is not None and as_scored else self.run.predict(self.run.splits.validation)[1]

    def _score(self, trainer: Trainer) -> tuple[Scores, bool]:
        """The score of the weights as they are, and whether it is the best so far."""
        _, score = self.run.predict(self.run.splits.validation)
        self.scores[trainer.progress.step] = score
        metric = self.run.config.training.metric_for_best_model
        return score, trainer.progress.add_score(score.metrics, trainer.epoch, metric)

    def _say_patience(self, trainer: Trainer) -> None:
        best = trainer.progress.best
        assert best is not None, "scores were waited for"
        name = display_name(self.run.config.training.metric_for_best_model)
        self.run.output.say(f"stopped: no better {name} since epoch {best['epoch']:g} (--patience to change)")


def _words(score: Scores) -> str:
    return f"evaluation loss {score['loss']:.4f}, {format_metrics(score.metrics)}"


class Checkpointer(Callback):
    """Saves at each epoch's end, every --save-steps, at the last step, and where a signal stops the run."""

    def __init__(self, run: Run):
        self.run = run

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        """Save where it is due."""
        if step.epoch_ended or step.last or step.save_due or step.stopped:
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint; those who do not write wait, so that nobody runs ahead of a failing disk."""
        run, output, progress = self.run, self.run.output, trainer.progress
        training = run.config.training
        limit = training.save_total_limit

        def keep(steps: list[int]) -> set[int]:
            # Steps beyond this one belong to a course that was left by going back to an older checkpoint.
            steps = [step for step in steps if step <= progress.step]
            best = {int(progress.best["step"])} if progress.best is not None else set()
            newest = set(steps[-limit:])
            return newest if best <= newest else best | set(steps[-max(1, limit - 1) :])

        state = trainer.state_dict(keep=output.is_writer)
        with output.world.sync_errors(), output.writing(f"checkpoint {checkpoint.name_of(progress.step)}"):
            if output.is_writer:
                started_with = {
                    "identity": run.identity,
                    "model_folder": str(run.checked.model.path.resolve()),
                    "settings": run.config.flat(),
                }
                checkpoint.save(
                    output.checkpoints,
                    progress.step,
                    state.weights,
                    state.moments,
                    {**state.values, **started_with},
                    keep=keep,
                )
