"""Makes the figure of the README, notebooks/images/ddp_memory.png, from a real run."""

from pathlib import Path

import dpcourse as dc

if __name__ == "__main__":
    run = dc.train("ddp", model="gpt-small", ranks=4, steps=3)
    images = Path(__file__).parents[1] / "notebooks" / "images"
    run.memory.plot().save(str(images / "ddp_memory.png"))
