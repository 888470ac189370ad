"""Passwords, and the one-time links with which people choose one."""

from datetime import timedelta

import pytest
from django.contrib.auth import authenticate

from tenants.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from tenants.models import ApiToken, AuditEntry, PasswordLink, User
from tenants.passwords import password_errors
from tenants.roles import Role, Scope
from tenants.selectors import viewer_of
from tenants.services import (
    forget_password_links,
    issue_password_link,
    set_password,
    set_user_active,
    use_password_link,
    user_of_password_link,
)
from tests.factories.tenants import (
    NOW,
    PASSWORD,
    SYSTEM,
    make_tenant,
    make_token,
    make_user,
    make_viewer,
)
from tests.support.databases import at_once, migrated_template, real_database

__all__ = ["migrated_template", "real_database"]

NEW = "another long phrase"


@pytest.mark.django_db
class TestOwnPassword:
    """One's own password, with the present one."""

    def test_needs_the_present_one(self):
        alice = make_user("alice")
        viewer = make_viewer("alice")

        for wrong in (None, "", "guess"):
            with pytest.raises(InvalidError) as refusal:
                set_password(viewer=viewer, user_id=alice.pk, password=NEW, current_password=wrong)
            assert refusal.value.field == "current_password"
        set_password(viewer=viewer, user_id=alice.pk, password=NEW, current_password=PASSWORD)

        assert authenticate(username="alice", password=NEW) == alice
        assert NEW not in str(list(AuditEntry.objects.unscoped().values()))

    @pytest.mark.parametrize("revoke", [False, True])
    def test_revokes_tokens_when_asked_to(self, revoke):
        make_tenant("vision", alice=Role.MEMBER)
        alice = User.objects.get(username="alice")
        make_token(alice)

        set_password(
            viewer=make_viewer("alice"),
            user_id=alice.pk,
            password=NEW,
            current_password=PASSWORD,
            revoke_tokens=revoke,
        )

        assert (ApiToken.objects.get().revoked_at is not None) is revoke
        rows = AuditEntry.objects.unscoped().filter(action="token.revoke")
        assert rows.count() == int(revoke)

    def test_is_set_by_nobody_else(self):
        alice = make_user("alice")
        make_user("root", is_cluster_admin=True)

        with pytest.raises(ForbiddenError) as refusal:
            set_password(
                viewer=make_viewer("root"),
                user_id=alice.pk,
                password=NEW,
                current_password=PASSWORD,
            )

        assert "password link" in refusal.value.remedy
        assert authenticate(username="alice", password=PASSWORD) == alice


@pytest.mark.django_db
class TestPasswordLink:
    """A link that sets a password once."""

    def test_sets_the_password_once_and_no_row_holds_its_secret(self):
        alice, root = make_user("alice"), make_user("root", is_cluster_admin=True)

        link = issue_password_link(viewer=viewer_of(root), username="Alice", now=NOW)
        assert user_of_password_link(link.secret, NOW) == alice
        use_password_link(secret=link.secret, password=NEW, now=NOW)

        assert authenticate(username="alice", password=NEW) == alice
        with pytest.raises(NotFoundError):
            use_password_link(secret=link.secret, password=NEW + "2", now=NOW)
        kept = str(list(AuditEntry.objects.unscoped().values()))
        assert link.secret not in kept + str(list(PasswordLink.objects.values())) + repr(link)
        assert NEW not in kept
        actions = AuditEntry.objects.unscoped().values_list("action", "actor_name")[:2]
        assert list(actions) == [("user.set_password", "alice"), ("user.password_link", "root")]

    def test_stays_valid_after_a_password_that_is_too_weak(self):
        make_user("alice")
        link = issue_password_link(viewer=SYSTEM, username="alice", now=NOW)

        with pytest.raises(InvalidError):
            use_password_link(secret=link.secret, password="alicealice1", now=NOW)
        use_password_link(secret=link.secret, password=NEW, now=NOW)

        assert authenticate(username="alice", password=NEW) is not None

    def test_ends_by_time_by_another_link_by_a_new_password_and_with_the_account(self):
        alice = make_user("alice")

        def issue():
            return issue_password_link(viewer=SYSTEM, username="alice", now=NOW).secret

        late = issue()
        with pytest.raises(NotFoundError):
            user_of_password_link(late, NOW + timedelta(hours=24))
        replaced, valid = issue(), issue()
        with pytest.raises(NotFoundError):
            user_of_password_link(replaced, NOW)
        user_of_password_link(valid, NOW)
        set_password(
            viewer=viewer_of(alice), user_id=alice.pk, password=NEW, current_password=PASSWORD
        )
        with pytest.raises(NotFoundError):
            user_of_password_link(valid, NOW)
        ended = issue()
        make_user("root", is_cluster_admin=True)
        set_user_active(viewer=SYSTEM, user_id=alice.pk, is_active=False)
        with pytest.raises(NotFoundError):
            user_of_password_link(ended, NOW)
        with pytest.raises(ConflictError):
            issue()

    def test_is_created_by_a_signed_in_admin_only(self):
        make_tenant("vision", lena=Role.LEAD, alice=Role.MEMBER)
        root = make_user("root", is_cluster_admin=True)
        token = viewer_of(root, make_token(root, *Scope).token)

        for viewer, name in (
            (token, "alice"), (make_viewer("lena"), "alice"), (viewer_of(root), "root"),
        ):  # fmt: skip
            with pytest.raises(ForbiddenError):
                issue_password_link(viewer=viewer, username=name, now=NOW)

        assert not PasswordLink.objects.exists()

    def test_is_forgotten_when_it_has_expired(self):
        make_user("alice")
        issue_password_link(viewer=SYSTEM, username="alice", now=NOW)

        assert forget_password_links(now=NOW + timedelta(hours=23)) == 0
        assert forget_password_links(now=NOW + timedelta(hours=24)) == 1


@pytest.mark.usefixtures("real_database")
def test_of_two_requests_with_one_link_exactly_one_sets_the_password():
    make_user("alice")
    link = issue_password_link(viewer=SYSTEM, username="alice", now=NOW)

    def use(password):
        return lambda: use_password_link(secret=link.secret, password=password, now=NOW)

    outcomes = at_once(use(NEW), use(NEW + " 2"))

    assert sorted(isinstance(outcome, User) for outcome in outcomes) == [False, True]
    assert AuditEntry.objects.unscoped().filter(action="user.set_password").count() == 1


@pytest.mark.parametrize(
    ("password", "is_strong"),
    [
        ("bobbobbob1", False),
        ("bobBOBbob1!", False),
        ("abcabcabcabc", False),
        ("aaaaaaaaaaaaaaaa", False),
        ("x1x1x1x1x1x1", False),
        ("alicealice2026", False),
        ("correct horse battery", True),
        ("another long phrase", True),
        ("Tr0ub4dor&3x", True),
        ("q" * 5000, False),
    ],
)
def test_a_password_that_repeats_itself_or_the_name_is_refused(password, is_strong):
    user = User(username="alice", email="alice@example.org")

    assert (password_errors(password, user) == []) is is_strong
