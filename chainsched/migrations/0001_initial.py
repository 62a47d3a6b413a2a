"""All tables, their constraints and indexes, and the guard of the audit trail."""

import chainsched.db.fields
import chainsched.models.model_methods
import django.core.validators
import django.db.models.deletion
import django.db.models.expressions
import uuid
from django.conf import settings
from django.db import migrations, models

from chainsched.migrations._operations import InstallGuard


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='GraphRun',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('head_external_id', models.CharField(blank=True, default='', help_text="The head's name, kept when the manifest is deleted.", max_length=200)),
                ('version', models.BigIntegerField(default=0, help_text='The version of the graph at its birth.')),
                ('scheduled_for', models.DateTimeField(help_text='When its head was due.')),
                ('created_at', models.DateTimeField(help_text='When it was born.')),
                ('closed_at', models.DateTimeField(blank=True, help_text='When nothing of it was open any more.', null=True)),
                ('cancelled_at', models.DateTimeField(blank=True, help_text='When it was cancelled.', null=True)),
                ('cancel_reason', models.CharField(blank=True, default='', help_text='Why it was cancelled.', max_length=200)),
            ],
            options={
                'verbose_name': 'run',
                'get_latest_by': 'id',
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
            bases=(chainsched.models.model_methods.RunActions, models.Model),
        ),
        migrations.CreateModel(
            name='Manifest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('external_id', models.CharField(help_text='Its unique name in code and in the admin.', max_length=200, unique=True)),
                ('workflow', models.CharField(help_text='The registered name of the workflow that it runs.', max_length=200)),
                ('input', models.JSONField(blank=True, help_text="The input of the workflow; must fit the workflow's input type.", null=True)),
                ('schedule_type', models.CharField(choices=[('on_demand', 'On demand'), ('cron', 'Cron'), ('interval', 'Interval'), ('once', 'Once'), ('dependent', 'Dependent'), ('dormant_dependent', 'Dormant dependent')], default='on_demand', help_text='How its runs come about.', max_length=20)),
                ('cron_expression', models.CharField(blank=True, default='', help_text='For cron: 5 fields, or 6 with the seconds first.', max_length=200)),
                ('timezone', models.CharField(blank=True, default='', help_text='The time zone of its schedule. Default: TIME_ZONE.', max_length=64)),
                ('interval_seconds', models.PositiveBigIntegerField(blank=True, help_text='For intervals: seconds between runs.', null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('once_at', models.DateTimeField(blank=True, help_text='For once: the time of the run.', null=True)),
                ('jitter_seconds', models.PositiveIntegerField(default=0, help_text='A run may begin up to this many seconds later, to spread the load.')),
                ('exclusions', models.JSONField(blank=True, default=list, help_text='Days and hours in which it does not run.')),
                ('misfire_policy', models.CharField(blank=True, choices=[('run_once', 'Run once'), ('skip', 'Skip')], default='', help_text='Whether a late run starts or is skipped. Default: MISFIRE_POLICY.', max_length=10)),
                ('misfire_threshold_seconds', models.PositiveIntegerField(blank=True, help_text='Up to how late a run counts as on time. Default: MISFIRE_THRESHOLD.', null=True)),
                ('run_condition', models.PositiveSmallIntegerField(choices=[(0, 'None'), (1, 'Success'), (2, 'Failure'), (3, 'Completion')], default=0, help_text='Which outcome of the parent it runs for; only for dependents.')),
                ('is_join', models.BooleanField(default=False, help_text='Waits in each run for several manifests: for its parents, or as a fan-in.')),
                ('fan_in', models.CharField(blank=True, choices=[('', 'None'), ('siblings', 'Siblings'), ('tree', 'Tree')], default='', help_text='A fan-in over the other children of its parent, or over all that ends below its parent.', max_length=10)),
                ('at_least', models.PositiveIntegerField(blank=True, help_text='For joins: how many have to arrive. Default: all; 0 for a fan-in.', null=True)),
                ('at_least_percent', models.PositiveSmallIntegerField(blank=True, help_text='For joins: how many of 100 have to arrive, rounded up.', null=True)),
                ('deadline_seconds', models.PositiveIntegerField(blank=True, help_text='For joins: seconds after the start of a run when it decides by what has arrived.', null=True)),
                ('is_eager', models.BooleanField(default=False, help_text='For joins: runs as soon as enough has arrived, while the rest is under way.')),
                ('runs_again_on_late', models.BooleanField(default=False, help_text='For joins: runs again when something arrives after it has run.')),
                ('depth', models.PositiveSmallIntegerField(default=0, help_text='The number of manifests above it, on the longest way up.')),
                ('max_retries', models.PositiveIntegerField(blank=True, help_text='Failures before it is dead-lettered. Default: MAX_RETRIES.', null=True)),
                ('retry_delay_seconds', models.PositiveIntegerField(blank=True, help_text='Seconds before the first retry. Default: RETRY_DELAY.', null=True)),
                ('retry_multiplier', models.FloatField(blank=True, help_text='Factor between the delays of successive retries. Default: RETRY_MULTIPLIER.', null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('max_retry_delay_seconds', models.PositiveIntegerField(blank=True, help_text='The longest delay before a retry, in seconds. Default: MAX_RETRY_DELAY.', null=True)),
                ('timeout_seconds', models.PositiveIntegerField(blank=True, help_text='Longest run time in seconds. Default: JOB_TIMEOUT.', null=True)),
                ('priority', models.PositiveSmallIntegerField(blank=True, help_text="0 to 31; higher is dispatched first. Default: the group's priority.", null=True, validators=[django.core.validators.MaxValueValidator(31)])),
                ('queue', models.CharField(blank=True, db_default='', default='', help_text="The queue that its jobs wait in. Default: its workflow's, else the group's, else 'default'.", max_length=100)),
                ('is_enabled', models.BooleanField(default=True, help_text='While off, it runs only when triggered by hand.')),
                ('owner', models.CharField(blank=True, default='', help_text='The project that declared it.', max_length=100)),
                ('batch', models.CharField(blank=True, default='', help_text='The named batch it is a member of.', max_length=200)),
                ('is_declared', models.BooleanField(default=False, help_text='Declared in code, not created at run time.')),
                ('retired_at', models.DateTimeField(blank=True, help_text='When its declaration disappeared.', null=True)),
                ('is_one_time', models.BooleanField(default=False, help_text='Runs for one outcome of its parent and is then done.')),
                ('done_at', models.DateTimeField(blank=True, help_text='When a one-time manifest ran.', null=True)),
                ('depends_on', models.ForeignKey(blank=True, help_text='Its parent: it runs after outcomes of this manifest. Empty for a join of several parents.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='dependents', to='chainsched.manifest')),
            ],
            options={
                'ordering': ('external_id',),
                'permissions': (('trigger_manifest', 'Can trigger manifests and groups, run executions again, bring queue rows forward'), ('activate_manifest', 'Can activate dormant manifests'), ('switch_manifest', 'Can enable and disable manifests and groups'), ('cancel_manifest', 'Can cancel manifests, groups, executions, trees and queue rows')),
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
            bases=(chainsched.models.model_methods.ManifestActions, models.Model),
        ),
        migrations.CreateModel(
            name='NamedLock',
            fields=[
                ('name', models.CharField(help_text='The purpose of the lock.', max_length=40, primary_key=True, serialize=False)),
                ('turns', models.JSONField(blank=True, default=dict, help_text='For dispatch: the turn that fairness has reached at each priority.')),
                ('version', models.BigIntegerField(db_default=0, default=0, help_text='For the graph: how often its edges were changed.')),
                ('turned_at', models.DateTimeField(blank=True, help_text='When the last turn was taken.', null=True)),
            ],
            options={
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='BulkDecision',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('verb', models.CharField(choices=[('retry', 'Retry'), ('acknowledge', 'Acknowledge')], help_text='The action for each letter.', max_length=12)),
                ('status', models.CharField(choices=[('waiting', 'Waiting'), ('under_way', 'Under way'), ('done', 'Done'), ('cancelled', 'Cancelled')], default='waiting', help_text='Its current state.', max_length=10)),
                ('note', models.TextField(blank=True, default='', help_text="The user's note; copied to each letter.")),
                ('selection', models.TextField(blank=True, default='', help_text='The filters of the list that it was made from.')),
                ('total', models.PositiveIntegerField(help_text='Number of chosen letters.')),
                ('done_count', models.PositiveIntegerField(default=0, help_text='Number of letters it took effect on.')),
                ('skipped_count', models.PositiveIntegerField(default=0, help_text='Number of skipped letters; each says why.')),
                ('created_at', models.DateTimeField(help_text='When it was asked for.')),
                ('started_at', models.DateTimeField(blank=True, help_text='When its first letter was processed.', null=True)),
                ('finished_at', models.DateTimeField(blank=True, help_text='When it was done or cancelled.', null=True)),
                ('cancel_reason', models.CharField(blank=True, default='', help_text='Why it was cancelled.', max_length=200)),
                ('asked_by', models.ForeignKey(blank=True, db_constraint=False, help_text='The user who asked for it; empty if the account was deleted.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
            bases=(chainsched.models.model_methods.BulkDecisionActions, models.Model),
        ),
        migrations.CreateModel(
            name='DeadLetter',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('status', models.CharField(choices=[('awaiting_intervention', 'Awaiting intervention'), ('retried', 'Retried'), ('acknowledged', 'Acknowledged')], default='awaiting_intervention', help_text='Whether it awaits a decision, and the decision if not.', max_length=22)),
                ('reason', models.TextField(help_text='Why it was dead-lettered.')),
                ('failure_count', models.PositiveIntegerField(default=0, help_text='Number of failed attempts.')),
                ('fingerprint', models.CharField(blank=True, default='', help_text='The same for failures that look the same.', max_length=64)),
                ('dead_lettered_at', models.DateTimeField(help_text='When it was dead-lettered.')),
                ('resolved_at', models.DateTimeField(blank=True, help_text='When the decision was made.', null=True)),
                ('note', models.TextField(blank=True, default='', help_text="The user's note on the decision.")),
                ('resolved_by', models.ForeignKey(blank=True, db_constraint=False, help_text='The user who decided; empty for the system.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('manifest', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The manifest that failed; empty for a job without one.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='dead_letters', to='chainsched.manifest')),
            ],
            options={
                'permissions': (('retry_deadletter', 'Can retry dead letters'), ('acknowledge_deadletter', 'Can acknowledge dead letters')),
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
            bases=(chainsched.models.model_methods.DeadLetterActions, models.Model),
        ),
        migrations.CreateModel(
            name='BulkDecisionItem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('outcome', models.CharField(choices=[('waiting', 'Waiting'), ('done', 'Done'), ('skipped', 'Skipped')], default='waiting', help_text='Its outcome.', max_length=8)),
                ('explanation', models.CharField(blank=True, default='', help_text='The outcome in words.', max_length=200)),
                ('decided_at', models.DateTimeField(blank=True, help_text='When it got its outcome.', null=True)),
                ('bulk_decision', models.ForeignKey(db_index=False, help_text='The bulk decision.', on_delete=django.db.models.deletion.CASCADE, related_name='items', to='chainsched.bulkdecision')),
                ('dead_letter', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The dead letter.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='chainsched.deadletter')),
            ],
            options={
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='DueNote',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('child_id', models.BigIntegerField(help_text='The manifest that is due.')),
                ('run_id', models.BigIntegerField(blank=True, help_text='The newest run that it is due in.', null=True)),
                ('parent_execution_id', models.BigIntegerField(default=0, help_text='The execution that it is due for.')),
                ('tokens', chainsched.db.fields.IdList(blank=True, default=list, editable=False, help_text='The tokens of the item: one or more in each of its runs.')),
                ('is_again', models.BooleanField(default=False, help_text='Whether an earlier item may have ended in its run.')),
            ],
            options={
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
                'indexes': [models.Index(fields=['child_id'], name='chainsched_duenote_child')],
            },
        ),
        migrations.CreateModel(
            name='HourlyStatistic',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hour', models.DateTimeField(help_text='The beginning of the hour in which they ended, in UTC.')),
                ('group', models.BigIntegerField(help_text='The id of their group; 0 for none. The group may be gone.')),
                ('workflow', models.CharField(help_text='The workflow that they ran.', max_length=200)),
                ('state', models.CharField(choices=[('pending', 'Pending'), ('in_progress', 'In progress'), ('completed', 'Completed'), ('failed', 'Failed'), ('cancelled', 'Cancelled')], help_text='How they ended.', max_length=11)),
                ('executions', models.PositiveBigIntegerField(help_text='Number of executions, each attempt counted.')),
                ('seconds', models.FloatField(help_text='Their total run time.')),
                ('slowest_seconds', models.FloatField(help_text='The run time of the slowest of them.')),
                ('slowest_execution', models.BigIntegerField(help_text='The id of the slowest; its row may be gone.')),
                ('is_merged', models.BooleanField(default=False, help_text='Whether it is the one row of its kind that others are added to.')),
            ],
            options={
                'verbose_name_plural': 'hourly statistics',
                'default_permissions': (),
                'base_manager_name': 'objects',
                'indexes': [models.Index(fields=['hour'], name='chainsched_statistic_hour'), models.Index(condition=models.Q(('is_merged', True), _negated=True), fields=['id'], name='chainsched_statistic_appended')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('is_merged', True)), fields=('hour', 'group', 'workflow', 'state'), name='chainsched_statistic_one_merged'), models.CheckConstraint(condition=models.Q(('state__in', ['completed', 'failed', 'cancelled'])), name='chainsched_statistic_terminal_state')],
            },
        ),
        migrations.CreateModel(
            name='JoinNote',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_id', models.BigIntegerField(help_text='The JoinState.')),
                ('open', models.IntegerField(default=0, help_text='Items opened, less items ended.')),
                ('arrived', models.IntegerField(default=0, help_text='Edges that matched.')),
                ('gated', models.IntegerField(default=0, help_text='Gates that matched.')),
                ('newest', models.BigIntegerField(default=0, help_text='The newest execution that arrived; 0 for none.')),
            ],
            options={
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
                'indexes': [models.Index(fields=['state_id'], name='chainsched_joinnote_state')],
            },
        ),
        migrations.CreateModel(
            name='JoinState',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('join_id', models.BigIntegerField(help_text="The manifest that waits; 0 for the run's own end.")),
                ('open', models.IntegerField(default=0, help_text='How many open items, and undecided joins, lead to it.')),
                ('arrived', models.IntegerField(default=0, help_text='How many of its edges have matched.')),
                ('is_gated', models.BooleanField(default=False, help_text='Whether the gate of a fan-in has matched.')),
                ('newest', models.BigIntegerField(default=0, help_text='The newest execution that arrived; 0 for none.')),
                ('judged', models.IntegerField(default=0, help_text='How many arrivals the last decision knew of.')),
                ('firings', models.IntegerField(default=0, help_text='How often it made its join run.')),
                ('outcome', models.CharField(choices=[('waiting', 'Waiting'), ('fired', 'Fired'), ('short', 'Short'), ('cancelled', 'Cancelled'), ('closed', 'Closed')], default='waiting', help_text='Whether it waits, and the decision if not.', max_length=10)),
                ('decided_at', models.DateTimeField(blank=True, help_text='When it was first decided.', null=True)),
                ('deadline_at', models.DateTimeField(blank=True, help_text='When it is decided by what has arrived.', null=True)),
                ('tokens', chainsched.db.fields.IdList(blank=True, default=list, editable=False, help_text='The rows that it holds open while it waits.')),
                ('run', models.ForeignKey(db_constraint=False, db_index=False, help_text='The run.', on_delete=django.db.models.deletion.DO_NOTHING, related_name='join_states', to='chainsched.graphrun')),
            ],
            options={
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='ManifestState',
            fields=[
                ('manifest', models.OneToOneField(help_text='The manifest.', on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='state', serialize=False, to='chainsched.manifest')),
                ('next_run_at', models.DateTimeField(blank=True, help_text='The alarm: when the manager evaluates it. Empty while it has open work.', null=True)),
                ('occurrence_at', models.DateTimeField(blank=True, help_text="The time of its schedule's next run, without trigger requests.", null=True)),
                ('trigger_at', models.DateTimeField(blank=True, help_text='When the waiting trigger request runs it; empty if there is none.', null=True)),
                ('trigger_input', models.JSONField(blank=True, help_text='The input of that trigger request, if it has its own.', null=True)),
                ('trigger_causation_id', models.CharField(blank=True, db_default='', default='', help_text='The direct cause of that trigger request: a run, a message.', max_length=200)),
                ('trigger_root_correlation_id', models.CharField(blank=True, db_default='', default='', help_text='The correlation id at the root of that cause.', max_length=200)),
                ('due_execution', models.BigIntegerField(default=0, help_text='The newest execution of its parent that matched its condition; 0 for none.')),
                ('covered_execution', models.BigIntegerField(default=0, help_text='The execution of its parent that it was last queued for; 0 for none.')),
                ('due_run', models.BigIntegerField(blank=True, help_text='The newest run that it is due in; empty if it is due in none.', null=True)),
                ('due_tokens', chainsched.db.fields.IdList(blank=True, default=list, editable=False, help_text='The tokens of the item that is due: one or more in each of its runs.')),
                ('due_has_tokens', models.BooleanField(db_default=False, default=False, help_text='Whether joins wait for the item that is due.')),
                ('due_is_again', models.BooleanField(db_default=False, default=False, help_text='Whether an earlier item may have ended in a run of the due one.')),
                ('put_aside_at', models.DateTimeField(blank=True, help_text='When it was put aside because it could not be queued; empty otherwise.', null=True)),
                ('put_aside_reason', models.CharField(blank=True, db_default='', default='', help_text='Why it could not be queued.', max_length=500)),
                ('consecutive_failures', models.PositiveIntegerField(default=0, help_text='Failed attempts since the last success or resolution.')),
                ('last_successful_run', models.DateTimeField(blank=True, help_text='When it last succeeded.', null=True)),
                ('last_finished_run', models.DateTimeField(blank=True, help_text='When it last succeeded, was cancelled, or had its dead letter resolved.', null=True)),
                ('succeeded_execution', models.BigIntegerField(default=0, help_text='Its newest execution that succeeded; 0 for none.')),
                ('dead_lettered_execution', models.BigIntegerField(default=0, help_text='Its newest execution that ended in a dead letter; 0 for none.')),
                ('finished_execution', models.BigIntegerField(default=0, help_text='Its newest execution that counts as an outcome of any kind; 0 for none.')),
            ],
            options={
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
        ),
        migrations.AddField(
            model_name='graphrun',
            name='head',
            field=models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The manifest that it began with.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='graph_runs', to='chainsched.manifest'),
        ),
        migrations.CreateModel(
            name='Dependency',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('condition', models.PositiveSmallIntegerField(choices=[(0, 'None'), (1, 'Success'), (2, 'Failure'), (3, 'Completion')], help_text='Which outcome of the parent counts.')),
                ('is_gate', models.BooleanField(default=False, help_text='A fan-in runs only in runs in which this edge matched; it is no arrival.')),
                ('is_derived', models.BooleanField(default=False, help_text='Follows from a fan-in; not declared by itself.')),
                ('since', models.BigIntegerField(default=0, help_text='The version of the graph that it belongs to from then on.')),
                ('child', models.ForeignKey(db_index=False, help_text='The manifest that runs after the parent.', on_delete=django.db.models.deletion.CASCADE, related_name='parent_edges', to='chainsched.manifest')),
                ('parent', models.ForeignKey(help_text='The manifest that runs before.', on_delete=django.db.models.deletion.CASCADE, related_name='child_edges', to='chainsched.manifest')),
            ],
            options={
                'verbose_name_plural': 'dependencies',
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='ManifestGroup',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='Its unique name in declarations.', max_length=200, unique=True)),
                ('max_active_jobs', models.PositiveIntegerField(blank=True, help_text='Most jobs that may be pending or running at once. Default: no limit of its own.', null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('priority', models.PositiveSmallIntegerField(default=0, help_text='0 to 31; higher is dispatched first. For manifests that state no priority of their own.', validators=[django.core.validators.MaxValueValidator(31)])),
                ('queue', models.CharField(blank=True, db_default='', default='', help_text='The queue that workers take its jobs from. For manifests that state no queue of their own.', max_length=100)),
                ('is_enabled', models.BooleanField(default=True, help_text='While off, nothing of the group is queued or dispatched.')),
            ],
            options={
                'ordering': ('name',),
                'permissions': (('limit_manifestgroup', 'Can change the limit and the priority of groups'),),
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
                'constraints': [models.CheckConstraint(condition=models.Q(('max_active_jobs__isnull', True), ('max_active_jobs__gte', 1), _connector='OR'), name='chainsched_group_limit_positive'), models.CheckConstraint(condition=models.Q(('priority__gte', 0), ('priority__lte', 31)), name='chainsched_group_priority_range')],
            },
            bases=(chainsched.models.model_methods.GroupActions, models.Model),
        ),
        migrations.AddField(
            model_name='manifest',
            name='group',
            field=models.ForeignKey(help_text='Its group, with a limit and a switch for all members.', on_delete=django.db.models.deletion.PROTECT, related_name='manifests', to='chainsched.manifestgroup'),
        ),
        migrations.CreateModel(
            name='Metadata',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('external_id', models.UUIDField(default=uuid.uuid4, help_text='Its public id, and the correlation id of everything it causes.', unique=True)),
                ('manifest_external_id', models.CharField(blank=True, default='', help_text="The manifest's name, kept when the manifest is deleted.", max_length=200)),
                ('workflow', models.CharField(help_text='The registered name of the workflow.', max_length=200)),
                ('source', models.CharField(choices=[('schedule', 'Schedule'), ('dependency', 'Dependency'), ('trigger', 'Trigger'), ('retry', 'Retry'), ('dead_letter', 'Dead letter'), ('activation', 'Activation'), ('task', 'Task')], help_text='The kind of its cause.', max_length=12)),
                ('state', models.CharField(choices=[('pending', 'Pending'), ('in_progress', 'In progress'), ('completed', 'Completed'), ('failed', 'Failed'), ('cancelled', 'Cancelled')], default='pending', help_text='Its current state.', max_length=12)),
                ('priority', models.PositiveSmallIntegerField(default=0, help_text='The priority it was dispatched with.')),
                ('queue', models.CharField(db_default='default', default='default', help_text='The queue it was taken from.', max_length=100)),
                ('attempt', models.PositiveIntegerField(default=1, help_text='Number of the attempt, counted from 1.')),
                ('claims', models.PositiveIntegerField(default=0, help_text='How often a process claimed it; more than once hints at a failing process.')),
                ('timeout_seconds', models.PositiveIntegerField(blank=True, help_text='Longest run time in seconds.', null=True)),
                ('input', models.JSONField(blank=True, help_text='The input of the workflow.', null=True)),
                ('output', models.JSONField(blank=True, help_text='The return value of the workflow.', null=True)),
                ('scheduled_for', models.DateTimeField(help_text='When it was due.')),
                ('created_at', models.DateTimeField(help_text='When it was dispatched.')),
                ('claimed_at', models.DateTimeField(blank=True, help_text='When a process claimed it.', null=True)),
                ('started_at', models.DateTimeField(blank=True, help_text="When the user's code began; until it ends, when it was taken.", null=True)),
                ('ended_at', models.DateTimeField(blank=True, help_text='When it ended; set exactly in terminal states.', null=True)),
                ('failure_type', models.CharField(blank=True, default='', help_text="The exception's class, or the engine's name for the failure.", max_length=200)),
                ('failure_reason', models.TextField(blank=True, default='', help_text='The reason of the failure in words.')),
                ('failure_traceback', models.TextField(blank=True, default='', help_text='The traceback of the failure.')),
                ('failure_fingerprint', models.CharField(blank=True, default='', help_text='The same for failures that look the same.', max_length=64)),
                ('cancel_requested', models.BooleanField(default=False, help_text='Whether it was asked to stop.')),
                ('cancel_reason', models.CharField(blank=True, db_default='', default='', help_text='Why it was asked to stop.', max_length=200)),
                ('progress', models.JSONField(blank=True, help_text='Progress reported by the job.', null=True)),
                ('tokens', chainsched.db.fields.IdList(blank=True, default=list, editable=False, help_text='Where joins, or the ends of runs, count it as open: one or more in each of its runs.')),
                ('has_tokens', models.BooleanField(db_default=False, default=False, help_text='Whether it is counted there; not while it is disabled.')),
                ('is_again', models.BooleanField(db_default=False, default=False, help_text='Whether an earlier item may have ended in one of its runs.')),
                ('is_tree_cancelled', models.BooleanField(db_default=False, default=False, help_text='Whether what it would lead to was cancelled with it.')),
                ('causation_id', models.CharField(blank=True, default='', help_text='Its direct cause.', max_length=200)),
                ('root_correlation_id', models.CharField(blank=True, default='', help_text='The correlation id at the root of its tree.', max_length=200)),
                ('group', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text="The group; it counts against the group's limit.", null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='executions', to='chainsched.manifestgroup')),
                ('manifest', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The manifest that ran; empty for a job without one.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='executions', to='chainsched.manifest')),
                ('parent_execution', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The execution that caused it.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='children', to='chainsched.metadata')),
                ('root_execution', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The first execution of its tree; empty for a root.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='descendants', to='chainsched.metadata')),
                ('run', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The run of the graph it is named after, the newest.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='chainsched.graphrun')),
            ],
            options={
                'verbose_name': 'execution',
                'permissions': (('view_payloads', 'Can see inputs, outputs, progress and tracebacks'),),
                'get_latest_by': 'id',
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
            bases=(chainsched.models.model_methods.ExecutionActions, models.Model),
        ),
        migrations.AddField(
            model_name='deadletter',
            name='execution',
            field=models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The last attempt.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='dead_letters', to='chainsched.metadata'),
        ),
        migrations.AddField(
            model_name='deadletter',
            name='retry_execution',
            field=models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The execution that the retry led to.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='chainsched.metadata'),
        ),
        migrations.CreateModel(
            name='Near',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('join_id', models.BigIntegerField(help_text='The join that it leads to; 0 for the end of the run.')),
                ('manifest', models.ForeignKey(db_index=False, help_text='The manifest.', on_delete=django.db.models.deletion.CASCADE, related_name='+', to='chainsched.manifest')),
            ],
            options={
                'verbose_name_plural': 'joins ahead',
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='Process',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('external_id', models.UUIDField(default=uuid.uuid4, help_text='Random for each start; host and pid may repeat.', unique=True)),
                ('kind', models.CharField(help_text='Scheduler or worker.', max_length=20)),
                ('host', models.CharField(help_text='The name of the host it runs on.', max_length=255)),
                ('pid', models.PositiveIntegerField(help_text='Its process id there.')),
                ('workflows', models.JSONField(default=list, help_text='The names of the workflows that it can run.')),
                ('queues', models.JSONField(blank=True, help_text='The queues that it takes jobs from; empty if it takes them from all.', null=True)),
                ('slots', models.PositiveIntegerField(blank=True, help_text='How many jobs it runs at once; empty if it states no number.', null=True)),
                ('turns', models.JSONField(blank=True, db_default=models.Value({}, models.JSONField()), default=dict, help_text='When each of its loops last took a turn.')),
                ('deaf_since', models.DateTimeField(blank=True, help_text='Since when it hears no notices of other processes; empty while it does.', null=True)),
                ('signals', models.JSONField(blank=True, db_default=models.Value({}, models.JSONField()), default=dict, help_text='How many of its signals wait for receivers, for how long, and how many were dropped.')),
                ('started_at', models.DateTimeField(help_text='When it started.')),
                ('heartbeat_at', models.DateTimeField(help_text='Its last heartbeat.')),
                ('stopped_at', models.DateTimeField(blank=True, help_text='When it stopped in an orderly way.', null=True)),
                ('lost_at', models.DateTimeField(blank=True, help_text='When another process declared it lost.', null=True)),
            ],
            options={
                'verbose_name_plural': 'processes',
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
                'indexes': [models.Index(condition=models.Q(('lost_at__isnull', True), ('stopped_at__isnull', True)), fields=['heartbeat_at'], name='chainsched_process_trusted')],
            },
        ),
        migrations.AddField(
            model_name='metadata',
            name='process',
            field=models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The process that runs or ran it.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='executions', to='chainsched.process'),
        ),
        migrations.CreateModel(
            name='TakenOver',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('run_id', models.BigIntegerField(help_text='The run.')),
                ('execution_id', models.BigIntegerField(help_text='The execution that stands for it.')),
            ],
            options={
                'verbose_name_plural': 'runs taken over',
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
                'indexes': [models.Index(fields=['execution_id'], name='chainsched_takenover_execution')],
                'constraints': [models.UniqueConstraint(fields=('run_id', 'execution_id'), name='chainsched_takenover_once')],
            },
        ),
        migrations.CreateModel(
            name='WorkQueue',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('manifest_external_id', models.CharField(blank=True, default='', help_text="The manifest's name, kept when the manifest is deleted.", max_length=200)),
                ('workflow', models.CharField(help_text='The registered name of the workflow.', max_length=200)),
                ('input', models.JSONField(blank=True, help_text='The input of the workflow.', null=True)),
                ('priority', models.PositiveSmallIntegerField(help_text='0 to 31, the boost included; higher goes first.', validators=[django.core.validators.MaxValueValidator(31)])),
                ('queue', models.CharField(db_default='default', default='default', help_text='The queue that workers take it from.', max_length=100)),
                ('turn', models.BigIntegerField(help_text='Its place among rows of one priority, so that groups take turns.')),
                ('status', models.CharField(choices=[('queued', 'Queued'), ('dispatched', 'Dispatched'), ('cancelled', 'Cancelled')], default='queued', help_text='Its current state.', max_length=10)),
                ('not_before', models.DateTimeField(blank=True, help_text='It is not dispatched before this time.', null=True)),
                ('scheduled_for', models.DateTimeField(help_text='When it was due.')),
                ('attempt', models.PositiveIntegerField(default=1, help_text='Number of the attempt, counted from 1.')),
                ('claims', models.PositiveIntegerField(db_default=0, default=0, help_text='How often processes claimed it before it came back to the queue.')),
                ('max_retries', models.PositiveIntegerField(blank=True, help_text='For a job without a manifest: failures before it is dead-lettered.', null=True)),
                ('timeout_seconds', models.PositiveIntegerField(blank=True, help_text='For a job without a manifest: longest run time in seconds.', null=True)),
                ('retry_delay_seconds', models.PositiveIntegerField(blank=True, help_text='For a job without a manifest: seconds before the first retry.', null=True)),
                ('retry_multiplier', models.FloatField(blank=True, help_text='For a job without a manifest: factor between the delays of retries.', null=True)),
                ('max_retry_delay_seconds', models.PositiveIntegerField(blank=True, help_text='For a job without a manifest: longest delay before a retry.', null=True)),
                ('source', models.CharField(choices=[('schedule', 'Schedule'), ('dependency', 'Dependency'), ('trigger', 'Trigger'), ('retry', 'Retry'), ('dead_letter', 'Dead letter'), ('activation', 'Activation'), ('task', 'Task')], help_text='The kind of its cause.', max_length=12)),
                ('causation_id', models.CharField(blank=True, default='', help_text='Its direct cause.', max_length=200)),
                ('root_correlation_id', models.CharField(blank=True, default='', help_text='The correlation id at the root of its tree.', max_length=200)),
                ('tokens', chainsched.db.fields.IdList(blank=True, default=list, editable=False, help_text='Where joins, or the ends of runs, count it as open: one or more in each of its runs.')),
                ('has_tokens', models.BooleanField(db_default=False, default=False, help_text='Whether it is counted there; not while it is disabled.')),
                ('is_again', models.BooleanField(db_default=False, default=False, help_text='Whether an earlier item may have ended in one of its runs.')),
                ('put_aside_at', models.DateTimeField(blank=True, help_text='When it was put aside because it could not be dispatched; empty otherwise.', null=True)),
                ('put_aside_reason', models.CharField(blank=True, db_default='', default='', help_text='Why it could not be dispatched.', max_length=500)),
                ('parked_for', models.CharField(blank=True, choices=[('time', 'Time'), ('disabled', 'Disabled'), ('no_worker', 'No worker'), ('group_full', 'Group full')], db_default='', default='', help_text='Why it is out of the line for now; empty otherwise.', max_length=10)),
                ('cancel_reason', models.CharField(blank=True, default='', help_text='Why it was cancelled.', max_length=200)),
                ('created_at', models.DateTimeField(help_text='When it was queued.')),
                ('dead_letter', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The dead letter that it retries.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='chainsched.deadletter')),
                ('execution', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The execution it became.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='chainsched.metadata')),
                ('group', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text="The group; its job counts against the group's limit.", null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='queue_rows', to='chainsched.manifestgroup')),
                ('manifest', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The manifest to run; empty for a job without one.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='queue_rows', to='chainsched.manifest')),
                ('parent_execution', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The execution that caused it.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='chainsched.metadata')),
                ('root_execution', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The first execution of the tree it belongs to.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='chainsched.metadata')),
                ('run', models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The run of the graph it is named after, the newest.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='chainsched.graphrun')),
            ],
            options={
                'verbose_name': 'queue row',
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
            bases=(chainsched.models.model_methods.QueueActions, models.Model),
        ),
        migrations.AddField(
            model_name='metadata',
            name='work_queue',
            field=models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='The queue row it was dispatched from.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='chainsched.workqueue'),
        ),
        migrations.AddIndex(
            model_name='bulkdecision',
            index=models.Index(condition=models.Q(('status__in', ['waiting', 'under_way'])), fields=['id'], name='chainsched_bulk_open'),
        ),
        migrations.AddIndex(
            model_name='bulkdecision',
            index=models.Index(condition=models.Q(('status__in', ['waiting', 'under_way']), _negated=True), fields=['finished_at'], name='chainsched_bulk_finished'),
        ),
        migrations.AddConstraint(
            model_name='bulkdecision',
            constraint=models.CheckConstraint(condition=models.Q(('verb__in', ['retry', 'acknowledge'])), name='chainsched_bulk_verb'),
        ),
        migrations.AddConstraint(
            model_name='bulkdecision',
            constraint=models.CheckConstraint(condition=models.Q(('status__in', ['waiting', 'under_way', 'done', 'cancelled'])), name='chainsched_bulk_status'),
        ),
        migrations.AddConstraint(
            model_name='bulkdecision',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('status__in', ['waiting', 'under_way']), ('finished_at__isnull', True)), models.Q(models.Q(('status__in', ['waiting', 'under_way']), _negated=True), ('finished_at__isnull', False)), _connector='OR'), name='chainsched_bulk_finished_when_closed'),
        ),
        migrations.AddConstraint(
            model_name='bulkdecision',
            constraint=models.CheckConstraint(condition=models.Q(('total__gte', django.db.models.expressions.CombinedExpression(models.F('done_count'), '+', models.F('skipped_count')))), name='chainsched_bulk_counts'),
        ),
        migrations.AddIndex(
            model_name='bulkdecisionitem',
            index=models.Index(fields=['bulk_decision', 'outcome', 'id'], name='chainsched_bulk_item_next'),
        ),
        migrations.AddConstraint(
            model_name='bulkdecisionitem',
            constraint=models.UniqueConstraint(fields=('bulk_decision', 'dead_letter'), name='chainsched_bulk_item_once'),
        ),
        migrations.AddConstraint(
            model_name='bulkdecisionitem',
            constraint=models.CheckConstraint(condition=models.Q(('outcome__in', ['waiting', 'done', 'skipped'])), name='chainsched_bulk_item_outcome'),
        ),
        migrations.AddConstraint(
            model_name='bulkdecisionitem',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('decided_at__isnull', True), ('outcome', 'waiting')), models.Q(models.Q(('outcome', 'waiting'), _negated=True), ('decided_at__isnull', False)), _connector='OR'), name='chainsched_bulk_item_decided'),
        ),
        migrations.AddIndex(
            model_name='joinstate',
            index=models.Index(condition=models.Q(('outcome', 'waiting'), ('deadline_at__isnull', False)), fields=['deadline_at'], name='chainsched_joinstate_deadline'),
        ),
        migrations.AddIndex(
            model_name='joinstate',
            index=models.Index(fields=['join_id', 'id'], name='chainsched_joinstate_join'),
        ),
        migrations.AddConstraint(
            model_name='joinstate',
            constraint=models.UniqueConstraint(fields=('run', 'join_id'), name='chainsched_joinstate_once'),
        ),
        migrations.AddConstraint(
            model_name='joinstate',
            constraint=models.CheckConstraint(condition=models.Q(('outcome__in', ['waiting', 'fired', 'short', 'cancelled', 'closed'])), name='chainsched_joinstate_outcome'),
        ),
        migrations.AddConstraint(
            model_name='joinstate',
            constraint=models.CheckConstraint(condition=models.Q(('open__gte', 0)), name='chainsched_joinstate_open'),
        ),
        migrations.AddIndex(
            model_name='manifeststate',
            index=models.Index(condition=models.Q(('next_run_at__isnull', False)), fields=['next_run_at'], name='chainsched_state_alarm'),
        ),
        migrations.AddIndex(
            model_name='manifeststate',
            index=models.Index(condition=models.Q(('put_aside_at__isnull', False)), fields=['put_aside_at'], name='chainsched_state_aside'),
        ),
        migrations.AddIndex(
            model_name='manifeststate',
            index=models.Index(condition=models.Q(('due_run__isnull', False)), fields=['due_run'], name='chainsched_state_due_run'),
        ),
        migrations.AddIndex(
            model_name='manifeststate',
            index=models.Index(models.OrderBy(models.F('consecutive_failures'), descending=True), condition=models.Q(('consecutive_failures__gt', 0)), name='chainsched_state_worst'),
        ),
        migrations.AddIndex(
            model_name='manifeststate',
            index=models.Index(condition=models.Q(('consecutive_failures__gt', 0)), fields=['manifest'], name='chainsched_state_failing'),
        ),
        migrations.AddConstraint(
            model_name='manifeststate',
            constraint=models.CheckConstraint(condition=models.Q(('due_execution__gte', models.F('covered_execution'))), name='chainsched_state_due_not_behind'),
        ),
        migrations.AddIndex(
            model_name='graphrun',
            index=models.Index(condition=models.Q(('closed_at__isnull', True)), fields=['head', 'id'], name='chainsched_run_open'),
        ),
        migrations.AddIndex(
            model_name='graphrun',
            index=models.Index(fields=['head', 'id'], name='chainsched_run_head'),
        ),
        migrations.AddIndex(
            model_name='graphrun',
            index=models.Index(condition=models.Q(('closed_at__isnull', True), _negated=True), fields=['closed_at'], name='chainsched_run_closed'),
        ),
        migrations.AddConstraint(
            model_name='dependency',
            constraint=models.UniqueConstraint(fields=('child', 'parent'), name='chainsched_dependency_once'),
        ),
        migrations.AddConstraint(
            model_name='dependency',
            constraint=models.CheckConstraint(condition=models.Q(('condition__gte', 1), ('condition__lte', 3)), name='chainsched_dependency_condition'),
        ),
        migrations.AddConstraint(
            model_name='dependency',
            constraint=models.CheckConstraint(condition=models.Q(('child', models.F('parent')), _negated=True), name='chainsched_dependency_no_loop'),
        ),
        migrations.AddIndex(
            model_name='manifest',
            index=models.Index(fields=['owner', 'batch'], name='chainsched_manifest_batch'),
        ),
        migrations.AddIndex(
            model_name='manifest',
            index=models.Index(fields=['workflow', 'external_id'], name='chainsched_manifest_workflow'),
        ),
        migrations.AddIndex(
            model_name='manifest',
            index=models.Index(fields=['schedule_type', 'external_id'], name='chainsched_manifest_schedule'),
        ),
        migrations.AddIndex(
            model_name='manifest',
            index=models.Index(condition=models.Q(('is_enabled', False)), fields=['external_id'], name='chainsched_manifest_disabled'),
        ),
        migrations.AddIndex(
            model_name='manifest',
            index=models.Index(condition=models.Q(('retired_at__isnull', False)), fields=['external_id'], name='chainsched_manifest_retired'),
        ),
        migrations.AddIndex(
            model_name='manifest',
            index=models.Index(condition=models.Q(('done_at__isnull', False)), fields=['external_id'], name='chainsched_manifest_done'),
        ),
        migrations.AddConstraint(
            model_name='manifest',
            constraint=models.CheckConstraint(condition=models.Q(('schedule_type__in', ['on_demand', 'cron', 'interval', 'once', 'dependent', 'dormant_dependent'])), name='chainsched_manifest_schedule_type'),
        ),
        migrations.AddConstraint(
            model_name='manifest',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(models.Q(('cron_expression', '')), ('interval_seconds__isnull', True), ('once_at__isnull', True), ('schedule_type', 'on_demand')), models.Q(models.Q(('cron_expression', ''), _negated=True), ('interval_seconds__isnull', True), ('once_at__isnull', True), ('schedule_type', 'cron')), models.Q(models.Q(('cron_expression', '')), ('interval_seconds__isnull', False), ('once_at__isnull', True), ('schedule_type', 'interval')), models.Q(models.Q(('cron_expression', '')), ('interval_seconds__isnull', True), ('once_at__isnull', False), ('schedule_type', 'once')), models.Q(models.Q(('cron_expression', '')), ('interval_seconds__isnull', True), ('once_at__isnull', True), ('schedule_type', 'dependent')), models.Q(models.Q(('cron_expression', '')), ('interval_seconds__isnull', True), ('once_at__isnull', True), ('schedule_type', 'dormant_dependent')), _connector='OR'), name='chainsched_manifest_schedule_shape'),
        ),
        migrations.AddConstraint(
            model_name='manifest',
            constraint=models.CheckConstraint(condition=models.Q(('interval_seconds__isnull', True), ('interval_seconds__gte', 1), _connector='OR'), name='chainsched_manifest_interval_positive'),
        ),
        migrations.AddConstraint(
            model_name='manifest',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('run_condition__gte', 1), ('run_condition__lte', 3), ('schedule_type__in', ['dependent', 'dormant_dependent'])), models.Q(models.Q(('schedule_type__in', ['dependent', 'dormant_dependent']), _negated=True), ('run_condition', 0)), _connector='OR'), name='chainsched_manifest_run_condition'),
        ),
        migrations.AddConstraint(
            model_name='manifest',
            constraint=models.CheckConstraint(condition=models.Q(('schedule_type__in', ['dependent', 'dormant_dependent']), models.Q(('depends_on__isnull', True), ('is_join', False)), _connector='OR'), name='chainsched_manifest_parent_only_dependents'),
        ),
        migrations.AddConstraint(
            model_name='manifest',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('at_least__isnull', True), ('at_least_percent__isnull', True), ('deadline_seconds__isnull', True), ('fan_in', ''), ('is_eager', False), ('is_join', False), ('runs_again_on_late', False)), models.Q(('is_join', True), models.Q(('at_least__isnull', True), ('at_least_percent__isnull', True), _connector='OR'), models.Q(('at_least_percent__isnull', True), ('at_least_percent__lte', 100), _connector='OR')), _connector='OR'), name='chainsched_manifest_join_shape'),
        ),
        migrations.AddConstraint(
            model_name='manifest',
            constraint=models.CheckConstraint(condition=models.Q(('fan_in__in', ['', 'siblings', 'tree'])), name='chainsched_manifest_fan_in'),
        ),
        migrations.AddConstraint(
            model_name='manifest',
            constraint=models.CheckConstraint(condition=models.Q(('depends_on__isnull', True), models.Q(('depends_on', models.F('id')), _negated=True), _connector='OR'), name='chainsched_manifest_not_own_parent'),
        ),
        migrations.AddConstraint(
            model_name='manifest',
            constraint=models.CheckConstraint(condition=models.Q(('priority__isnull', True), models.Q(('priority__gte', 0), ('priority__lte', 31)), _connector='OR'), name='chainsched_manifest_priority_range'),
        ),
        migrations.AddConstraint(
            model_name='manifest',
            constraint=models.CheckConstraint(condition=models.Q(('retry_multiplier__isnull', True), ('retry_multiplier__gte', 1), _connector='OR'), name='chainsched_manifest_retry_multiplier'),
        ),
        migrations.AddConstraint(
            model_name='manifest',
            constraint=models.CheckConstraint(condition=models.Q(('misfire_policy__in', ['', 'run_once', 'skip'])), name='chainsched_manifest_misfire_policy'),
        ),
        migrations.AddIndex(
            model_name='deadletter',
            index=models.Index(condition=models.Q(('status', 'awaiting_intervention')), fields=['fingerprint'], name='chainsched_letter_fingerprint'),
        ),
        migrations.AddIndex(
            model_name='deadletter',
            index=models.Index(condition=models.Q(('status', 'awaiting_intervention'), _negated=True), fields=['resolved_at'], name='chainsched_letter_resolved'),
        ),
        migrations.AddIndex(
            model_name='deadletter',
            index=models.Index(fields=['manifest'], name='chainsched_letter_manifest'),
        ),
        migrations.AddIndex(
            model_name='deadletter',
            index=models.Index(fields=['dead_lettered_at', 'id'], name='chainsched_letter_time'),
        ),
        migrations.AddIndex(
            model_name='deadletter',
            index=models.Index(fields=['status', 'dead_lettered_at', 'id'], name='chainsched_letter_status_time'),
        ),
        migrations.AddIndex(
            model_name='deadletter',
            index=models.Index(fields=['fingerprint', 'dead_lettered_at', 'id'], name='chainsched_letter_kind_time'),
        ),
        migrations.AddIndex(
            model_name='deadletter',
            index=models.Index(fields=['status', 'fingerprint', 'dead_lettered_at', 'id'], name='chainsched_letter_status_kind'),
        ),
        migrations.AddConstraint(
            model_name='deadletter',
            constraint=models.UniqueConstraint(condition=models.Q(('status', 'awaiting_intervention')), fields=('manifest',), name='chainsched_letter_one_awaiting'),
        ),
        migrations.AddConstraint(
            model_name='deadletter',
            constraint=models.CheckConstraint(condition=models.Q(('status__in', ['awaiting_intervention', 'retried', 'acknowledged'])), name='chainsched_letter_status'),
        ),
        migrations.AddConstraint(
            model_name='deadletter',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('status', 'awaiting_intervention'), ('resolved_at__isnull', True)), models.Q(models.Q(('status', 'awaiting_intervention'), _negated=True), ('resolved_at__isnull', False)), _connector='OR'), name='chainsched_letter_resolved_when_decided'),
        ),
        migrations.AddConstraint(
            model_name='near',
            constraint=models.UniqueConstraint(fields=('manifest', 'join_id'), name='chainsched_near_once'),
        ),
        migrations.AddIndex(
            model_name='workqueue',
            index=models.Index(models.OrderBy(models.F('priority'), descending=True), models.F('turn'), models.F('id'), condition=models.Q(('status', 'queued'), ('parked_for', ''), ('put_aside_at__isnull', True)), name='chainsched_queue_order'),
        ),
        migrations.AddIndex(
            model_name='workqueue',
            index=models.Index(condition=models.Q(('status', 'queued'), ('put_aside_at__isnull', False)), fields=['put_aside_at'], name='chainsched_queue_aside'),
        ),
        migrations.AddIndex(
            model_name='workqueue',
            index=models.Index(condition=models.Q(('status', 'queued')), fields=['group', 'priority', 'turn'], name='chainsched_queue_group_turns'),
        ),
        migrations.AddIndex(
            model_name='workqueue',
            index=models.Index(condition=models.Q(('status', 'queued'), models.Q(('parked_for', ''), _negated=True)), fields=['parked_for', 'id'], name='chainsched_queue_parked'),
        ),
        migrations.AddIndex(
            model_name='workqueue',
            index=models.Index(condition=models.Q(('status', 'queued'), ('parked_for', 'time')), fields=['not_before'], name='chainsched_queue_not_before'),
        ),
        migrations.AddIndex(
            model_name='workqueue',
            index=models.Index(condition=models.Q(('status', 'queued'), ('parked_for', 'no_worker')), fields=['workflow', 'queue'], name='chainsched_queue_no_worker'),
        ),
        migrations.AddIndex(
            model_name='workqueue',
            index=models.Index(models.F('group'), models.OrderBy(models.F('priority'), descending=True), models.F('turn'), models.F('id'), condition=models.Q(('status', 'queued'), ('parked_for', 'group_full')), name='chainsched_queue_group_full'),
        ),
        migrations.AddIndex(
            model_name='workqueue',
            index=models.Index(condition=models.Q(('status', 'queued'), ('run__isnull', False)), fields=['run'], name='chainsched_queue_run'),
        ),
        migrations.AddIndex(
            model_name='workqueue',
            index=models.Index(condition=models.Q(('status', 'cancelled')), fields=['created_at'], name='chainsched_queue_cancelled'),
        ),
        migrations.AddConstraint(
            model_name='workqueue',
            constraint=models.UniqueConstraint(condition=models.Q(('status', 'queued')), fields=('manifest',), name='chainsched_queue_one_per_manifest'),
        ),
        migrations.AddConstraint(
            model_name='workqueue',
            constraint=models.CheckConstraint(condition=models.Q(('status__in', ['queued', 'dispatched', 'cancelled'])), name='chainsched_queue_status'),
        ),
        migrations.AddConstraint(
            model_name='workqueue',
            constraint=models.CheckConstraint(condition=models.Q(('source__in', ['schedule', 'dependency', 'trigger', 'retry', 'dead_letter', 'activation', 'task'])), name='chainsched_queue_source'),
        ),
        migrations.AddConstraint(
            model_name='workqueue',
            constraint=models.CheckConstraint(condition=models.Q(('parked_for__in', ['', 'time', 'disabled', 'no_worker', 'group_full'])), name='chainsched_queue_parked_for'),
        ),
        migrations.AddConstraint(
            model_name='workqueue',
            constraint=models.CheckConstraint(condition=models.Q(('priority__gte', 0), ('priority__lte', 31)), name='chainsched_queue_priority_range'),
        ),
        migrations.AddConstraint(
            model_name='workqueue',
            constraint=models.CheckConstraint(condition=models.Q(('attempt__gte', 1)), name='chainsched_queue_attempt_positive'),
        ),
        migrations.AddConstraint(
            model_name='workqueue',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('execution__isnull', False), ('status', 'dispatched')), models.Q(models.Q(('status', 'dispatched'), _negated=True), ('execution__isnull', True)), _connector='OR'), name='chainsched_queue_dispatched_has_execution'),
        ),
        migrations.AddIndex(
            model_name='metadata',
            index=models.Index(models.OrderBy(models.F('priority'), descending=True), models.F('id'), condition=models.Q(('state', 'pending')), name='chainsched_execution_claims'),
        ),
        migrations.AddIndex(
            model_name='metadata',
            index=models.Index(condition=models.Q(('state__in', ['pending', 'in_progress'])), fields=['group'], name='chainsched_execution_active'),
        ),
        migrations.AddIndex(
            model_name='metadata',
            index=models.Index(condition=models.Q(('state', 'in_progress')), fields=['process'], name='chainsched_execution_running'),
        ),
        migrations.AddIndex(
            model_name='metadata',
            index=models.Index(models.F('manifest'), models.OrderBy(models.F('id'), descending=True), condition=models.Q(('manifest__isnull', False)), name='chainsched_execution_history'),
        ),
        migrations.AddIndex(
            model_name='metadata',
            index=models.Index(condition=models.Q(('parent_execution__isnull', False)), fields=['parent_execution'], name='chainsched_execution_parent'),
        ),
        migrations.AddIndex(
            model_name='metadata',
            index=models.Index(condition=models.Q(('run__isnull', False)), fields=['run', 'id'], name='chainsched_execution_run'),
        ),
        migrations.AddIndex(
            model_name='metadata',
            index=models.Index(condition=models.Q(('root_execution__isnull', False)), fields=['root_execution'], name='chainsched_execution_root'),
        ),
        migrations.AddConstraint(
            model_name='metadata',
            constraint=models.UniqueConstraint(condition=models.Q(('state__in', ['pending', 'in_progress'])), fields=('manifest',), name='chainsched_execution_one_active'),
        ),
        migrations.AddConstraint(
            model_name='metadata',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['pending', 'in_progress', 'completed', 'failed', 'cancelled'])), name='chainsched_execution_state'),
        ),
        migrations.AddConstraint(
            model_name='metadata',
            constraint=models.CheckConstraint(condition=models.Q(('source__in', ['schedule', 'dependency', 'trigger', 'retry', 'dead_letter', 'activation', 'task'])), name='chainsched_execution_source'),
        ),
        migrations.AddConstraint(
            model_name='metadata',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('ended_at__isnull', False), ('state__in', ['completed', 'failed', 'cancelled'])), models.Q(('ended_at__isnull', True), ('state__in', ['pending', 'in_progress'])), _connector='OR'), name='chainsched_execution_ended_when_terminal'),
        ),
        migrations.AddConstraint(
            model_name='metadata',
            constraint=models.CheckConstraint(condition=models.Q(('attempt__gte', 1)), name='chainsched_execution_attempt_positive'),
        ),
        InstallGuard(),
    ]
