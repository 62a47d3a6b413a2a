"""The guards that keep the promises, and how to take each away: the proof that the checker would notice.

Where several layers keep one promise, a guard is all of them: taking away one alone must change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaos import sabotage
from chaos.apps import UnknownGuard

SHORT = ("--jobs", "60", "--minutes", "0.08", "--patience", "20")
CALM = ("--kills", "0", "--freezes", "0", "--restarts", "0")
FROZEN = ("--kills", "0", "--freezes", "3", "--restarts", "0", "--frozen", "family", "--patience", "5")
RESTARTED = ("--kills", "0", "--freezes", "0", "--restarts", "2", "--pauses", "0")
SUPERVISORS_KILLED = ("--kills", "6", "--killed", "supervisor", "--freezes", "0", "--restarts", "0")
MARATHONS = ("--jobs", "15", "--minutes", "0.2", "--patience", "20", "--kinds", "marathon")
LONGER = ("--jobs", "150", "--minutes", "0.25")


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard: what it protects, how a process and the database are rid of it, and a run in which that is noticed.

    ``turns_red`` are the invariants that must not hold then; others may not hold either.
    """

    protects: str
    switch_off: Callable[[], None]
    run: Sequence[str]
    turns_red: Sequence[str]
    prepare: Callable[[], None] = lambda: None


GUARDS = {
    "dispatch lock": Guard(
        "one turn of the dispatcher at a time, so limits are exact",
        sabotage.dispatch_without_lock,
        (*SHORT, *CALM, "--kinds", "nap"),
        ("limits hold, by rows", "limits hold, by witness"),
    ),
    "claim lock": Guard(
        "one worker claims a row: SKIP LOCKED, and the state that the update names",
        sabotage.claim_without_lock,
        # Longer than one of the two workers may stand still.
        (*LONGER, *CALM, "--patience", "20", "--kinds", "nap"),
        ("no overlap of a manifest with itself, by witness",),
    ),
    "one open item": Guard(
        "a manifest is queued and run once at a time: the manager's row lock, and both unique indexes",
        sabotage.queue_without_lock,
        (*SHORT, *CALM, "--kinds", "nap"),
        ("completed exactly once", "no overlap of a manifest with itself, by rows"),
        sabotage.drop_uniqueness,
    ),
    "fence of activations": Guard(
        "a run that was taken from its process activates nothing: the process's own watch, and the check in activate",
        sabotage.activate_without_fence,
        (*LONGER, *FROZEN, "--kinds", "dormant"),
        ("fenced runs recorded nothing",),
    ),
    "fence of results": Guard(
        "what has ended stays as it is: the process's own watch, what record asks for, and the trigger",
        sabotage.write_over_what_ended,
        (*LONGER, *FROZEN, "--kinds", "nap"),
        ("terminal rows are final",),
        sabotage.drop_trigger,
    ),
    "reap only the lost": Guard(
        "live processes keep their runs",
        sabotage.reap_the_living,
        (*MARATHONS, *CALM, "--patience", "5"),
        ("no overlap of a manifest with itself, by witness",),
    ),
    "retries": Guard(
        "a failed attempt is made again",
        sabotage.retry_nothing,
        (*SHORT, *CALM, "--kinds", "stumble"),
        ("nothing is lost",),
    ),
    "dead letters": Guard(
        "what is given up leaves a letter",
        sabotage.bury_nothing,
        (*SHORT, *CALM, "--kinds", "poison", "nap"),
        ("dead letters are for poison",),
    ),
    "due dependents": Guard(
        "a success makes dependents due",
        sabotage.forget_dependents,
        (*SHORT, *CALM, "--kinds", "chain"),
        ("dependents are not lost",),
    ),
    "covered dependents": Guard(
        "a dependent runs once for a success",
        sabotage.cover_nothing,
        (*SHORT, *CALM, "--patience", "5", "--kinds", "chain"),
        ("dependents are not doubled",),
    ),
    "waiting for siblings": Guard(
        "a continuation waits for all parts",
        sabotage.wait_for_nobody,
        (*SHORT, *CALM, "--kinds", "fan"),
        ("continuations wait for all parts",),
    ),
    "family lock": Guard(
        "siblings that end together see each other: the states are locked before anything is looked at",
        sabotage.record_without_lock,
        (*SHORT, *CALM, "--kinds", "fan"),
        ("nothing was mended",),
    ),
    "death with the supervisor": Guard(
        "children end with their supervisor: the nursery's last act, the kernel's signal, and the closed socket",
        sabotage.leave_children_behind,
        (*MARATHONS, "--kills", "3", "--killed", "supervisor", "--freezes", "0", "--restarts", "0"),
        ("no overlap of a manifest with itself, by witness", "nobody is left behind"),
    ),
    "timeouts": Guard(
        "a job that stays too long is ended",
        sabotage.wait_for_ever,
        (*SHORT, *CALM, "--kinds", "overstay"),
        ("overlong runs are ended",),
    ),
    "explicit success": Guard(
        "a process that ends without a result has not succeeded",
        sabotage.take_death_for_success,
        (*SHORT, *CALM, "--kinds", "poison"),
        ("completed exactly once", "completions are witnessed"),
    ),
    "surviving loops": Guard(
        "a loop outlives what one turn meets",
        sabotage.end_on_trouble,
        (*LONGER, *RESTARTED, "--kinds", "nap"),
        ("processes survive",),
    ),
    "loops that go on": Guard(
        "a loop tries again after trouble",
        sabotage.hang_on_trouble,
        (*LONGER, *RESTARTED, "--patience", "8", "--kinds", "nap"),
        ("nobody idles", "work resumes", "nothing is left open"),
    ),
    "claims that never began": Guard(
        "what a lost process had not begun counts as nothing",
        sabotage.count_what_never_began,
        (*LONGER, *SUPERVISORS_KILLED, "--kinds", "nap"),
        ("what never began burned nothing",),
    ),
    "activations": Guard(
        "whom a run wakes is queued",
        sabotage.forget_activations,
        (*SHORT, *CALM, "--kinds", "dormant"),
        ("activations are kept", "nothing is lost"),
    ),
    "new connections": Guard(
        "a loop drops a connection that failed",
        sabotage.keep_broken_connections,
        (*LONGER, *RESTARTED, "--patience", "8", "--kinds", "nap"),
        ("nothing is left open",),
    ),
}


def find_guard(name: str) -> Guard:
    """The guard of this name; raises UnknownGuard."""
    if name not in GUARDS:
        raise UnknownGuard(f"there is no guard {name!r}; there are: {', '.join(GUARDS)}")
    return GUARDS[name]
