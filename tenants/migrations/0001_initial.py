"""All tables of people, tenants and audit, generated from the models."""

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.text
import django.utils.timezone
import tenants.models.users
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [
        migrations.CreateModel(
            name='User',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('username', models.CharField(error_messages={'unique': 'A user with this name already exists.'}, max_length=64, unique=True, validators=[django.core.validators.RegexValidator('^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}\\Z')])),
                ('theme', models.CharField(choices=[('system', 'As the system'), ('light', 'Light'), ('dark', 'Dark')], default='system', max_length=6)),
                ('language', models.CharField(choices=[('browser', 'As the browser'), ('en', 'English'), ('zh-hans', '简体中文')], default='browser', max_length=7)),
                ('time_zone', models.CharField(default='browser', max_length=64)),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'constraints': [models.UniqueConstraint(django.db.models.functions.text.Lower('username'), name='user_name_unique_in_any_case'), models.CheckConstraint(condition=models.Q(('username', ''), _negated=True), name='user_name_not_empty'), models.CheckConstraint(condition=models.Q(('theme__in', ['system', 'light', 'dark'])), name='user_theme_known'), models.CheckConstraint(condition=models.Q(('language__in', ['browser', 'en', 'zh-hans'])), name='user_language_known'), models.CheckConstraint(condition=models.Q(('time_zone', ''), _negated=True), name='user_time_zone_not_empty')],
            },
            managers=[
                ('objects', tenants.models.users.PeopleManager()),
            ],
        ),
        migrations.CreateModel(
            name='Announcement',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('text', models.TextField(max_length=1000)),
                ('severity', models.CharField(choices=[('info', 'For information'), ('warning', 'Warning'), ('critical', 'Critical')], default='info', max_length=8)),
                ('starts_at', models.DateTimeField()),
                ('ends_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField()),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('version', models.PositiveIntegerField(default=1)),
            ],
            options={
                'ordering': ('-starts_at', '-id'),
                'constraints': [models.CheckConstraint(condition=models.Q(('text', ''), _negated=True), name='announcement_text_not_empty'), models.CheckConstraint(condition=models.Q(('severity__in', ['info', 'warning', 'critical'])), name='announcement_severity_known'), models.CheckConstraint(condition=models.Q(('ends_at', None), ('ends_at__gt', models.F('starts_at')), _connector='OR'), name='announcement_ends_after_start')],
            },
        ),
        migrations.CreateModel(
            name='AnnouncementDismissal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('announcement', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='dismissals', to='tenants.announcement')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('version', models.PositiveIntegerField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('announcement', 'user', 'version'), name='announcement_dismissed_once')],
            },
        ),
        migrations.CreateModel(
            name='Tenant',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.SlugField(max_length=40, unique=True)),
                ('display_name', models.CharField(max_length=80)),
                ('note', models.TextField(blank=True, default='', max_length=2000)),
                ('position', models.PositiveIntegerField(unique=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('archived_at', models.DateTimeField(blank=True, null=True)),
                ('version', models.PositiveIntegerField(default=1)),
                ('members_version', models.PositiveIntegerField(default=1)),
                ('uid', models.PositiveIntegerField(blank=True, editable=False, null=True, unique=True)),
            ],
            options={
                'ordering': ('position',),
                'constraints': [models.CheckConstraint(condition=models.Q(('name', ''), _negated=True), name='tenant_name_not_empty'), models.CheckConstraint(condition=models.Q(('display_name', ''), _negated=True), name='tenant_display_name_not_empty'), models.CheckConstraint(condition=models.Q(('version__gte', 1)), name='tenant_version_positive'), models.CheckConstraint(condition=models.Q(('members_version__gte', 1)), name='tenant_members_version_positive'), models.CheckConstraint(condition=models.Q(('archived_at', None), ('archived_at__gte', models.F('created_at')), _connector='OR'), name='tenant_archived_after_created')],
            },
        ),
        migrations.CreateModel(
            name='UidFloor',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uid', models.PositiveIntegerField()),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='uidfloor_is_one_row')],
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='tenants.tenant')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('role', models.CharField(choices=[('viewer', 'Viewer'), ('member', 'Member'), ('lead', 'Lead')], default='member', max_length=6)),
                ('max_devices', models.PositiveIntegerField(blank=True, null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('version', models.PositiveIntegerField(default=1)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('tenant', 'user'), name='membership_one_per_tenant_and_user'), models.CheckConstraint(condition=models.Q(('role__in', ['viewer', 'member', 'lead'])), name='membership_role_known'), models.CheckConstraint(condition=models.Q(('max_devices', None), ('max_devices__gt', 0), _connector='OR'), name='membership_max_devices_positive'), models.CheckConstraint(condition=models.Q(('version__gte', 1)), name='membership_version_positive')],
            },
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ('actor', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('actor_name', models.CharField(max_length=150)),
                ('token_prefix', models.CharField(blank=True, default='', max_length=8)),
                ('action', models.CharField(max_length=64)),
                ('object_type', models.CharField(max_length=64)),
                ('object_id', models.CharField(blank=True, default='', max_length=64)),
                ('object_name', models.CharField(blank=True, default='', max_length=200)),
                ('tenant', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.tenant')),
                ('before', models.JSONField(default=dict)),
                ('after', models.JSONField(default=dict)),
                ('request_id', models.CharField(blank=True, default='', max_length=64)),
                ('message', models.CharField(blank=True, default='', max_length=1000)),
            ],
            options={
                'verbose_name_plural': 'audit entries',
                'ordering': ('-id',),
                'indexes': [models.Index(fields=['tenant', '-id'], name='auditentry_by_tenant'), models.Index(fields=['object_type', 'object_id', '-id'], name='auditentry_by_object')],
                'constraints': [models.CheckConstraint(condition=models.Q(('action', ''), _negated=True), name='auditentry_action_not_empty'), models.CheckConstraint(condition=models.Q(('actor_name', ''), _negated=True), name='auditentry_actor_name_not_empty')],
            },
        ),
        migrations.CreateModel(
            name='AuditLink',
            fields=[
                ('position', models.BigIntegerField(primary_key=True, serialize=False)),
                ('entry', models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.auditentry')),
                ('hash', models.CharField(max_length=64)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('position__gt', 0)), name='auditlink_position_positive')],
            },
        ),
        migrations.CreateModel(
            name='AuditAnchor',
            fields=[
                ('position', models.BigIntegerField(primary_key=True, serialize=False)),
                ('hash', models.CharField(max_length=64)),
                ('before', models.DateTimeField()),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('position__gt', 0)), name='auditanchor_position_positive')],
            },
        ),
        migrations.CreateModel(
            name='FormToken',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('word', models.CharField(max_length=32)),
                ('digest', models.CharField(max_length=64)),
                ('made', models.BigIntegerField(null=True)),
                ('at', models.DateTimeField()),
            ],
            options={
                'db_table': 'tenants_usedform',
                'indexes': [models.Index(fields=['at'], name='formtoken_by_time')],
                'constraints': [models.UniqueConstraint(fields=('user', 'word'), name='formtoken_one_per_word')],
            },
        ),
        migrations.CreateModel(
            name='SignInTally',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=64, unique=True)),
                ('failures', models.FloatField(default=0)),
                ('at', models.DateTimeField(null=True)),
            ],
            options={
                'indexes': [models.Index(fields=['at'], name='signintally_by_time')],
                'constraints': [models.CheckConstraint(condition=models.Q(('failures__gte', 0)), name='signintally_failures_not_negative')],
            },
        ),
        migrations.CreateModel(
            name='KnownSource',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('key', models.CharField(max_length=64)),
                ('last_at', models.DateTimeField()),
            ],
            options={
                'indexes': [models.Index(fields=['last_at'], name='knownsource_by_time')],
                'constraints': [models.UniqueConstraint(fields=('user', 'key'), name='knownsource_one_per_key')],
            },
        ),
        migrations.CreateModel(
            name='PasswordLink',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('created_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('user',), name='passwordlink_one_per_user'), models.CheckConstraint(condition=models.Q(('digest', ''), _negated=True), name='passwordlink_digest_not_empty'), models.CheckConstraint(condition=models.Q(('expires_at__gt', models.F('created_at'))), name='passwordlink_expires_after_created')],
            },
        ),
        migrations.CreateModel(
            name='ApiToken',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_tokens', to=settings.AUTH_USER_MODEL)),
                ('name', models.CharField(max_length=80)),
                ('prefix', models.CharField(max_length=8, unique=True)),
                ('digest', models.CharField(max_length=64)),
                ('scopes', models.JSONField(default=list)),
                ('tenant', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='api_tokens', to='tenants.tenant')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('last_used_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ('-created_at', '-id'),
                'constraints': [models.CheckConstraint(condition=models.Q(('name', ''), _negated=True), name='apitoken_name_not_empty'), models.CheckConstraint(condition=models.Q(('prefix', ''), _negated=True), name='apitoken_prefix_not_empty'), models.CheckConstraint(condition=models.Q(('digest', ''), _negated=True), name='apitoken_digest_not_empty'), models.CheckConstraint(condition=models.Q(('expires_at', None), ('expires_at__gt', models.F('created_at')), _connector='OR'), name='apitoken_expires_after_created')],
            },
        ),
        migrations.CreateModel(
            name='UsedSoFar',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('is_gpu', models.BooleanField()),
                ('seconds', models.FloatField()),
                ('until', models.DateTimeField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('tenant', 'user', 'is_gpu'), name='used_so_far_one_row_each'), models.CheckConstraint(condition=models.Q(('seconds__gte', 0)), name='used_so_far_is_not_negative')],
            },
        ),
    ]
