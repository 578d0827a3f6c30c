"""Lab 10: every broken script and every mend that only hides it is refused in its own words; mends pass."""

import ast

import pytest

from dpcourse.labs import load
from dpcourse.labs.check import check, show_example
from dpcourse.labs.inside import Source
from dpcourse.labs.production.causes import GOALS
from dpcourse.labs.production.script import IMPORTS
from dpcourse.labs.release import solutions_in, student_source
from tests.lab_checks import (
    assert_passes,
    code_questions,
    name_of,
    source_of,
)

pytestmark = [pytest.mark.long, pytest.mark.labs]

LAB = load("10_in_production")
SCRIPTS = code_questions(LAB)
CELLS = {cell["id"]: "".join(cell["source"]) for cell in source_of(LAB.name)["cells"]}
LOUD = "import sys, warnings\nwarnings.warn('careful')\nprint('loud', file=sys.stderr)\n"

# For each script right mends in other styles, bodies only.
OTHER_STYLES = {
    "train_epochs": (
        """
        for epoch in range(first_epoch, num_epochs):
            sampler = DistributedSampler(samples, seed=epoch)
            for batch in DataLoader(samples, batch_size, sampler=sampler):
                train_step(batch)
        """,
        """
        for epoch in range(first_epoch, num_epochs):
            order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(epoch))
            own = torch.tensor(samples)[order][dist.get_rank() :: dist.get_world_size()]
            for batch in own.split(batch_size):
                train_step(batch)
        """,
    ),
    "start": (
        """
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = build()
        torch.manual_seed(1000 * seed + 1 + dist.get_rank())
        return model
        """,
        """
        torch.manual_seed(seed + dist.get_rank())
        model = build()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        return model
        """,
    ),
    "evaluate": (
        """
        own = [((model(x) - y) ** 2).sum().item() for x, y in batches], sum(len(x) for x, _ in batches)
        shares = [None] * dist.get_world_size()
        dist.all_gather_object(shares, own)
        return sum(sum(losses) for losses, _ in shares) / sum(rows for _, rows in shares)
        """,
        """
        total = torch.zeros((), dtype=torch.float64)
        rows = torch.tensor(sum(len(inputs) for inputs, _ in batches))
        for inputs, targets in batches:
            total += F.mse_loss(model(inputs), targets).item() * len(inputs)
        dist.all_reduce(total)
        dist.all_reduce(rows)
        return (total / rows).reshape(1)
        """,
    ),
    "sum_metrics": (
        """
        shares = [None] * dist.get_world_size()
        dist.all_gather_object(shares, list(metrics))
        names = sorted(set(sum(shares, [])))
        total = torch.tensor([metrics.get(name, 0.0) for name in names], dtype=torch.float64)
        dist.all_reduce(total)
        return dict(zip(names, total.tolist()))
        """,
        """
        shares = [None] * dist.get_world_size()
        dist.all_gather_object(shares, metrics)
        sums = {}
        for share in shares:
            for name, value in share.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums
        """,
    ),
    "accumulate": (
        """
        *quiet, (inputs, targets) = micro_batches
        with model.no_sync():
            for early_inputs, early_targets in quiet:
                (F.mse_loss(model(early_inputs), early_targets) / len(micro_batches)).backward()
        (F.mse_loss(model(inputs), targets) / len(micro_batches)).backward()
        """,
        """
        with model.no_sync():
            for inputs, targets in micro_batches:
                F.mse_loss(model(inputs), targets).backward()
        for parameter in model.parameters():
            parameter.grad /= len(micro_batches) * dist.get_world_size()
            dist.all_reduce(parameter.grad)
        """,
    ),
    "backward": (
        """
        for inputs, targets in micro_batches:
            F.mse_loss(model(inputs), targets).backward()
        for parameter in model.parameters():
            parameter.grad /= len(micro_batches)
        """,
        """
        for number, (inputs, targets) in enumerate(micro_batches, 1):
            with model.no_sync() if number < len(micro_batches) else nullcontext():
                (F.mse_loss(model(inputs), targets) / len(micro_batches)).backward()
        """,
    ),
    "clip": (
        """
        shares = [None] * dist.get_world_size()
        dist.all_gather_object(shares, sum(shard.norm().item() ** 2 for shard in shards))
        norm = sum(shares) ** 0.5
        if norm > max_norm:
            for shard in shards:
                shard.mul_(max_norm / norm)
        return norm
        """,
        """
        norm = torch.cat([shard.flatten() for shard in shards]).norm()
        norms = [torch.zeros_like(norm) for _ in range(dist.get_world_size())]
        dist.all_gather(norms, norm)
        norm = torch.stack(norms).norm()
        for shard in shards:
            shard[...] = shard * min(1.0, (max_norm / norm).item())
        return norm
        """,
    ),
    "train": (
        """
        for inputs, targets in batches:
            shares = [None] * dist.get_world_size()
            dist.all_gather_object(shares, bool(inputs.isnan().any()))
            if not any(shares):
                optimizer.zero_grad()
                F.mse_loss(model(inputs), targets).backward()
                optimizer.step()
        """,
        """
        flags = torch.tensor([float(inputs.isnan().any()) for inputs, _ in batches])
        dist.all_reduce(flags)
        for flag, (inputs, targets) in zip(flags, batches):
            if flag == 0:
                F.mse_loss(model(inputs), targets).backward()
                optimizer.step()
                model.zero_grad()
        """,
    ),
    "prepare": (
        """
        fully_shard(model, reshard_after_forward=False)
        return torch.optim.SGD([{"params": [p]} for p in model.parameters()], learning_rate)
        """,
        """
        optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
        fully_shard(model)
        optimizer.param_groups[0]["params"] = list(model.parameters())
        return optimizer
        """,
    ),
    "save": (
        """
        state = {name: parameter.full_tensor() for name, parameter in model.named_parameters()}
        if dist.get_rank() == 0:
            write(state)
        """,
        """
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=options)
        if state:
            write(state)
        """,
    ),
    "load_checkpoint": (
        """
        state = torch.load(path)
        torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
        model.load_state_dict(state)
        """,
        """
        DistributedDataParallel(model).load_state_dict(torch.load(path))
        """,
    ),
    "stop_and_resume": (
        """
        import copy
        parts = ("model", "optimizer", "scheduler")
        saved = {part: copy.deepcopy(getattr(run, part).state_dict()) for part in parts}
        states = torch.random.get_rng_state()
        new = start_again()
        for part in parts:
            getattr(new, part).load_state_dict(saved[part])
        torch.random.set_rng_state(states)
        return new
        """,
        """
        import io
        file = io.BytesIO()
        parts = [run.model.state_dict(), run.optimizer.state_dict(), run.scheduler.state_dict()]
        torch.save([*parts, torch.get_rng_state()], file)
        file.seek(0)
        new = start_again()
        model, optimizer, scheduler, random = torch.load(file)
        new.scheduler.load_state_dict(scheduler)
        new.optimizer.load_state_dict(optimizer)
        new.model.load_state_dict(model)
        torch.set_rng_state(random)
        return new
        """,
    ),
}


