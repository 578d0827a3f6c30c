"""Lab 09, the dozen jobs: classes of mistakes, and what each is told."""

from dpcourse.labs.question import Mistake

JOB_MISTAKES = (
    Mistake(
        "wrong_type",
        "Write for each job a dict with take, one of the names in the task, and states_gb, a plain number.",
    ),
    Mistake(
        "does_not_fit",
        "What you take does not fit the card. Add up its fullest moment: states, what is whole for a while,"
        " activations, a gigabyte of margin.",
    ),
    Mistake(
        "slower",
        "It fits, but a step takes longer than need be: what crosses the slow cable, or is computed twice, "
        "where something else fits as well?",
    ),
    Mistake(
        "more_than_needed",
        "It fits and is as quick, but something that is less work does too: shards are medicine for a full"
        " card.",
    ),
    Mistake(
        "gives_up",
        "There is a way left: go through all questions before you leave the cards, or give up.",
    ),
    Mistake(
        "cannot_be_had",
        "That is no choice for this job: one card has no copies and no shards, one host no hybrid, and where"
        " something can be had it is not none.",
    ),
    Mistake(
        "sends_more",
        "It fits and is as quick, but more is sent than need be: stay inside a host where one holds the "
        "model, and keep until backward what was gathered where that fits.",
    ),
    Mistake(
        "whole_states",
        "The strategy is right, and this is a whole copy's states: over how many ranks are they shared?",
    ),
    Mistake(
        "shared_by_all",
        "The strategy is right, and this number is shared out over all cards: whole copies share nothing, "
        "and a hybrid shares inside a host.",
    ),
    Mistake(
        "number",
        "The strategy is right and its number is not: the recipe's bytes for each parameter (a frozen one "
        "has but its own), over the ranks of one copy.",
    ),
)
