"""Makes a folder of submissions for lab 01, such as a class hands in: right, wrong, broken, hostile."""

import json
import zipfile
from copy import deepcopy
from pathlib import Path
from typing import Any

from dpcourse.labs import load
from tests.wrong_answers import wrong_answers

LABS = Path(__file__).parents[1] / "labs"
LAB = load("01_equivalence")


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def unsolved() -> dict[str, Any]:
    """The student copy as it was handed out."""
    return _read(LABS / "01_equivalence.ipynb")


def solved(**answers: str) -> dict[str, Any]:
    """The lab with the right answers, some replaced by the texts given for them."""
    notebook, source = unsolved(), _read(LABS / "source" / "01_equivalence.ipynb")
    names = {question.name for question in LAB.questions}
    right = {cell["id"]: cell["source"] for cell in source["cells"] if cell["id"] in names}
    for cell in notebook["cells"]:
        if cell["id"] in names:
            cell["source"] = answers.get(cell["id"], right[cell["id"]])
    return notebook


def one_answer(**answers: str) -> dict[str, Any]:
    """The unsolved lab with one right answer, worth 10 points, and the texts given."""
    notebook, right = unsolved(), {cell["id"]: cell["source"] for cell in solved()["cells"]}
    for cell in notebook["cells"]:
        if cell["id"] in {"learning_rate", *answers}:
            cell["source"] = answers.get(cell["id"], right[cell["id"]])
    return notebook


def wrong(question: str, mistake: str) -> str:
    """The wrong answer that a question's check is held to."""
    return wrong_answers(LAB.question(question))[mistake]


def change(notebook: dict[str, Any], name: str, **fields: Any) -> dict[str, Any]:
    """The notebook with some fields of one cell replaced."""
    notebook = deepcopy(notebook)
    next(cell for cell in notebook["cells"] if cell["id"] == name).update(fields)
    return notebook


def combine(body: str, name: str = "combine_gradients", arguments: str = "gradients") -> str:
    return f"def {name}({arguments}):\n" + "".join(f"    {line}\n" for line in body.splitlines())


DAEMON = """
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600) # {mark}"])
    os._exit(0)
"""
BIG_FILE = """
with open("big", "wb") as file:
    file.seek(3 * 10**9)
    file.write(b"x")
"""
# Ends the two processes above the one that keeps the ranks: the fork server and the grader's worker. Whoever
# comes second finds the tests themselves in that place, and leaves them alone.
KILLER = """
import os, psutil
for process in psutil.Process().parents()[1:3]:
    if {"dpcourse.ranks.server", "dpcourse.grade.worker"} & set(" ".join(process.cmdline()).split()):
        process.kill()
"""
# Writes the grader's reply itself: into everything that its worker holds open, and into files of its own.
FORGER = """
import glob, json, os, psutil
fields = ("message", "mistake", "where", "details")
def reply(question, points):
    verdict = {"question": question, "status": "right", "points": points, "max_points": points,
               "targets": [], **dict.fromkeys(fields, "")}
    return {"verdict": verdict, "num_left": 0, "is_worn": False}
lines = [json.dumps(reply("combine_gradients", 25)), json.dumps(reply("combine_weighted", 30))]
text = "".join(line + "\\n" for line in lines)
for path in glob.glob(f"/proc/{psutil.Process().parents()[2].pid}/fd/*"):
    try:
        if not os.path.isfile(path):
            os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), text.encode())
    except OSError:
        pass
for name in ("result.json", "verdict.json", "records.json", "grades.csv", "score.json"):
    open(name, "w").write(text)
"""
LOOP = """
import time
while True:
    try:
        time.sleep(1000)
    except KeyboardInterrupt:
        pass
"""


def make_class(folder: Path, mark: str) -> None:
    """Write every submission into `folder`; processes that they leave behind hold `mark` in their command."""
    folder.mkdir(parents=True)
    for name, notebook in notebooks(mark).items():
        (folder / f"{name}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    text = json.dumps(one_answer())
    (folder / "cut off.ipynb").write_text(text[: len(text) // 2], encoding="utf-8")
    (folder / "not json.ipynb").write_text("shard_batch = batch[rank::world_size]\n", encoding="utf-8")
    (folder / "empty folder").mkdir()
    renamed = folder / 'Zoë "Z" O\'Neil'
    renamed.mkdir()
    (renamed / "zo lab1 (1).ipynb").write_text(text, encoding="utf-16")
    (renamed / "scratch.ipynb").write_text('{"cells": [], "nbformat": 4}', encoding="utf-8")
    with zipfile.ZipFile(folder / "=zip.zip", "w") as archive:
        archive.writestr("deep/er/lab.ipynb", "\ufeff" + text + "\n}}")


def notebooks(mark: str) -> dict[str, dict[str, Any]]:
    """The notebooks that can be read, by student."""
    daemon = DAEMON.format(mark=mark)
    foreign = one_answer()
    foreign["metadata"]["kernelspec"] = {"name": "py39_new", "display_name": "my own"}
    other = unsolved()
    other["metadata"] = {"kernelspec": {"name": "ir", "language": "R"}, "language_info": {"name": "R"}}
    return {
        "right": solved(),
        "unsolved": unsolved(),
        "usual mistakes": solved(
            shard_batch=wrong("shard_batch", "dropped_last"),
            combine_gradients=wrong("combine_gradients", "sum"),
            combine_weighted=wrong("combine_weighted", "mean_of_means"),
            learning_rate=wrong("learning_rate", "multiplied"),
            optimizers=wrong("optimizers", "AdamW"),
        ),
        "same shard": one_answer(
            shard_batch=wrong("shard_batch", "same_shard"),
            combine_gradients=wrong("combine_gradients", "hang"),
        ),
        "syntax error": one_answer(shard_batch="def shard_batch(batch, rank, world_size)\n    return batch"),
        "dead kernel": one_answer(
            combine_gradients="import os\nos.kill(os.getpid(), 9)\n" + combine("return gradients")
        ),
        "endless": one_answer(
            combine_gradients=combine("while True:\n    print('x' * 1000)"),
            combine_weighted=daemon + LOOP,
            learning_rate="import sys\nsys.exit(0)",
        ),
        "exits": solved(
            shard_batch=combine("import sys\nsys.exit(0)", "shard_batch", "batch, rank, world_size"),
            combine_gradients="import os\nprint('25 of 25 points')\nos._exit(0)\n" + combine("pass"),
            combine_weighted=KILLER + combine("pass", "combine_weighted", "*numbers"),
            optimizers="class Equal(dict):\n    def __eq__(self, other): return True\n\neffects = Equal()",
        ),
        "daemon": one_answer(
            shard_batch=combine(BIG_FILE, "shard_batch", "batch, rank, world_size"),
            combine_gradients=combine(daemon + "import dpcourse.labs.check as c\nc.judged = None"),
        ),
        "forger": one_answer(combine_gradients=combine(FORGER)),
        "foreign kernel": foreign,
        "in R": other,
        "no check": change(
            one_answer(), "check_shard_batch", source="lab.check = lambda *a: 'right'\nlab.score = 100"
        ),
        "text": change(one_answer(), "learning_rate", cell_type="markdown"),
    }
