"""The model: finding, loading, packing and precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.modeling import (
        attention as attention,
        classifier as classifier,
        coverage as coverage,
        cpu_attention as cpu_attention,
        cpu_layers as cpu_layers,
        find as find,
        gpu_attention as gpu_attention,
        layers as layers,
        load as load,
        mean_pooling as mean_pooling,
        packing as packing,
        precision as precision,
        quantized_e5 as quantized_e5,
        result_folder as result_folder,
        vocabulary as vocabulary,
    )

__getattr__ = submodules(__name__)