def mend(name: str) -> str:
    return IMPORTS + solutions_in(CELLS[name])[0].strip("\n")


def style(name: str, body: str) -> str:
    """A mend with another body under the same signature."""
    head = ast.unparse(ast.parse(solutions_in(CELLS[name])[0]).body[0]).partition(":\n")[0]
    return f"{head}:\n{body}".replace("\n        ", "\n    ")


def test_messages_differ_from_script_to_script():
    messages = [mistake.message for question in SCRIPTS for mistake in question.mistakes]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("question", SCRIPTS, ids=name_of)
def test_the_mend_passes_with_the_counts_of_ranks_that_a_check_uses(question):
    verdict = check(question, Source(mend(question.name), question.entry))
    assert (verdict.status, verdict.points) == ("right", 10), str(verdict)
    assert all(target.is_met for target in verdict.targets)


@pytest.mark.parametrize("question", SCRIPTS, ids=name_of)
def test_mends_pass_in_any_style_and_with_other_seeds_and_rank_counts(question):
    quiet, loud = OTHER_STYLES[question.name]
    assert_passes(question, IMPORTS + style(question.name, quiet))
    assert_passes(question, IMPORTS + LOUD + style(question.name, loud))


CHEATS = {
    "exits as if all were well": ("    import sys\n    sys.exit(0)", "exited"),
    "ends the process": ("    import os\n    os._exit(0)", "exited"),
    "patches the judge": (
        "    from dpcourse.labs import check, question\n    from dpcourse.labs.production import outcomes\n"
        "    outcomes.Outcomes.judge = check.judged = lambda *a: question.Finding()",
        "wrong",
    ),
    "gives what equals everything": (
        "    class Equal(float):\n        __eq__ = __le__ = lambda *a: True\n    return Equal(1.0)",
        "wrong",
    ),
    "swallows the error": ("    try:\n        batches[99]\n    except Exception:\n        pass", "wrong"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_and_each_gets_a_name(name):
    body, status = CHEATS[name]
    question = LAB.question("evaluate")
    verdict = check(question, Source(f"def evaluate(model, batches):\n{body}", question.entry))
    assert (verdict.status, verdict.points) == (status, 0), str(verdict)


def test_an_optimizer_that_only_looks_like_one_trains_nothing():
    source = """
def prepare(model, learning_rate):
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    optimizer.step = lambda: None
    return optimizer
"""
    question = LAB.question("prepare")
    assert check(question, Source(IMPORTS + source, question.entry)).mistake == "trains_nothing"


def test_values_of_another_form_are_refused():
    question = LAB.question("causes")
    for value in (None, [], {"train": None}, {**GOALS, "train": "rounding"}, {**GOALS, "train": 3}):
        assert not check(question, value).is_right
    assert check(question, GOALS).is_right


@pytest.mark.parametrize("question", SCRIPTS, ids=name_of)
def test_the_student_gets_the_broken_script_that_is_refused_above(question):
    stub = student_source(CELLS[question.name])
    assert stub + "\n" == question.handed_out
    assert len(stub.splitlines()) < 20


def test_the_notebook_has_the_imports_points_and_minutes_of_the_lab():
    assert CELLS["setup"].startswith(IMPORTS.strip())
    assert LAB.max_points == 150
    for question in LAB.questions:
        heading = f"({question.points} points, {question.minutes} minutes)"
        assert heading in CELLS[f"task_{question.name}"].splitlines()[0]
    assert all(option in CELLS["task_causes"] for option in [*GOALS.values(), "rounding"])


def test_the_run_shows_a_script_as_it_is():
    question = LAB.question("accumulate")
    broken, mended = (
        show_example(question, Source(source, question.entry), ranks=2)
        for source in (IMPORTS + question.handed_out, mend(question.name))
    )
    assert [row[2] for row in broken.rows] == [3, 3]
    assert [row[2] for row in mended.rows] == [1, 1]


def test_the_run_of_the_last_question_shows_which_scripts_say_anything():
    shown = show_example(LAB.question("causes"), GOALS, ranks=2)
    said = {row[0]: row[1] for row in shown.rows}
    assert [name for name, words in said.items() if words == "it hangs"] == ["train", "save"]
    assert [name for name, words in said.items() if words == "it raises an error"] == ["load_checkpoint"]
    assert sum(words == "nothing: it ends" for words in said.values()) == 9
