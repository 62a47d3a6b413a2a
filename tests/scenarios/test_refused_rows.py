"""A row that the database or the code refuses: it is put aside with its reason, and the others go on."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.utils import ProgrammingError
from django.test.utils import CaptureQueriesContext

from chainsched import Every, api
from chainsched.domain.routing import Pool
from chainsched.domain.states import QueueStatus
from chainsched.flow.inspect.explain import explain
from chainsched.flow.inspect.health import check_health
from chainsched.flow.maintain.fsck import reconcile, run_fsck
from chainsched.flow.operate.cancel_run import cancel_late
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.evaluate import evaluate
from chainsched.models import Manifest, ManifestState, Metadata, WorkQueue
from chainsched.registry import registry
from chainsched.runtime.loops import dispatcher, manager
from tests.factories import NOW, make_group, make_manifest, make_queue_row
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

OTHERS = 20
INTERVAL = timedelta(seconds=300)


@dataclass(frozen=True)
class Refusal:
    """A kind of refusal: how it is brought about in a table for what is named bad, and how it is cured."""

    name: str
    error: str
    is_postgres: bool = True

    def begin(self, table: str) -> None:
        if connection.vendor == "postgresql":
            self._let_raise(table)
        else:
            sql(
                f"CREATE TRIGGER refuse BEFORE INSERT ON {table} WHEN NEW.manifest_external_id = 'bad' "
                "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            )

    def end(self, table: str) -> None:
        sql(f"DROP TRIGGER refuse ON {table}" if connection.vendor == "postgresql" else "DROP TRIGGER refuse")

    def _let_raise(self, table: str) -> None:
        sql(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF NEW.manifest_external_id = 'bad' THEN {self.error}; END IF; RETURN NEW; END $$"
        )
        sql(f"CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()")


def raised(sqlstate: str) -> str:
    return f"RAISE EXCEPTION 'not this one' USING ERRCODE = '{sqlstate}', DETAIL = 'the secret input'"


# All are a trigger that raises; on SQLite they are one.
REFUSALS = [
    Refusal("a_trigger_of_the_project", raised("P0001"), is_postgres=False),
    Refusal("an_assertion_of_the_project", raised("P0004")),
    Refusal("a_function_of_the_project", raised("38000")),
    Refusal("a_column_that_a_trigger_misses", raised("42703")),
    Refusal("a_check", raised("23514")),
    Refusal("a_unique_index", raised("23505")),
    Refusal("a_value_out_of_range", raised("22003")),
    Refusal("a_value_that_no_index_takes", raised("54000")),
    Refusal("a_damaged_value", raised("XX000")),
    Refusal("a_statement_that_takes_too_long", raised("57014")),
]
KINDS = pytest.mark.parametrize(
    "refusal",
    [pytest.param(kind, id=kind.name, marks=[pytest.mark.postgres] if kind.is_postgres else []) for kind in REFUSALS],
)


def sql(statement: str, *parameters: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)


def make_others(number: int = OTHERS, **columns):
    return [make_manifest(**columns) for _ in range(number)]


def start(**options):
    return dispatch(**{"workflows": registry.names(), "now": NOW, **options})


def queue_all(manifests):
    return [make_queue_row(manifest, turn=at) for at, manifest in enumerate(manifests)]


def reads_of(act: Callable[[], object], name: str) -> int:
    """How many statements of this name this."""
    with CaptureQueriesContext(connection) as captured:
        act()
    return sum(name in query["sql"] for query in captured.captured_queries)


def notes() -> str:
    return " ".join(check_health(pools=[Pool(registry.names())], now=NOW).notes)


def explained(name: str):
    return api.explain(api.find(name))


class TestTheManager:
    @KINDS
    def test_puts_it_aside_with_its_reason_and_queues_the_others(self, refusal, caplog):
        make_manifest("bad")
        make_others()
        refusal.begin("chainsched_workqueue")
        evaluated = evaluate(now=NOW)
        assert (evaluated.queued, evaluated.put_aside, evaluated.left) == (OTHERS, 1, 0)
        state = ManifestState.objects.aside().get()
        assert (state.next_run_at, state.put_aside_at) == (None, NOW)
        assert "not this one" in state.put_aside_reason
        assert "secret" not in state.put_aside_reason + caplog.text
        assert evaluate(now=NOW + INTERVAL).seen == 0
        found = explained("bad")
        assert found.code == "put_aside"
        assert "not this one" in found.reason
        assert "1 manifests." in notes()

    @pytest.mark.postgres
    def test_of_a_row_with_a_number_out_of_range(self):
        group = make_group()
        make_queue_row(make_manifest(group=group, state={}), turn=2**63 - 1)
        make_manifest("bad", group=group)
        make_others()
        assert evaluate(now=NOW).queued == OTHERS
        assert explained("bad").code == "put_aside"

    def test_of_a_row_with_an_input_that_cannot_be_read(self):
        bad = make_manifest("bad", state={"next_run_at": NOW, "trigger_at": NOW})
        sql("UPDATE chainsched_manifeststate SET trigger_input = %s WHERE manifest_id = %s", "1" * 5000, bad.id)
        make_others()
        assert evaluate(now=NOW).queued == OTHERS
        assert explained("bad").code == "put_aside"

    def test_of_a_row_with_facts_that_cannot_be_read(self):
        bad = make_manifest("bad")
        sql("UPDATE chainsched_manifest SET exclusions = %s WHERE id = %s", f"[{'1' * 5000}]", bad.id)
        make_others()
        assert evaluate(now=NOW).queued == OTHERS
        assert explain(bad.id, pools=(), now=NOW).code == "put_aside"
        assert "1 manifests." in notes()
        reconcile(now=NOW + INTERVAL)
        assert ManifestState.objects.aside().get().manifest_id == bad.id
        (found,) = run_fsck(now=NOW, checks=["put_aside"], repair=True)
        assert (found.subject, found.is_repaired) == ("bad", False)

    def test_takes_its_next_page_at_once(self):
        make_manifest("bad", state={"next_run_at": NOW - INTERVAL})
        make_others(3)
        REFUSALS[0].begin("chainsched_workqueue")
        assert manager.turn(NOW, page=2).has_more
        assert manager.turn(NOW, page=2).did == 2

    def test_raises_what_says_nothing_about_a_manifest(self, monkeypatch):
        make_others(2)

        def fail(*_arguments, **_options):
            raise missing_column()

        monkeypatch.setattr("chainsched.flow.run.evaluate.enqueue", fail)
        with pytest.raises(ProgrammingError):
            evaluate(now=NOW)
        assert ManifestState.objects.due(NOW).count() == 2


class TestTheDispatcher:
    @KINDS
    def test_puts_it_aside_with_its_reason_and_starts_the_others(self, refusal, caplog):
        bad, *_ = queue_all([make_manifest("bad", state={}), *make_others(state={})])
        refusal.begin("chainsched_metadata")
        dispatched = start()
        assert (len(dispatched.execution_ids), dispatched.put_aside, dispatched.has_more) == (OTHERS, 1, True)
        bad.refresh_from_db()
        assert (bad.status, bad.put_aside_at) == (QueueStatus.QUEUED, NOW)
        assert "not this one" in bad.put_aside_reason
        assert "secret" not in bad.put_aside_reason + caplog.text
        assert not start().has_more
        found = explained("bad")
        assert found.code == "put_aside"
        assert "not this one" in found.reason
        assert bad.explain().code == "put_aside"
        assert "1 queue rows." in notes()

    def test_starts_the_others_in_their_order_and_within_the_limits(self, settings):
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 4}
        group = make_group(max_active_jobs=2)
        few = [make_manifest(group=group, state={}) for _ in range(4)]
        rows = queue_all([few[0], make_manifest("bad", state={}), *few[1:], *make_others(4, state={})])
        REFUSALS[0].begin("chainsched_metadata")
        for _ in range(3):
            start()
        assert list(Metadata.objects.order_by("id").values_list("work_queue_id", flat=True)) == [
            rows[at].id for at in (0, 2, 5, 6)
        ]

    @pytest.mark.skipif(connection.vendor == "postgresql", reason="PostgreSQL stores lists of numbers as such")
    def test_of_a_row_with_a_column_that_cannot_be_read(self):
        bad, *_ = queue_all([make_manifest("bad", state={}), *make_others(state={})])
        sql("UPDATE chainsched_workqueue SET tokens = 'no list' WHERE id = %s", bad.id)
        assert len(start().execution_ids) == OTHERS
        assert WorkQueue.objects.aside().values_list("id", flat=True).get() == bad.id

    def test_does_not_read_it_again(self):
        queue_all([make_manifest("bad", state={})])
        REFUSALS[0].begin("chainsched_metadata")
        start()
        assert reads_of(start, 'INTO "chainsched_metadata"') == 0

    def test_goes_on_with_the_rows_behind_it(self, monkeypatch):
        queue_all([make_manifest("bad", state={}), *make_others(3, state={})])
        REFUSALS[0].begin("chainsched_metadata")
        monkeypatch.setattr("chainsched.runtime.loops.dispatcher.get_server", KnowsAll)
        monkeypatch.setattr("chainsched.db.clock._stopped_at", NOW)
        assert dispatcher.Dispatcher().turn(NOW, limit=1).has_more
        assert dispatcher.Dispatcher().turn(NOW, limit=3).did == 3

    def test_puts_a_row_aside_that_it_cannot_cancel(self):
        (row,) = queue_all([make_manifest("bad", state={})])
        refuse_updates_to("cancelled")
        assert cancel_late([row.id], now=NOW) == 1
        row.refresh_from_db()
        assert (row.status, row.put_aside_at) == (QueueStatus.QUEUED, NOW)

    def test_starts_the_others_if_a_row_cannot_even_be_put_aside(self, caplog):
        queue_all([make_manifest("bad", state={}), *make_others(state={})])
        REFUSALS[0].begin("chainsched_metadata")
        refuse_updates_to("queued")
        assert len(start().execution_ids) == OTHERS
        assert "cannot be put aside, either" in caplog.text
        assert not start().has_more

    def test_raises_what_says_nothing_about_a_row(self, monkeypatch):
        queue_all(make_others(2, state={}))

        def fail(*_arguments, **_options):
            raise missing_column()

        monkeypatch.setattr("chainsched.flow.run.dispatch._create", fail)
        with pytest.raises(ProgrammingError):
            start()
        assert not WorkQueue.objects.aside().exists()


class KnowsAll:
    def pools(self, *, now):
        return [Pool(registry.names(), is_fed=True)]

    def submit(self, execution_ids):
        pass


def missing_column() -> Exception:
    class Cause(Exception):
        sqlstate = "42703"

    error = ProgrammingError("column is missing")
    error.__cause__ = Cause()
    return error


def refuse_updates_to(status: str) -> None:
    """Let no row of the manifest that is bad be written with this status."""
    if connection.vendor == "postgresql":
        sql(
            "CREATE FUNCTION refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF NEW.manifest_external_id = 'bad' AND NEW.status = '{status}' THEN RAISE 'never'; END IF; "
            "RETURN NEW; END $$"
        )
        sql(
            "CREATE TRIGGER refuse_update BEFORE UPDATE ON chainsched_workqueue "
            "FOR EACH ROW EXECUTE FUNCTION refuse_update()"
        )
    else:
        sql(
            "CREATE TRIGGER refuse_update BEFORE UPDATE ON chainsched_workqueue "
            f"WHEN NEW.manifest_external_id = 'bad' AND NEW.status = '{status}' "
            "BEGIN SELECT RAISE(ABORT, 'never'); END"
        )


class TestTryingAgain:
    """What lets a row that was put aside be tried again, with a cause that is gone."""

    @pytest.fixture
    def manifest(self, bench):
        declare()
        REFUSALS[0].begin("chainsched_workqueue")
        bench.manage()
        REFUSALS[0].end("chainsched_workqueue")
        assert ManifestState.objects.aside().count() == 1
        return api.find("bad")

    @pytest.fixture
    def row(self, bench):
        declare()
        bench.manage()
        REFUSALS[0].begin("chainsched_metadata")
        bench.dispatch()
        REFUSALS[0].end("chainsched_metadata")
        return WorkQueue.objects.aside().get()

    def test_the_reconciler_arms_the_manifest_for_the_occurrence_that_it_missed(self, bench, manifest):
        missed = bench.now
        bench.travel_to(missed + INTERVAL - timedelta(seconds=1))
        reconcile(now=bench.now)
        assert bench.manage() == 0
        bench.travel_to(missed + INTERVAL)
        assert reconcile(now=bench.now) == 0
        assert bench.manage() == 1
        assert WorkQueue.objects.get().scheduled_for == missed
        assert notes() == ""

    def test_the_reconciler_puts_the_row_back_in_line(self, bench, row):
        missed = bench.now
        bench.travel_to(missed + INTERVAL - timedelta(seconds=1))
        reconcile(now=bench.now)
        assert bench.dispatch() == 0
        bench.travel_to(missed + INTERVAL)
        reconcile(now=bench.now)
        assert bench.dispatch() == 1

    def test_one_that_is_refused_again_waits_for_the_next_interval(self, bench, manifest):
        REFUSALS[0].begin("chainsched_workqueue")
        for _ in range(2):
            bench.travel_to(bench.now + INTERVAL)
            reconcile(now=bench.now)
            bench.manage()
            assert ManifestState.objects.aside().get().put_aside_at == bench.now

    @pytest.mark.parametrize("verb", ["trigger", "disable", "enable", "schedule", "fsck"])
    def test_what_changes_the_manifest_lifts_it(self, bench, manifest, verb):
        if verb == "enable":
            Manifest.objects.update(is_enabled=False)
        if verb == "schedule":
            declare(schedule=Every.hours(2))
        elif verb == "fsck":
            (found,) = run_fsck(now=bench.now, repair=True)
            assert (found.check, found.is_repaired) == ("put_aside", True)
        else:
            getattr(manifest, verb)()
        assert not ManifestState.objects.aside().exists()
        assert explained("bad").code != "put_aside"

    @pytest.mark.parametrize("verb", ["trigger", "bring_forward", "fsck", "priority", "workflow"])
    def test_what_changes_the_row_puts_it_back_in_line(self, bench, row, verb):
        if verb == "trigger":
            api.find("bad").trigger()
        elif verb == "bring_forward":
            row.bring_forward()
        elif verb == "fsck":
            (found,) = run_fsck(now=bench.now, repair=True)
            assert (found.check, found.is_repaired) == ("put_aside", True)
        else:
            declare(**CHANGED[verb])
        assert bench.dispatch() == 1

    def test_cancelling_the_row_ends_it(self, row):
        assert row.cancel(reason="no use")
        assert not WorkQueue.objects.aside().exists()
        assert notes() == ""

    def test_the_command_tells_it(self, row):
        out = StringIO()
        call_command("chainsched", "explain", "bad", stdout=out)
        assert "not this one" in out.getvalue()


def declare(**options):
    declared = {"workflow": workflows.copy, "input": workflows.Slice("t"), "schedule": Every.hours(1), **options}
    Manifest.objects.schedule(
        declared.pop("workflow"), "bad", declared.pop("input"), declared.pop("schedule"), group="g", **declared
    )


CHANGED = {
    "priority": {"priority": 7},
    "workflow": {"workflow": workflows.copy_async},
}
