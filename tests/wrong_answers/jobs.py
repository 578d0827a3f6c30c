"""Lab 09, the dozen jobs: a wrong answer for each mistake."""

_ANSWER: dict[str, tuple[str, float]] = {
    "A": ("single", 16),
    "B": ("offload", 48),
    "C": ("ddp", 48),
    "D": ("kept", 14),
    "E": ("ddp", 56),
    "F": ("full", 26),
    "G": ("hybrid", 60),
    "H": ("full", 17.5),
    "I": ("none", 800),
    "J": ("ddp", 16),
    "K": ("full", 10.25),
    "L": ("kept+recompute", 26.03),
}


def answer(**changed: tuple[str, float]) -> str:
    """An answer with some jobs' strategy and number changed."""
    chosen = {
        job: {"take": take, "states_gb": states} for job, (take, states) in {**_ANSWER, **changed}.items()
    }
    return f"choices = {chosen!r}"


JOBS = {
    "wrong_type": answer(A=("plain", 16)),
    "does_not_fit": answer(F=("kept", 26)),
    "slower": answer(J=("full", 1)),
    "more_than_needed": answer(C=("kept", 6)),
    "gives_up": answer(H=("offload", 17.5)),
    "cannot_be_had": answer(D=("hybrid", 14)),
    "sends_more": answer(D=("full", 14)),
    "whole_states": answer(G=("hybrid", 480)),
    "shared_by_all": answer(G=("hybrid", 7.5)),
    "number": answer(K=("full", 68)),
}
