"""Command line and YAML: one table of names, all faults together, the nearest known name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from classify.config.hf_arguments import NAMES
from classify.config.parser import KEYS, parse_training, training_parser
from classify.config.run_config import RunConfig
from classify.errors import InputError
from tests.support.processes import ROOT

CONTRACT = """--soft-labels --weight-column --annotator-column --keep-features
--source-column --trusted --keep-source --unlabelled-data --teacher
--data --eval-data --test-data --text-column --label-column --model --epochs --batch-size --learning-rate
--max-length --output-dir --overwrite-output-dir --seed --config --resume --precision --cpu --nproc --strategy
--save-steps --save-minutes --max-train-samples --max-steps --head --report-to --debug
--train-file --validation-file --test-file
--model-name-or-path --num-train-epochs --max-seq-length --no-cuda --use-cpu --per-device-train-batch-size
--resume-from-checkpoint --local-rank --ddp-backend --save-on-each-node
--gradient-accumulation-steps --gradient-checkpointing --lr-scheduler-type --layerwise-lr-decay
--label-smoothing-factor --class-weights --loss --sampler --label-texts --folds --calibrate --long-texts --language
--save-dtype --verbose --quiet --json
--freeze-embeddings --freeze-layers --lora --max-minutes
--opt-level --sync-batch-norm --sync-bn --fp16-opt-level --keep
--contrastive-steps --patience --preset --metric-for-best-model --encoding --sheet
--on-bad-rows --group-column --label-names --normalize-labels --split-column
--split-by-time --time-format --like --split-like --excel-safe --drop-unlabelled --predict-unlabelled
--unlabelled-value --no-header --label-separator --hierarchy
--header --delimiter --quote --skip-lines --task --help-all --text-column-name --text-column-names --label-column-name
--text-pair-column --text-column-delimiter --pooling --packing --kernels
--compact-vocabulary --lora-rank --lora-alpha --dropout --ddp-timeout --save-total-limit --logging-steps
--weight-decay --adam-beta1 --adam-beta2 --adam-epsilon --max-grad-norm --warmup-steps
--activation-checkpointing --out-of-scope-label --eval-steps --max-eval-samples
--early-stopping-patience""".split()  # noqa: SIM905


def parse(*words: str) -> RunConfig:
    return parse_training(words, "run_classify.py")


def faults(*words: str) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        parse(*words)
    return caught.value.faults


def test_the_flags_are_the_contracts_and_no_more() -> None:
    result = {
        flag
        for action in training_parser("x")._actions
        for flag in action.option_strings
        if flag.startswith("--") and "_" not in flag and action.dest not in {*NAMES} - {"debug"}
    }
    assert result - {"--help"} == set(CONTRACT)


def test_hyphens_and_underscores_are_the_same() -> None:
    parser = training_parser("x")
    for flag in set(CONTRACT) - {"--help-all"}:
        value = [] if flag == "--debug" else ["1"]
        hyphens, underscores = (
            parser.parse_known_args([typed, *value]) for typed in (flag, "--" + flag[2:].replace("-", "_"))
        )
        assert hyphens == underscores
        assert (len(vars(hyphens[0])), hyphens[1]) == (1, [])


@pytest.mark.parametrize("flag", ["--help-all", "--help_all"])
def test_help_all_is_a_help(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(flag)
    assert caught.value.code == 0
    assert "--adam-beta1" in capsys.readouterr().out


def test_no_value_is_rewritten() -> None:
    config = parse("--train_file=--label_column", "--text_column", "_h", "--label_column=a_b", "--output-dir", "-_x y")
    assert (config.data.data, config.data.text_column, config.data.label_column) == ("--label_column", "_h", "a_b")
    assert config.training.output_dir == "-_x y"
    _, rest = training_parser("x").parse_known_args(["--data", "a", "--", "--label_column"])
    assert rest[-1] == "--label_column"


def test_aliases_set_the_same_field() -> None:
    config = parse(
        "--train_file", "a.csv", "--validation-file", "b.csv", "--test-file=c.csv", "--num_train_epochs", "2",
        "--max-seq-length", "64", "--no_cuda", "--model_name_or_path", "m", "--per_device_train_batch_size", "8",
    )  # fmt: skip
    assert (config.data.data, config.data.eval_data, config.data.test_data) == ("a.csv", "b.csv", "c.csv")
    assert (config.training.num_train_epochs, config.data.max_length, config.training.use_cpu) == (2, 64, True)
    assert (config.model.model, config.training.per_device_train_batch_size) == ("m", 8)


def test_resume_takes_a_folder_or_nothing() -> None:
    assert parse("--data", "a", "--resume").training.resume_from_checkpoint is True
    assert parse("--data", "a", "--resume-from-checkpoint", "runs/a").training.resume_from_checkpoint == "runs/a"
    assert parse("--data", "a").training.resume_from_checkpoint is False


NO_FILE = (
    "--config no.yaml: cannot be read (No such file or directory). Give a YAML file, e.g. configs/quickstart.yaml."
)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--dta", "x"], "unknown flag --dta. Did you mean --data?"),
        (["--data", "x", "--vocab-size"], "unknown flag --vocab-size. See --help-all."),
        (["--config", "no.yaml"], NO_FILE),
        (["my.csv"], "unexpected argument 'my.csv'; every value follows a flag, e.g. --data my.csv."),
        ([], "--data must be given, e.g. --data my.csv."),
        (["--data"], "argument --data: expected at least one argument. See --help."),
        (["--data", "x", "--epochs", "-1"], "--epochs must be a number of at least 0. Got '-1' instead."),
        (["--data", "x", "--batch-size", "1.5"], "--batch-size must be a whole number above 0. Got '1.5' instead."),
        (
            ["--data", "x", "--language", "English"],
            "--language must be a name such as en, de or zh (ISO 639). Got 'English' instead.",
        ),
        (["--data", "x", "--head", "big"], "--head must be one of auto, probe, random, keep. Got 'big' instead."),
        (
            ["--data", "x", "--seed", "-1"],
            "--seed must be a whole number from 0 to below 2147483648. Got '-1' instead.",
        ),
    ],
)
def test_one_fault_is_one_line(words: list[str], line: str) -> None:
    assert faults(*words) == (line,)


TYPOS = {
    "--epoch": "--epochs", "--batch_szie": "--batch-size", "--max-len": "--max-length", "--lr": "--learning-rate",
}  # fmt: skip


@pytest.mark.parametrize("flag", TYPOS)
def test_a_typing_error_is_told_what_was_meant(flag: str) -> None:
    assert faults("--data", "x", flag) == (f"unknown flag {flag}. Did you mean {TYPOS[flag]}?",)


def test_which_gpu_is_a_variable() -> None:
    for flag in ("--gpus", "--gpu", "--device"):
        assert faults("--data", "x", flag) == (
            f"unknown flag {flag}. To choose GPUs begin the command with CUDA_VISIBLE_DEVICES=1; --cpu uses none.",
        )


def test_a_file_whose_name_has_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell makes two words of it."""
    monkeypatch.chdir(tmp_path)
    Path("my file.csv").touch()
    assert "put a name with spaces in quotes: --data 'my file.csv'" in faults("--data", "my", "file.csv")[0]


