"""Options: their declarations, flags, YAML, and the recipe for what is not given.

`from classify.config import RunConfig` and its parts are for Python code that trains.
"""

from classify.config.schema import DataConfig, ModelConfig, RunConfig, TrainingConfig

__all__ = ["DataConfig", "ModelConfig", "RunConfig", "TrainingConfig"]
