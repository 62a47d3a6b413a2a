"""When the jobs of the example run, and after which others. The intervals are short, so that something happens."""

from chainsched import Cron, Every, ManifestItem, schedules
from example_project.etl.workflows import (
    ROWS_PER_REGION,
    Account,
    Export,
    Region,
    Repair,
    TableSlice,
    add_up,
    check_sources,
    close_books,
    export_to_partner,
    extract,
    load,
    open_books,
    repair,
    report,
    sync_table,
    transform,
)

# A chain for each region. The repair is dormant: it runs only when an extract finds rows for it.
for name in ROWS_PER_REGION:
    (
        schedules.schedule(extract, f"etl-{name}-extract", Region(name), Every.seconds(5), group=f"etl-{name}")
        .then_include(transform, f"etl-{name}-transform", Region(name), group=f"etl-{name}")
        .then_include(load, f"etl-{name}-load", Region(name), group=f"etl-{name}")
        .include(repair, f"etl-{name}-repair", Repair(name, rows=[]), group=f"etl-{name}", dormant=True)
    )

# Twelve slices of three tables, at most four of them at once.
schedules.schedule_many(
    sync_table,
    "sync",
    [
        ManifestItem(f"{table}-{part}", TableSlice(table, first_id=part * 1000, last_id=part * 1000 + 999))
        for table in ("customers", "invoices", "orders")
        for part in range(4)
    ],
    Every.seconds(10),
    group_max_active_jobs=4,
)

# A join: the books are closed once in each run, after both accounts have been added up.
(
    schedules.schedule(open_books, "books", None, Every.seconds(5), group="books")
    .include(add_up, "books-invoices", Account("invoices"), group="books")
    .include(add_up, "books-orders", Account("orders"), group="books")
    .include(close_books, "books-close", depends_on=["books-invoices", "books-orders"], group="books")
)

# Six fields: the seconds come first.
schedules.schedule(report, "report", None, Cron.expression("*/10 * * * * *"))

schedules.schedule(check_sources, "check-sources", None, Every.seconds(7))

# It fails, is tried once more after a second, fails again, and then waits in a dead letter for somebody's decision.
schedules.schedule(
    export_to_partner, "export-to-partner", Export("partner.example"), Every.seconds(5), max_retries=2, retry_delay=1
)
