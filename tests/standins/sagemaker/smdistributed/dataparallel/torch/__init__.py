"""As in SageMaker's images."""
