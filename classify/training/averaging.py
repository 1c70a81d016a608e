"""Several trainings from one start, each in another order, and the average of the weights that they end with.

Wortsman et al., 2022, "Model soups", section 2: models that were fine-tuned from the same weights can be averaged, and
the average scores about as their ensemble does, at the cost of one model.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

# What the average's tensors are called in a checkpoint, before the name of the weight.
_PREFIX = "average/"


class WeightAverage:
    """A running mean of weights by name, where they are given: on the main process."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.count = 0

    def add(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take one more set of weights into the mean; of what is no number with a fraction the first stays."""
        self.count += 1
        for name, weight in weights.items():
            if name not in self.tensors:
                self.tensors[name] = weight.detach().clone()
            elif weight.is_floating_point():
                self.tensors[name].lerp_(weight.detach(), 1 / self.count)

    def for_checkpoint(self) -> dict[str, torch.Tensor]:
        """The mean, by names that no weight has."""
        return {_PREFIX + name: tensor for name, tensor in self.tensors.items()}

    def restore(self, tensors: Mapping[str, torch.Tensor], count: int) -> None:
        """Take the mean of `count` sets out of a checkpoint's tensors."""
        self.count = count
        self.tensors = {
            name.removeprefix(_PREFIX): tensor.cpu() for name, tensor in tensors.items() if name.startswith(_PREFIX)
        }
