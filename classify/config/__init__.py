"""Settings: declarations, flags, YAML files and default recipe. Python code that trains imports them from here."""

from classify.config.run_config import RunConfig
from classify.config.schema import DataConfig, ModelConfig, TrainingConfig

__all__ = ["DataConfig", "ModelConfig", "RunConfig", "TrainingConfig"]
