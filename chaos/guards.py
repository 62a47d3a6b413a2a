"""The guards that uphold the invariants, and how to switch each off: the proof that the checker would notice.

Where several layers uphold one invariant, a guard is all of them: switching off one alone must change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaos import sabotage
from chaos.apps import UnknownGuard

SHORT = ("--jobs", "60", "--minutes", "0.08", "--patience", "20")
CALM = ("--kills", "0", "--freezes", "0", "--restarts", "0")
# The others are as many as restarts unless they are stated.
NO_BYSTANDERS = ("--receivers", "0", "--holds", "0", "--refusals", "0")
FROZEN = ("--kills", "0", "--freezes", "3", "--restarts", "0", "--frozen", "family", "--patience", "5")
RESTARTED = ("--kills", "0", "--freezes", "0", "--restarts", "2", "--pauses", "0", *NO_BYSTANDERS)
# A marathon lasts long enough for the freeze to hit one, and the other worker goes on.
MARATHON_FROZEN = (
    *("--jobs", "200", "--minutes", "0.35", "--patience", "20", "--kinds", "nap", "marathon"),
    *("--kills", "0", "--freezes", "1", "--frozen", "family", "--restarts", "0"),
)
SUPERVISORS_KILLED = ("--kills", "6", "--killed", "supervisor", "--freezes", "0", "--restarts", "0")
MARATHONS = ("--jobs", "15", "--minutes", "0.2", "--patience", "20", "--kinds", "marathon")
LONGER = ("--jobs", "150", "--minutes", "0.25")
BESIDE = ("--jobs", "250", "--minutes", "0.5", "--patience", "30", "--kinds", "nap", *CALM)


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard: its purpose, how to switch it off in a process and in the database, and a run that must notice it.

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
    "one open item": Guard(
        "a manifest is queued and run once at a time: the manager's row lock, and both unique indexes",
        sabotage.queue_without_lock,
        (*SHORT, *CALM, "--kinds", "nap"),
        ("completed exactly once", "no overlap of a manifest with itself, by rows"),
        sabotage.drop_uniqueness,
    ),
    "fence of activations": Guard(
        "a run that was taken from its process activates nothing: the process's own lease, and the check in activate",
        sabotage.activate_without_fence,
        (*LONGER, *FROZEN, "--kinds", "dormant"),
        ("fenced runs recorded nothing",),
    ),
    "fence of results": Guard(
        "ended rows do not change: the process's own lease, the conditions of record, and the trigger",
        sabotage.overwrite_ended_rows,
        MARATHON_FROZEN,
        ("terminal rows are final", "signals are sent once"),
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
        "a job that is given up leaves a letter",
        sabotage.write_no_letters,
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
    "alarms": Guard(
        "a dependent that is due has an alarm",
        sabotage.forget_alarms_of_dependents,
        (*SHORT, *CALM, "--kinds", "chain"),
        ("reconciler repaired nothing",),
    ),
    "open items": Guard(
        "a join is not decided while anything that leads to it is open",
        sabotage.ignore_open_items,
        (*SHORT, *CALM, "--kinds", "fan"),
        ("joins wait for all parts",),
    ),
    "tokens": Guard(
        "what is due, queued or active holds a token where joins wait for it",
        sabotage.hold_no_tokens,
        (*SHORT, *CALM, "--kinds", "fan"),
        ("joins wait for all parts",),
    ),
    "gate": Guard(
        "a fan-in runs only after its gate",
        sabotage.ignore_gates,
        (*SHORT, *CALM, "--kinds", "gate"),
        ("joins run with enough",),
    ),
    "second look": Guard(
        "the manager looks for the notes that others left, and decides",
        sabotage.settle_nothing,
        (*SHORT, *CALM, "--patience", "8", "--kinds", "fan", "join"),
        ("joins cover every run", "runs come to their end"),
    ),
    "join lock": Guard(
        "two managers do not add up the notes to one join at once",
        sabotage.fold_without_lock,
        (*SHORT, *CALM, "--patience", "8", "--kinds", "fan"),
        ("runs come to their end",),
    ),
    "runs taken over": Guard(
        "an execution names all runs that it stands for",
        sabotage.name_no_further_runs,
        (*SHORT, *CALM, "--kinds", "surge"),
        ("joins cover every run", "dependents are not lost"),
    ),
    "death with the supervisor": Guard(
        "children end with their supervisor: the fork server kills them, the kernel's signal, and the closed socket",
        sabotage.keep_children_alive,
        (*MARATHONS, "--kills", "3", "--killed", "supervisor", "--freezes", "0", "--restarts", "0"),
        ("no overlap of a manifest with itself, by witness", "no process is left over"),
    ),
    "timeouts": Guard(
        "a job that runs too long is ended",
        sabotage.wait_for_ever,
        (*SHORT, *CALM, "--kinds", "overstay"),
        ("overlong runs are ended",),
    ),
    "explicit success": Guard(
        "a process that ends without a result has not succeeded",
        sabotage.count_exit_as_success,
        (*SHORT, *CALM, "--kinds", "poison"),
        ("completed exactly once", "completions are witnessed"),
    ),
    "surviving loops": Guard(
        "a loop goes on after an error in one turn",
        sabotage.end_on_trouble,
        (*LONGER, *RESTARTED, "--kinds", "nap"),
        ("processes survive",),
    ),
    "loops that go on": Guard(
        "a loop tries again after an error",
        sabotage.hang_on_trouble,
        (*LONGER, *RESTARTED, "--patience", "8", "--kinds", "nap"),
        ("no process is idle", "work resumes", "nothing is left open"),
    ),
    "rows of running jobs": Guard(
        "a worker returns only jobs that it has not begun",
        sabotage.return_running_jobs,
        (*LONGER, *CALM, "--kinds", "nap"),
        ("runs have their rows",),
    ),
    "activations": Guard(
        "a child that a run activates is queued",
        sabotage.forget_activations,
        (*SHORT, *CALM, "--kinds", "dormant"),
        ("activations are kept", "nothing is lost"),
    ),
    "receivers aside": Guard(
        "receivers of signals have a thread of their own",
        sabotage.call_receivers_at_once,
        (*BESIDE, "--receivers", "1"),
        ("work goes on",),
    ),
    "skipped locks": Guard(
        "the manager passes over manifests that a user's transaction holds",
        sabotage.wait_for_held_manifests,
        (*BESIDE, "--holds", "1"),
        ("work goes on",),
    ),
    "rows put aside": Guard(
        "manager and dispatcher go on without rows that the database refuses",
        sabotage.give_up_at_refused_rows,
        (*BESIDE, "--refusals", "1"),
        ("work goes on",),
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
