"""DeepSpeed's ZeRO, stages 1 and 2: the optimizer's state, and then the gradients, cut over the ranks.

Rajbhandari et al., 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models". The person's file goes
through Accelerate's plug-in; batch size, accumulation, clipping, the optimizer and its schedule stay this program's, so
that the steps are the same as in any other mode. Checkpoints are the same, too: all tensors whole, by name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import torch
from torch import nn

from classify.config import TrainingConfig

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Zero:
    """A model and its optimizer under ZeRO. All methods are collectives: every rank calls them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, config: TrainingConfig, world_size: int):
        assert config.deepspeed is not None
        # ZeRO rounds all weights where its file says bf16; what is not trained must come out as it was.
        self._frozen = {p: p.detach().to("cpu", copy=True) for p in model.parameters() if not p.requires_grad}
        device = next(model.parameters()).device
        if device.type == "cpu":
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed
        from accelerate.utils import DeepSpeedPlugin

        deepspeed.utils.logger.setLevel(logging.ERROR)
        settings = DeepSpeedPlugin(hf_ds_config=config.deepspeed).deepspeed_config
        settings |= {
            # How rows are divided is the batch plan's, not DeepSpeed's; these only have to agree with each other.
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "train_batch_size": world_size,
            "gradient_clipping": config.max_grad_norm,
            "zero_allow_untested_optimizer": True,
        }
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=settings, dist_init_required=False
        )

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the gradients of a micro-batch; behind the `last` one of a step they are exchanged."""
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss, scale_wrt_gas=False)

    def step(self) -> torch.Tensor:
        """Clip, step, clear; returns the gradient's norm before clipping."""
        self.engine.step()
        return torch.as_tensor(self.engine.get_global_grad_norm())

    def weights(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """The weights of a part of the wrapped model, whole and in fp32, by name."""
        from deepspeed.utils import safe_get_full_fp32_param

        return {
            name: self._frozen[parameter] if parameter in self._frozen else safe_get_full_fp32_param(parameter)
            for name, parameter in model.named_parameters()
        }

    def moments(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """The optimizer's state as "<parameter name>/<key>"."""
        from deepspeed.utils import safe_get_full_optimizer_state

        states = list(self.optimizer.optimizer.state.values())
        if not states:
            return {}
        self._link()
        found: dict[str, torch.Tensor] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                for key in _MOMENTS:
                    found[f"{name}/{key}"] = safe_get_full_optimizer_state(parameter, key)
                found[f"{name}/step"] = states[0]["step"].clone()
        return found

    def restore(
        self, model: nn.Module, weights: Mapping[str, torch.Tensor], moments: Mapping[str, torch.Tensor]
    ) -> None:
        """Set what `weights` and `moments` gave."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        steps = [value for key, value in moments.items() if key.endswith("/step")]
        for flat in self.optimizer.single_partition_of_fp32_groups if steps else ():
            state = self.optimizer.optimizer.state[flat]
            state |= {key: torch.zeros_like(flat) for key in _MOMENTS} | {"step": steps[0].float().clone().cpu()}
        if steps:
            self._link()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                safe_set_full_fp32_param(parameter, weights[name].to(parameter.device, torch.float32))
                for key in _MOMENTS if steps else ():
                    safe_set_full_optimizer_state(parameter, moments[f"{name}/{key}"].to(parameter.device), key)

    def make_whole(self, model: nn.Module) -> None:
        """Leave the model with its weights in fp32; the engine cannot be used any more."""
        whole = self.weights(model)
        for name, parameter in model.named_parameters():
            parameter.data = whole[name].to(parameter.device, torch.float32).clone()
        self.engine.destroy()

    def _link(self) -> None:
        """Tell the parameters where their state lies: DeepSpeed does so once, when the first group has some."""
        self.optimizer._hp_optimizer_states_linked = False
        self.optimizer._lazy_init_hp_params_optimizer_state()
