"""DeepSpeed's ZeRO, stages 1 and 2: the optimizer's state, and then the gradients, cut over the ranks.

Rajbhandari et al., 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models". The person's file goes
through Accelerate's plug-in; batch size, accumulation, clipping, the optimizer and its schedule stay this program's, so
that the steps are the same as in any other mode. Checkpoints are the same, too: all tensors whole, by name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from classify.config.schema import TrainingConfig

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

    def weights(self, model: nn.Module, keep: bool) -> dict[str, torch.Tensor]:
        """The weights of a part of the wrapped model, whole and in fp32, by name; in main memory if they are kept.

        One tensor at a time is whole on a device.
        """
        return {name: tensor for name, tensor in self._whole(model) if keep}

    def moments(self, model: nn.Module, keep: bool) -> dict[str, torch.Tensor]:
        """The optimizer's state as "<parameter name>/<key>", in main memory if it is kept."""
        from deepspeed.utils import safe_get_full_optimizer_state

        states = list(self.optimizer.optimizer.state.values())
        if not states:
            return {}
        self._link()
        found: dict[str, torch.Tensor] = {}
        for name, parameter in model.named_parameters():
            if parameter not in self._frozen:
                for key in _MOMENTS:
                    tensor = safe_get_full_optimizer_state(parameter, key)
                    if keep:
                        found[f"{name}/{key}"] = tensor.cpu()
                found[f"{name}/step"] = states[0]["step"].cpu().clone()
        return found if keep else {}

    def scale(self) -> dict[str, float]:
        """Where fp16's loss scale stands; plain numbers."""
        scaler = getattr(self.optimizer, "loss_scaler", None)
        return {key: value for key, value in vars(scaler).items() if isinstance(value, int | float)} if scaler else {}

    def restore(
        self,
        model: nn.Module,
        weights: Mapping[str, torch.Tensor],
        moments: Mapping[str, torch.Tensor],
        scale: Mapping[str, float],
    ) -> None:
        """Set what `weights`, `moments` and `scale` gave."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        steps = [value for key, value in moments.items() if key.endswith("/step")]
        fused = bool(self.optimizer.optimizer.param_groups[0].get("fused"))
        for flat in self.optimizer.single_partition_of_fp32_groups if steps else ():
            step = steps[0].to(flat.device if fused else "cpu", torch.float32, copy=True)
            self.optimizer.optimizer.state[flat] |= {key: torch.zeros_like(flat) for key in _MOMENTS} | {"step": step}
        if steps:
            self._link()
        for name, parameter in model.named_parameters():
            if parameter not in self._frozen:
                safe_set_full_fp32_param(parameter, weights[name].to(parameter.device, torch.float32))
                for key in _MOMENTS if steps else ():
                    safe_set_full_optimizer_state(parameter, moments[f"{name}/{key}"].to(parameter.device), key)
        for key, value in scale.items():
            if hasattr(getattr(self.optimizer, "loss_scaler", None), key):
                setattr(self.optimizer.loss_scaler, key, value)

    def make_whole(self, model: nn.Module) -> None:
        """Leave the model with its weights in fp32; the engine cannot be used any more."""
        parameters = dict(model.named_parameters())
        for name, tensor in self._whole(model):
            parameters[name].data = tensor.to(parameters[name].device, copy=True)
        self.engine.destroy()

    def _whole(self, model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Each weight in fp32 and in main memory, one after the other."""
        from deepspeed.utils import safe_get_full_fp32_param

        for name, parameter in model.named_parameters():
            whole = self._frozen[parameter] if parameter in self._frozen else safe_get_full_fp32_param(parameter)
            yield name, whole.float().cpu()

    def _link(self) -> None:
        """Tell the parameters where their state lies: DeepSpeed does so once, when the first group has some."""
        assert hasattr(self.optimizer, "_hp_optimizer_states_linked"), "this DeepSpeed keeps it elsewhere"
        self.optimizer._hp_optimizer_states_linked = False
        self.optimizer._lazy_init_hp_params_optimizer_state()
