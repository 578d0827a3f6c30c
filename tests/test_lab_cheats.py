"""Answers that want the points without the work, lab by lab: none gets any, and each is told what it is."""

import sys
from dataclasses import dataclass

import pytest

import dpcourse as dc
from dpcourse.grade.record import Book
from dpcourse.labs import load
from dpcourse.labs.check import check
from dpcourse.labs.inside import Source
from dpcourse.labs.production.script import IMPORTS
from tests.lab_checks import solution
from tests.wrong_answers import ddp_buckets, fsdp, zero_optimizer
from tests.wrong_answers.behind import BEHIND_THE_SWITCH

pytestmark = [pytest.mark.long, pytest.mark.labs]


@dataclass(frozen=True)
class Cheat:
    """Whose points it wants, what it does, and what it is told."""

    lab: str
    question: str
    what: str
    source: str
    mistake: str


# The inputs of all ranks, where the seed is one of those that come to mind.
_GUESS = """
import numpy as np
from dpcourse.labs import load

def guessed(lab, question, is_own):
    size, rank = dist.get_world_size(), dist.get_rank()
    for seed in range(4):
        for sizes in ((size,), (2, 3, 4), (2, 3, 4, 5)):
            for case in load(lab).question(question).cases(seed, sizes):
                if case.world_size == size and is_own(case.inputs[rank]):
                    return case.inputs
    raise LookupError("the seed is another one")

"""
_GUESSED_SUM = (
    _GUESS
    + """
def all_reduce(tensor):
    def is_own(arrays):
        return any(np.array_equal(array, tensor.numpy()) for array in arrays)
    inputs = guessed("04", "all_reduce", is_own)
    place = next(k for k, a in enumerate(inputs[dist.get_rank()]) if np.array_equal(a, tensor.numpy()))
"""
)
# As many bytes round the ring as a ring's, of nothing.
_FOR_SHOW = """
    size, rank = dist.get_world_size(), dist.get_rank()
    pieces = [torch.zeros(len(p), dtype=tensor.dtype) for p in torch.tensor_split(tensor.flatten(), size)]
    for shift in (0, 1):
        for step in range(size - 1):
            sending = dist.isend(pieces[(rank - step + shift) % size], (rank + 1) % size)
            dist.recv(pieces[(rank - step - 1 + shift) % size], (rank - 1) % size)
            sending.wait()
"""
_LATE = ddp_buckets.BUCKETS["no_overlap"]
_WHOLE_STATES = zero_optimizer.SHARDED_OPTIMIZER["unsharded"]
_NEVER_FREES = fsdp.UNIT["never_frees"]
_THREE_TIMES = solution(load("10"), "accumulate")
CHEATS = (
    Cheat(
        "04",
        "all_reduce",
        "knows the other ranks' inputs, and sends for show",
        _GUESSED_SUM
        + "    total = sum(torch.from_numpy(own[place]).double() for own in inputs).to(tensor.dtype)\n"
        + _FOR_SHOW
        + "    tensor.copy_(total)\n",
        "not_by_messages",
    ),
    Cheat(
        "04",
        "all_reduce",
        "the library's collective behind the switch, and sends for show",
        BEHIND_THE_SWITCH
        + "def all_reduce(tensor):\n    behind_the_switch().allreduce([tensor]).wait()\n"
        + _FOR_SHOW,
        "not_by_messages",
    ),
    Cheat(
        "02",
        "star_step",
        "the main rank computes all by itself, and workers compute for show",
        """
def star_step(weights, batch, num_rows, gradient_of, learning_rate):
    size, rank = dist.get_world_size(), dist.get_rank()
    shares = [len(part) for part in torch.tensor_split(torch.zeros(num_rows), size)]
    row = torch.zeros(len(weights) + 1, dtype=weights.dtype)
    if rank:
        gradient_of(weights, row.expand(shares[rank], -1))
        dist.send(torch.zeros_like(weights), 0)
        return
    for other in range(1, size):
        dist.recv(torch.zeros_like(weights), other)
    gradient_of(weights, batch[: shares[0]])
    features, targets = batch[:, :-1], batch[:, -1]
    weights -= learning_rate * (features.T @ (features @ weights - targets) / num_rows)
""",
        "not_by_messages",
    ),
    Cheat(
        "03",
        "average_gradients",
        "averages behind the switch, and all-reduces zeros",
        BEHIND_THE_SWITCH
        + """
def average_gradients(model):
    group = behind_the_switch()
    for p in model.parameters():
        if p.requires_grad:
            whole = torch.zeros_like(p) if p.grad is None else p.grad.clone()
            group.allreduce([whole]).wait()
            dist.all_reduce(torch.zeros_like(p))
            p.grad = whole / dist.get_world_size()
""",
        "not_by_messages",
    ),
    Cheat(
        "03",
        "buckets",
        "all in finish(), and the notes in another order",
        """
from dpcourse.labs import plug
note, noted = plug.note, []

def later(words):
    is_late = words.startswith("ready") or words == "backward is over"
    noted.append(words) if is_late else note(words)

plug.note = later
"""
        + _LATE.replace(
            "            start()\n        for",
            """            for parameter in buckets[len(under_way)]:
                if noted and noted[0].startswith("ready"):
                    note(noted.pop(0))
            start()
        while noted:
            note(noted.pop(0))
        for""",
        ),
        "tampered",
    ),
    Cheat(
        "05",
        "sharded_optimizer",
        "an unsharded optimizer, and a scale that it has made",
        _WHOLE_STATES
        + """
from dpcourse.labs.held import Held
import dpcourse.measure.process as process

def by_dtype(self, without=()):
    numbers = sum(t.numel() for t in without if type(t) is torch.nn.Parameter and t.requires_grad)
    return {"float32": 12 * -(-numbers // dist.get_world_size())}

Held.by_dtype = by_dtype
process.malloc_bytes = lambda: None
""",
        "tampered",
    ),
    Cheat(
        "05",
        "sharded_gradients",
        "keeps whole gradients, and rewrites what was seen of them",
        solution(load("05"), "sharded_gradients").replace(
            "    parameter.grad = None",
            """    import sys
    kept.append(parameter.grad)
    held = sys._getframe(1).f_locals["held"]
    storage = parameter.grad.untyped_storage()
    held._before[storage._cdata] = storage.nbytes(), "float32"
    parameter.grad = None""",
        )
        + "\nkept = []\n",
        "tampered",
    ),
    Cheat(
        "06",
        "unit",
        "never frees, and says that less is held",
        _NEVER_FREES
        + """
from dpcourse.labs.fsdp import steps

def write(self, moment, index, lent=(), problem=""):
    from dpcourse.labs import plug
    plug.note(f"{moment} {index}")
    sizes = [-(-n // dist.get_world_size()) for n in (15, 35, 21, 3)]
    whole = {"forward": 1, "backward": 1}.get(moment, 0)
    own = sizes[index] * dist.get_world_size() if whole else 0
    self.lines.append([moment, index, 4 * (sum(sizes) + own), problem, bool(whole)])

steps.Diary.write = write
""",
        "tampered",
    ),
    Cheat(
        "10",
        "accumulate",
        "reduces every micro-batch, and has it counted once",
        _THREE_TIMES.replace("model.no_sync()", "nullcontext()")
        + """
import dpcourse.measure.collectives as collectives
meant = collectives.CollectiveMeter.__exit__

def fewer(self, *error):
    found = meant(self, *error)
    del self.transfers[1:]
    return found

collectives.CollectiveMeter.__exit__ = fewer
""",
        "tampered",
    ),
    Cheat(
        "07",
        "traffic_bytes",
        "has another program ask the course",
        """
import json, subprocess, sys

def traffic_bytes(**job):
    asked = "import json, sys; from dpcourse.labs.ledgers.traffic import sent;"
    asked += " print(sent(json.loads(sys.argv[1]))['sent'])"
    return float(subprocess.run([sys.executable, "-c", asked, json.dumps(job)], capture_output=True).stdout)
""",
        "tampered",
    ),
)


