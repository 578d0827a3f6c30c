"""A way between ranks that no switch sees, for answers that want to do without messages."""

BEHIND_THE_SWITCH = """import os
import tempfile

groups = []


def behind_the_switch():
    groups.append(0)
    path = f"{tempfile.gettempdir()}/behind-{os.getppid()}-{len(groups)}"
    store = dist.FileStore(path, dist.get_world_size())
    return dist.ProcessGroupGloo(store, dist.get_rank(), dist.get_world_size())


"""
