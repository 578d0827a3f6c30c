"""`dpcourse plan`: the words of dc.plan, its refusals, its exit codes, its JSON."""

import inspect
import json

import pytest

import dpcourse as dc
from dpcourse import cli, plan_command

SMALL = ["gpt2", "--gpus", "2", "--gpu-memory", "80GB"]


def test_what_is_shown_is_the_plan_of_python(capsys):
    assert cli.main(["plan", *SMALL, "--micro-batch", "4", "--attention", "plain"]) == 0
    plan = dc.plan("gpt2", gpus=2, gpu_memory="80GB", micro_batch=4, attention="plain")
    assert capsys.readouterr().out == f"{plan}\n"


def test_it_takes_every_word_of_dc_plan_and_no_other():
    words = set(inspect.signature(dc.plan).parameters)
    assert set(plan_command._HARDWARE + plan_command._STEP) == words - {"model"}
    asked = vars(plan_command._parser().parse_args(["gpt2"]))
    assert set(asked) == words | {"json"}


def test_json_is_that_of_the_plan(capsys):
    assert cli.main(["plan", *SMALL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == dc.plan("gpt2", gpus=2, gpu_memory="80GB").to_dict()


def test_where_nothing_fits_the_exit_code_is_1_and_the_text_says_what_would(capsys):
    assert cli.main(["plan", "700B", "--gpus", "2", "--gpu-memory", "24GB"]) == 1
    assert "Nothing fits" in capsys.readouterr().out


def test_a_configuration_is_read_from_its_file(tmp_path, capsys):
    config = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 2,
        "vocab_size": 100,
        "n_positions": 32,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert cli.main(["plan", str(file), "--gpus", "2", "--gpu-memory", "24GB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_params"] == dc.plan(config, gpus=2, gpu_memory="24GB").to_dict()["num_params"]


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["gpt3000"], "no model is called 'gpt3000'"),
        (["gpt2", "--recipe", "bf16"], "recipe='bf16' means several; which of these is it?"),
        (["gpt2", "--gpu-memory", "80"], "80"),
        (["gpt2", "--micro-batch", "0"], "micro_batch=0"),
        (["nowhere.json"], "No such file or directory: 'nowhere.json'"),
    ],
)
def test_what_cannot_be_planned_is_said_and_the_exit_code_is_2(asked, said, capsys):
    assert cli.main(["plan", *asked, "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("dpcourse plan: ")
    assert said in shown.err


@pytest.mark.parametrize("text", ["{half", "[" * 100_000], ids=["half", "deep"])
def test_a_file_that_is_no_json_is_refused(text, tmp_path, capsys):
    (tmp_path / "config.json").write_text(text)
    assert cli.main(["plan", str(tmp_path / "config.json")]) == 2
    assert "is no JSON; give a configuration file, a name or a parameter count" in capsys.readouterr().err


@pytest.mark.parametrize("asked", [[], ["gpt2", "--gpus", "many"], ["gpt2", "--cards", "8"]])
def test_wrong_arguments_end_with_2(asked):
    with pytest.raises(SystemExit, match="2"):
        plan_command.main(asked)


def test_an_interrupt_is_one_line(monkeypatch, capsys):
    def interrupted(*_: object, **words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpcourse.planning.selection.plan", interrupted)
    assert cli.main(["plan", "gpt2"]) == 130
    assert capsys.readouterr().err == "dpcourse plan: interrupted\n"
