"""Imported into a shut-in fork server, last: what is forked from it may add so much to what is mapped by now.

The libraries come first and do not count: those of a torch that is built for GPUs map 3 GB, used or not.
"""

import resource

import psutil

from dpcourse.grade.limits import Caps

_limit = psutil.Process().memory_info().vms + Caps().memory_bytes
resource.setrlimit(resource.RLIMIT_AS, (_limit, _limit))