def test_a_command_without_all_flags_names_its_own_help() -> None:
    from classify.commands import load_command

    parser = load_command("predict").make_parser(program="classify predict")
    with pytest.raises(InputError, match=r"unknown flag --foo\. See --help\.$"):
        parser.read(["--foo"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "--batch-size 8 --per-device-train-batch-size 4",
            "--batch-size 8 and --per-device-train-batch-size 4 contradict",
        ),
        ("--resume --overwrite-output-dir", "--resume and --overwrite-output-dir contradict"),
        ("--drop-unlabelled --predict-unlabelled", "--drop-unlabelled and --predict-unlabelled contradict"),
        ("--verbose --quiet", "--verbose and --quiet contradict each other"),
        ("--epochs 0 --head random", "--epochs 0 and --head random contradict"),
        ("--preset fast --head random", "--preset fast and --head random contradict"),
        ("--lora --freeze-layers 2", "--lora and --freeze-layers 2 contradict"),
        ("--patience 2 --keep last", "--patience 2 and --keep last contradict"),
        ("--folds 5 --max-minutes 9", "--folds 5 and --max-minutes 9 contradict"),
        ("--folds 5 --keep best", "--folds 5 and --keep best contradict"),
    ],
)
def test_flags_that_contradict_each_other(words: str, line: str) -> None:
    (fault,) = faults("--data", "x", *words.split())
    assert fault.startswith(line)
    assert fault.endswith(".")


