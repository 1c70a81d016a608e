"""Predict with an exported folder in ONNX Runtime, without torch or transformers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classify.data.sampler import batch_by_tokens
from classify.data.tokenize import get_padding_id
from classify.errors import EXCERPT, InputError
from classify.files import read_json
from classify.launch.launch import Launch
from classify.launch.process import available_cores
from classify.modeling.result_folder import EXPORTED, read_settings
from classify.prediction.predictor import Outputs, Predictor
from classify.tasks.base import Task
from classify.tasks.registry import trained_task

if TYPE_CHECKING:
    import onnxruntime

# Tokens of a batch, with padding. More do not fit into a processor's caches.
_TOKENS = 2048


class JSONTokenizer:
    """A tokenizer.json as `classify.data.tokenize` calls a tokenizer of transformers."""

    def __init__(self, folder: Path):
        """Load the files of a folder. Raises InputError for damaged ones."""
        from tokenizers import Tokenizer

        try:
            self.backend_tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            names = read_json(folder / "tokenizer_config.json")
        except Exception as error:  # tokenizers raises plain exceptions
            raise InputError(f"--model {folder}: its tokenizer cannot be read ({error}); export it again.") from None
        self.backend_tokenizer.no_truncation()
        self.backend_tokenizer.no_padding()
        tokens = (names.get(name) for name in ("unk_token", "pad_token"))
        contents = (token.get("content") if isinstance(token, dict) else token for token in tokens)
        self.unk_token_id, self.pad_token_id = (
            None if content is None else self.convert_tokens_to_ids(content) for content in contents
        )

    def __call__(self, text: str, pair: str | None = None, *, add_special_tokens: bool = True, **_: Any) -> Any:
        encoded = self.backend_tokenizer.encode(text, pair, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids, "token_type_ids": encoded.type_ids}

    def convert_tokens_to_ids(self, token: str) -> int | None:
        found: int | None = self.backend_tokenizer.token_to_id(token)
        return found


class Alone:
    """What prediction asks of `World`, without torch: the only process has no one to exchange with."""

    rank, world_size, is_main = 0, 1, True

    def __init__(self) -> None:
        self.closed = False

    def check_same(self, kinds: Mapping[str, str]) -> None:
        pass

    def sync_errors(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def close(self, error: BaseException | None = None) -> None:
        self.closed = True


class OnnxPredictor(Predictor):
    """An exported folder."""

    def __init__(
        self,
        folder: str,
        settings: dict[str, Any],
        task: Task,
        tokenizer: JSONTokenizer,
        session: onnxruntime.InferenceSession,
    ):
        super().__init__(folder, settings, task, tokenizer)
        self.session, self.world, self.precision = session, Alone(), settings["export"]["target"]
        self._inputs = [one.name for one in session.get_inputs()]

    def outputs(self, first: Sequence[str], second: Sequence[str] | None = None) -> Outputs:
        if self.world.closed:
            raise ValueError(f"{self.folder}: the classifier is closed; load it again.")
        tokens, padding = self.tokenize(first, second), get_padding_id(self.tokenizer)
        result = np.zeros((len(tokens), len(self.labels)), dtype=np.float32)
        for rows in batch_by_tokens(tokens.lengths(), _TOKENS, padded=True):  # texts of similar length together
            batch = tokens.collate(rows)
            mask = np.arange(int(batch.lengths.max()))[None, :] < batch.lengths[:, None]
            ids, types = np.full(mask.shape, padding, dtype=np.int64), np.zeros(mask.shape, dtype=np.int64)
            ids[mask] = batch.ids
            if batch.types is not None:
                types[mask] = batch.types
            padded = {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": types}
            (logits,) = self.session.run(None, {name: padded[name] for name in self._inputs})
            if batch.rows is None:
                result[rows] = logits
            else:  # a long text is several sequences, whose logits are averaged
                sums = np.zeros((len(rows), len(self.labels)), dtype=np.float32)
                np.add.at(sums, batch.rows, logits)
                result[rows] = sums / np.bincount(batch.rows, minlength=len(rows)).astype(np.float32)[:, None]
        return result


def load(folder: str, *, use_cpu: bool, precision: str, launch: Launch | None) -> OnnxPredictor:
    """Load an exported folder; see `load_classifier`. Raises InputError where it does not support a setting."""
    settings, task = read_settings(folder), trained_task(folder)
    if precision != "auto":
        raise InputError(f"--precision {precision}: an exported model computes as it was exported; drop the flag.")
    if launch is not None and launch.is_launched:
        raise InputError(f"{folder}: an exported model predicts in one process; drop --nproc or the launcher.")
    tokenizer, model = JSONTokenizer(Path(folder)), Path(folder) / EXPORTED
    try:
        import onnxruntime
    except ImportError:
        raise InputError(f"{model}: it needs ONNX Runtime; type pip install onnxruntime.") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = available_cores()
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of several classes, none of which it documents
        reason = " ".join(str(error).split())[:EXCERPT]
        raise InputError(f"{model}: it cannot be read ({reason}); export it again.") from None
    return OnnxPredictor(folder, settings, task, tokenizer, session)
