"""Lab 03, third question: a wrong answer for each mistake."""

from tests.wrong_answers.behind import BEHIND_THE_SWITCH
from tests.wrong_answers.ddp import IMPORTS

_BUCKETS = """def average_in_buckets(model, cap_bytes):
    buckets = [[]]
    for parameter in reversed(list(model.parameters())):
        if parameter.requires_grad:
            if sum(p.nbytes for p in buckets[-1]) >= cap_bytes:
                buckets.append([])
            buckets[-1].append(parameter)
    ready, under_way = set(), []

    def gradient(parameter):
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    def start():
        row = torch.cat([gradient(p).flatten() for p in buckets[len(under_way)]])
        under_way.append((row, dist.all_reduce(row, async_op=True)))

    def arrived(parameter):
        ready.add(parameter)
        while len(under_way) < len(buckets) and ready.issuperset(buckets[len(under_way)]):
            start()

    def finish():
        while len(under_way) < len(buckets):
            start()
        for bucket, (row, work) in zip(buckets, under_way):
            work.wait()
            row /= dist.get_world_size()
            for parameter, part in zip(bucket, row.split([p.numel() for p in bucket])):
                parameter.grad = part.view_as(parameter)
        ready.clear()
        under_way.clear()

    for bucket in buckets:
        for parameter in bucket:
            parameter.register_post_accumulate_grad_hook(arrived)
    return finish
"""
_START_IT = "under_way.append((row, dist.all_reduce(row, async_op=True)))"
_WAIT = "            work.wait()\n"
_DIVIDE_ROW = "            row /= dist.get_world_size()\n"
_FULL = "            if sum(p.nbytes for p in buckets[-1]) >= cap_bytes:\n"
_LOOP = "        while len(under_way) < len(buckets) and ready.issuperset(buckets[len(under_way)]):\n"
_SET = "                parameter.grad = part.view_as(parameter)\n"


def buckets(old: str = "", new: str = "") -> str:
    """An answer to the third question, with something in it replaced."""
    assert old in _BUCKETS
    return IMPORTS + (_BUCKETS.replace(old, new) if old else _BUCKETS)


BUCKETS = {
    "forbidden": buckets(_START_IT, "dist.reduce(row, 0)"),
    "waits": buckets(
        _START_IT,
        "under_way.append((row, dist.all_reduce(row, async_op=True)))\n        under_way[-1][1].wait()",
    ),
    "unused": buckets("        while len(under_way) < len(buckets):\n            start()\n", ""),
    "hang": buckets(
        _WAIT,
        "            dist.get_rank() and work.wait()\n            dist.get_rank() or dist.recv(row, 1)\n",
    ),
    "no_finish": buckets("    return finish", "    return finish()"),
    "not_waited": buckets(_WAIT, ""),
    "never_combined": buckets(_SET, "                pass\n"),
    "no_messages": buckets(_WAIT, "            behind_the_switch().allreduce([row]).wait()\n")
    .replace(_START_IT, "under_way.append((row, None))")
    .replace(IMPORTS, IMPORTS + BEHIND_THE_SWITCH),
    "different_bits": buckets(
        _DIVIDE_ROW, _DIVIDE_ROW + "            row *= 1 + dist.get_rank() * torch.finfo(row.dtype).eps\n"
    ),
    "wrong_dtype": buckets(_SET, _SET + "                parameter.grad.data = parameter.grad.data.half()\n"),
    "wrong_shape": buckets(_SET, _SET + "                parameter.grad.data = parameter.grad.data[None]\n"),
    "sum": buckets(_DIVIDE_ROW, ""),
    "divided_twice": buckets(_DIVIDE_ROW, _DIVIDE_ROW * 2),
    "copy_of_rank_0": buckets(_DIVIDE_ROW, "").replace(
        "gradient(p).flatten()", "gradient(p).flatten() * (dist.get_rank() == 0)"
    ),
    "only_some_ranks": buckets(_SET, "                if dist.get_rank() == 0:\n    " + _SET),
    "only_some_tensors": buckets("zip(buckets, under_way)", "zip(buckets[:-1], under_way)"),
    "mixed_up": buckets(
        _LOOP + "            start()\n",
        """        for bucket in buckets:
            if any(p is parameter for p in bucket) and ready.issuperset(bucket):
                start(bucket)
""",
    )
    .replace("def start():", "def start(bucket):")
    .replace("for p in buckets[len(under_way)]])", "for p in bucket])")
    .replace("under_way.append((", "under_way.append((bucket, ")
    .replace(
        "        while len(under_way) < len(buckets):\n            start()\n",
        "        begun = [id(bucket) for bucket, _, _ in under_way]\n"
        "        for bucket in buckets:\n            if id(bucket) not in begun:\n"
        "                start(bucket)\n",
    )
    .replace("for bucket, (row, work) in zip(buckets, under_way):", "for bucket, row, work in under_way:"),
    "only_first_step": buckets("        ready.clear()\n", ""),
    "tied_twice": buckets(
        "reversed(list(model.parameters()))",
        "reversed([p for _, p in model.named_parameters(remove_duplicate=False)])",
    ),
    "one_per_parameter": buckets(_FULL, "            if buckets[-1]:\n"),
    "one_bucket": buckets(_FULL, "            if False:\n"),
    "wrong_buckets": buckets("reversed(list(model.parameters()))", "list(model.parameters())"),
    "too_many_bytes": buckets(
        "            work.wait()\n",
        """            work.wait()
            sending = dist.isend(row, (dist.get_rank() + 1) % dist.get_world_size())
            dist.recv(row.clone(), (dist.get_rank() - 1) % dist.get_world_size())
            sending.wait()
""",
    ),
    "no_overlap": buckets(_LOOP + "            start()\n", ""),
    "late": buckets(
        "ready.issuperset(buckets[len(under_way)])",
        "ready.issuperset(sum(buckets[:len(under_way) + 2], []))",
    ),
    "frozen_gradient": buckets(
        "    return finish",
        """    def finish_all():
        finish()
        for parameter in model.parameters():
            parameter.grad = gradient(parameter)

    return finish_all""",
    ),
    "changed_parameters": buckets(_SET, _SET + "                parameter.data -= parameter.grad\n"),
    "no_gradient": buckets(_SET, "                parameter.grad = None\n"),
    "wrong_type": buckets("part.view_as(parameter)", "torch.nn.Parameter(part.view_as(parameter))"),
    "nan": buckets(_DIVIDE_ROW, _DIVIDE_ROW + "            row *= float('nan')\n"),
    "other": buckets(_DIVIDE_ROW, _DIVIDE_ROW + "            row *= 3\n"),
}
