"""Every error chainsched raises, under one root.

A message names the thing, the fact and the remedy; the data behind it is on attributes.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.core.exceptions import ImproperlyConfigured


class ChainschedError(Exception):
    """The root of all errors raised by chainsched."""


class ConfigurationError(ChainschedError, ImproperlyConfigured):
    """The CHAINSCHED setting is wrong; ``problems`` lists every mistake in it."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("The CHAINSCHED setting is wrong: " + " ".join(self.problems))


class DeclarationError(ChainschedError, ValueError):
    """A declared manifest cannot be accepted; ``external_id`` names it when one is known."""

    def __init__(self, message: str, *, external_id: str | None = None) -> None:
        self.external_id = external_id
        super().__init__(message)


class InvalidDeclarations(DeclarationError):
    """Several declarations cannot be accepted; ``problems`` holds an error for each."""

    def __init__(self, problems: Sequence[DeclarationError]) -> None:
        self.problems = tuple(problems)
        listed = "\n".join(f"- {problem}" for problem in self.problems)
        super().__init__(f"{len(self.problems)} declarations cannot be accepted:\n{listed}")


class CycleError(DeclarationError):
    """Manifests or groups depend on each other in a cycle; ``members`` names them."""

    def __init__(self, message: str, *, members: Sequence[str]) -> None:
        self.members = tuple(members)
        super().__init__(message)


class LimitExceeded(DeclarationError):
    """A graph grew past a limit; ``value``, ``limit`` and ``setting`` say which."""

    def __init__(self, message: str, *, value: int, limit: int, setting: str, external_id: str | None = None) -> None:
        self.value = value
        self.limit = limit
        self.setting = setting
        super().__init__(message, external_id=external_id)


class InvalidSchedule(ChainschedError, ValueError):
    """A schedule that cannot be computed: a bad cron expression, interval, zone or exclusion."""


class InvalidInput(ChainschedError, ValueError):
    """An input does not fit the type that its workflow asks for; ``problems`` lists where."""

    def __init__(self, message: str, *, problems: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message)


class UnknownWorkflow(ChainschedError, LookupError):
    """No workflow is registered under ``name``."""

    def __init__(self, name: str, *, known: Sequence[str] = ()) -> None:
        self.name = name
        self.known = tuple(known)
        listed = ", ".join(self.known) or "none"
        super().__init__(
            f"No workflow is registered as {name!r} (registered: {listed}). "
            "Decorate the function with @workflow in a module that is imported at start, such as workflows.py."
        )


class InvalidWorkflow(ChainschedError, TypeError):
    """A function cannot serve as a workflow: its signature or its name does not fit."""


class UnknownSecret(ChainschedError, LookupError):
    """No secret has this name; ``variable`` is the environment variable that could hold it."""

    def __init__(self, name: str, *, variable: str) -> None:
        self.name = name
        self.variable = variable
        super().__init__(
            f"There is no secret {name!r}. Set the environment variable {variable} for the workers, or let "
            "CHAINSCHED['SECRETS'] return it."
        )


class UnknownManifest(ChainschedError, LookupError):
    """No manifest has this external id."""

    def __init__(self, external_id: str) -> None:
        self.external_id = external_id
        super().__init__(f"There is no manifest {external_id!r}. `chainsched status` and the admin list them.")


class UnknownExecution(ChainschedError, LookupError):
    """No execution has this id, or retention removed it."""

    def __init__(self, execution_id: int | str) -> None:
        self.execution_id = execution_id
        super().__init__(f"There is no execution {execution_id!r}; retention may have removed it.")


class UnknownRow(ChainschedError, LookupError):
    """There is no such group, queue row, dead letter or bulk decision."""

    def __init__(self, kind: str, name: str, remedy: str) -> None:
        super().__init__(f"There is no {kind} {name!r}; {remedy}.")
        self.kind = kind
        self.name = name


class ActivationError(ChainschedError, RuntimeError):
    """A dormant child cannot be activated from here; the message says why."""

    def __init__(self, message: str, *, external_id: str) -> None:
        self.external_id = external_id
        super().__init__(message)


class RunHasEnded(ChainschedError, RuntimeError):
    """A context was asked for something after its run; use it only while the workflow's function runs."""

    def __init__(self, execution_id: int) -> None:
        self.execution_id = execution_id
        super().__init__(
            f"The run of execution {execution_id} is over: its context answers and does nothing more. "
            "Use it only while the workflow's function runs, and keep the values that are needed later."
        )


class NotMigrated(ChainschedError, RuntimeError):
    """The database lacks tables or columns that this version needs."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        super().__init__(f"The tables of chainsched in database {alias!r} are not up to date. Run `manage.py migrate`.")


class UnfitFileSystem(ChainschedError, RuntimeError):
    """The file of an SQLite database, ``file``, is on a ``file_system`` on which processes cannot share it."""

    def __init__(self, file: str, *, file_system: str) -> None:
        self.file = file
        self.file_system = file_system
        super().__init__(
            f"The database file {file} is on the network file system {file_system}, where SQLite's locks do not hold "
            "and the file can be damaged. Use PostgreSQL, or put the file on a disk of this host."
        )


class LayoutUnavailable(ChainschedError, RuntimeError):
    """No Graphviz is installed, or it failed or took too long for this graph; ``fact`` names the reason."""

    def __init__(self, fact: str = "Neither Graphviz' dot program nor pygraphviz is installed.") -> None:
        self.fact = fact
        super().__init__(
            f"The graph cannot be laid out. {fact} Install chainsched[graph], or ask for DOT instead of SVG."
        )


class ExecutionIsFinal(ChainschedError, RuntimeError):
    """Executions are an audit trail: once ended, nothing may change them and only retention may delete them."""


class ProcessLost(ChainschedError, RuntimeError):
    """Another process declared this one lost; it must start again under a new identity."""


class GiveUp(ChainschedError):
    """Raised by a job that knows that another attempt would fail too; it is dead-lettered at once."""
