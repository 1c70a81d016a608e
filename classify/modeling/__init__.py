"""The model: finding, loading, packing and precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classify.lazy import submodules

if TYPE_CHECKING:
    from classify.modeling import (
        choose_packing as choose_packing,
        classifier as classifier,
        cls_hooks as cls_hooks,
        coverage as coverage,
        fixed_shapes as fixed_shapes,
        hub as hub,
        layers as layers,
        layout as layout,
        loading as loading,
        lora as lora,
        mean_pooling as mean_pooling,
        packing as packing,
        precision as precision,
        quantized_e5 as quantized_e5,
        result_folder as result_folder,
        sizes as sizes,
        vocabulary as vocabulary,
        weight_files as weight_files,
    )

__getattr__ = submodules(__name__)
