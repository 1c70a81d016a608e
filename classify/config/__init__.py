"""Settings: declarations, flags, YAML files and default recipe. Python code that trains imports them from here."""

from classify.config.schema import DataConfig, ModelConfig, RunConfig, TrainingConfig

__all__ = ["DataConfig", "ModelConfig", "RunConfig", "TrainingConfig"]
