"""Every command and verb of chainsched, the operator verbs with and without a user; none may load the admin."""

from io import StringIO
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.test import Client

from chainsched.db.clock import database_now
from chainsched.domain.states import BulkDecisionVerb, DeadLetterStatus, ExecutionState
from chainsched.flow.maintain.recall import give_back
from chainsched.flow.operate.bulk_decisions import request_bulk_decision
from chainsched.flow.operate.take import take
from chainsched.management.commands.chainsched import VERBS
from chainsched.models import DeadLetter, Manifest, Metadata, Process, WorkQueue
from chainsched.operations import OPERATIONS
from tests.headless import admin_modules

CHECKING = [
    ("check",),
    ("check", "--deploy"),
    ("check", "--database", "default"),
    ("makemigrations", "--check"),
]
# The verbs that are no operator verbs, with arguments.
LOOKING = [
    ("seed",),
    ("plan", "--check"),
    ("status",),
    ("explain", "job"),
    ("explain", "--execution", "1"),
    ("runs",),
    ("runs", "1"),
    ("graph", "--format", "dot"),
    ("graph", "--format", "svg"),
    ("graph", "--group", "jobs", "--json"),
    ("cleanup", "--older-than", "1"),
    ("fsck", "--repair"),
    ("health",),
]
# Printed at the end: a command that ends the process would not be noticed by the exit code.
DONE = "Every command works."
BROKEN = ("retried", "acknowledged", "decided", "undecided")


class Command(BaseCommand):
    """Run every command on a database that was migrated; a scheduler may have run the schedules before."""

    def handle(self, *_args: Any, **_options: Any) -> None:
        """Fail with the first command that fails, has no effect, or loads the admin."""
        for arguments in CHECKING:
            run(*arguments)
        run_jobs()
        run("run_worker", "--for", "0.1", "--in-process")
        assert [each.output for each in Metadata.objects.filter(state=ExecutionState.COMPLETED)] == [[]]
        for arguments in LOOKING:
            assert run("chainsched", *arguments), arguments
        user = get_user_model().objects.create_user("anna")
        for number, options in enumerate([(), ("--by", "anna")], start=1):
            done = Operator(options).operate(limit=number, user=user)
            assert done == {(operation.command, operation.target) for operation in OPERATIONS}
        assert {arguments[0] for arguments in LOOKING} | {verb for verb, _ in done} == set(VERBS)
        look_at_the_health_page()
        self.stdout.write(DONE)


def run(*arguments: str) -> str:
    """Run a command. It must end with code 0, but for `health`, which finds no live scheduler here."""
    out = StringIO()
    code: object = 0
    try:
        call_command(*arguments, stdout=out, stderr=out, no_color=True)
    except SystemExit as ended:
        code = ended.code
    expected = 1 if arguments == ("chainsched", "health") else 0
    assert code == expected, f"{arguments} ended with {code}: {out.getvalue()}"
    assert not admin_modules(), arguments
    return out.getvalue()


def run_jobs(*, processes: int = 8) -> None:
    """One turn of all loops and, in threads of this process, of the jobs that are dispatched."""
    run("run_scheduler", "--once", "--in-process", "--processes", str(processes))


class Operator:
    """Carries out each operation once, with these options, on rows that it has an effect on."""

    def __init__(self, options: tuple[str, ...]) -> None:
        self._options = options
        self._done: set[tuple[str, str]] = set()

    def operate(self, *, limit: int, user: Any) -> set[tuple[str, str]]:
        """Every verb for every kind of row; returns those that were carried out."""
        self._operate_on_manifests()
        self._operate_on_groups(limit)
        self._operate_on_executions()
        self._operate_on_letters(user)
        return self._done

    def _do(self, verb: str, target: str, name: object, *options: str) -> None:
        has_option = sum(operation.command == verb for operation in OPERATIONS) > 1 and target != "manifest"
        named = [f"--{target.replace('_', '-')}", str(name)] if has_option else [str(name)]
        assert run("chainsched", verb, *named, "--reason", "to try it", *self._options, *options)
        self._done.add((verb, target))

    def _operate_on_manifests(self) -> None:
        self._do("trigger", "manifest", "job", "--input", "false")
        row = WorkQueue.objects.queued().get().pk
        self._do("bring-forward", "row", row)
        self._do("cancel", "row", row)
        self._do("activate", "manifest", "child", "--input", "false")
        self._do("cancel", "manifest", "child")
        self._do("disable", "manifest", "job")
        self._do("enable", "manifest", "job")

    def _operate_on_groups(self, limit: int) -> None:
        self._do("trigger", "group", "jobs")
        self._do("cancel", "group", "jobs")
        self._do("disable", "group", "jobs")
        self._do("enable", "group", "jobs")
        self._do("set-limits", "group", "jobs", "--max-active-jobs", str(limit))

    def _operate_on_executions(self) -> None:
        """Executions are taken by a worker on another host, which returns them when they were cancelled."""
        now = database_now()
        worker = Process.objects.create(
            kind="worker", host="another", pid=1, workflows=["headless.look"], started_at=now, heartbeat_at=now
        )
        for verb, target in (("cancel", "execution"), ("cancel-tree", "execution"), ("cancel", "run")):
            Manifest.objects.get(external_id="job").trigger()
            run_jobs(processes=0)
            (item,) = take(process=worker, limit=1).claims
            self._do(verb, target, item.run_id if target == "run" else item.execution_id)
            give_back([item.execution_id], process=worker, now=database_now())
            assert Metadata.objects.get(pk=item.execution_id).state == ExecutionState.CANCELLED
        worker.delete()
        completed = Metadata.objects.filter(state=ExecutionState.COMPLETED).first().pk
        for verb in ("run-again", "run-from-here"):
            self._do(verb, "execution", completed)
            run_jobs()

    def _operate_on_letters(self, user: Any) -> None:
        """Retry one, acknowledge one, and leave two to a bulk decision each; the second of these is cancelled."""
        letters = {name: DeadLetter.objects.awaiting().get(manifest__external_id=f"broken-{name}") for name in BROKEN}
        self._do("retry", "letter", letters["retried"].pk)
        self._do("acknowledge", "letter", letters["acknowledged"].pk)
        letters["acknowledged"].refresh_from_db()
        assert letters["acknowledged"].resolved_by == (user if self._options else None)
        self._ask(letters["decided"], by=user)
        run_jobs()
        letters["decided"].refresh_from_db()
        assert letters["decided"].status == DeadLetterStatus.ACKNOWLEDGED
        self._do("cancel", "bulk_decision", self._ask(letters["undecided"], by=user))
        for name in ("acknowledged", "decided"):
            Manifest.objects.get(external_id=f"broken-{name}").trigger()
        run_jobs()

    def _ask(self, letter: DeadLetter, *, by: Any) -> int:
        verb = BulkDecisionVerb.ACKNOWLEDGE
        return request_bulk_decision(verb, [letter.pk], by=by, note="", selection="", now=database_now()).pk


def look_at_the_health_page() -> None:
    """Without a session there is no user, and so there are no details."""
    answer = Client().get("/health/")
    assert (answer.status_code, answer.json()) == (503, {"status": "failing"})
    assert not admin_modules()