@pytest.mark.parametrize(
    ("words", "text", "name", "value"),
    [
        ("", "", "normalize_labels", "auto"),
        ("--normalize-labels", "", "normalize_labels", "auto"),
        ("--normalize-labels True", "", "normalize_labels", "auto"),
        ("--normalize-labels none", "", "normalize_labels", "none"),
        ("", "normalize-labels: false", "normalize_labels", "none"),
        ("", "normalize_labels: true", "normalize_labels", "auto"),
        ("", "kernels: off", "kernels", "off"),  # YAML reads it as false
    ],
)
def test_some_options_are_switches_too(tmp_path: Path, words: str, text: str, name: str, value: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"data: my.csv\n{text}\n")
    assert parse(*words.split(), "--config", str(path)).flat()[name] == value


def test_yaml_under_flags(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("data: a.csv\nlearning-rate: 1.0e-3\nbatch_size: 16\nweight_decay: 0.1\nfp16: true\n")
    config = parse("--config", str(path), "--learning-rate", "3e-5", "--per-device-train-batch-size", "4", "--bf16")
    assert config.data.data == "a.csv"
    assert config.training.learning_rate == 3e-5
    assert config.training.weight_decay == 0.1
    assert (config.training.batch_size, config.training.per_device_train_batch_size) == (None, 4)
    assert config.training.precision == "bf16"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("data: a\nlerning_rate: 1\n", "a.yaml: unknown key lerning_rate. Did you mean learning_rate?"),
        ("data: a\nepochs: many\n", "a.yaml: epochs must be a number of at least 0. Got 'many' instead."),
        ("data: a\nepochs: 1\nnum_train_epochs: 2\n", "a.yaml: num_train_epochs set --epochs to 1 and 2"),
        ("data: a\nseed: 1\nseed: 2\n", "a.yaml line 3: not valid YAML (seed is given twice)"),
        ("data: [a\n", "a.yaml line 2: not valid YAML"),
        ("- a\n", "expected lines such as 'batch-size: 32'. Got a list instead."),
        ("data: !!python/object/apply:os.system [ls]\n", "not valid YAML"),
        ("data: a\nunlabelled-value: 2024-02-30\n", "a.yaml: not valid YAML (day is out of range for month)"),
        (f"data: a\nepochs: {'9' * 400}\n", "a.yaml: epochs must be a number of at least 0. Got a int instead."),
        ("data: &a [x]\nmodel: *a\n", "a.yaml line 2: not valid YAML (aliases (*name) are not supported)"),
        (f"data: {'[' * 3000}\n", "a.yaml: not valid YAML ("),
    ],
)
def test_yaml_faults(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    lines = faults("--config", str(path))
    assert any(part in line for line in lines)
    assert not any("\n" in line for line in lines)


def recipes() -> list[Path]:
    return sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", recipes(), ids=lambda path: path.name)
def test_every_recipe_validates_and_is_headed_by_its_command(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    commands = [line[2:] for line in text.splitlines() if line.startswith("#   ")]
    command = next(line.strip() for line in commands if "run_classify.py" in line)
    assert f"--config configs/{path.name}" in command
    words = command.split("run_classify.py", 1)[1].split()
    words[words.index("--config") + 1] = str(path)
    parse(*words).validate()
    assert set(yaml.safe_load(text)) <= set(KEYS) | {key.replace("_", "-") for key in KEYS}