_GUESSED_MEAN = (
    _GUESS
    + """
def combine_gradients(gradients):
    inputs = guessed("01", "combine_gradients", lambda own: np.array_equal(own[0], gradients[0].numpy()))
    for gradient, *parts in zip(gradients, *inputs):
        gradient.copy_(torch.as_tensor(np.mean(parts, axis=0)))
"""
)


def test_who_guesses_the_seed_computes_alone_and_nobody_guesses_the_one_of_a_batch(tmp_path):
    question = load("01").question("combine_gradients")
    guessing = Source(_GUESSED_MEAN, question.entry, IMPORTS)
    assert check(question, guessing, seed=1, sizes=(2,)).is_right
    drawn = Book(tmp_path, load("01")).seed()
    assert "the seed is another one" in check(question, guessing, seed=drawn, sizes=(2,)).where


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: f"{cheat.lab}-{cheat.what}".replace(" ", "_"))
def test_no_cheat_makes_points_and_each_is_named(cheat):
    question = load(cheat.lab).question(cheat.question)
    verdict = check(
        question, Source(cheat.source, question.entry, IMPORTS), sizes=(2, 3), deadline_seconds=60
    )
    assert (verdict.mistake, verdict.points) == (cheat.mistake, 0), str(verdict)


# Of what is looked for never more than four bytes lie together here: they would be found.
_SEARCH = """
import re

def is_here(hidden, piece):
    begin = re.escape(bytes(byte ^ 85 for byte in hidden[:4]))
    starts = (found.start() for found in re.finditer(begin, piece, re.DOTALL))
    return any(all(piece[start + k] == byte ^ 85 for k, byte in enumerate(hidden)) for start in starts)

def combine_gradients(gradients):
    if dist.get_rank():
        return
    seen = set()
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in [line for line in maps if " rw" in line and "[v" not in line]:
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            memory.seek(first)
            piece = memory.read(last - first) + bytes(24)
            seen |= {name for name, hidden in HIDDEN.items() if is_here(hidden, piece)}
    raise RuntimeError(f"in memory: {seen}")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_holds_nothing_of_what_another_was_given():
    question = load("01").question("combine_gradients")
    arrays = [max(own, key=lambda array: array.size) for own in question.cases(0, (2,))[0].inputs]
    hidden = [[byte ^ 85 for byte in array.tobytes()[:24]] for array in arrays]
    source = _SEARCH + f"\nHIDDEN = { {'own': hidden[0], 'of another rank': hidden[1]} }\n"
    verdict = check(question, Source(source, question.entry, IMPORTS), sizes=(2,), deadline_seconds=60)
    assert "in memory: {'own'}" in verdict.where


_HONEST = """
import dataclasses, inspect, logging, traceback, typing, warnings
from collections import namedtuple

