"""Decide whether texts are packed end to end, or padded."""

from __future__ import annotations

from classify.distributed.world import World
from classify.errors import InputError
from classify.modeling.classifier import Classifier
from classify.modeling.cls_hooks import find_encoder
from classify.modeling.fixed_shapes import FixedShapes

# Architectures, by config.json's model_type, whose packed texts have the logits and gradients of padded ones.
# tests/modeling/test_architectures.py shows it of each; another one is added here and there.
PACKABLE = frozenset(
    {"albert", "bert", "camembert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"}
)  # fmt: skip


def choose_packing(classifier: Classifier, world: World, requested: str = "auto") -> str:
    """Pack or pad from here on; return the reason.

    `requested` is --packing: "packed" packs other architectures, too, if transformers lets their attention be replaced.
    Raises InputError where it does not.
    """
    kind = classifier.model.config.model_type
    if world.accelerator.compiles and requested != "packed":
        classifier.use_packing(False)
        classifier.padding = FixedShapes(world.accelerator)
        return "to powers of two, to avoid recompilation"
    if requested == "auto":
        classifier.use_packing(kind in PACKABLE)
        return f"{kind} {'can be' if kind in PACKABLE else 'is not known to be'} packed"
    if requested == "packed":
        replaceable = getattr(classifier.model, "_supports_attention_backend", False)
        if find_encoder(classifier.model) is None or not replaceable:
            raise InputError(
                f"--packing packed is not possible: {kind} does not support custom attention; leave it at auto."
            )
    classifier.use_packing(requested == "packed")
    return "as requested"
