"""--average-seeds: where one training ends the next one begins from the same start, and at last their average."""

from __future__ import annotations

from classify.errors import CheckpointError
from classify.training import resume
from classify.training.evaluate import Evaluate
from classify.training.output import Output
from classify.training.trainer import Callback, StepEnd, Trainer


class AverageCycles(Callback):
    """Takes the weights into the average where a training of several ends; `end` is the rows all of them consume."""

    def __init__(self, output: Output, evaluate: Evaluate, cycles: int, end: int):
        self.output, self.evaluate, self.cycles = output, evaluate, cycles
        self.ends = set(range(0, end + 1, end // cycles)) if cycles > 1 else set()

    def on_step_end(self, trainer: Trainer, step: StepEnd) -> None:
        """Go back to the start, or at the last training's end to the average."""
        if trainer.progress.position not in self.ends:
            return
        strategy, average, world = trainer.strategy, trainer.average, trainer.world
        average.add(strategy.weights(keep=self.output.writes))
        if step.last:
            strategy.load_weights(world.broadcast_tensors(average.tensors if world.is_main else None))
            self.evaluate.score_average(trainer)
            return
        self.output.say(f"training {average.count} of {self.cycles} is done; the next one begins from the same start")
        if not resume.take_weights(self.output, strategy, 0):
            raise CheckpointError(
                f"{self.output.folder}: the start of all {self.cycles} trainings cannot be read any more; start afresh "
                "with --overwrite-output-dir."
            )
        strategy.restart()
