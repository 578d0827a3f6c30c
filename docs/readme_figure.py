"""Makes docs/ddp_memory.png, a figure of the README, from a real run: `python docs/readme_figure.py`."""

from pathlib import Path

import dpcourse as dc

if __name__ == "__main__":
    run = dc.train("ddp", model="gpt-small", ranks=4, steps=3)
    run.memory.plot().save(str(Path(__file__).with_name("ddp_memory.png")))
