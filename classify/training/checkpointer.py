"""When a checkpoint is written, and which older ones stay."""

from __future__ import annotations

from classify.training import checkpoint
from classify.training.setup import Run
from classify.training.trainer import Callback, StepEnd, Trainer


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

        state = trainer.state_dict(keep=output.writes)
        with output.world.awaited(), output.writing(f"checkpoint {checkpoint.name_of(progress.step)}"):
            if output.writes:
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