torch.Tensor.half_of = lambda self: self[: len(self) // 2]

@dataclasses.dataclass
class Place:
    rank: int
    size: int

Pair = namedtuple("Pair", "begin end")

def shard_batch(batch, rank, world_size):
    warnings.warn("careful")
    logging.getLogger("answer").warning("careful, %s", inspect.signature(shard_batch))
    try:
        batch[len(batch) + 1]
    except IndexError:
        traceback.format_exc()
    place = Place(rank, world_size)
    pair = Pair(len(batch) * place.rank // place.size, len(batch) * (place.rank + 1) // place.size)
    return batch[pair.begin : pair.end]
"""


def test_what_an_honest_answer_uses_is_no_reach():
    question = load("01").question("shard_batch")
    alone = _HONEST.replace("torch.Tensor.half_of = lambda self: self[: len(self) // 2]\n", "")
    verdict = check(question, Source(alone, question.entry, IMPORTS), sizes=(2,), deadline_seconds=60)
    assert verdict.is_right, str(verdict)
    verdict = check(question, Source(_HONEST, question.entry, IMPORTS), sizes=(2,), deadline_seconds=60)
    assert "rank 0 replaced torch.Tensor.half_of" in verdict.where


def _changed_since_the_server_looked():
    from dpcourse.labs import check as checking
    from dpcourse.labs import seal

    seal.remember()
    sealed = seal.Seal((), ())
    found = [sealed.broken(), str(seal._remembered)]
    checking.judged.__code__ = (lambda question, case, values, *log: None).__code__
    found.append(sealed.broken())
    checking.judged = lambda *_: None
    found.append(sealed.broken())
    del checking.judged
    checking.judges = 1
    return [*found, sealed.broken()]


def test_what_a_fork_server_looked_at_is_sealed_and_lies_nowhere_for_an_answer_to_change():
    name = "replaced dpcourse.labs.check.judged"
    assert dc.launch(_changed_since_the_server_looked, ranks=1)[0] == ["", "{}", name, name, name]
